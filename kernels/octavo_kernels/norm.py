"""RMSNorm, with the residual addition fused in."""

from __future__ import annotations

from functools import lru_cache

import torch
import torch.nn.functional as F

from octavo_kernels.compat import uses_triton


def rms_norm(
    x: torch.Tensor,
    weight: torch.Tensor,
    eps: float,
    residual: torch.Tensor | None = None,
    out: torch.Tensor | None = None,
) -> torch.Tensor:
    """x / sqrt(mean(x²) + eps) · weight over the last dimension (Zhang and Sennrich 2019), in float32 inside.

    x: `[tokens, hidden]`, float16, bfloat16, float32 or float64.
    weight: `[hidden]`.
    residual: `[tokens, hidden]` or None. Given, it becomes residual + x **in place**, and that sum is normalised.
    out: `[tokens, hidden]` receives the result; may be x. None allocates.
    Returns out.
    """
    if weight.shape != x.shape[-1:]:
        raise ValueError(f"weight has shape {list(weight.shape)}; for x {list(x.shape)} it must be [{x.shape[-1]}]")
    if residual is not None and (residual.shape != x.shape or residual.dtype != x.dtype):
        raise ValueError(
            f"residual is {residual.dtype} {list(residual.shape)}; it must be {x.dtype} {list(x.shape)} like x"
        )
    if out is not None and out.shape != x.shape:
        raise ValueError(f"out has shape {list(out.shape)}; it must be {list(x.shape)} like x")
    rows = [tensor for tensor in (x, residual, out) if tensor is not None]
    if uses_triton(x) and x.dim() == 2 and all(tensor.stride(1) == 1 for tensor in rows):
        from octavo_kernels.triton_fused import launch_rms_norm

        out = torch.empty_like(x) if out is None else out
        launch_rms_norm(x, weight, eps, residual, out)
        return out
    if residual is not None:
        x = residual.add_(x)
    normed = _few_operations(x, weight, eps) if x.dtype == torch.float32 else F.rms_norm(x, weight.shape, weight, eps)
    return normed if out is None else out.copy_(normed)


def _few_operations(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """float32 only. On a CPU half the time of torch's rms_norm for one row, a fifth for 512: fewer passes over x."""
    length = torch.linalg.vector_norm(x, dim=-1, keepdim=True)
    factor = torch.addcmul(_scalar(eps, x.device), length, length, value=1 / x.shape[-1]).rsqrt_()
    return torch.mul(x, factor).mul_(weight)


@lru_cache(maxsize=64)
def _scalar(value: float, device: torch.device) -> torch.Tensor:
    # Made outside of inference mode, so that the kept tensor serves callers in either mode.
    with torch.inference_mode(False):
        return torch.tensor(value, device=device)
