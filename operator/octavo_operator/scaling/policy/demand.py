"""Demand in replicas: what comes in ÷ what a replica serves, by its KV cache (Little's law) and by its throughput."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence

from octavo_operator.scaling.window import Signals

from .fleet import Fleet, Kind, Pod
from .residency import Residency
from .settings import PolicySettings
from .state import State
from .verdict import Numbers

Members = Sequence[tuple[Pod, Signals]]


def sustained(kind: Kind, capacity_tokens: float, state: State, settings: PolicySettings) -> float:
    """Tokens that one replica of a kind sustains: learned, and never more than its blocks allow."""
    most = settings.unlearned_share * capacity_tokens
    known = state.learned(kind)
    return max(1.0, most if known is None else min(most, known))


def demand(fleet: Fleet, state: State, settings: PolicySettings) -> Numbers:
    """Demand as of now. Templates count apart; within one, a mixed fleet counts as its weakest replica."""
    groups: dict[str, list[tuple[Pod, Signals]]] = defaultdict(list)
    for pod, seen in fleet.known():
        groups[pod.template].append((pod, seen))
    everything = [seen for _, seen in fleet.known()]
    total = needed = lasting = 0.0
    caps: list[float] = []
    residency: float | None = None
    for members in groups.values():
        group = _Group(members, state, settings)
        # A window of a minute follows a burst slowly, recent seconds are moved by chance: the larger one counts.
        kept = group.tokens_lasting()
        asked = max(kept, group.tokens_now())
        total += asked
        needed += max(asked / group.filled, group.by_throughput_now())
        lasting += max(kept / group.filled, group.by_throughput_lasting())
        caps.append(group.cap)
        residency = None if state.residency is None else state.residency.at(group.shall)
    needed, lasting = staffed(needed, settings), staffed(lasting, settings)
    return Numbers(
        demand_tokens=total,
        capacity_tokens=min(caps, default=None),
        needed=max(needed, lasting) if caps else None,
        at_once=max(needed, lasting) if caps else None,
        steady=lasting if caps else None,
        active_tokens=sum(seen.active_tokens for seen in everything),
        waiting=sum(seen.waiting for seen in everything),
        arrivals_per_second=arrival_rate(everything, settings),
        steady_arrivals=steady_rate(everything),
        residency_token_seconds=residency,
        ready=fleet.ready,
        pending=fleet.pending,
        unknown=len(fleet.unknown()),
    )


class _Group:
    """Pods of one template: one target use, one capacity."""

    def __init__(self, members: Members, state: State, settings: PolicySettings) -> None:
        self._seen = [seen for _, seen in members]
        self._state, self._settings = state, settings
        self.cap = min(sustained(pod.kind, seen.capacity_tokens, state, settings) for pod, seen in members)
        self._least = min(seen.capacity_tokens for seen in self._seen)
        self.filled = settings.target * self.cap
        """Tokens that a replica shall hold."""
        self.shall = self.filled / self._least
        """The use that it shall have."""
        rates = [state.learned_rate(pod.kind) for pod, _ in members]
        known = [rate for rate in rates if rate]
        self._rate = settings.target * min(known) if known else None
        self._waiting = sum(item.waiting for item in self._seen)

    def tokens_lasting(self) -> float:
        """Tokens that the load of the window would hold on replicas used as they shall be."""
        active = sum(item.active_mean_tokens for item in self._seen)
        residency = self._state.residency
        if residency is None:
            return active + self._waiting * self._each(active)
        return max(self._as_it_shall(active, residency), steady_rate(self._seen) * residency.at(self.shall))

    def _each(self, active: float) -> float:
        """Tokens that a request holds, before any is known to have ended: as those that run."""
        running = sum(item.running for item in self._seen)
        most = self._settings.unlearned_share * self._least
        return min(most, active / max(1.0, running)) if running > 0 else most / 10

    def tokens_now(self) -> float:
        """Tokens that the recent seconds and the backlog ask for."""
        active, residency = sum(item.active_tokens for item in self._seen), self._state.residency
        if residency is None:
            # Nothing tells yet how long a request stays: what comes until the next decision is taken to stay till then.
            coming = self._settings.unlearned_seconds * steady_rate(self._seen)
            return active + (self._waiting + coming) * self._each(active)
        rate = arrival_rate(self._seen, self._settings) + self._waiting / self._settings.drain_backlog_seconds
        chance = self._settings.active_deviations / math.sqrt(max(1.0, sum(item.running for item in self._seen)))
        active *= max(0.0, 1.0 - chance)
        return max(self._as_it_shall(active, residency), rate * residency.at(self.shall))

    def by_throughput_now(self) -> float:
        """Replicas whose throughput suffices for the recent seconds and the backlog; 0 while none was at its limit."""
        waits = self._waiting / self._settings.drain_backlog_seconds
        return (arrival_rate(self._seen, self._settings) + waits) / self._rate if self._rate else 0.0

    def by_throughput_lasting(self) -> float:
        """Replicas whose throughput suffices for the load of the window."""
        return steady_rate(self._seen) / self._rate if self._rate else 0.0

    def _as_it_shall(self, active: float, residency: Residency) -> float:
        """What is held now, as it would be at another use."""
        use = min(1.0, active / sum(item.capacity_tokens for item in self._seen))
        now = residency.at(use)
        return active * residency.at(self.shall) / now if now > 0 else active


def staffed(load: float, settings: PolicySettings) -> float:
    """Replicas for a load in replicas: with room that grows as its root, as queues of many servers need it.

    Requests reach replicas at random, so that some have more than others; the fewer there are, the more that matters.
    """
    return load + settings.imbalance * math.sqrt(max(0.0, load))


def arrival_rate(seen: Sequence[Signals], settings: PolicySettings) -> float:
    """Requests per second: of the whole window, or what the recent seconds prove to be more.

    A burst shows in the window only little by little. A count n of the recent seconds has a deviation of √n by chance;
    what exceeds it is no chance, so n − z·√n is a rate to rely on at once.
    """
    steady = steady_rate(seen)
    known = [item for item in seen if item.recent_arrivals is not None]
    seconds = max((item.recent_seconds for item in known), default=0.0)
    if seconds <= 0:
        return steady
    count = sum(item.recent_arrivals or 0.0 for item in known)
    return max(steady, (count - settings.burst_deviations * math.sqrt(count)) / seconds)


def steady_rate(seen: Sequence[Signals]) -> float:
    """Requests per second over the window. A pod that is new in it took its share from the others: one time for all."""
    seconds = max((item.seen_seconds for item in seen), default=0.0)
    return sum(item.arrivals or 0.0 for item in seen) / seconds if seconds > 0 else 0.0
