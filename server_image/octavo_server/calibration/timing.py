"""Times one layer's attention over a paged pool that looks as one in use."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from octavo_kernels import AttentionShape, AttentionVariant, PagedAttention
from octavo_kernels.launch_table import LaunchTable
from octavo_kernels.tune_measure import graph_seconds

REPEATS = 5


@dataclass(frozen=True)
class Shape:
    """What the kernels see of a model."""

    layers: int
    query_heads: int
    kv_heads: int
    head_size: int


@dataclass(frozen=True)
class Point:
    """One step: `sequences` of `length` tokens each, of which `new` are computed."""

    sequences: int
    length: int
    new: int = 1

    @property
    def is_decode(self) -> bool:
        return self.new == 1

    def __str__(self) -> str:
        return f"decode {self.sequences}×{self.length}" if self.is_decode else "prefill"


@dataclass(frozen=True)
class Bench:
    """What is timed, and where; inputs are the same in each run."""

    shape: Shape
    dtype: torch.dtype
    kv_dtype: torch.dtype
    device: torch.device
    _values: dict[torch.dtype, torch.Tensor] = field(default_factory=dict, compare=False, repr=False)

    def attention(self, block_size: int) -> AttentionShape:
        """The kernels' shape at a block size."""
        heads = self.shape.query_heads, self.shape.kv_heads, self.shape.head_size
        return AttentionShape(*heads, block_size, self.dtype, self.kv_dtype)

    def time(self, block_size: int, point: Point, table: LaunchTable | None = None) -> float:
        """Seconds of one layer at a block size, with a table's launches. Raises RuntimeError or ValueError."""
        count, length, new = point.sequences, point.length, point.new
        per_sequence = -(-length // block_size)
        pages = 1 + count * per_sequence
        attention = PagedAttention(
            self.attention(block_size),
            AttentionVariant(),
            device=self.device,
            max_tokens=count * new,
            max_sequences=count,
            launch_table=table,
        )
        generator = torch.Generator(device="cpu").manual_seed(0)
        # Pages of a sequence lie scattered, as in a pool that has been in use.
        order = 1 + torch.randperm(pages - 1, generator=generator).to(torch.int32)
        page_table = order.reshape(count, per_sequence).to(self.device)
        starts = torch.arange(0, count * new + 1, new, dtype=torch.int32, device=self.device)
        lengths = torch.full((count,), length, dtype=torch.int32, device=self.device)
        q = self._random((count * new, self.shape.query_heads, self.shape.head_size), self.dtype)
        kv = self._random((pages, 2, self.shape.kv_heads, block_size, self.shape.head_size), self.kv_dtype)
        out = torch.empty_like(q)
        attention.plan(starts, lengths, page_table, tokens=count * new)
        return _fastest(lambda: attention.run(q, kv, out), self.device)

    def _random(self, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        """Random values, cut out of one buffer: making them takes longer than attending to them."""
        size = math.prod(shape)
        buffer = self._values.get(dtype)
        if buffer is None or buffer.numel() < size:
            generator = torch.Generator(device=self.device).manual_seed(0)
            buffer = torch.randn(size, generator=generator, device=self.device).to(dtype)
            self._values[dtype] = buffer
        return buffer[:size].view(shape)


def _fastest(run: Callable[[], object], device: torch.device) -> float:
    """The fastest of some runs: what disturbs a measurement only ever makes it longer.

    On a GPU, replays of a graph, as served models run: a launch from Python takes longer than many a kernel.
    """
    if device.type == "cuda":
        return graph_seconds([run])
    run()
    best = math.inf
    for _ in range(REPEATS):
        begin = time.perf_counter()
        run()
        best = min(best, time.perf_counter() - begin)
    return best
