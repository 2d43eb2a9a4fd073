"""Linear layers of the decoder: exact ones and 8-bit ones.

A layer is a callable `[tokens, in] -> [tokens, out]`; `make_linear` chooses its form once, at load time, so that a step
of the engine takes no decision.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F

Linear = Callable[[torch.Tensor], torch.Tensor]
"""`[tokens, in]` → `[tokens, out]`."""


def make_linear(weight: torch.Tensor, bias: torch.Tensor | None, *, quantization: str, dtype: torch.dtype) -> Linear:
    """A layer for `weight` `[out, in]` on its device; quantization `None` keeps `dtype`, `Int8` takes a byte each."""
    if quantization == "Int8":
        return Int8Linear(weight, bias, dtype)
    return ExactLinear(weight.to(dtype), None if bias is None else bias.to(dtype))


class ExactLinear:
    """x · Wᵀ + b in the weight's dtype."""

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None) -> None:
        self._weight = weight.contiguous()
        self._bias = bias

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return F.linear(x, self._weight, self._bias)


class Int8Linear:
    """8-bit integer products on a CPU: weights rounded once per output row, inputs once per token (symmetric).

    Sums are exact in 32-bit integers and the scale of a token depends on that token alone, so a row's result is the
    same bit for bit in every batch.
    """

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None, dtype: torch.dtype) -> None:
        values = weight.float()
        scale = (values.abs().amax(dim=1) / 127).clamp_min(1e-12)
        rounded = (values / scale[:, None]).round().clamp(-127, 127).to(torch.int8)
        self._packed = torch.ops.onednn.qlinear_prepack(rounded, None)
        self._scale = scale
        self._zero = torch.zeros(weight.shape[0], dtype=torch.int64)
        self._bias = None if bias is None else bias.float()
        self._dtype = dtype
        self._out_dtype = torch.float32

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        values = x if x.dtype == torch.float32 else x.float()
        largest = torch.linalg.vector_norm(values, float("inf"), dim=1, keepdim=True).clamp_min_(1e-12)
        rounded = (values * (127.0 / largest)).round_().to(torch.int8)
        out: torch.Tensor = torch.ops.onednn.qlinear_pointwise(
            rounded, 1.0, 0, self._packed, self._scale, self._zero, None, 1.0, 0, self._out_dtype, "none", [], ""
        )
        out *= largest.mul_(1 / 127)
        if self._bias is not None:
            out += self._bias
        return out if self._dtype == torch.float32 else out.to(self._dtype)
