"""Weights that are on their way before they are needed.

Decoding reads weights, and between two products lie small kernels that leave memory idle: norms, the rotary embedding,
attention over few tokens. On GPUs that can (Hopper and later) some extra programs of these kernels ask for a part of
the next product's weight to be brought into the L2 cache. No result depends on it, and nothing waits for it.

It has not been run on a GPU yet, so it is off unless OCTAVO_PREFETCH=1 is set before the first launch.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from functools import lru_cache

import torch

from octavo_kernels.compat import is_interpreting

MAX_ROWS = 256
"""Rows of a step at most: products of more rows are bound by arithmetic."""
CHUNK_BYTES = 1024
"""Asked for at once."""
PROGRAMS = 64
"""Extra programs."""
NORM_BYTES, GATED_BYTES, APPEND_BYTES = 12 << 20, 12 << 20, 32 << 20
"""Of the weight behind a norm, a gated activation, and behind append and attention, at most."""


@dataclass(frozen=True)
class Prefetch:
    """Chunks of a weight, `stride` bytes from one to the next."""

    stride: int
    chunks: int


def prefetch_of(weight: torch.Tensor | None, rows: int, most_bytes: int) -> Prefetch | None:
    """What a kernel for so many rows asks for of the weight that the next product reads; None = nothing."""
    if weight is None or rows > MAX_ROWS or not weight.is_cuda or not overlaps(weight.device.index):
        return None
    return spread(weight.nbytes, most_bytes) if weight.is_contiguous() else None


@lru_cache(maxsize=256)
def spread(size: int, most_bytes: int) -> Prefetch | None:
    """Chunks all over a weight of `size` bytes, so that each part of the product finds the same share of its own.

    Strides are odd multiples of a cache line: else all rows would have theirs at the same depth, and a product that
    walks along the depth would find all of them at once and then none.
    """
    if most_bytes < CHUNK_BYTES or size < 16 * CHUNK_BYTES:
        return None
    stride = CHUNK_BYTES
    if size > most_bytes:
        lines = -(-size * CHUNK_BYTES // (most_bytes * 128))
        stride = 128 * (lines | 1)
    # A whole multiple of 16, and none that reaches beyond the end.
    chunks = ((size - CHUNK_BYTES) // stride + 1) // 16 * 16
    return Prefetch(stride, chunks)


@lru_cache(maxsize=16)
def overlaps(index: int) -> bool:
    """Whether launches on this CUDA device start while the one before ends, and prefetch: if asked for."""
    if os.environ.get("OCTAVO_PREFETCH") != "1" or is_interpreting():
        return False
    return torch.cuda.get_device_capability(index)[0] >= 9
