"""When a service is planned anew because of nodes: soon where few change, and in turn where all of them do.

A driver's upgrade relabels every node, and each node may concern every service. Planning each service at each change
would take all of the operator's time, its Lease would not be renewed, and a user's edit would wait.
"""

from __future__ import annotations

import random
from collections.abc import Callable

GATHER_SECONDS = 1.0
"""A wave of changes is answered once, after this time to twice of it, so that services do not come together."""
SHARE = 0.5
"""Of the operator's time that plans which nodes cause may take."""
_OLD_WEIGHT = 0.98


class NodeWaves:
    """Gives each service that waits for its plan a place in the line."""

    def __init__(self, clock: Callable[[], float], jitter: Callable[[], float] = random.random) -> None:
        self._clock, self._jitter = clock, jitter
        self._plan_seconds = 0.0
        self._line_ends = 0.0

    def took(self, seconds: float) -> None:
        """A plan took so much processor time; the mean of the last ones counts."""
        weight = _OLD_WEIGHT if self._plan_seconds else 0.0
        self._plan_seconds = weight * self._plan_seconds + (1 - weight) * seconds

    def length(self) -> float:
        """Seconds within which who waits now will have been planned: who comes in that time needs no other place."""
        return max(2 * GATHER_SECONDS, self._line_ends - self._clock())

    def wait(self) -> float:
        """Seconds until the next service in the line may be planned; takes that place."""
        now = self._clock()
        self._line_ends = max(self._line_ends, now) + self._plan_seconds / SHARE
        return max(GATHER_SECONDS * (1 + self._jitter()), self._line_ends - now)
