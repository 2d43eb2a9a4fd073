"""What the pods teach: tokens and requests per second that a replica sustains, residency, start-up time."""

from __future__ import annotations

import statistics
from dataclasses import replace

from octavo_operator.scaling.window import WINDOW_SECONDS, Signals

from .fleet import Fleet, Pod
from .residency import Residency
from .settings import PolicySettings
from .state import State

_FEWEST_COMPLETIONS = 3


def learn(fleet: Fleet, state: State, settings: PolicySettings, now: float) -> State:
    """Take up what the pods showed."""
    for pod, seen in fleet.known():
        if pod.ready_since is None or now - pod.ready_since < settings.settle_seconds or seen.active_tokens <= 0:
            continue
        state = _learn_rate(_learn_use(state, pod, seen), pod, seen, settings)
    state = _learn_startup(fleet, state)
    return _learn_residency(fleet, state, settings, now)


def _learn_use(state: State, pod: Pod, seen: Signals) -> State:
    known = state.learned(pod.kind)
    if seen.queued:
        return state.with_use(pod.kind, seen.active_tokens)
    # A use above the learned capacity without a queue shows that more can be sustained.
    if known is not None and seen.waiting <= 0 and seen.active_mean_tokens > known:
        return state.with_use(pod.kind, seen.active_mean_tokens)
    return state


def _learn_rate(state: State, pod: Pod, seen: Signals, settings: PolicySettings) -> State:
    """A replica that has had a queue for a while ends as many requests as it can."""
    if seen.recent_completions is None or seen.recent_seconds <= 0:
        return state
    rate, known = seen.recent_completions / seen.recent_seconds, state.learned_rate(pod.kind)
    if seen.queued_seconds >= seen.recent_seconds + settings.saturation_seconds and rate > 0:
        return state.with_rate(pod.kind, rate)
    whole = seen.completions is not None and seen.seen_seconds >= 0.75 * WINDOW_SECONDS
    if known is not None and whole and seen.waiting <= 0:
        lasting = (seen.completions or 0.0) / seen.seen_seconds
        if lasting > known:
            return state.with_rate(pod.kind, lasting)
    return state


def _learn_startup(fleet: Fleet, state: State) -> State:
    seen = [pod.startup_seconds for pod in fleet.pods if pod.startup_seconds is not None]
    return replace(state, startup_seconds=statistics.median(seen)) if seen else state


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


def startup_seconds(state: State, settings: PolicySettings) -> float:
    """How long a replica takes to serve: as seen, else as assumed."""
    known = state.startup_seconds
    return settings.startup_prior_seconds if known is None else min(known, settings.startup_most_seconds)
