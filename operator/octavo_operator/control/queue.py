"""Work queue: each key waits at most once, is worked on by at most one worker, and is retried with back-off."""

from __future__ import annotations

import asyncio
import heapq
import random
from collections import deque
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

Key = TypeVar("Key", bound=Hashable)
FIRST_RETRY_SECONDS = 0.5
LONGEST_RETRY_SECONDS = 60.0


class WorkQueue(Generic[Key]):
    """Keys to reconcile. `take` and `done` pair up; `add` during the work makes the key come again after it."""

    def __init__(self, clock: Callable[[], float], jitter: Callable[[], float] = random.random) -> None:
        self._clock, self._jitter = clock, jitter
        self._ready: deque[Key] = deque()
        self._urgent: deque[Key] = deque()
        self._since: dict[Key, float] = {}
        self._running: set[Key] = set()
        self._again: set[Key] = set()
        self._failures: dict[Key, int] = {}
        self._later: list[tuple[float, int, Key]] = []
        self._due: dict[Key, float] = {}
        self._count = 0
        self._wake = asyncio.Event()

    def add(self, key: Key, *, urgent: bool = False) -> None:
        """Ask for the key soon; an urgent one comes before those that are not, also when it waits already."""
        if key in self._running:
            self._again.add(key)
            return
        if key not in self._since:
            self._since[key] = self._clock()
            (self._urgent if urgent else self._ready).append(key)
            self._wake.set()
        elif urgent and key not in self._urgent:
            # Its place among the others is skipped when it comes up.
            self._urgent.append(key)

    def add_after(self, key: Key, seconds: float) -> None:
        """Ask for the key later; of several such wishes the earliest counts."""
        due = self._clock() + seconds
        if due < self._due.get(key, float("inf")):
            self._due[key] = due
            self._count += 1
            heapq.heappush(self._later, (due, self._count, key))
            self._wake.set()

    def retry(self, key: Key) -> float:
        """Ask for the key again after a failure; returns the wait in seconds."""
        failures = self._failures[key] = self._failures.get(key, 0) + 1
        longest = min(LONGEST_RETRY_SECONDS, FIRST_RETRY_SECONDS * 2.0 ** min(failures - 1, 10))
        wait = longest * (0.5 + self._jitter() / 2)
        self.add_after(key, wait)
        return wait

    def succeed(self, key: Key) -> None:
        """Forget the failures of the key."""
        self._failures.pop(key, None)

    def done(self, key: Key) -> None:
        """The work on a taken key has ended."""
        self._running.discard(key)
        if key in self._again:
            self._again.discard(key)
            self.add(key)

    def _release_due(self) -> float | None:
        """Move due keys to the ready ones; returns seconds until the next one."""
        now = self._clock()
        while self._later and self._later[0][0] <= now:
            due, _, key = heapq.heappop(self._later)
            if self._due.get(key) == due:
                del self._due[key]
                self.add(key)
        return self._later[0][0] - now if self._later else None

    async def take(self) -> Key:
        """The next key; waits for one."""
        while True:
            wait = self._release_due()
            while self._urgent or self._ready:
                key = (self._urgent or self._ready).popleft()
                if self._since.pop(key, None) is None:
                    continue
                self._running.add(key)
                return key
            self._wake.clear()
            try:
                async with asyncio.timeout(wait):
                    await self._wake.wait()
            except TimeoutError:
                continue

    def seconds_until(self, key: Key) -> float:
        """When the key comes up by itself: 0 where it waits for a worker, infinity where nobody asked for it."""
        if key in self._since:
            return 0.0
        return max(0.0, self._due.get(key, float("inf")) - self._clock())

    def depth(self) -> int:
        """Keys that wait."""
        return len(self._since)

    def oldest_seconds(self) -> float:
        """How long the oldest waiting key has waited."""
        return self._clock() - min(self._since.values()) if self._since else 0.0
