"""Demand in replicas: what comes in ÷ what a replica serves, by its KV cache (Little's law) and by its throughput."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence

from octavo_operator.scaling.window import Signals

from .fleet import Fleet, Kind, Pod
from .learning import horizon_seconds
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
    now_rate, lasting_rate = arrival_rate(everything, settings), steady_rate(everything)
    ahead, room = foreseen(state, settings, now_rate)
    total = needed = lasting = 0.0
    caps: list[float] = []
    residency: float | None = None
    for members in groups.values():
        share = steady_rate([seen for _, seen in members]) / lasting_rate if lasting_rate > 0 else 1.0 / len(groups)
        group = _Group(members, state, settings)
        asked = group.tokens_now(share * (ahead + room))
        kept = group.tokens_lasting(share * room)
        total += asked
        needed += max(asked / group.filled, group.by_throughput_now(share * (ahead + room)))
        lasting += max(kept / group.filled, group.by_throughput_lasting(share * room))
        caps.append(group.cap)
        residency = None if state.residency is None else state.residency.at(group.shall)
    return Numbers(
        demand_tokens=total,
        capacity_tokens=min(caps, default=None),
        needed=max(needed, lasting) if caps else None,
        steady=lasting if caps else None,
        active_tokens=sum(seen.active_tokens for seen in everything),
        waiting=sum(seen.waiting for seen in everything),
        arrivals_per_second=now_rate,
        foreseen_per_second=ahead + room,
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
        self._rate = settings.target_throughput * min(known) if known else None
        self._waiting = sum(item.waiting for item in self._seen)

    def tokens_lasting(self, more: float) -> float:
        """Tokens that the load of the window would hold on replicas used as they shall be; `more`: requests/s."""
        active = sum(item.active_mean_tokens for item in self._seen)
        residency = self._state.residency
        if residency is None:
            # No request has ended yet: each waiting one will hold what a running one holds.
            running = sum(item.running for item in self._seen)
            most = self._settings.unlearned_share * self._least
            each = min(most, active / max(1.0, running)) if running > 0 else most / 10
            return active + self._waiting * each
        return max(self._as_it_shall(active, residency), (steady_rate(self._seen) + more) * residency.at(self.shall))

    def tokens_now(self, more: float) -> float:
        """Tokens that the recent seconds, the backlog and `more` requests per second ask for."""
        active, residency = sum(item.active_tokens for item in self._seen), self._state.residency
        if residency is None:
            return active
        rate = arrival_rate(self._seen, self._settings) + self._waiting / self._settings.drain_backlog_seconds + more
        return max(self._as_it_shall(active, residency), rate * residency.at(self.shall))

    def by_throughput_now(self, more: float) -> float:
        """Replicas whose throughput suffices for the recent seconds and the backlog; 0 while none was at its limit."""
        waits = self._waiting / self._settings.drain_backlog_seconds
        return (arrival_rate(self._seen, self._settings) + waits + more) / self._rate if self._rate else 0.0

    def by_throughput_lasting(self, more: float) -> float:
        """Replicas whose throughput suffices for the load of the window."""
        return (steady_rate(self._seen) + more) / self._rate if self._rate else 0.0

    def _as_it_shall(self, active: float, residency: Residency) -> float:
        """What is held now, as it would be at another use."""
        use = min(1.0, active / sum(item.capacity_tokens for item in self._seen))
        now = residency.at(use)
        return active * residency.at(self.shall) / now if now > 0 else active


def foreseen(state: State, settings: PolicySettings, rate: float) -> tuple[float, float]:
    """(requests per second that will have come on top of `rate` when a new replica serves, room for surprises)."""
    ahead = state.trend.ahead(horizon_seconds(state, settings), settings.slope_deviations)
    return (
        settings.trend_share * max(0.0, ahead - rate),
        settings.surprise_deviations * math.sqrt(state.trend.surprise),
    )


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
