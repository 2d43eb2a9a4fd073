"""The policies that are compared. Octavo's is the operator's own code; the others follow their documentation."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from octavo_operator.scaling.policy import Fleet, Pod, PolicySettings, Recommendation, State, recommend
from octavo_operator.scaling.sample import Sample
from octavo_operator.scaling.window import Unknown, Windows

from .fleet_run import View
from .replica import Replica

Measure = Callable[[Sample], float]


class Octavo:
    """The operator's policy, fed as the operator feeds it."""

    idlest_goes = True

    def __init__(self, settings: PolicySettings, name: str = "Octavo") -> None:
        self.name = name
        self._settings = settings
        self._windows = Windows()
        self.state = State()
        self.last: Recommendation | None = None

    def read(self, view: View) -> None:
        """Samples into the windows, as the scraper does."""
        self._windows.keep([str(item.number) for item in view.serving])
        for item in view.serving:
            self._windows.add(str(item.number), item.sample(view.now))

    def decide(self, view: View) -> int:
        """One decision."""
        pods = [
            Pod(
                f"pod-{item.number}",
                item.profile.name,
                "template",
                item.ready_at,
                self._windows.seen(str(item.number), view.now),
                startup_seconds=item.ready_at - item.asked_at if item.ready_at > item.asked_at else None,
            )
            for item in view.serving
        ]
        pods += [
            Pod(f"pod-{item.number}", item.profile.name, "template", None, Unknown("starts")) for item in view.starting
        ]
        pods += [Pod("pod", "", "template", None, Unknown("no node"), since) for since in view.unplaced_since]
        fleet = Fleet(view.replicas, tuple(pods), view.spare)
        self.last = recommend(fleet, self.state, self._settings, view.now)
        self.state = self.last.state
        return self.last.desired


class _Stabilised:
    """HPA's behaviour by default: down to the largest wish of 300 s, up by at most 4 pods or 100 % in 15 s."""

    def __init__(self, seconds: float = 300.0) -> None:
        self._wishes: deque[tuple[float, int]] = deque()
        self._seconds = seconds

    def bounded(self, now: float, present: int, wish: int) -> int:
        self._wishes.append((now, wish))
        while now - self._wishes[0][0] > self._seconds:
            self._wishes.popleft()
        wish = min(wish, present + max(4, present))
        return wish if wish >= present else min(present, max(item for _, item in self._wishes))


class HPA:
    """HorizontalPodAutoscaler on the mean of a pod metric."""

    idlest_goes = False

    def __init__(self, name: str, measure: Measure, target: float, least: int, most: int) -> None:
        self.name, self._measure, self._target = name, measure, target
        self._least, self._most, self._bounds = least, most, _Stabilised()

    def read(self, view: View) -> None:
        """It reads when it decides."""

    def decide(self, view: View) -> int:
        """desired = ceil(pods · mean / target), 10 % tolerance; pods that start count as 0 or, shrinking, as full."""
        values = [self._measure(item.sample(view.now)) for item in view.serving]
        if not values:
            return max(self._least, view.replicas)
        ratio = sum(values) / len(values) / self._target
        wish = view.replicas
        if abs(ratio - 1.0) > 0.1:
            wish = math.ceil(ratio * len(values))
            if view.starting:
                # Pods without metrics: nothing when growing, the target when shrinking.
                count = len(values) + len(view.starting)
                assumed = 0.0 if ratio > 1.0 else self._target * len(view.starting)
                damped = (sum(values) + assumed) / count / self._target
                turned = (damped - 1.0) * (ratio - 1.0) < 0
                wish = view.replicas if turned or abs(damped - 1.0) <= 0.1 else math.ceil(damped * count)
        wish = max(self._least, min(self._most, wish))
        return self._bounds.bounded(view.now, view.replicas, wish)


class KEDA:
    """ScaledObject on the sum of waiting requests: an external metric with an average value, read at each decision.

    KEDA's polling interval is for going to and from zero; in between an HPA asks it each time.
    """

    idlest_goes = False

    def __init__(self, name: str, threshold: float, least: int, most: int) -> None:
        self.name, self._threshold, self._least, self._most = name, threshold, least, most
        self._bounds = _Stabilised()

    def read(self, view: View) -> None:
        """It reads when it decides."""

    def decide(self, view: View) -> int:
        """desired = ceil(sum / threshold), 10 % tolerance."""
        waiting = sum(len(item.waiting) for item in view.serving) + view.waiting_in_front
        wish = view.replicas
        if abs(waiting / (self._threshold * max(1, view.replicas)) - 1.0) > 0.1:
            wish = math.ceil(waiting / self._threshold)
        wish = max(self._least, min(self._most, wish))
        return self._bounds.bounded(view.now, view.replicas, wish)


class _PeakReader:
    """Largest use and queue of each replica in the last minute, as llm-d's collector asks for."""

    def __init__(self) -> None:
        self._seen: dict[int, deque[Sample]] = {}

    def read(self, view: View) -> None:
        """Keep a minute."""
        present = {item.number for item in view.serving}
        self._seen = {number: kept for number, kept in self._seen.items() if number in present}
        for item in view.serving:
            kept = self._seen.setdefault(item.number, deque())
            kept.append(item.sample(view.now))
            while view.now - kept[0].time > 60.0:
                kept.popleft()

    def peak(self, item: Replica, measure: Measure) -> float:
        return max((measure(sample) for sample in self._seen.get(item.number, ())), default=0.0)


