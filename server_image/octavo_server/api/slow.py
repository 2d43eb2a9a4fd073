"""How long a client may take to send its request: one that opens connections and sends a byte now and then would hold
them, and what they cost, for ever."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

HEAD_SECONDS = 75.0
"""For request line and headers, as long as an idle connection is kept; also for the first byte of a new connection."""
PAUSE_SECONDS = 60.0
"""Between two pieces of a body. There is no limit for the whole: a long prompt may come over a slow line."""


def _nothing() -> None:
    pass


class Patience:
    """A deadline that is moved often and rarely met: moving it costs no timer of the loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop, over: Callable[[], None]) -> None:
        self._loop, self._over = loop, over
        self._deadline: float | None = None
        self._timer: asyncio.TimerHandle | None = None

    def wait(self, seconds: float) -> None:
        """`over` is called in so many seconds, unless told otherwise until then."""
        self._deadline = self._loop.time() + seconds
        if self._timer is not None and self._timer.when() > self._deadline:
            self._timer.cancel()
            self._timer = None
        if self._timer is None:
            self._timer = self._loop.call_at(self._deadline, self._look)

    def stop(self) -> None:
        """Nothing is awaited any more."""
        self._deadline = None
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def end(self) -> None:
        """Nothing will be awaited any more: lets go of `over`."""
        self.stop()
        self._over = _nothing

    def _look(self) -> None:
        self._timer = None
        if self._deadline is None:
            return
        left = self._deadline - self._loop.time()
        if left > 0:
            self._timer = self._loop.call_at(self._deadline, self._look)
        else:
            self._deadline = None
            self._over()
