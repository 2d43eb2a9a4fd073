"""What a caller fixes once about its attention: sizes and dtypes (the shape) and the score function (the variant)."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch

PAGE_SIZES = (8, 16, 32, 64, 128, 256)
OPERAND_DTYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
FP8 = torch.float8_e4m3fn
POOL_DTYPES = (*OPERAND_DTYPES, FP8)
MIN_HEAD_SIZE, MAX_HEAD_SIZE = 16, 256


@dataclass(frozen=True)
class AttentionShape:
    """Sizes of one attention layer over a paged pool.

    query_heads: heads of `q` and `out` on this device; a multiple of kv_heads.
    kv_heads: heads of the pool on this device.
    head_size: elements of one head, 16 to 256, a multiple of 8.
    page_size: tokens of one page, one of PAGE_SIZES.
    dtype: dtype of `q` and `out`.
    kv_dtype: dtype of the pool; None means the same as dtype. torch.float8_e4m3fn holds stored numbers: times the
        scales that run is given, they are the keys and values.
    Raises ValueError with the field, the value and the limit.
    """

    query_heads: int
    kv_heads: int
    head_size: int
    page_size: int
    dtype: torch.dtype
    kv_dtype: torch.dtype | None = None

    def __post_init__(self) -> None:
        if self.kv_heads < 1:
            raise ValueError(f"kv_heads is {self.kv_heads}; it must be at least 1")
        if self.query_heads < 1 or self.query_heads % self.kv_heads:
            raise ValueError(f"query_heads is {self.query_heads}; it must be a multiple of kv_heads ({self.kv_heads})")
        if not MIN_HEAD_SIZE <= self.head_size <= MAX_HEAD_SIZE or self.head_size % 8:
            raise ValueError(
                f"head_size is {self.head_size}; it must be a multiple of 8 from {MIN_HEAD_SIZE} to {MAX_HEAD_SIZE}"
            )
        if self.page_size not in PAGE_SIZES:
            raise ValueError(f"page_size is {self.page_size}; it must be one of {', '.join(map(str, PAGE_SIZES))}")
        for name, dtype, known in (
            ("dtype", self.dtype, OPERAND_DTYPES),
            ("kv_dtype", self.pool_dtype, POOL_DTYPES),
        ):
            if dtype not in known:
                raise ValueError(f"{name} is {dtype}; it must be one of {', '.join(map(str, known))}")

    @property
    def pool_dtype(self) -> torch.dtype:
        """The pool's dtype, with the default resolved."""
        return self.dtype if self.kv_dtype is None else self.kv_dtype

    @property
    def group_size(self) -> int:
        """Query heads that read the same KV head."""
        return self.query_heads // self.kv_heads

    def pool_shape(self, pages: int) -> tuple[int, int, int, int, int]:
        """Shape of one layer's pool: `[pages, 2, kv_heads, page_size, head_size]`."""
        return (pages, 2, self.kv_heads, self.page_size, self.head_size)


@dataclass(frozen=True, eq=False)
class LogitTransform:
    """A function of one's own on the scores, compiled into the Triton kernel and written once more for the reference.

    kernel: a `triton.jit` function (scores, query_position, key_position, query_head, values) → scores. scores are
        float32 `[rows, keys]`, scaled and capped; positions and heads are int32, `[rows, 1]`, `[1, keys]` and
        `[rows, 1]`; values is a tuple, tensors in it are pointers. Its constants are `tl.constexpr`.
    reference: the same on torch tensors: scores `[kv_heads, group, queries, keys]`, query_position `[queries, 1]`,
        key_position `[1, keys]`, query_head `[kv_heads, group, 1, 1]`, values.
    values: float32 tensors on the device of q, and numbers, that both are given.
    """

    kernel: Any
    reference: Callable[[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, tuple[Any, ...]], torch.Tensor]
    values: tuple[Any, ...] = ()


@dataclass(frozen=True)
class AttentionVariant:
    """The score function: softmax over `transform(cap(scale · q·k))` of the positions that a query sees.

    scale: factor of q·k; None means 1/√head_size.
    soft_cap: c > 0 replaces each scaled score s by c · tanh(s / c); None for none.
    window: a query at position p sees positions p − window + 1 … p only; None for all up to p.
    transform: a function of one's own, or alibi(…) of octavo_kernels.variants; None for none.
    sinks: float32 `[query_heads]`, a score of each head that takes part in the softmax and has no value; None for
        none. With sinks, a row that sees nothing gives 0, and the sink as its logarithm.
    custom_mask: whether each plan brings a PackedMask, which says alone which positions a query sees; it takes the
        place of the causal rule and of a window.
    """

    scale: float | None = None
    soft_cap: float | None = None
    window: int | None = None
    transform: LogitTransform | None = None
    sinks: torch.Tensor | None = field(default=None, compare=False)
    custom_mask: bool = False

    def __post_init__(self) -> None:
        if self.scale is not None and not (math.isfinite(self.scale) and self.scale > 0):
            raise ValueError(f"scale is {self.scale}; it must be finite and above 0, or None for 1/sqrt(head_size)")
        if self.soft_cap is not None and not (math.isfinite(self.soft_cap) and self.soft_cap > 0):
            raise ValueError(f"soft_cap is {self.soft_cap}; it must be finite and above 0, or None for no cap")
        if self.window is not None and self.window < 1:
            raise ValueError(f"window is {self.window}; it must be at least 1 token, or None for no window")
        if self.window is not None and self.custom_mask:
            raise ValueError(f"window is {self.window}; with custom_mask it must be None: clear those bits instead")
        if self.sinks is not None and (self.sinks.dim() != 1 or self.sinks.dtype != torch.float32):
            raise ValueError(
                f"sinks is {self.sinks.dtype} {list(self.sinks.shape)}; it must be float32 [query_heads], or None"
            )

    @property
    def plain(self) -> bool:
        """Whether every backend serves it: no transform, no sinks, no mask of one's own."""
        return self.transform is None and self.sinks is None and not self.custom_mask

    def scale_for(self, head_size: int) -> float:
        """The factor of q·k for this head size."""
        return head_size**-0.5 if self.scale is None else self.scale
