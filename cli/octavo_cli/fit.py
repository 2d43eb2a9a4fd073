"""Which accelerators hold a model, at which length, and how many requests at once. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from .accelerators import ACCELERATORS, GIB, Accelerator
from .model_facts import ModelFacts

MEMORY_SHARE = 0.92
"""Default of engine.kvCache.memoryPercent."""
RUNTIME_BYTES = int(1.5 * GIB)
"""CUDA context, graphs and the largest step's activations, with a margin."""
COUNTS = (1, 2, 4, 8)
COMFORT_TOKENS = 32_768
"""A smaller pool holds a handful of requests at once, and costs more per token than it need."""


@dataclass(frozen=True)
class Fit:
    """One accelerator, so many per replica."""

    accelerator: Accelerator
    count: int
    pool_tokens: int
    """Tokens that the KV pool of one replica holds; 0 = the weights alone are too large."""
    length: int
    """Longest request: the model's own limit, or the pool's."""

    def together(self, length: int) -> int:
        """Requests of this many tokens at once."""
        return self.pool_tokens // length


def fit(model: ModelFacts, accelerator: Accelerator, count: int) -> Fit:
    """Weights and keys and values are split evenly over `count` devices."""
    usable = accelerator.memory_gib * GIB * MEMORY_SHARE - RUNTIME_BYTES
    room = usable * count - model.weight_bytes
    # More devices than KV heads hold copies of them.
    copies = max(1, count // model.kv_heads)
    tokens = max(0, int(room / (model.cache_bytes_per_token * copies)))
    return Fit(accelerator, count, tokens, min(model.max_length, tokens))


def smallest_fit(model: ModelFacts, accelerator: Accelerator, length: int) -> Fit | None:
    """The fewest devices of this kind that hold a request of `length` tokens; None when eight don't."""
    for count in COUNTS:
        if model.query_heads % count or (model.kv_heads % count and count % model.kv_heads):
            continue
        found = fit(model, accelerator, count)
        if found.pool_tokens >= length:
            return found
    return None


def fits(model: ModelFacts, length: int) -> list[tuple[Accelerator, Fit | None]]:
    """Every known accelerator in order of memory."""
    return [(item, smallest_fit(model, item, length)) for item in ACCELERATORS]


def choose(found: Sequence[Fit | None]) -> Fit | None:
    """The smallest device among those of which a replica needs fewest; one with a comfortable pool if there is one."""
    held = [item for item in found if item is not None]
    if not held:
        return None
    fewest = [item for item in held if item.count == min(other.count for other in held)]
    comfortable = [item for item in fewest if item.pool_tokens >= COMFORT_TOKENS] or fewest
    return min(comfortable, key=lambda item: item.accelerator.memory_gib)
