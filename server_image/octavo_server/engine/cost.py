"""How long a step will take, learned from the steps that ran, and how much prompt fits beside generating requests.

The time is taken to be linear in what a step does: its rows of one token, the cached tokens that they read, the tokens
of longer parts, and those tokens times what lies before them. The weights are fitted by recursive least squares with
forgetting (Haykin, Adaptive Filter Theory, chapter 10), so they follow the device, the model and their present state.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from octavo_server.engine.plan import StepPlan

_FORGETTING = 0.995
_FIRST_TOKENS = 256
"""Prompt tokens beside generating requests before anything was measured."""
_LEAST_TOKENS = 16
_SCALES = np.array([1.0, 1 / 64, 1 / 65536, 1 / 512, 1 / (512 * 4096)])
"""So that the features of usual steps are near 1."""
_LEAST_MEASURED = 3
"""Steps with longer parts."""
_GROWTH = 2
"""A budget is at most so many times the longer parts of a step that was measured: weights fitted to short ones say
little about long ones."""
_SHARE = 0.9
"""Of the limit that a step is planned for: predictions are off by some percent, and the host takes its time."""

Vector = npt.NDArray[np.float64]


class StepCost:
    """`learn` from each step, `budget` for the next one."""

    def __init__(self, limit_seconds: float) -> None:
        self.limit_seconds = limit_seconds
        self._weights: Vector = np.zeros(5)
        self._spread: npt.NDArray[np.float64] = np.eye(5) * 100.0
        self._measured = 0
        self._most_tokens = _FIRST_TOKENS // _GROWTH

    def learn(self, plan: StepPlan, seconds: float) -> None:
        """Takes a step's duration into account."""
        if seconds <= 0 or not len(plan):
            return
        single = plan.singles
        counts, starts = plan.counts[single:], plan.starts[single:]
        tokens = int(counts.sum())
        before = float((counts * (starts + counts / 2)).sum())
        features = self._features(single, int(plan.starts[:single].sum()), tokens, before)
        error = seconds - float(self._weights @ features)
        gain = self._spread @ features / (_FORGETTING + features @ self._spread @ features)
        self._weights = self._weights + gain * error
        spread = (self._spread - np.outer(gain, features @ self._spread)) / _FORGETTING
        # Directions that no step shows for long would grow without bound.
        self._spread = spread if np.trace(spread) < 1e4 else self._spread
        if tokens:
            self._measured += 1
            self._most_tokens = max(self._most_tokens, tokens)

    def predict(self, singles: int, cached: int, tokens: int, before: int) -> float:
        """Seconds of a step with so many single rows that read `cached` tokens, and a part of `tokens` on `before`."""
        return float(self._weights @ self._features(singles, cached, tokens, tokens * (before + tokens / 2)))

    def budget(self, singles: int, cached: int, before: int) -> int:
        """Tokens of longer parts that keep the predicted time below the limit; a few at least, so that all move on."""
        if self._measured < _LEAST_MEASURED:
            return _FIRST_TOKENS
        low, high, limit = _LEAST_TOKENS, _GROWTH * self._most_tokens, _SHARE * self.limit_seconds
        while low < high:
            middle = (low + high + 1) // 2
            if self.predict(singles, cached, middle, before) <= limit:
                low = middle
            else:
                high = middle - 1
        return low

    def _features(self, singles: int, cached: int, tokens: int, before: float) -> Vector:
        features: Vector = np.array([1.0, singles, cached, tokens, before]) * _SCALES
        return features
