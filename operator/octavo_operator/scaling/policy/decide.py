"""The decision: from demand to a count, with every guard of the design in one order.

1. learn from the readings; 2. demand → a wished count, with tolerance; 3. removal only when nothing speaks against it;
4. growth bounded; 5. accelerators that do not come are given up; 6. bounds of the service; 7. to and from zero.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from octavo_operator.scaling.window import WINDOW_SECONDS

from .demand import demand
from .fleet import Fleet
from .learning import learn, startup_seconds
from .settings import PolicySettings
from .state import Change, Removal, State
from .trend import Past, slope
from .verdict import Numbers, Reason, Recommendation

_ENDLESS = 1e6
"""More than any service may have."""


@dataclass(frozen=True)
class _Wish:
    count: int
    reason: Reason
    message: str


def wished(needed: float, tolerance: float) -> int:
    """The smallest count that the demand exceeds by no more than the tolerance."""
    # A demand of 3.0000001 from rounding asks for 3.
    return math.ceil(min(needed, _ENDLESS) / (1.0 + tolerance) - 1e-6)


def recommend(fleet: Fleet, state: State, settings: PolicySettings, now: float) -> Recommendation:
    """The count to have now, why, and the state for the next decision. `now`: seconds on the readings' clock."""
    state = learn(fleet, state, settings, now)
    state, numbers = _kept(fleet, state, settings, demand(fleet, state, settings), now)
    state = _recurred(fleet, state, settings, numbers, now)
    state = _remember(fleet, state, settings, numbers, now)
    floor, sleepy = _floor(fleet, settings)
    if fleet.replicas == 0 and floor == 0:
        wish = _sleeping(fleet, state)
    else:
        wish = _awake(fleet, state, settings, numbers, now)
        if floor == 0 and _may_sleep(fleet, state, settings, now):
            wish = _Wish(0, Reason.IDLE, f"no request for {settings.idle_seconds:.0f} s")
        elif wish.count < max(1, floor):
            wish = _Wish(max(1, floor), Reason.WITHIN_BOUNDS, f"scaling.minReplicas is {settings.min_replicas}")
        elif wish.count > settings.max_replicas:
            text = f"{wish.message}; scaling.maxReplicas is {settings.max_replicas}"
            wish = _Wish(settings.max_replicas, Reason.AT_MAXIMUM, text)
    wish, state = _bounded_by_supply(fleet, state, settings, wish, now)
    if sleepy and wish.count == fleet.replicas == 1 and wish.reason in (Reason.SETTLED, Reason.WITHIN_BOUNDS):
        text = "scaling.minReplicas 0 acts as 1: nothing in front of the service holds requests while it sleeps"
        wish = _Wish(1, Reason.NO_WAKE_SOURCE, text)
    return _conclude(fleet, state, settings, wish, numbers, now)


def _kept(fleet: Fleet, state: State, settings: PolicySettings, numbers: Numbers, now: float) -> tuple[State, Numbers]:
    """Demand is at least what its trend foretells, and a share of its largest value of late as far as it may come back.

    To keep some replicas costs less than to lack all, but no load needs more than it ever rose by while replicas start.
    """
    steady = numbers.steady
    if steady is None or numbers.needed is None:
        return replace(state, lows=(), past=()), numbers
    if settings.scale_down_seconds is not None:
        return state, numbers
    starts = startup_seconds(state, settings)
    span = min(settings.keep_most_seconds, settings.keep_startups * starts)
    state = replace(state, peaks=_largest(state.peaks, now, steady, span))
    whole = _whole(fleet, state, now)
    state = _risen(state, steady, now, starts + WINDOW_SECONDS, span, whole)
    length = settings.trend_responses * (starts + WINDOW_SECONDS)
    past = tuple(item for item in state.past if now - length <= item.time < now)
    # Of what the decisions before this one saw: a single reading neither makes a trend nor ends it.
    trend = slope(past, settings.trend_deviations) if past and now - past[0].time >= 0.6 * length else 0.0
    # Half of the window passed since the middle of what it counts, and a replica asked for now starts.
    expected = steady * (1.0 + max(0.0, trend) * (WINDOW_SECONDS / 2 + starts))
    kept = min(settings.keep_share * state.peaks[0][1], expected + state.rises[0][1])
    state = replace(state, past=(*past, Past(now, numbers.steady_arrivals)) if whole else past)
    return state, replace(numbers, needed=max(numbers.needed, expected, kept), falling=trend < 0)


