"""Figures of a run: replica hours, cost, time to first token, share of requests in the SLO, flaps."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from .fleet_run import Outcome

FLAP_SECONDS = 600.0


@dataclass(frozen=True)
class SLO:
    """What a request is promised."""

    first_token_seconds: float = 3.0
    token_seconds: float = 0.2
    """Mean time between tokens."""


@dataclass(frozen=True)
class Figures:
    """One line of the table."""

    load: str
    policy: str
    gpu_hours: float
    cost: float
    in_slo: float
    """Share; a request that never got its answer is outside."""
    ttft_p50: float
    ttft_p95: float
    ttft_p99: float
    flaps: int
    changes: int
    peak: int
    preemptions: int


def quantile(values: Sequence[float], share: float) -> float:
    """Nearest rank of sorted values; infinite without any."""
    if not values:
        return float("inf")
    return values[min(len(values) - 1, int(share * len(values)))]


def flaps(counts: Sequence[tuple[float, int]]) -> int:
    """Changes that undo the one before within ten minutes."""
    found = 0
    for (_, a), (at, b), (then, c) in zip(counts, counts[1:], counts[2:], strict=False):
        if (b - a) * (c - b) < 0 and then - at <= FLAP_SECONDS:
            found += 1
    return found


def figures(outcome: Outcome, slo: SLO) -> Figures:
    """Read the figures from a run."""
    waits = sorted(
        item.first_token - item.arrival if item.first_token >= 0 else float("inf") for item in outcome.requests
    )
    good = 0
    for item in outcome.requests:
        if item.end < 0 or item.first_token - item.arrival > slo.first_token_seconds:
            continue
        between = (item.end - item.first_token) / max(1, item.output_tokens - 1)
        good += between <= slo.token_seconds
    return Figures(
        outcome.load,
        outcome.policy,
        outcome.replica_seconds / 3600,
        outcome.cost,
        good / len(outcome.requests) if outcome.requests else 1.0,
        quantile(waits, 0.5),
        quantile(waits, 0.95),
        quantile(waits, 0.99),
        flaps(outcome.counts),
        len(outcome.counts) - 1,
        max(count for _, count in outcome.counts),
        outcome.preemptions,
    )
