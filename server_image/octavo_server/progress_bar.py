"""How far a run of many requests is: a bar on a terminal, one line in a log."""

from __future__ import annotations

import time
from typing import TextIO

_BAR_SECONDS = 0.2
_BAR_WIDTH = 30


class Bar:
    """`[#####     ] 12/64 prompts, 3456 tokens/s` on one line of a terminal; elsewhere one line at the end."""

    def __init__(self, to: TextIO, what: str = "prompts") -> None:
        self._what = what
        self._to = to
        self._live = to.isatty()
        self._begun = time.monotonic()
        self._shown = 0.0
        self._last = ""

    def show(self, done: int, total: int, tokens: int) -> None:
        """Draws it anew, a few times a second at most."""
        now = time.monotonic()
        if now - self._shown < _BAR_SECONDS and done < total:
            return
        self._shown = now
        filled = _BAR_WIDTH * done // max(1, total)
        speed = tokens / max(now - self._begun, 1e-9)
        self._last = f"[{'#' * filled:{_BAR_WIDTH}}] {done}/{total} {self._what}, {speed:.0f} tokens/s"
        if self._live:
            self._to.write("\r" + self._last)
            self._to.flush()

    def end(self) -> None:
        """Leaves the last state behind."""
        if self._last:
            self._to.write("\n" if self._live else self._last + "\n")
            self._to.flush()
