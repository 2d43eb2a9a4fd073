"""Which tokens a growing text holds, and how often each."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

_AT_ONCE = 64
"""New tokens from which sorting them is faster than taking them one by one."""


class TokenCounts:
    """Paired arrays `ids` (int64) and `counts` (float32), one entry per token that the text holds."""

    def __init__(self) -> None:
        self._place: dict[int, int] = {}
        self._ids: npt.NDArray[np.int64] = np.zeros(64, np.int64)
        self._counts: npt.NDArray[np.float32] = np.zeros(64, np.float32)
        self.taken = 0
        """Tokens of the text that are counted."""

    @property
    def ids(self) -> npt.NDArray[np.int64]:
        """In the order of their first count."""
        return self._ids[: len(self._place)]

    @property
    def counts(self) -> npt.NDArray[np.float32]:
        """How often each of them occurs."""
        return self._counts[: len(self._place)]

    def take(self, tokens: npt.NDArray[np.int32]) -> None:
        """Counts the tokens that follow those taken before."""
        self.taken += len(tokens)
        if len(tokens) < _AT_ONCE:
            for token in tokens.tolist():
                self._add(token, 1)
            return
        for token, count in zip(*(part.tolist() for part in np.unique(tokens, return_counts=True)), strict=True):
            self._add(token, count)

    def _add(self, token: int, count: int) -> None:
        place = self._place.setdefault(token, len(self._place))
        if place == len(self._ids):
            self._ids = np.concatenate((self._ids, np.zeros_like(self._ids)))
            self._counts = np.concatenate((self._counts, np.zeros_like(self._counts)))
        self._ids[place] = token
        self._counts[place] += count
