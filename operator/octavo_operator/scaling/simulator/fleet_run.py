"""A service in simulated time: requests arrive, replicas start, serve, fail and drain, a scaler decides."""

from __future__ import annotations

import heapq
import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

from octavo_operator.plan.spread import spread

from .loads import Load
from .profile import Profile
from .replica import Replica, Request

READ_SECONDS = 5.0
DECIDE_SECONDS = 15.0
_READY = -1
"""In the place of an event's version: the replica became ready."""


@dataclass(frozen=True)
class Pool:
    """Nodes of one type: how many replicas they take."""

    profile: Profile
    accelerators: int = 1000


@dataclass(frozen=True)
class View:
    """What a scaler may look at."""

    now: float
    replicas: int
    """Count in force."""
    serving: Sequence[Replica]
    starting: Sequence[Replica]
    unplaced_since: Sequence[float]
    """Replicas without a node, since when."""
    spare: int
    waiting_in_front: int
    """Requests that no replica serves yet: the service is at zero, or all replicas still start."""


class Scaler(Protocol):
    """A policy. `read` comes every 5 s, `decide` every 15 s, right after a reading."""

    name: str
    idlest_goes: bool
    """Whether the emptiest replica is removed (its deletion cost is set), and not the youngest."""

    def read(self, view: View) -> None:
        """Take the readings of the serving replicas."""
        ...

    def decide(self, view: View) -> int:
        """The count to have."""
        ...


@dataclass
class Outcome:
    """What a run gave."""

    load: str
    policy: str
    requests: list[Request]
    replica_seconds: float
    cost: float
    counts: list[tuple[float, int]]
    """(time, count in force) at each change."""
    serving: list[tuple[float, int]] = field(default_factory=list)
    preemptions: int = 0


@dataclass(frozen=True)
class Scene:
    """Everything but the load and the scaler."""

    pools: tuple[Pool, ...] = (Pool(Profile()),)
    least: int = 1
    most: int = 40
    begin: int = 1
    startup_jitter: float = 0.2
    """Share by which the start-up time of each replica varies."""
    failures: tuple[float, ...] = ()
    """Times at which the oldest serving replica fails and is started again."""
    seed: int = 7


