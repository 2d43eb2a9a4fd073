"""Where a load is heading: a slope, if it climbs or falls steadily; nothing, if it jumped or moves by chance.

Replicas take a while to start, so what is asked for now serves the load of then. A load that climbs over many minutes
(people come to work) tells what that will be; one that jumped tells nothing, and a line through a jump would overshoot.
So a slope counts only where a straight line explains the past better than one step does, and only that part of it
that arrivals at an even rate would not show by chance.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

_FEWEST = 6


class Past(NamedTuple):
    """What one decision saw."""

    time: float
    rate: float
    """Requests per second."""


def slope(past: Sequence[Past], deviations: float) -> float:
    """Growth per second as a share of the present rate, less so many deviations of chance; 0 without a steady one.

    Of what comes in: what is held grows and falls as well while a queue is worked off.
    """
    rates = [item.rate for item in past]
    if len(past) < _FEWEST or min(rates) <= 0:
        return 0.0
    mean_time = sum(item.time for item in past) / len(past)
    mean = sum(rates) / len(past)
    spread = sum((item.time - mean_time) ** 2 for item in past)
    total = sum((rate - mean) ** 2 for rate in rates)
    found = sum((item.time - mean_time) * (item.rate - mean) for item in past) / spread
    if total - found * found * spread >= _left_by_a_step(rates, mean, total):
        return 0.0
    passed = past[-1].time - past[0].time
    # The slope of a Poisson process of rate λ over a time T has the variance 12 λ / T³; requests' lengths vary as well.
    chance = deviations * math.sqrt(24 * mean / passed**3)
    now = max(mean + found * passed / 2, mean / 4)
    return math.copysign(max(0.0, abs(found) - chance), found) / now


def _left_by_a_step(values: Sequence[float], mean: float, total: float) -> float:
    """Squares that are left when the values are taken as one level and, from the best place on, another."""
    whole, before, explained = sum(values), 0.0, 0.0
    for at in range(1, len(values)):
        before += values[at - 1]
        low, high = before / at, (whole - before) / (len(values) - at)
        explained = max(explained, at * (low - mean) ** 2 + (len(values) - at) * (high - mean) ** 2)
    return total - explained