def _whole(fleet: Fleet, state: State, now: float) -> bool:
    """Whether the window shows the load as it is, and so what is more or less than before.

    At first it fills, whatever the load does; when a pod goes, what that received is missing for a while.
    """
    filled = state.watched_since is not None and now - state.watched_since >= 1.5 * WINDOW_SECONDS
    return filled and all(count <= fleet.replicas for time, count in state.counts if now - time <= WINDOW_SECONDS)


def _largest(
    known: tuple[tuple[float, float], ...], now: float, value: float, span: float
) -> tuple[tuple[float, float], ...]:
    """Each the largest value since its time, the first of them the largest of the span."""
    return (*(item for item in known if now - item[0] <= span and item[1] > value), (now, value))


def _risen(state: State, steady: float, now: float, response: float, span: float, whole: bool) -> State:
    """Note by how much demand rose within the time that replicas take to answer."""
    lows = tuple(item for item in state.lows if now - item[0] <= response)
    if not whole:
        return replace(state, lows=lows, rises=_largest(state.rises, now, 0.0, span))
    lows = (*(item for item in lows if item[1] < steady), (now, steady))
    return replace(state, lows=lows, rises=_largest(state.rises, now, steady - lows[0][1], span))


def _floor(fleet: Fleet, settings: PolicySettings) -> tuple[int, bool]:
    """Fewest replicas, and whether a wish for zero is denied for want of a wake source."""
    if settings.min_replicas > 0:
        return settings.min_replicas, False
    return (1, True) if fleet.wake is None else (0, False)


def _remember(fleet: Fleet, state: State, settings: PolicySettings, numbers: Numbers, now: float) -> State:
    """Keep the window of demands, the counts of the rise window, and since when there was no load."""
    counts = [item for item in state.counts if now - item[0] <= settings.rise_seconds]
    state = replace(state, counts=(*counts, (now, fleet.replicas)))
    if numbers.steady is None:
        # A gap: demand was not seen, so the window starts anew once it is.
        return replace(state, watched_since=None, demands=(), idle_since=None)
    kept = [
        item
        for item in state.demands
        if now - item[0] <= _watch_seconds(state, settings, now) and item[1] > numbers.steady
    ]
    quiet = not numbers.unknown and all(
        seen.running <= 0 and seen.waiting <= 0 and not seen.arrivals for _, seen in fleet.known()
    )
    return replace(
        state,
        demands=(*kept, (now, numbers.steady)),
        watched_since=now if state.watched_since is None else state.watched_since,
        idle_since=(now if state.idle_since is None else state.idle_since) if quiet else None,
    )


def _awake(fleet: Fleet, state: State, settings: PolicySettings, numbers: Numbers, now: float) -> _Wish:
    present = fleet.replicas
    missing = fleet.unknown()
    if numbers.needed is None:
        if missing:
            pod, seen = missing[0]
            return _Wish(present, Reason.METRICS_MISSING, f"held: no pod tells its load; {pod.name}: {seen.why}")
        return _Wish(present, Reason.STARTING, "held: no replica serves yet")
    count = wished(numbers.needed, settings.tolerance)
    preempted = sum(seen.preemptions for _, seen in fleet.known())
    told = describe(numbers, settings)
    # Preemptions from before the youngest replica served, or on a few of many, are no reason for one more.
    settled = fleet.pending == 0 and all(
        pod.ready_since is None or now - pod.ready_since >= WINDOW_SECONDS for pod in fleet.pods
    )
    hit = sum(seen.preemptions > 0 for _, seen in fleet.known())
    if settled and 2 * hit >= max(1, fleet.ready) and count <= present:
        return _Wish(present + 1, Reason.PREEMPTIONS, f"{preempted:.0f} requests lost their cache blocks; {told}")
    if count > present:
        return _Wish(count, Reason.DEMAND_GREW, told)
    if count == present:
        return _Wish(present, Reason.SETTLED, told)
    return _removal(fleet, state, settings, numbers, preempted, told, now)


