# mypy: disable-error-code="no-untyped-def,no-untyped-call,untyped-decorator,misc"
"""RMSNorm with residual, and gated activations: one pass over memory each, float32 inside."""

import torch
import triton
import triton.language as tl


@triton.jit
def _rms_norm(
    x_ptr,
    weight_ptr,
    residual_ptr,
    out_ptr,
    stride_x,
    stride_residual,
    stride_out,
    hidden,
    eps,
    HAS_RESIDUAL: tl.constexpr,
    BLOCK: tl.constexpr,
):
    token = tl.program_id(0).to(tl.int64)
    lane = tl.arange(0, BLOCK)
    inside = lane < hidden
    x = tl.load(x_ptr + token * stride_x + lane, mask=inside, other=0.0)
    if HAS_RESIDUAL:
        residual_row = residual_ptr + token * stride_residual + lane
        total = x.to(tl.float32) + tl.load(residual_row, mask=inside, other=0.0).to(tl.float32)
        # The rounded sum is what later layers read, so it is also what is normalised.
        x = total.to(x.dtype)
        tl.store(residual_row, x, mask=inside)
    value = x.to(tl.float32)
    inverse = 1.0 / tl.sqrt(tl.sum(value * value, 0) / hidden + eps)
    weight = tl.load(weight_ptr + lane, mask=inside, other=0.0).to(tl.float32)
    tl.store(out_ptr + token * stride_out + lane, (value * inverse * weight).to(out_ptr.dtype.element_ty), mask=inside)


@triton.jit
def _activated(gate, ACTIVATION: tl.constexpr):
    # exp of a large −x is inf and x / inf is −0: no overflow reaches a result.
    if ACTIVATION == "silu":
        active = gate / (1.0 + tl.exp(-gate))
    elif ACTIVATION == "gelu_tanh":
        # (1 + tanh(y)) / 2 is the logistic function of 2y; 2 · sqrt(2 / π) = 1.5957691216057308.
        active = gate / (1.0 + tl.exp(-1.5957691216057308 * (gate + 0.044715 * gate * gate * gate)))
    else:
        active = 0.5 * gate * (1.0 + tl.erf(gate * 0.7071067811865476))
    return active


@triton.jit
def _gated_mul(
    gate_up_ptr, out_ptr, stride_gate_up, stride_out, columns, ACTIVATION: tl.constexpr, BLOCK: tl.constexpr
):
    token = tl.program_id(0).to(tl.int64)
    lane = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = lane < columns
    row = gate_up_ptr + token * stride_gate_up + lane
    gate = tl.load(row, mask=inside, other=0.0).to(tl.float32)
    up = tl.load(row + columns, mask=inside, other=0.0).to(tl.float32)
    result = _activated(gate, ACTIVATION) * up
    tl.store(out_ptr + token * stride_out + lane, result.to(out_ptr.dtype.element_ty), mask=inside)


def launch_rms_norm(
    x: torch.Tensor, weight: torch.Tensor, eps: float, residual: torch.Tensor | None, out: torch.Tensor
) -> None:
    """rms_norm on `[tokens, hidden]` tensors with contiguous rows, already checked."""
    tokens, hidden = x.shape
    if tokens == 0:
        return
    block = triton.next_power_of_2(hidden)
    other = x if residual is None else residual
    _rms_norm[(tokens,)](
        x,
        weight,
        other,
        out,
        x.stride(0),
        other.stride(0),
        out.stride(0),
        hidden,
        eps,
        HAS_RESIDUAL=residual is not None,
        BLOCK=block,
        num_warps=min(16, max(1, block // 512)),
    )


def launch_gated(gate_up: torch.Tensor, out: torch.Tensor, activation: str) -> None:
    """A gated activation on `[tokens, 2·n]` and `[tokens, n]` with contiguous rows, already checked."""
    tokens, columns = out.shape
    if tokens == 0 or columns == 0:
        return
    block = min(1024, triton.next_power_of_2(columns))
    _gated_mul[(tokens, triton.cdiv(columns, block))](
        gate_up,
        out,
        gate_up.stride(0),
        out.stride(0),
        columns,
        ACTIVATION=activation,
        BLOCK=block,
        num_warps=4,
    )
