# mypy: disable-error-code="no-untyped-def,no-untyped-call,untyped-decorator,misc"
"""RMSNorm with residual, and gated activations: one pass over memory each, float32 inside.

Both may bring the weight of the product behind them near: programs past the tokens' do nothing else.
"""

import torch
import triton
import triton.language as tl

from octavo_kernels.prefetch import GATED_BYTES, NORM_BYTES, PROGRAMS, overlaps, prefetch_of
from octavo_kernels.triton_prefetch import bring_near


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
    next_ptr,
    next_stride,
    next_chunks,
    HAS_RESIDUAL: tl.constexpr,
    BLOCK: tl.constexpr,
    PREFETCH: tl.constexpr,
    LANES: tl.constexpr,
    OVERLAP: tl.constexpr,
):
    token = tl.program_id(0).to(tl.int64)
    if PREFETCH > 0:
        tokens = tl.num_programs(0) - PREFETCH
        if token >= tokens:
            bring_near(next_ptr, next_stride, next_chunks, tl.program_id(0) - tokens, PREFETCH, LANES)
            return
    lane = tl.arange(0, BLOCK)
    inside = lane < hidden
    weight = tl.load(weight_ptr + lane, mask=inside, other=0.0).to(tl.float32)
    if OVERLAP:
        # The launch before this one made x; the one after may take this one's place as it ends.
        tl.extra.cuda.gdc_wait()
        tl.extra.cuda.gdc_launch_dependents()
    x = tl.load(x_ptr + token * stride_x + lane, mask=inside, other=0.0)
    if HAS_RESIDUAL:
        residual_row = residual_ptr + token * stride_residual + lane
        total = x.to(tl.float32) + tl.load(residual_row, mask=inside, other=0.0).to(tl.float32)
        # The rounded sum is what later layers read, so it is also what is normalised.
        x = total.to(x.dtype)
        tl.store(residual_row, x, mask=inside)
    value = x.to(tl.float32)
    inverse = 1.0 / tl.sqrt(tl.sum(value * value, 0) / hidden + eps)
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
    gate_up_ptr,
    out_ptr,
    stride_gate_up,
    stride_out,
    columns,
    next_ptr,
    next_stride,
    next_chunks,
    ACTIVATION: tl.constexpr,
    BLOCK: tl.constexpr,
    PREFETCH: tl.constexpr,
    LANES: tl.constexpr,
    OVERLAP: tl.constexpr,
):
    token = tl.program_id(0).to(tl.int64)
    if PREFETCH > 0:
        tokens = tl.num_programs(0) - PREFETCH
        if token >= tokens:
            program = (tl.program_id(0) - tokens) * tl.num_programs(1) + tl.program_id(1)
            bring_near(next_ptr, next_stride, next_chunks, program, PREFETCH * tl.num_programs(1), LANES)
            return
    if OVERLAP:
        tl.extra.cuda.gdc_wait()
        tl.extra.cuda.gdc_launch_dependents()
    lane = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = lane < columns
    row = gate_up_ptr + token * stride_gate_up + lane
    gate = tl.load(row, mask=inside, other=0.0).to(tl.float32)
    up = tl.load(row + columns, mask=inside, other=0.0).to(tl.float32)
    result = _activated(gate, ACTIVATION) * up
    tl.store(out_ptr + token * stride_out + lane, result.to(out_ptr.dtype.element_ty), mask=inside)


def launch_rms_norm(
    x: torch.Tensor,
    weight: torch.Tensor,
    eps: float,
    residual: torch.Tensor | None,
    out: torch.Tensor,
    following: torch.Tensor | None = None,
) -> None:
    """rms_norm on `[tokens, hidden]` tensors with contiguous rows, already checked."""
    tokens, hidden = x.shape
    if tokens == 0:
        return
    block = triton.next_power_of_2(hidden)
    other = x if residual is None else residual
    warps = min(16, max(1, block // 512))
    near = prefetch_of(following, tokens, NORM_BYTES)
    programs = 0 if near is None else PROGRAMS
    overlap = x.is_cuda and overlaps(x.device.index)
    _rms_norm[(tokens + programs,)](
        x,
        weight,
        other,
        out,
        x.stride(0),
        other.stride(0),
        out.stride(0),
        hidden,
        eps,
        weight if near is None else following,
        0 if near is None else near.stride,
        0 if near is None else near.chunks,
        HAS_RESIDUAL=residual is not None,
        BLOCK=block,
        PREFETCH=programs,
        LANES=32 * warps,
        OVERLAP=overlap,
        num_warps=warps,
        **({"launch_pdl": True} if overlap else {}),
    )


def launch_gated(
    gate_up: torch.Tensor, out: torch.Tensor, activation: str, following: torch.Tensor | None = None
) -> None:
    """A gated activation on `[tokens, 2·n]` and `[tokens, n]` with contiguous rows, already checked."""
    tokens, columns = out.shape
    if tokens == 0 or columns == 0:
        return
    block = min(1024, triton.next_power_of_2(columns))
    blocks = triton.cdiv(columns, block)
    near = prefetch_of(following, tokens, GATED_BYTES)
    rows = 0 if near is None else triton.cdiv(PROGRAMS, blocks)
    overlap = out.is_cuda and overlaps(out.device.index)
    _gated_mul[(tokens + rows, blocks)](
        gate_up,
        out,
        gate_up.stride(0),
        out.stride(0),
        columns,
        out if near is None else following,
        0 if near is None else near.stride,
        0 if near is None else near.chunks,
        ACTIVATION=activation,
        BLOCK=block,
        PREFETCH=rows,
        LANES=128,
        OVERLAP=overlap,
        num_warps=4,
        **({"launch_pdl": True} if overlap else {}),
    )
