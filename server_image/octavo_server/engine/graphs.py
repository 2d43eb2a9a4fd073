"""CUDA graphs of whole steps: one per number of tokens and kind of batch, valid for any mix of requests.

A graph of `tokens` tokens takes as many sequences as its kind allows; what a step does not use is padding that writes
nothing. `plain` steps take the attention kernel for short parts alone, `long` ones also that for long parts (and fewer
sequences, which is how the plan knows), `shared` ones read common prefixes once. `little` ones are plain ones that
read few cached tokens, for which attention is laid out otherwise.
"""

from __future__ import annotations

import gc
from bisect import bisect_left
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch

from octavo_server.engine.plan import StepPlan

MAX_GRAPH_TOKENS = 2048
"""Larger steps run eagerly: launching the kernels of 32 layers one by one was measured at 26 ms of the host's time,
which only larger steps hide."""
_LONG_SEQUENCES = 256
"""Of graphs with longer parts: logits are computed for as many rows as a graph has sequences."""
LONG_PART_TOKENS = 32
"""Parts above this are faster with the kernel for long parts."""
_TOKENS = {
    "plain": (1, 2, 4, 8, 12, 16, 24, 32, 40, 48, 56, 64, 80, 96, 112, 128, 160, 192, 224, 256, 320, 384, 448, 512),
    "long": (64, 128, 192, 256, 320, 384, 448, 512, 640, 768, 896, 1024, 1280, 1536, 2048),
    "little": (1, 2, 4, 8, 12, 16, 24, 32, 40, 48, 56, 64, 80, 96, 112, 128, 160, 192, 224, 256),
    "shared": (8, 16, 32, 64, 128, 256, 384, 512),
}


@dataclass(frozen=True, order=True)
class Bucket:
    """A graph's size: tokens, and the sequences of its batch, padding included."""

    tokens: int
    sequences: int
    kind: str = "plain"


def buckets(max_tokens: int, max_sequences: int) -> list[Bucket]:
    """All graphs of an engine with these limits, largest first: later ones fit into the memory of earlier ones."""
    found = [
        Bucket(tokens, min(_sequences(tokens, kind), max_sequences), kind)
        for kind, sizes in _TOKENS.items()
        for tokens in sizes
        if tokens <= max_tokens
    ]
    return sorted(found, reverse=True)


def _sequences(tokens: int, kind: str) -> int:
    """The attention kernel for longer parts is planned where a batch has more than two tokens per sequence."""
    return min((tokens - 1) // 2, _LONG_SEQUENCES) if kind == "long" else tokens


def largest_buckets(max_tokens: int, max_sequences: int) -> list[Bucket]:
    """The largest graph of each kind: together they take the memory that all take."""
    found = buckets(max_tokens, max_sequences)
    return [next(one for one in found if one.kind == kind) for kind in sorted({one.kind for one in found})]


class StepGraphs:
    """Captured steps by bucket. All share one memory pool, because only one runs at a time."""

    def __init__(self) -> None:
        self._graphs: dict[Bucket, tuple[torch.cuda.CUDAGraph, torch.Tensor]] = {}
        self._sizes: dict[str, list[Bucket]] = {}
        self._pool: Any = None
        self.little_tokens = 0
        """Cached tokens that a step of the kind `little` reads at most."""

    def capture(self, wanted: Iterable[Bucket], run: Callable[[Bucket], torch.Tensor]) -> None:
        """Captures `run` for each bucket; it is called once before, which compiles and allocates what stays."""
        # Garbage with graphs in it must not be collected while one is captured; torch.cuda.graph would collect, and
        # empty the allocator's cache, before each of them.
        gc.collect()
        collecting = gc.isenabled()
        gc.disable()
        try:
            self._capture(wanted, run)
        finally:
            if collecting:
                gc.enable()

    def _capture(self, wanted: Iterable[Bucket], run: Callable[[Bucket], torch.Tensor]) -> None:
        stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        self._pool = self._pool or torch.cuda.graph_pool_handle()
        for bucket in wanted:
            run(bucket)
            torch.cuda.synchronize()
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.stream(stream):
                graph.capture_begin(pool=self._pool)
                try:
                    logits = run(bucket)
                finally:
                    graph.capture_end()
            self._graphs[bucket] = (graph, logits)
            self._sizes[bucket.kind] = sorted({*self._sizes.get(bucket.kind, ()), bucket})

    def drop(self) -> None:
        """Forgets all graphs and their memory."""
        self._graphs.clear()
        self._sizes.clear()
        self._pool = None

    def find(self, plan: StepPlan) -> Bucket | None:
        """The smallest graph that holds this step, or None."""
        tokens, rows = plan.tokens, len(plan)
        if tokens > MAX_GRAPH_TOKENS:
            return None
        longest = int(plan.counts[plan.singles :].max(initial=1))
        found = None
        if longest > LONG_PART_TOKENS:
            found = self._at_least(tokens, rows, "long")
        elif plan.groups is not None:
            found = self._at_least(tokens, rows, "shared")
        elif int(plan.starts.sum()) + tokens <= self.little_tokens:
            found = self._at_least(tokens, rows, "little")
        return found or self._at_least(tokens, rows, "plain")

    def most_tokens(self, tokens: int) -> int:
        """The size of the largest graph with longer parts that holds at most so many tokens; 0 = there is none."""
        return max((bucket.tokens for bucket in self._sizes.get("long", ()) if bucket.tokens <= tokens), default=0)

    def replay(self, bucket: Bucket) -> torch.Tensor:
        """Queues the step; returns its logits, which the next step overwrites."""
        graph, logits = self._graphs[bucket]
        graph.replay()
        return logits

    def _at_least(self, tokens: int, rows: int, kind: str) -> Bucket | None:
        sizes = self._sizes.get(kind, [])
        place = bisect_left(sizes, Bucket(tokens, 0))
        return next((bucket for bucket in sizes[place:] if bucket.sequences >= rows), None)
