"""Linear layers of the decoder: exact ones and 8-bit ones.

A layer is a callable `[tokens, in] -> [tokens, out]`; `make_linear` chooses its form once, at load time, so that a step
of the engine takes no decision.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F

from octavo_server.weights.four_bit import BLOCK, FourBitWeight

Linear = Callable[[torch.Tensor], torch.Tensor]
"""`[tokens, in]` → `[tokens, out]`."""


def make_linear(
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    *,
    quantization: str,
    dtype: torch.dtype,
    four_bit: FourBitWeight | None = None,
) -> Linear:
    """A layer for `weight` `[out, in]` on its device; quantization `None` keeps `dtype`, `Int8` takes a byte each.

    four_bit: the same weight as its file holds it, where that is a 4-bit format; `Int8` uses it for few rows.
    """
    if quantization == "Int8":
        wide = Int8Linear(weight, bias, dtype)
        if four_bit is not None and FewRowsLinear.supports(four_bit):
            return FewRowsLinear(four_bit, bias, dtype, wide)
        return wide
    return ExactLinear(weight.to(dtype), None if bias is None else bias.to(dtype))


class ExactLinear:
    """x · Wᵀ + b in the weight's dtype."""

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None) -> None:
        self._weight = weight.contiguous()
        self._bias = bias

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return F.linear(x, self._weight, self._bias)

    def floats(self, x: torch.Tensor) -> torch.Tensor:
        """The product in float32; a GPU writes it so without rounding it to the weight's dtype first. No bias."""
        if x.device.type == "cpu" or x.dtype == torch.float32:
            return F.linear(x, self._weight).float()
        return torch.mm(x, self._weight.t(), out_dtype=torch.float32)


def floats(linear: Linear) -> Linear:
    """What a layer gives in float32, in the layer's own way where it has one."""
    return linear.floats if isinstance(linear, ExactLinear) else lambda x: linear(x).float()


class Int8Linear:
    """8-bit integer products on a CPU: weights rounded once per output row, inputs to two bytes once per token.

    A token's few large inputs leave the small ones hardly a step of a single byte, and the text suffers: 0.03 nats per
    token of divergence were measured on a 135M model, 0.004 with the remainder of the rounding as a second byte, which
    is what exact inputs give. Both bytes are rows of one product: w·x ≈ step · (w·high + w·low / 254).
    Sums are exact in 32-bit integers and a token's step depends on that token alone, so a row's result is the same bit
    for bit in every batch.
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
        values, rows = x if x.dtype == torch.float32 else x.float(), x.shape[0]
        step = torch.linalg.vector_norm(values, float("inf"), dim=1, keepdim=True).clamp_min_(1e-12).mul_(1 / 127)
        both = torch.empty(2 * rows, x.shape[1])
        low, high = both[:rows], both[rows:]
        torch.div(values, step, out=low)
        torch.round(low, out=high)
        # Half a step is left at most: 127 / 254.
        low.sub_(high).mul_(254.0).round_()
        sums: torch.Tensor = torch.ops.onednn.qlinear_pointwise(
            both.to(torch.int8),
            *(1.0, 0, self._packed, self._scale, self._zero, None, 1.0, 0, self._out_dtype, "none", [], ""),
        )
        out = torch.add(sums[rows:], sums[:rows], alpha=1 / 254).mul_(step)
        if self._bias is not None:
            out += self._bias
        return out if self._dtype == torch.float32 else out.to(self._dtype)


class FewRowsLinear:
    """4-bit weights as their file holds them for up to 4 rows, where reading the weights is the work; else `wide`.

    The operator dequantizes in registers and takes bfloat16 inputs, scales and middles. Measured on 2 cores with AMX,
    all layers of a 135M model: 1 row 4.6 ms instead of 11, 4 rows 7.4 instead of 15, 12 rows the same.
    """

    ROWS = 4

    @staticmethod
    def supports(weight: FourBitWeight) -> bool:
        """Whether torch has a vectorised kernel for this shape on this machine."""
        rows, columns = weight.values.shape
        return torch.backends.cpu.get_cpu_capability().startswith("AVX") and rows % 16 == 0 and columns % BLOCK == 0

    def __init__(self, weight: FourBitWeight, bias: torch.Tensor | None, dtype: torch.dtype, wide: Linear) -> None:
        self._packed = torch.ops.aten._convert_weight_to_int4pack_for_cpu(weight.values.int(), 1)
        factors = torch.stack((weight.scale.t(), weight.middle.t()), dim=2)
        self._factors = factors.to(torch.bfloat16).contiguous()
        self._bias = None if bias is None else bias.to(dtype)
        self._dtype = dtype
        self._wide = wide

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        if x.shape[0] > self.ROWS:
            return self._wide(x)
        out: torch.Tensor = torch.ops.aten._weight_int4pack_mm_for_cpu(
            x.to(torch.bfloat16), self._packed, BLOCK, self._factors
        ).to(self._dtype)
        return out if self._bias is None else out + self._bias
