"""Weights as 4-bit files hold them, so that they can be multiplied without a detour through floats.

Block formats Q4_0 and Q4_1 as the `gguf` package decodes them (gguf.quants): 32 inputs share a float16 scale, and with
Q4_1 a float16 minimum; byte i of a block holds input i in its low and input i + 16 in its high four bits.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt
    import torch

BLOCK = 32
Q4_0, Q4_1 = 2, 3
"""ggml's numbers of the two formats."""


@dataclass(frozen=True)
class FourBitWeight:
    """A matrix: weight = (value − 8) · scale + middle.

    values: uint8 `[out, in]`, 0…15; scale, middle: float32 `[out, in / 32]`.
    """

    values: torch.Tensor
    scale: torch.Tensor
    middle: torch.Tensor


def unpack(data: npt.NDArray[np.uint8], shape: tuple[int, ...], kind: int) -> FourBitWeight:
    """The matrix in a file's bytes `[out, bytes per row]`; kind is Q4_0 or Q4_1."""
    import numpy as np
    import torch

    head = 2 if kind == Q4_0 else 4
    blocks = data.reshape(shape[0], shape[1] // BLOCK, head + BLOCK // 2)
    factors = np.ascontiguousarray(blocks[:, :, :head]).view(np.float16).astype(np.float32)
    packed = blocks[:, :, head:]
    values = np.concatenate((packed & 15, packed >> 4), axis=2).reshape(shape)
    scale = factors[:, :, 0]
    middle = np.zeros_like(scale) if kind == Q4_0 else factors[:, :, 1] + 8 * scale
    return FourBitWeight(torch.from_numpy(values), torch.from_numpy(scale.copy()), torch.from_numpy(middle))


def join(parts: list[FourBitWeight]) -> FourBitWeight:
    """Matrices of the same inputs, one under the other."""
    import torch

    return FourBitWeight(
        torch.cat([part.values for part in parts]),
        torch.cat([part.scale for part in parts]),
        torch.cat([part.middle for part in parts]),
    )