def _removal(
    fleet: Fleet, state: State, settings: PolicySettings, numbers: Numbers, preempted: float, told: str, now: float
) -> _Wish:
    """One replica fewer, or the reason why not."""
    present = fleet.replicas
    missing = fleet.unknown()
    if missing:
        pod, seen = missing[0]
        why = f"held: {len(missing)} of {fleet.ready} pods unknown; {pod.name}: {seen.why}"
        return _Wish(present, Reason.METRICS_MISSING, why)
    if fleet.pending:
        return _Wish(present, Reason.STARTING, f"held: {fleet.pending} replicas still start; {told}")
    if fleet.rolling:
        return _Wish(present, Reason.ROLLING_OUT, f"held while a rollout goes on; {told}")
    if preempted > 0:
        return _Wish(present, Reason.PREEMPTIONS, f"held: {preempted:.0f} requests lost their cache blocks; {told}")
    watched = now - state.watched_since if state.watched_since is not None else 0.0
    wanted = _watch_seconds(state, settings, now)
    peak = max((item[1] for item in state.demands), default=0.0)
    if numbers.falling:
        # Each of `demands` is the largest since its time: the first of the last seconds is their largest.
        peak = next((item[1] for item in state.demands if now - item[0] <= settings.falling_seconds), peak)
    if watched < wanted or peak > sufficient(present, state, settings, now):
        text = f"the last {min(watched, wanted):.0f} s needed up to {peak:.2f}; {told}"
        return _Wish(present, Reason.WATCHING if watched < wanted else Reason.SETTLED, text)
    return _Wish(present - 1, Reason.DEMAND_FELL, f"{peak:.2f} needed at most in {wanted:.0f} s; {told}")


def _window_seconds(state: State, settings: PolicySettings) -> float:
    """How long a smaller demand must last: as set, else by how long it takes to undo a mistake."""
    if settings.scale_down_seconds is not None:
        return settings.scale_down_seconds
    wanted = settings.window_startups * startup_seconds(state, settings)
    return min(settings.window_most_seconds, max(settings.window_least_seconds, wanted))


def _longest_lull(state: State, settings: PolicySettings) -> float:
    """A longer absence of load is not waited for: the idle replicas would cost more than they save."""
    return settings.lull_startups * startup_seconds(state, settings)


def _watch_seconds(state: State, settings: PolicySettings, now: float) -> float:
    """The window; longer after a load that came back after a lull and found too few replicas."""
    window = _window_seconds(state, settings)
    if state.lull is None or now - state.lull[0] >= settings.regret_seconds:
        return window
    return max(window, min(settings.lull_margin * state.lull[1], _longest_lull(state, settings)))


def sufficient(present: int, state: State, settings: PolicySettings, now: float) -> float:
    """The largest demand for which one replica fewer suffices, with a margin so that chance does not ask it back.

    A removal that had to be undone all the same is not tried again for nearly the same demand.
    """
    limit = (present - 1) * (1.0 - settings.margin)
    for memory, steps in ((state.regret, 1.0), (state.strained, 2.0)):
        if memory is not None and memory.count == present - 1 and now - memory.time < settings.regret_seconds:
            limit = min(limit, memory.needed * (1.0 - steps * max(0.05, settings.margin)))
    return limit


def _bounded_by_supply(
    fleet: Fleet, state: State, settings: PolicySettings, wish: _Wish, now: float
) -> tuple[_Wish, State]:
    """Growth within its limit, and nothing asked for that the scheduler can't place."""
    present = fleet.replicas
    stuck = fleet.stuck(now, settings.unschedulable_seconds)
    if fleet.spare:
        state = replace(state, blocked_until=0.0)
    if stuck and not fleet.spare:
        state = replace(state, blocked_until=now + settings.retry_seconds)
        left = max(fleet.ready, present - stuck, 1)
        if left < wish.count or left < present:
            patience = f"{settings.unschedulable_seconds:.0f} s"
            text = f"{stuck} replicas withdrawn: no node with a free accelerator for {patience}"
            return _Wish(min(left, present), Reason.WAITING_FOR_ACCELERATOR, f"{text}; {wish.message}"), state
    if wish.count <= present:
        return wish, state
    if now < state.blocked_until:
        text = f"{wish.count} needed; next try in {state.blocked_until - now:.0f} s or when an accelerator becomes free"
        return _Wish(present, Reason.WAITING_FOR_ACCELERATOR, text), state
    base = min((count for _, count in state.counts), default=present)
    most = max(present, base + max(settings.rise_least, base))
    if wish.count > most:
        text = f"{wish.count} needed, limited to {most} within {settings.rise_seconds:.0f} s; {wish.message}"
        return _Wish(most, Reason.RISE_LIMITED, text), state
    return wish, state


