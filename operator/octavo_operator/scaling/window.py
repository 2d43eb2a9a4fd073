"""The last minute of each pod: readings in, counts and means out. Counters may start anew; pods may go at any time."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection
from dataclasses import dataclass
from itertools import pairwise

from .sample import Absent, Partial, Reading, Sample

WINDOW_SECONDS = 60.0
RECENT_SECONDS = 15.0
"""A decision's length: what happened since the one before."""
STALE_SECONDS = 15.0
"""Three missed readings."""


@dataclass(frozen=True, slots=True)
class Signals:
    """What a pod showed: means over the recent seconds, counts over the window (or as long as it was seen)."""

    capacity_tokens: float
    active_tokens: float
    """Mean over the recent seconds."""
    active_mean_tokens: float
    """Mean over the window."""
    running: float
    waiting: float
    queued: bool
    """Whether requests waited at every one of at least two recent readings."""
    arrivals: float | None
    """Requests that came in the window; None where it can't be told: a single reading, or no counter."""
    completions: float | None
    """Requests that ended in the window."""
    recent_arrivals: float | None
    """Requests that came in the recent seconds."""
    recent_seconds: float
    preemptions: float
    """In the window."""
    seen_seconds: float
    """Length of what the window's counts are taken from."""
    recent_completions: float | None = None
    """Requests that ended in the recent seconds."""
    queued_seconds: float = 0.0
    """How long requests have waited without a reading in between that showed none."""


@dataclass(frozen=True, slots=True)
class Unknown:
    """A pod without a fresh, complete reading: neither empty nor full."""

    why: str


Seen = Signals | Unknown


def _growth(samples: list[Sample], name: str) -> float | None:
    """Growth of a counter over the samples, None where one lacks it; a counter that fell started anew at 0."""
    values: list[float | None] = [getattr(item, name) for item in samples]
    total = 0.0
    for before, after in pairwise(values):
        if before is None or after is None:
            return None
        total += after - before if after >= before else after
    return total


class PodWindow:
    """Readings of one pod (one UID). `add` in the order of time."""

    def __init__(self) -> None:
        self._samples: deque[Sample] = deque()
        self._last: Reading | None = None

    def add(self, reading: Reading) -> None:
        """Keep a reading; what is older than the window goes."""
        self._last = reading
        if isinstance(reading, Sample):
            self._samples.append(reading)
        while self._samples and reading.time - self._samples[0].time > WINDOW_SECONDS:
            self._samples.popleft()

    def seen(self, now: float) -> Seen:
        """The signals as of now, from readings of the last minute alone."""
        samples = [item for item in self._samples if now - item.time <= WINDOW_SECONDS]
        if not samples or now - samples[-1].time > STALE_SECONDS:
            return Unknown(self._why(now))
        return _signals(samples, now)

    def _why(self, now: float) -> str:
        last = self._last
        if isinstance(last, Partial):
            return f"its metrics lack {', '.join(last.missing)}"
        if isinstance(last, Absent):
            return last.why
        if last is None:
            return "it was not read yet"
        return f"its last reading is {now - last.time:.0f} s old"


def _signals(samples: list[Sample], now: float) -> Signals:
    recent = [item for item in samples if now - item.time <= RECENT_SECONDS] or samples[-1:]
    first, last = samples[0], samples[-1]
    elapsed = last.time - first.time
    finished = _growth(samples, "finished_total")
    received = _received(samples)
    return Signals(
        capacity_tokens=last.capacity_tokens,
        active_tokens=_mean([item.active_tokens for item in recent]),
        active_mean_tokens=_mean([item.active_tokens for item in samples]),
        running=_mean([item.running for item in recent]),
        waiting=_mean([item.waiting for item in recent]),
        queued=len(recent) >= 2 and all(item.waiting > 0 for item in recent),
        arrivals=received if elapsed > 0 else None,
        completions=finished if elapsed > 0 else None,
        recent_arrivals=_received(recent) if len(recent) > 1 else None,
        recent_seconds=last.time - recent[0].time,
        preemptions=_growth(samples, "preemptions_total") or 0.0,
        seen_seconds=elapsed,
        recent_completions=_growth(recent, "finished_total") if len(recent) > 1 else None,
        queued_seconds=_queued_seconds(samples),
    )


def _queued_seconds(samples: list[Sample]) -> float:
    since = samples[-1].time
    for item in reversed(samples):
        if item.waiting <= 0:
            break
        since = item.time
    return samples[-1].time - since


def _received(samples: list[Sample]) -> float | None:
    counted = _growth(samples, "received_total")
    if counted is not None:
        return counted
    finished = _growth(samples, "finished_total")
    if finished is None:
        return None
    # What came in = what went out + what there is more of.
    first, last = samples[0], samples[-1]
    return max(0.0, finished + last.running + last.waiting - first.running - first.waiting)


def _mean(values: list[float]) -> float:
    return sum(values) / len(values)


class Windows:
    """The windows of all pods, by UID."""

    def __init__(self) -> None:
        self._pods: dict[str, PodWindow] = {}

    def add(self, uid: str, reading: Reading) -> None:
        """Keep a reading of a pod."""
        self._pods.setdefault(uid, PodWindow()).add(reading)

    def seen(self, uid: str, now: float) -> Seen:
        """What a pod shows now."""
        window = self._pods.get(uid)
        return window.seen(now) if window is not None else Unknown("it was not read yet")

    def keep(self, uids: Collection[str]) -> None:
        """Forget all pods but these: a deleted pod's series never count again."""
        for uid in self._pods.keys() - set(uids):
            del self._pods[uid]
