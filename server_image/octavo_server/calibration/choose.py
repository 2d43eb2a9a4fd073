"""From measurements to the chosen block size. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from octavo_server.calibration.hits import prefix_hit_share

if TYPE_CHECKING:
    from octavo_kernels.launch_table import LaunchRow

TIE = 0.02
"""Costs that differ by less are the same; the smaller block wins, since it wastes fewer hits and less memory."""
HIT_WEIGHT = 0.5
"""What the loss of all prefix hits costs, in units of the decode time: half of a workload's work is prompts."""


@dataclass(frozen=True)
class BlockResult:
    """What one block size was measured to do, all attention layers together, with its fastest launches."""

    block_size_tokens: int
    decode_microseconds: float
    """Geometric mean over the decode points."""
    prefill_microseconds: float
    launches: tuple[LaunchRow, ...] = ()
    """Measured launch configurations; empty = the safe defaults, or those that come with the kernels."""
    searched: bool = False
    """Whether faster launches were looked for."""
    default_microseconds: float = 0.0
    """Decode time without `launches`; 0 = not measured apart."""

    @property
    def hit_share(self) -> float:
        """Share of shared prompt tokens that the prefix cache answers."""
        return prefix_hit_share(self.block_size_tokens)

    @property
    def gain(self) -> float:
        """How many times faster the launches decode than those that would serve without them."""
        return self.default_microseconds / self.decode_microseconds if self.default_microseconds else 1.0


def cost(result: BlockResult, fastest_microseconds: float, most_hits: float) -> float:
    """Relative decode time, plus what is lost of prefix hits; 1 is the best that any block could do."""
    return result.decode_microseconds / fastest_microseconds + HIT_WEIGHT * (most_hits - result.hit_share)


def ranked(results: Sequence[BlockResult]) -> list[BlockResult]:
    """Cheapest first."""
    fastest = min(item.decode_microseconds for item in results)
    hits = max(item.hit_share for item in results)
    return sorted(results, key=lambda item: (cost(item, fastest, hits), item.block_size_tokens))


def choose(results: Sequence[BlockResult]) -> BlockResult:
    """The cheapest block, or the smallest of those within a tie of it. `results` is not empty."""
    fastest = min(item.decode_microseconds for item in results)
    hits = max(item.hit_share for item in results)
    best = cost(ranked(results)[0], fastest, hits)
    return min(
        (item for item in results if cost(item, fastest, hits) <= best + TIE), key=lambda item: item.block_size_tokens
    )


def explain(chosen: BlockResult, results: Sequence[BlockResult], beside: int = 16) -> str:
    """`decode 1.00 vs 0.94 (16), prefix hits −0.8 %`: relative speeds, and what the chosen block costs in hits.

    Then what its launches gain where they were searched.
    """
    other = next((item for item in results if item.block_size_tokens == beside), None)
    if other is None or other is chosen:
        by_speed = sorted(results, key=lambda item: item.decode_microseconds)
        other = next((item for item in by_speed if item is not chosen), None)
    if other is None:
        return "the only block size that was measured" + _gain(chosen)
    fastest = min(chosen.decode_microseconds, other.decode_microseconds)
    speeds = [fastest / item.decode_microseconds for item in (chosen, other)]
    hits = 100 * (chosen.hit_share - other.hit_share)
    sign = "−" if hits < 0 else "+"
    words = (
        f"decode {speeds[0]:.2f} vs {speeds[1]:.2f} ({other.block_size_tokens}), prefix hits {sign}{abs(hits):.1f} %"
    )
    return words + _gain(chosen)


def _gain(chosen: BlockResult) -> str:
    if chosen.launches:
        return f"; launches {chosen.gain:.2f} × the default"
    return "; no launch is faster than the default" if chosen.searched else ""
