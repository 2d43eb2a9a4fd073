"""Where the arrivals are heading: their level and slope, and how far they used to leave what was foretold.

A replica that is asked for now serves a start-up later, so the count must fit the load of then. The line is fitted by
least squares to the arrivals of each decision; a slope counts only beyond what chance would make of even arrivals. What
came in beyond the line, start-up after start-up, is the room that the service needs above it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

_LENGTH = 12
"""Decisions that the line is fitted to: three minutes."""
_FEWEST = 4


@dataclass(frozen=True, slots=True)
class Trend:
    """Arrivals of the last decisions; each `with_rate` returns the next one."""

    rates: tuple[tuple[float, float, float], ...] = ()
    """(time, requests per second in the seconds before, how many seconds)."""
    foretold: tuple[tuple[float, float], ...] = ()
    """(time that it speaks of, requests per second)."""
    surprise: float = 0.0
    """Mean square of what came beyond the foretold, less what chance explains; (requests per second)²."""
    judged_at: float | None = None

    def line(self) -> tuple[float, float, float]:
        """(requests per second now, slope per second, deviation of the slope by chance)."""
        if len(self.rates) < _FEWEST:
            return (self.rates[-1][1] if self.rates else 0.0), 0.0, 0.0
        count, last = len(self.rates), self.rates[-1][0]
        middle = sum(time for time, _, _ in self.rates) / count
        mean = sum(rate for _, rate, _ in self.rates) / count
        spread = sum((time - middle) ** 2 for time, _, _ in self.rates)
        slope = sum((time - middle) * rate for time, rate, _ in self.rates) / spread
        seconds = sum(length for _, _, length in self.rates) / count
        # Counts of Poisson arrivals vary by their root; one arrival at least, so that silence is not certainty.
        chance = math.sqrt(max(mean, 1.0 / (count * seconds)) / seconds / spread)
        return mean + slope * (last - middle), slope, chance

    def ahead(self, seconds: float, deviations: float) -> float:
        """Requests per second so many seconds from now, if they grow as they do; never below 0."""
        level, slope, chance = self.line()
        return max(0.0, level + max(0.0, slope - deviations * chance) * seconds)

    def with_rate(
        self, now: float, rate: float, seconds: float, horizon: float, deviations: float, memory_seconds: float
    ) -> Trend:
        """One more decision's arrivals, counted over `seconds`; taken again at the same time it changes nothing."""
        if seconds <= 0 or (self.rates and self.rates[-1][0] >= now):
            return self
        judged = self._judged(now, memory_seconds, rate, seconds)
        rates = (*judged.rates, (now, rate, seconds))[-_LENGTH:]
        told = replace(judged, rates=rates)
        if len(rates) < _FEWEST:
            return told
        foretold = (*judged.foretold, (now + horizon, told.ahead(horizon, deviations)))
        return replace(told, foretold=foretold)

    def _judged(self, now: float, memory_seconds: float, rate: float, seconds: float) -> Trend:
        due = [item for item in self.foretold if item[0] <= now]
        if not due:
            return self
        # Two decisions' mean: one alone is mostly chance.
        recent = [item[1] for item in self.rates[-1:]] + [rate]
        mean = sum(recent) / len(recent)
        beyond = max(0.0, mean - due[-1][1])
        fresh = max(0.0, beyond * beyond - mean / (len(recent) * seconds))
        passed = memory_seconds if self.judged_at is None else now - self.judged_at
        share = 1.0 - math.exp(-min(passed, 60.0) / memory_seconds)
        left = tuple(item for item in self.foretold if item[0] > now)
        return replace(self, foretold=left, surprise=self.surprise + share * (fresh - self.surprise), judged_at=now)
