"""Stop strings in text that arrives in pieces: nothing of one is given out, nothing else is held longer than needed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class StopMatch:
    """Text that may be sent, and the stop string that ended it (None while there is none)."""

    text: str
    stop: str | None = None


class StopMatcher:
    """Finds the stop string that is complete first; of two that end at the same character, the longer.

    That rule makes the result the same for every way in which the text is cut into pieces. Held back is exactly the
    longest end of the text that begins a stop string; when the next piece shows that it was none, it is sent at once.
    include: the stop string is given out as the end of the text.
    after: the text of that many tokens (one `feed` each) comes before anything is looked for, as with stop tokens.
    """

    def __init__(self, stops: Sequence[str], *, include: bool = False, after: int = 0) -> None:
        self._include = include
        self._after = after
        self._stops = tuple(dict.fromkeys(stops))
        self._longest = max(map(len, self._stops), default=0)
        self._held = ""

    @property
    def none(self) -> bool:
        """Whether there is nothing to find, so that text needs no look."""
        return not self._stops

    def feed(self, text: str) -> StopMatch:
        """Adds text; returns what can be sent now. After a match nothing more may be fed."""
        if self._after > 0:
            self._after -= 1
            return StopMatch(text)
        if not self._stops or not text:
            return StopMatch("" if self._stops else text)
        text = self._held + text
        found = self._first(text)
        if found is not None:
            self._held = ""
            start, stop = found
            return StopMatch(text[: start + len(stop)] if self._include else text[:start], stop)
        keep = self._beginning_at_end(text)
        self._held = text[len(text) - keep :]
        return StopMatch(text[: len(text) - keep])

    def flush(self) -> str:
        """What was held back, once no more text comes."""
        held, self._held = self._held, ""
        return held

    def _first(self, text: str) -> tuple[int, str] | None:
        best: tuple[int, int, str] | None = None
        for stop in self._stops:
            start = text.find(stop)
            if start >= 0 and (best is None or (start + len(stop), start) < best[:2]):
                best = (start + len(stop), start, stop)
        return None if best is None else (best[1], best[2])

    def _beginning_at_end(self, text: str) -> int:
        for size in range(min(self._longest - 1, len(text)), 0, -1):
            tail = text[-size:]
            if any(stop.startswith(tail) for stop in self._stops if len(stop) > size):
                return size
        return 0