def _may_sleep(fleet: Fleet, state: State, settings: PolicySettings, now: float) -> bool:
    idle = state.idle_since is not None and now - state.idle_since >= settings.idle_seconds
    asked = fleet.wake.requested_at if fleet.wake is not None else None
    return (
        idle
        and fleet.replicas == 1
        and not fleet.pending
        and not fleet.unknown()
        and (asked is None or now - asked >= settings.idle_seconds)
    )


def _sleeping(fleet: Fleet, state: State) -> _Wish:
    asked = fleet.wake.requested_at if fleet.wake is not None else None
    if asked is not None and asked > (state.zero_since if state.zero_since is not None else -math.inf):
        return _Wish(1, Reason.WOKEN, "a request waits in front of the service")
    return _Wish(0, Reason.IDLE, "no request since it went to zero")


def _conclude(
    fleet: Fleet, state: State, settings: PolicySettings, wish: _Wish, numbers: Numbers, now: float
) -> Recommendation:
    before = fleet.replicas
    if wish.count != before:
        state = _regretted(state, settings, wish.count, before, now)
        if wish.reason == Reason.PREEMPTIONS and (numbers.steady or 0.0) > 0.8 * before:
            # This count did not suffice for this demand, whatever the arithmetic says.
            state = replace(state, strained=Removal(now, before, numbers.steady or 0.0))
        if wish.reason == Reason.DEMAND_FELL:
            peak = max((item[1] for item in state.demands), default=0.0)
            state = replace(state, removal=Removal(now, wish.count, peak))
        state = state.with_change(Change(now, before, wish.count, wish.reason.value, wish.message))
    if wish.count == 0:
        state = replace(state, zero_since=state.zero_since if before == 0 and state.zero_since is not None else now)
    else:
        state = replace(state, zero_since=None)
    return Recommendation(wish.count, wish.reason, wish.message, state, numbers)


def _regretted(state: State, settings: PolicySettings, count: int, before: int, now: float) -> State:
    """Note a removal that is undone soon after."""
    last = state.removal
    soon = last is not None and now - last.time <= max(
        settings.regret_windows * _window_seconds(state, settings), settings.rise_seconds
    )
    if last is None or not soon or count <= before or before != last.count:
        return state
    return replace(state, regret=replace(last, time=now))


def _recurred(fleet: Fleet, state: State, settings: PolicySettings, numbers: Numbers, now: float) -> State:
    """Note how long a load was gone that came back and had to queue for replicas which had been removed."""
    last = state.removal
    if last is None or fleet.replicas <= last.count or numbers.waiting < max(2.0, fleet.ready):
        return state
    lull = now - last.time + _window_seconds(state, settings)
    if lull > _longest_lull(state, settings):
        return replace(state, removal=None)
    return replace(state, removal=None, lull=(now, lull))


def describe(numbers: Numbers, settings: PolicySettings) -> str:
    """A decision's numbers in one line, to be followed by hand."""
    residency = numbers.residency_token_seconds
    held = "" if residency is None else f", {residency:.0f} token·s each"
    return (
        f"{numbers.demand_tokens:.0f} tokens asked for ({numbers.arrivals_per_second:.2f} req/s{held},"
        f" {numbers.waiting:.0f} waiting) / ({settings.target:.2f} · {numbers.capacity_tokens or 0:.0f} per replica);"
        f" with room for uneven shares, by throughput, and by what came of late: {numbers.needed or 0:.2f} replicas"
    )
