"""Demand in replicas: λ · r ÷ (target · cap), from what the ready pods showed, and what they taught about `cap`."""

from __future__ import annotations

import math
from collections import defaultdict
from dataclasses import replace

from octavo_operator.scaling.window import WINDOW_SECONDS, Signals

from .fleet import Fleet, Kind, Pod
from .residency import Residency
from .settings import PolicySettings
from .state import State
from .verdict import Numbers

_FEWEST_COMPLETIONS = 3


def learn(fleet: Fleet, state: State, settings: PolicySettings, now: float) -> State:
    """Take up what the pods showed: sustained uses by kind, and the mean residency."""
    for pod, seen in fleet.known():
        if pod.ready_since is None or now - pod.ready_since < settings.settle_seconds or seen.active_tokens <= 0:
            continue
        known = state.learned(pod.kind)
        # A use above the learned capacity without a queue shows that more can be sustained.
        surpassed = known is not None and not seen.queued and seen.waiting <= 0 and seen.active_mean_tokens > known
        if seen.queued:
            state = state.with_use(pod.kind, seen.active_tokens)
        elif surpassed:
            state = state.with_use(pod.kind, seen.active_mean_tokens)
    return _learn_residency(fleet, state, settings, now)


def _learn_residency(fleet: Fleet, state: State, settings: PolicySettings, now: float) -> State:
    held = finished = room = 0.0
    for _, seen in fleet.known():
        # A pod seen for a moment has begun requests and ended none.
        if seen.completions is not None and seen.seen_seconds >= 0.75 * WINDOW_SECONDS:
            held += seen.active_mean_tokens * seen.seen_seconds
            finished += seen.completions
            room += seen.capacity_tokens * seen.seen_seconds
    # A few completions tell nothing of the mean.
    if finished < _FEWEST_COMPLETIONS or held <= 0:
        return state
    known = state.residency or Residency()
    return replace(
        state, residency=known.with_seen(min(1.0, held / room), held / finished, now, settings.residency_seconds)
    )


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
    total = needed = steady = 0.0
    caps: list[float] = []
    residency: float | None = None
    for members in groups.values():
        cap = min(sustained(pod.kind, seen.capacity_tokens, state, settings) for pod, seen in members)
        seen_here = [seen for _, seen in members]
        shall = settings.target * cap / min(seen.capacity_tokens for seen in seen_here)
        lasting = _tokens(seen_here, shall, state, settings)
        tokens = max(lasting, _tokens_now(seen_here, shall, state, settings))
        total += tokens
        needed += tokens / (settings.target * cap)
        steady += lasting / (settings.target * cap)
        caps.append(cap)
        residency = None if state.residency is None else state.residency.at(shall)
    seen_all = [seen for _, seen in fleet.known()]
    return Numbers(
        demand_tokens=total,
        capacity_tokens=min(caps, default=None),
        needed=needed if caps else None,
        steady=steady if caps else None,
        active_tokens=sum(seen.active_tokens for seen in seen_all),
        waiting=sum(seen.waiting for seen in seen_all),
        arrivals_per_second=arrival_rate(seen_all, settings),
        residency_token_seconds=residency,
        ready=fleet.ready,
        pending=fleet.pending,
        unknown=len(fleet.unknown()),
    )


def _tokens(seen: list[Signals], shall: float, state: State, settings: PolicySettings) -> float:
    """Tokens that the load of the window would hold on replicas used as they shall be: λ · r with the backlog."""
    active = sum(item.active_mean_tokens for item in seen)
    waiting = sum(item.waiting for item in seen)
    if state.residency is None:
        # No request has ended yet: each waiting one will hold what a running one holds.
        running = sum(item.running for item in seen)
        most = settings.unlearned_share * seen[0].capacity_tokens
        each = min(most, active / max(1.0, running)) if running > 0 else most / 10
        return active + waiting * each
    arrivals = _steady_rate(seen)
    backlog = waiting / settings.drain_backlog_seconds
    return max(_as_it_shall(active, seen, shall, state.residency), (arrivals + backlog) * state.residency.at(shall))


def _tokens_now(seen: list[Signals], shall: float, state: State, settings: PolicySettings) -> float:
    """Tokens that the recent seconds ask for; falls and rises faster than the window."""
    active = sum(item.active_tokens for item in seen)
    if state.residency is None:
        return active
    backlog = sum(item.waiting for item in seen) / settings.drain_backlog_seconds
    rate = arrival_rate(seen, settings) + backlog
    return max(_as_it_shall(active, seen, shall, state.residency), rate * state.residency.at(shall))


def _as_it_shall(active: float, seen: list[Signals], shall: float, residency: Residency) -> float:
    """What is held now, as it would be at another use."""
    use = min(1.0, active / sum(item.capacity_tokens for item in seen))
    now = residency.at(use)
    return active * residency.at(shall) / now if now > 0 else active


def arrival_rate(seen: list[Signals], settings: PolicySettings) -> float:
    """Requests per second: of the whole window, or what the recent seconds prove to be more.

    A burst shows in the window only little by little. A count n of the recent seconds has a deviation of √n by chance;
    what exceeds it is no chance, so n − z·√n is a rate to rely on at once.
    """
    steady = _steady_rate(seen)
    known = [item for item in seen if item.recent_arrivals is not None]
    seconds = max((item.recent_seconds for item in known), default=0.0)
    if seconds <= 0:
        return steady
    count = sum(item.recent_arrivals or 0.0 for item in known)
    return max(steady, (count - settings.burst_deviations * math.sqrt(count)) / seconds)


def _steady_rate(seen: list[Signals]) -> float:
    """Requests per second over the window. A pod that is new in it took its share from the others: one time for all."""
    seconds = max((item.seen_seconds for item in seen), default=0.0)
    return sum(item.arrivals or 0.0 for item in seen) / seconds if seconds > 0 else 0.0
