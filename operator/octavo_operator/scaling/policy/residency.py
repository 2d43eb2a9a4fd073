"""How long a request holds the cache, as a function of how full the replicas are.

A fuller replica takes longer for each step, so its requests stay longer: the residency seen at one use is not the
residency at another. A line r(u) = a + b·u, fitted to what was seen with slow forgetting, gives the residency at the
use that replicas shall have. Demand then no longer depends on the present count, and a count that suffices for it
keeps sufficing: no swing between N and N−1.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

_MEMORY_SECONDS = 1800.0
_PRIOR_GROWTH = 1.0
"""Before uses differed enough to tell: a request in a full cache stays twice as long as in an empty one."""
_PRIOR_VARIANCE = 0.01
"""Weight of that assumption, as a variance of use."""
_MOST_GROWTH = 4.0


@dataclass(frozen=True, slots=True)
class Residency:
    """A fitted line; sums with exponential forgetting."""

    time: float = 0.0
    level: float = 0.0
    """Recent mean of r(u) ÷ (1 + b/a · u): follows a change of the requests' lengths within a minute or two."""
    weight: float = 0.0
    use: float = 0.0
    use_use: float = 0.0
    seen: float = 0.0
    """Token-seconds."""
    use_seen: float = 0.0

    @property
    def growth(self) -> float:
        """b ÷ a: how much longer a request stays in a full cache than in an empty one."""
        if self.weight <= 0 or self.seen <= 0:
            return _PRIOR_GROWTH
        use, seen = self.use / self.weight, self.seen / self.weight
        variance = max(0.0, self.use_use / self.weight - use * use)
        covariance = self.use_seen / self.weight - use * seen
        prior_slope = seen * _PRIOR_GROWTH / (1.0 + _PRIOR_GROWTH * use)
        slope = (covariance + _PRIOR_VARIANCE * prior_slope) / (variance + _PRIOR_VARIANCE)
        start = seen - slope * use
        return _MOST_GROWTH if start <= 0 else min(_MOST_GROWTH, max(0.0, slope / start))

    def at(self, use: float) -> float:
        """Token-seconds of a request on replicas this full."""
        return self.level * (1.0 + self.growth * use)

    def with_seen(self, use: float, token_seconds: float, now: float, follow_seconds: float) -> Residency:
        """One more observation; `follow_seconds` is the time constant of the level."""
        passed = max(0.0, now - self.time)
        kept = math.exp(-passed / _MEMORY_SECONDS) if self.weight > 0 else 0.0
        fitted = Residency(
            now,
            self.level,
            self.weight * kept + 1.0,
            self.use * kept + use,
            self.use_use * kept + use * use,
            self.seen * kept + token_seconds,
            self.use_seen * kept + use * token_seconds,
        )
        fresh = token_seconds / (1.0 + fitted.growth * use)
        share = 1.0 if self.weight <= 0 else 1.0 - math.exp(-passed / follow_seconds)
        level = self.level + share * (fresh - self.level)
        return Residency(now, level, fitted.weight, fitted.use, fitted.use_use, fitted.seen, fitted.use_seen)