class LlmdV1:
    """llm-d's saturation analyzer by spare capacity: one replica up or down per minute."""

    idlest_goes = False

    def __init__(self, least: int, most: int, saturated: float = 0.8) -> None:
        self.name = f"llm-d v1 {saturated:.0%}"
        self._least, self._most, self._full, self._bounds = least, most, saturated, _Stabilised()
        self._peaks, self._due, self._wish = _PeakReader(), 0.0, least

    def read(self, view: View) -> None:
        """Peaks of a minute."""
        self._peaks.read(view)

    def decide(self, view: View) -> int:
        """Saturated at 0.8 of the KV, queue at 5; up if spare < 0.1 or < 3; down when it still holds with one less."""
        if view.now >= self._due and view.serving:
            self._due = view.now + 60.0
            self._wish = self._analyse(view)
        wish = max(self._least, min(self._most, self._wish))
        return self._bounds.bounded(view.now, view.replicas, wish)

    def _analyse(self, view: View) -> int:
        uses = [
            (self._peaks.peak(item, _usage), self._peaks.peak(item, lambda sample: sample.waiting))
            for item in view.serving
        ]
        free = [(use, queue) for use, queue in uses if use < self._full and queue < 5]
        pending = bool(view.starting or view.unplaced_since)
        if not free:
            return view.replicas if pending else view.replicas + 1
        spare_use = sum(self._full - use for use, _ in free) / len(free)
        spare_queue = sum(5 - queue for _, queue in free) / len(free)
        if spare_use < 0.1 or spare_queue < 3:
            return view.replicas if pending else view.replicas + 1
        if len(free) >= 2 and not pending:
            left = len(free) - 1
            use, queue = sum(u for u, _ in free) / left, sum(q for _, q in free) / left
            if self._full - use >= 0.1 and 5 - queue >= 3:
                return view.replicas - 1
        return view.replicas


class LlmdV2:
    """llm-d's analyzer by tokens: demand ÷ anticipated supply, up above 0.85 by default, down below 0.15 less."""

    idlest_goes = False

    def __init__(self, least: int, most: int, up: float = 0.85, every_seconds: float = 30.0) -> None:
        self.name, self._up, self._down = f"llm-d v2 {up:.0%}", up, up - 0.15
        self._least, self._most, self._every = least, most, every_seconds
        self._bounds, self._due, self._wish = _Stabilised(), 0.0, least
        self._saturated: deque[float] = deque(maxlen=10)

    def read(self, view: View) -> None:
        """Uses of replicas whose queue is at least 5 tell what computing sustains."""
        for item in view.serving:
            if len(item.waiting) >= 5:
                self._saturated.append(item.kv)

    def decide(self, view: View) -> int:
        """Capacity of a replica: the smaller of 0.80 of its cache and what saturated replicas held."""
        if view.now >= self._due and view.serving:
            self._due = view.now + self._every
            memory = 0.8 * min(item.profile.capacity_tokens for item in view.serving)
            seen = sum(self._saturated) / len(self._saturated) if self._saturated else memory
            capacity = max(1.0, min(memory, seen))
            demand = sum(item.kv + item.waiting_tokens for item in view.serving)
            supply = capacity * view.replicas
            self._wish = view.replicas
            if demand > self._up * supply:
                self._wish = math.ceil(demand / self._up / capacity)
            elif demand < self._down * supply:
                self._wish = min(view.replicas, max(1, math.ceil(demand / self._down / capacity)))
        wish = max(self._least, min(self._most, self._wish))
        return self._bounds.bounded(view.now, view.replicas, wish)


def _usage(sample: Sample) -> float:
    return sample.active_tokens / sample.capacity_tokens


class Planned:
    """Follows a plan made beforehand: the oracle, and a fixed count."""

    idlest_goes = True

    def __init__(self, name: str, plan: Callable[[float], int]) -> None:
        self.name, self._plan = name, plan

    def read(self, view: View) -> None:
        """It needs no reading."""

    def decide(self, view: View) -> int:
        """The plan's count at this time."""
        return self._plan(view.now)


Peer = HPA | KEDA | LlmdV1 | LlmdV2


@dataclass(frozen=True)
class Grid:
    """Settings of the other policies: each family has one that its guides tell people to set."""

    kv: tuple[float, ...]
    queue: tuple[float, ...]
    concurrency: tuple[float, ...]
    waiting: tuple[float, ...]
    v1: tuple[float, ...]
    v2: tuple[float, ...]


DOCUMENTED = Grid((0.5, 0.7, 0.8), (1, 3, 5), (8, 16, 32), (2, 5), (0.8,), (0.85,))
"""What documentation and guides give."""
TUNED = Grid(
    (0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9),
    (0.25, 1, 3, 5, 10),
    (4, 6, 8, 12, 16, 20, 24, 28, 32, 40, 48, 64),
    (2, 5, 10, 20),
    (0.6, 0.7, 0.8, 0.9),
    (0.65, 0.75, 0.85, 0.95),
)
"""A finer choice, from which the best is taken for each load with hindsight."""


def others(least: int, most: int, grid: Grid = DOCUMENTED) -> list[Callable[[], Peer]]:
    """Every policy but Octavo, with each setting of the grid. What else they have stays at its default."""
    return [
        *(lambda t=t: HPA(f"HPA on KV {t:.0%}", _usage, t, least, most) for t in grid.kv),
        *(lambda t=t: HPA(f"HPA on queue {t:g}", lambda s: s.waiting, t, least, most) for t in grid.queue),
        *(
            lambda t=t: HPA(f"HPA on concurrency {t:g}", lambda s: s.running + s.waiting, t, least, most)
            for t in grid.concurrency
        ),
        *(lambda t=t: KEDA(f"KEDA on waiting {t:g}", t, least, most) for t in grid.waiting),
        *(lambda t=t: LlmdV1(least, most, t) for t in grid.v1),
        *(lambda t=t: LlmdV2(least, most, t) for t in grid.v2),
    ]
