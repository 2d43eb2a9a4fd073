"""Times one layer's attention over a paged pool that looks as one in use."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch
from octavo_kernels import AttentionShape, AttentionVariant, PagedAttention
from octavo_kernels.launch_table import LaunchTable

PREFILL_TOKENS = 512
REPEATS = 5
Points = tuple[tuple[int, int], ...]
"""(sequences, tokens each) of decode steps."""


@dataclass(frozen=True)
class Shape:
    """What the kernels see of a model."""

    layers: int
    query_heads: int
    kv_heads: int
    head_size: int


@dataclass(frozen=True)
class Bench:
    """What is timed, and where; inputs are the same in each run."""

    shape: Shape
    dtype: torch.dtype
    kv_dtype: torch.dtype
    device: torch.device

    def attention(self, block_size: int) -> AttentionShape:
        """The kernels' shape at a block size."""
        heads = self.shape.query_heads, self.shape.kv_heads, self.shape.head_size
        return AttentionShape(*heads, block_size, self.dtype, self.kv_dtype)

    def block(self, block_size: int, points: Points, table: LaunchTable | None = None) -> dict[str, float]:
        """Seconds of one layer's attention by point, with a table's launches. Raises RuntimeError or ValueError."""
        found = {
            f"decode {count}×{length}": self.point(block_size, count, length, 1, table) for count, length in points
        }
        found["prefill"] = self.point(block_size, 1, PREFILL_TOKENS, PREFILL_TOKENS, table)
        return found

    def point(self, block_size: int, count: int, length: int, new: int, table: LaunchTable | None = None) -> float:
        """Seconds of one layer: `count` sequences of `length` tokens, of which `new` are computed."""
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
        q = torch.randn(count * new, self.shape.query_heads, self.shape.head_size, generator=generator)
        q = q.to(self.device, self.dtype)
        pool = (pages, 2, self.shape.kv_heads, block_size, self.shape.head_size)
        kv = torch.randn(pool, generator=generator).to(self.device, self.kv_dtype)
        out = torch.empty_like(q)
        attention.plan(starts, lengths, page_table, tokens=count * new)
        return _fastest(lambda: attention.run(q, kv, out), self.device)


def decode_mean(seconds: dict[str, float]) -> float:
    """Geometric mean over the decode points."""
    decode = [value for name, value in seconds.items() if name != "prefill"]
    return math.exp(sum(map(math.log, decode)) / len(decode))


def _fastest(run: Callable[[], object], device: torch.device) -> float:
    """The fastest of some runs: what disturbs a measurement only ever makes it longer."""

    def wait() -> None:
        if device.type == "cuda":
            torch.cuda.synchronize()

    run()
    wait()
    best = math.inf
    for _ in range(REPEATS):
        begin = time.perf_counter()
        run()
        wait()
        best = min(best, time.perf_counter() - begin)
    return best