class Run:
    """One load under one scaler."""

    def __init__(self, load: Load, scaler: Scaler, scene: Scene) -> None:
        self._load, self._scaler, self._scene = load, scaler, scene
        self._requests = load.requests()
        self._live: list[Replica] = []
        self._unplaced: list[float] = []
        self._front: list[Request] = []
        self._numbers = 0
        self._events: list[tuple[float, int, int, Replica]] = []
        self._versions: dict[int, int] = {}
        self._draw = random.Random(scene.seed)
        self._desired = scene.begin
        self._outcome = Outcome(load.name, scaler.name, self._requests, 0.0, 0.0, [(0.0, scene.begin)])

    def outcome(self) -> Outcome:
        """Play it; ends when the load is over and every request has ended, or ten minutes later."""
        for _ in range(self._scene.begin):
            self._start(0.0, ready_at=0.0)
        arrivals, at = self._requests, 0
        tick, ticks = 0.0, 0
        failures = sorted(self._scene.failures)
        limit = self._load.seconds + 600.0
        while True:
            arrival = arrivals[at].arrival if at < len(arrivals) else float("inf")
            event = self._events[0][0] if self._events else float("inf")
            fault = failures[0] if failures else float("inf")
            now = min(arrival, event, fault, tick)
            if now > limit or (now > self._load.seconds and self._quiet()):
                break
            if now == event:
                self._replica_event()
            elif now == arrival:
                arrivals[at].begin()
                self._front.append(arrivals[at])
                self._route(now)
                at += 1
            elif now == fault:
                failures.pop(0)
                self._fail(now)
            else:
                self._tick(now, decide=ticks % 3 == 0 and now <= self._load.seconds)
                tick, ticks = tick + READ_SECONDS, ticks + 1
        self._close(min(now, limit))
        return self._outcome

    def _quiet(self) -> bool:
        return not self._front and all(item.idle for item in self._live)

    def _start(self, now: float, ready_at: float | None = None) -> None:
        pool = self._place()
        if pool is None:
            self._unplaced.append(now)
            return
        self._numbers += 1
        # The delays of the n-th replica are the same under every scaler.
        jitter = random.Random(self._scene.seed * 1000 + self._numbers).uniform(-1, 1) * self._scene.startup_jitter
        ready = now + pool.profile.startup_seconds * (1 + jitter) if ready_at is None else ready_at
        replica = Replica(self._numbers, pool.profile, now, ready)
        self._live.append(replica)
        heapq.heappush(self._events, (ready, replica.number, _READY, replica))

    def _place(self) -> Pool | None:
        pools = {pool.profile.name: pool for pool in self._scene.pools}
        current: dict[str, int] = {}
        for item in self._live:
            current[item.profile.name] = current.get(item.profile.name, 0) + 1
        free = {name: pool.accelerators - current.get(name, 0) for name, pool in pools.items()}
        cost = {name: round(1000 * pool.profile.cost_per_hour) for name, pool in pools.items()}
        if not any(room > 0 for room in free.values()):
            return None
        after = spread(sum(current.values()) + 1, current, free, cost)
        return next(pools[name] for name in after if after[name] > current.get(name, 0))

    def _route(self, now: float) -> None:
        ready = [item for item in self._live if item.ready_at <= now and not item.draining]
        if not ready:
            return
        for request in self._front:
            # A Service gives each connection to a random replica.
            replica = ready[self._draw.randrange(len(ready))]
            replica.advance(now, _heard)
            replica.add(request)
            self._schedule(replica)
        self._front.clear()

    def _schedule(self, replica: Replica) -> None:
        version = self._versions.get(replica.number, 0) + 1
        self._versions[replica.number] = version
        due = replica.next_event()
        if due < float("inf"):
            heapq.heappush(self._events, (due, replica.number, version, replica))

    def _replica_event(self) -> None:
        now, _, version, replica = heapq.heappop(self._events)
        if replica.gone_at is not None:
            return
        if version == _READY:
            self._route(now)
            self._note(now)
            return
        if version != self._versions.get(replica.number):
            return
        replica.advance(now, _heard)
        if replica.draining and replica.idle:
            self._remove(replica, now)
            return
        self._schedule(replica)

    def _tick(self, now: float, decide: bool) -> None:
        for item in self._live:
            if item.ready_at <= now:
                item.advance(now, _heard)
                self._schedule(item)
        for _ in range(len(self._unplaced)):
            if self._place() is None:
                break
            self._unplaced.pop(0)
            self._start(now)
        view = self._view(now)
        self._scaler.read(view)
        if decide:
            wanted = max(0, min(self._scene.most, self._scaler.decide(view)))
            if wanted != self._desired:
                self._outcome.counts.append((now, wanted))
                self._resize(wanted, now)

    def _view(self, now: float) -> View:
        alive = [item for item in self._live if not item.draining]
        serving = [item for item in alive if item.ready_at <= now]
        starting = [item for item in alive if item.ready_at > now]
        spare = sum(pool.accelerators for pool in self._scene.pools) - len(self._live)
        return View(now, self._desired, serving, starting, tuple(self._unplaced), max(0, spare), len(self._front))

    def _resize(self, wanted: int, now: float) -> None:
        alive = [item for item in self._live if not item.draining]
        change, self._desired = wanted - len(alive) - len(self._unplaced), wanted
        for _ in range(change):
            self._start(now)
        for _ in range(-change):
            if self._unplaced:
                self._unplaced.pop()
                continue
            starting = [item for item in alive if item.ready_at > now]
            if starting:
                gone = max(starting, key=lambda item: item.number)
                self._remove(gone, now)
            else:
                gone = self._leaver(alive)
                gone.advance(now, _heard)
                gone.draining = True
                if gone.idle:
                    self._remove(gone, now)
            alive.remove(gone)
        self._note(now)

    def _leaver(self, alive: list[Replica]) -> Replica:
        dearest = max(item.profile.cost_per_hour for item in alive)
        among = [item for item in alive if item.profile.cost_per_hour == dearest]
        if self._scaler.idlest_goes:
            return min(among, key=lambda item: (item.running + len(item.waiting), item.kv, item.number))
        return max(among, key=lambda item: item.number)

    def _fail(self, now: float) -> None:
        serving = [item for item in self._live if item.ready_at <= now and not item.draining]
        if not serving:
            return
        lost = serving[0]
        lost.advance(now, _heard)
        again = lost.drop_all()
        self._remove(lost, now)
        for request in again:
            request.begin()
        self._front = again + self._front
        self._start(now)
        self._route(now)
        self._note(now)

    def _remove(self, replica: Replica, now: float) -> None:
        self._live.remove(replica)
        replica.gone_at = now
        self._bill(replica, now)
        self._note(now)

    def _bill(self, replica: Replica, now: float) -> None:
        lived = max(0.0, min(now, self._load.seconds) - replica.asked_at)
        self._outcome.replica_seconds += lived
        self._outcome.cost += lived / 3600 * replica.profile.cost_per_hour
        self._outcome.preemptions += replica.preemptions

    def _note(self, now: float) -> None:
        serving = sum(item.ready_at <= now and not item.draining for item in self._live)
        self._outcome.serving.append((now, serving))

    def _close(self, now: float) -> None:
        for item in self._live:
            self._bill(item, now)


def _heard(_request: Request) -> None:
    """Ends are read from the requests themselves."""
