"""The event loop's time: work that arrives at once is spread over turns, and how late the loop runs is measured.

A step of the engine brings news for thousands of streams, and thousands of requests may arrive in one moment. Whoever
works them off in one go delays all others; so each such place takes turns.
"""

from __future__ import annotations

import asyncio
import gc
import time
from collections import deque
from collections.abc import Callable

_REQUESTS_PER_TURN = 4
"""Requests begun in one turn of the loop, at up to 1 ms each."""
_LOOK_SECONDS = 0.01
_YOUNG_OBJECTS, _MIDDLE_ROUNDS, _OLD_ROUNDS = 4_000, 1, 5_000
_TIDY_SECONDS = 60.0


class Turns:
    """The first few callers of a turn of the loop go on at once; the others follow in later turns, in order."""

    def __init__(self, per_turn: int = _REQUESTS_PER_TURN) -> None:
        self._per_turn = per_turn
        self._waiting: deque[Callable[[], bool]] = deque()
        self._taken = 0
        self._scheduled = False

    def free(self) -> bool:
        """Whether the caller may go on now; counts it if so."""
        if not self._scheduled:
            self._scheduled = True
            asyncio.get_running_loop().call_soon(self._next_turn)
        if self._taken < self._per_turn and not self._waiting:
            self._taken += 1
            return True
        return False

    def later(self, work: Callable[[], bool]) -> None:
        """Calls `work` in its turn; it returns False when there was nothing to do any more, which takes no turn."""
        self._waiting.append(work)

    async def take(self) -> None:
        """Waits for a turn."""
        if self.free():
            return
        turn = asyncio.get_running_loop().create_future()

        def begin() -> bool:
            if turn.done():
                return False
            turn.set_result(None)
            return True

        self.later(begin)
        await turn

    def _next_turn(self) -> None:
        self._taken = 0
        while self._waiting and self._taken < self._per_turn:
            self._taken += self._waiting.popleft()()
        self._scheduled = bool(self._waiting or self._taken)
        if self._scheduled:
            asyncio.get_running_loop().call_soon(self._next_turn)


async def watch_loop(late: Callable[[float], None], blocked: Callable[[float], None]) -> None:
    """Reports how late each of 100 looks a second came, and for how much of that the loop's own work can be to blame:
    no more than the processor time that its thread used since the last look. Where the second is small and the first
    large, the machine is crowded. Both in seconds. Runs until cancelled."""
    while True:
        due = time.perf_counter() + _LOOK_SECONDS
        used = time.thread_time()
        await asyncio.sleep(_LOOK_SECONDS)
        delay = max(0.0, time.perf_counter() - due)
        late(delay)
        blocked(min(delay, time.thread_time() - used))


def tame_collector() -> None:
    """Keeps Python's collector of cycles from stopping the loop: with a million living objects of thousands of streams,
    one whole collection takes longer than a token. What is loaded by now is left out of it for good."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(_YOUNG_OBJECTS, _MIDDLE_ROUNDS, _OLD_ROUNDS)


async def tidy_when_idle(idle: Callable[[], bool]) -> None:
    """Collects everything in moments without requests. Runs until cancelled."""
    used = False
    while True:
        await asyncio.sleep(_TIDY_SECONDS)
        used |= not idle()
        if used and idle():
            gc.collect()
            used = False
