"""The gated activation between the two products of a Llama-shaped feed-forward layer."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from octavo_kernels.compat import uses_triton


def silu_mul(gate_up: torch.Tensor, out: torch.Tensor | None = None) -> torch.Tensor:
    """silu(gate) · up.

    gate_up: `[tokens, 2·n]`, gate first.
    out: `[tokens, n]` receives the result; None allocates.
    Returns out.
    """
    if gate_up.shape[-1] % 2:
        raise ValueError(f"gate_up has {gate_up.shape[-1]} columns; it must have an even number, gate first, then up")
    expected = (*gate_up.shape[:-1], gate_up.shape[-1] // 2)
    if out is not None and out.shape != expected:
        raise ValueError(f"out has shape {list(out.shape)}; for this gate_up it must be {list(expected)}")
    contiguous_rows = gate_up.stride(-1) == 1 and (out is None or out.stride(-1) == 1)
    if uses_triton(gate_up) and gate_up.dim() == 2 and contiguous_rows:
        from octavo_kernels.triton_fused import launch_silu_mul

        out = gate_up.new_empty(gate_up.shape[0], gate_up.shape[1] // 2) if out is None else out
        launch_silu_mul(gate_up, out)
        return out
    gate, up = gate_up.chunk(2, dim=-1)
    return torch.mul(F.silu(gate), up, out=out) if out is not None else F.silu(gate).mul_(up)
