"""Gated activations between the two products of a feed-forward layer (Shazeer 2020, GLU variants)."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from octavo_kernels.compat import uses_triton


def silu_mul(gate_up: torch.Tensor, out: torch.Tensor | None = None) -> torch.Tensor:
    """silu(gate) · up, as in models of the Llama shape.

    gate_up: `[tokens, 2·n]`, gate first; float16, bfloat16, float32 or float64.
    out: `[tokens, n]` receives the result; None allocates.
    Returns out. Raises ValueError where a shape does not fit.
    """
    return _gated(gate_up, out, "silu")


def gelu_mul(gate_up: torch.Tensor, out: torch.Tensor | None = None, *, approximate: bool = True) -> torch.Tensor:
    """gelu(gate) · up, as in models of the Gemma shape.

    gate_up, out: as for silu_mul.
    approximate: the form with tanh (`gelu_pytorch_tanh`), else the exact one with erf (Hendrycks and Gimpel 2016).
    Returns out. Raises ValueError where a shape does not fit.
    """
    return _gated(gate_up, out, "gelu_tanh" if approximate else "gelu")


def _gated(gate_up: torch.Tensor, out: torch.Tensor | None, activation: str) -> torch.Tensor:
    if gate_up.shape[-1] % 2:
        raise ValueError(f"gate_up has {gate_up.shape[-1]} columns; it must have an even number, gate first, then up")
    expected = (*gate_up.shape[:-1], gate_up.shape[-1] // 2)
    if out is not None and out.shape != expected:
        raise ValueError(f"out has shape {list(out.shape)}; for this gate_up it must be {list(expected)}")
    contiguous_rows = gate_up.stride(-1) == 1 and (out is None or out.stride(-1) == 1)
    if uses_triton(gate_up) and gate_up.dim() == 2 and contiguous_rows:
        from octavo_kernels.triton_fused import launch_gated

        out = gate_up.new_empty(gate_up.shape[0], gate_up.shape[1] // 2) if out is None else out
        launch_gated(gate_up, out, activation)
        return out
    gate, up = gate_up.chunk(2, dim=-1)
    if activation == "silu":
        active = F.silu(gate)
    else:
        active = F.gelu(gate, approximate="tanh" if activation == "gelu_tanh" else "none")
    return torch.mul(active, up, out=out) if out is not None else active.mul_(up)
