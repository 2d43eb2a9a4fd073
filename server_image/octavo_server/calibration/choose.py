"""From measurements to the chosen block size. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

TIE = 0.02
"""Costs that differ by less are the same; the smaller block wins, since it wastes fewer hits and less memory."""
HIT_WEIGHT = 0.5
"""What the loss of all prefix hits costs, in units of the decode time: half of a workload's work is prompts."""
PREFIX_TOKENS = (48, 100, 200, 400, 800, 1600, 3200)
"""Lengths of shared prefixes, from a short system prompt to a long document."""
PREFIX_OFFSETS = 16
"""Each length stands for as many lengths behind it, or a multiple of every block would show no loss at all."""


@dataclass(frozen=True)
class BlockResult:
    """What one block size was measured to do, all attention layers together."""

    block_size_tokens: int
    decode_microseconds: float
    """Geometric mean over the decode points."""
    prefill_microseconds: float
    launch: str = ""

    @property
    def hit_share(self) -> float:
        """Share of shared prompt tokens that whole blocks cover."""
        return prefix_hit_share(self.block_size_tokens)


def prefix_hit_share(block_size_tokens: int) -> float:
    """Mean over shared prefixes of the share of their tokens in whole blocks: the others are computed again."""
    lengths = [
        length + offset * max(1, length // (2 * PREFIX_OFFSETS))
        for length in PREFIX_TOKENS
        for offset in range(PREFIX_OFFSETS)
    ]
    return sum(length // block_size_tokens * block_size_tokens / length for length in lengths) / len(lengths)


def cost(result: BlockResult, fastest_microseconds: float, most_hits: float) -> float:
    """Relative decode time, plus what is lost of prefix hits; 1 is the best that any block could do."""
    return result.decode_microseconds / fastest_microseconds + HIT_WEIGHT * (most_hits - result.hit_share)


def choose(results: Sequence[BlockResult]) -> BlockResult:
    """The cheapest block, or the smallest of those within a tie of it. `results` is not empty."""
    fastest = min(item.decode_microseconds for item in results)
    hits = max(item.hit_share for item in results)
    best = min(cost(item, fastest, hits) for item in results)
    return min(
        (item for item in results if cost(item, fastest, hits) <= best + TIE), key=lambda item: item.block_size_tokens
    )


def explain(chosen: BlockResult, results: Sequence[BlockResult], beside: int = 16) -> str:
    """`decode 1.00 vs 0.94 (16), prefix hits -0.8 %`: relative speeds, and what the chosen block costs in hits."""
    other = next((item for item in results if item.block_size_tokens == beside), None)
    if other is None or other is chosen:
        ranked = sorted(results, key=lambda item: item.decode_microseconds)
        other = next((item for item in ranked if item is not chosen), None)
    if other is None:
        return "the only block size that was measured"
    fastest = min(chosen.decode_microseconds, other.decode_microseconds)
    speeds = [fastest / item.decode_microseconds for item in (chosen, other)]
    hits = 100 * (chosen.hit_share - other.hit_share)
    sign = "−" if hits < 0 else "+"
    return f"decode {speeds[0]:.2f} vs {speeds[1]:.2f} ({other.block_size_tokens}), prefix hits {sign}{abs(hits):.1f} %"
