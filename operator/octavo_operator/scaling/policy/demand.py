"""Demand in replicas: λ · r ÷ (target · cap), from what the ready pods showed, and what they taught about `cap`."""

from __future__ import annotations

import math
from collections import defaultdict
from dataclasses import replace

from octavo_operator.scaling.window import Signals

from .fleet import Fleet, Kind, Pod
from .settings import PolicySettings
from .state import State
from .verdict import Numbers


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
    held = finished = 0.0
    for _, seen in fleet.known():
        if seen.completions_per_second is not None:
            held += seen.active_mean_tokens
            finished += seen.completions_per_second
    # Fewer than a few completions in the window tell nothing of the mean.
    if finished * 60.0 < 3 or held <= 0:
        return state
    fresh = held / finished
    if state.residency is None:
        return replace(state, residency=fresh, residency_at=now)
    weight = 1.0 - math.exp(-max(0.0, now - state.residency_at) / settings.residency_seconds)
    mixed = state.residency + weight * (fresh - state.residency)
    return replace(state, residency=mixed, residency_at=now)


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
    total = needed = 0.0
    caps: list[float] = []
    for members in groups.values():
        cap = min(sustained(pod.kind, seen.capacity_tokens, state, settings) for pod, seen in members)
        tokens = _tokens([seen for _, seen in members], state, settings)
        total += tokens
        needed += tokens / (settings.target * cap)
        caps.append(cap)
    seen_all = [seen for _, seen in fleet.known()]
    return Numbers(
        demand_tokens=total,
        capacity_tokens=min(caps, default=None),
        needed=needed if caps else None,
        active_tokens=sum(seen.active_tokens for seen in seen_all),
        waiting=sum(seen.waiting for seen in seen_all),
        arrivals_per_second=sum(seen.arrivals_per_second or 0.0 for seen in seen_all),
        residency_token_seconds=state.residency,
        ready=fleet.ready,
        pending=fleet.pending,
        unknown=len(fleet.unknown()),
    )


def _tokens(seen: list[Signals], state: State, settings: PolicySettings) -> float:
    """Tokens that the load of these pods asks for: what it holds now, or λ · r where that is known and more."""
    active = sum(item.active_tokens for item in seen)
    waiting = sum(item.waiting for item in seen)
    running = sum(item.running for item in seen)
    if state.residency is None:
        # No request has ended yet: each waiting one will hold what a running one holds.
        most = settings.unlearned_share * seen[0].capacity_tokens
        each = min(most, active / max(1.0, running)) if running > 0 else most / 10
        return active + waiting * each
    arrivals = sum(item.arrivals_per_second or 0.0 for item in seen)
    backlog = waiting / settings.drain_backlog_seconds
    return max(active, (arrivals + backlog) * state.residency)
