"""Each guard of the policy in one sentence, and what holds for every fleet."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from octavo_operator.scaling.policy import (
    Fleet,
    Pod,
    PolicySettings,
    Reason,
    State,
    UnknownStateError,
    Wake,
    recommend,
)
from octavo_operator.scaling.policy.decide import wished
from octavo_operator.scaling.policy.residency import Residency
from octavo_operator.scaling.policy.trend import Past, slope
from octavo_operator.scaling.window import Signals, Unknown

CAPACITY = 10_000.0
SUSTAINED = 8_000.0
PER_REPLICA = 0.8 * SUSTAINED
"""Tokens of demand for one replica at the default target."""
PLAIN = PolicySettings(min_replicas=1, max_replicas=50, scale_down_seconds=300.0, imbalance=0.0, unlearned_seconds=0.0)
"""Arithmetic to follow by hand."""
NOW = 10_000.0


def signals(active: float = 0.0, waiting: float = 0.0, **more) -> Signals:
    figures = {
        "capacity_tokens": CAPACITY,
        "active_tokens": active,
        "active_mean_tokens": active,
        "running": active / 500,
        "waiting": waiting,
        "queued": waiting > 0,
        "arrivals": active / 5000 * 60,
        "recent_arrivals": active / 5000 * 15,
        "recent_seconds": 15.0,
        # Without completions demand is what is held and waits: arithmetic to follow by hand.
        "completions": None,
        "preemptions": 0.0,
        "seen_seconds": 60.0,
        **more,
    }
    return Signals(**figures)


def pod(number: int, seen=None, ready_since: float | None = 0.0, kind=("type", "t1"), **more) -> Pod:
    return Pod(f"pod-{number}", *kind, ready_since, seen if seen is not None else signals(), **more)


def fleet(*seen, starting: int = 0, **more) -> Fleet:
    pods = [pod(number, item) for number, item in enumerate(seen)]
    pods += [pod(len(seen) + number, Unknown("starts"), None) for number in range(starting)]
    return Fleet(len(pods), tuple(pods), **more)


def watched(demand: float = 0.0, *, since: float = NOW - 1000, **more) -> State:
    return State(watched_since=since, demands=((NOW - 200, demand),), **more)


def decide(a_fleet: Fleet, state: State | None = None, chosen: PolicySettings = PLAIN, now: float = NOW):
    return recommend(a_fleet, State() if state is None else state, chosen, now)


def test_a_burst_is_answered_by_the_next_decision():
    answer = decide(fleet(signals(SUSTAINED, waiting=100)))
    assert (answer.desired, answer.reason) == (5, Reason.RISE_LIMITED)


def test_a_service_of_which_nothing_is_known_counts_what_comes_until_the_next_decision():
    # 4 requests a second, and none has ended yet.
    young = signals(0.5 * PER_REPLICA, running=8.0, arrivals=60.0, seen_seconds=15.0)
    each = 0.5 * PER_REPLICA / 8.0
    assert decide(fleet(young)).desired == 1
    answer = decide(fleet(young), chosen=replace(PLAIN, unlearned_seconds=22.5))
    assert answer.numbers.demand_tokens == pytest.approx(0.5 * PER_REPLICA + 22.5 * 4 * each)
    assert (answer.desired, answer.reason) == (5, Reason.RISE_LIMITED)
    # The peak that later removals are judged by is not made of a guess.
    assert answer.state.demands[-1][1] == pytest.approx(0.5)


def test_growth_is_bounded_within_a_minute():
    state = State(counts=((NOW - 30, 2),))
    answer = decide(fleet(*[signals(3 * PER_REPLICA)] * 4), state)
    assert (answer.desired, answer.reason) == (6, Reason.RISE_LIMITED)


def test_starting_replicas_count_as_supply():
    answer = decide(fleet(signals(1.8 * PER_REPLICA, queued=False), starting=1))
    assert (answer.desired, answer.reason) == (2, Reason.SETTLED)


def test_a_demand_within_the_tolerance_asks_for_no_more():
    assert wished(2.19, 0.1) == 2
    assert wished(2.21, 0.1) == 3
    assert wished(1.09, 0.1) == 1


def test_one_replica_goes_at_a_time():
    answer = decide(fleet(*[signals(10)] * 5), watched(0.1))
    assert (answer.desired, answer.reason) == (4, Reason.DEMAND_FELL)


def test_nothing_goes_that_the_rest_would_ask_back():
    answer = decide(fleet(signals(10), signals(10), signals(10)), watched(2.05))
    assert answer.desired == 3


@pytest.mark.parametrize(
    ("a_fleet", "state", "reason"),
    [
        (fleet(signals(1), signals(1), starting=1), watched(), Reason.STARTING),
        (fleet(signals(1), Unknown("it did not answer")), watched(), Reason.METRICS_MISSING),
        (fleet(Unknown("no"), Unknown("no")), watched(), Reason.METRICS_MISSING),
        (fleet(signals(1), signals(1), rolling=True), watched(), Reason.ROLLING_OUT),
        (fleet(signals(1), signals(1)), watched(since=NOW - 200), Reason.WATCHING),
        (fleet(signals(1), signals(1)), State(), Reason.WATCHING),
        (fleet(signals(1), signals(1)), watched(1.5), Reason.SETTLED),
        (fleet(signals(1, preemptions=2), signals(1), signals(1), starting=1), watched(), Reason.STARTING),
    ],
)
def test_nothing_goes(a_fleet, state, reason):
    answer = decide(a_fleet, state)
    assert (answer.desired, answer.reason) == (a_fleet.replicas, reason)


def test_preemptions_add_a_replica_and_then_wait_for_it():
    answer = decide(fleet(signals(100, preemptions=3), signals(100)))
    assert (answer.desired, answer.reason) == (3, Reason.PREEMPTIONS)
    assert decide(fleet(signals(100, preemptions=3), signals(100), starting=1)).desired == 3


def test_load_grows_the_service_though_another_pod_is_silent():
    answer = decide(fleet(signals(3.5 * PER_REPLICA, queued=False), Unknown("it did not answer")))
    assert (answer.desired, answer.reason) == (4, Reason.DEMAND_GREW)


def test_a_gap_in_the_metrics_starts_the_window_anew():
    state = decide(fleet(Unknown("no")), watched()).state
    answer = decide(fleet(signals(1), signals(1)), state, now=NOW + 15)
    assert (answer.desired, answer.reason) == (2, Reason.WATCHING)


def test_a_queue_teaches_what_a_replica_sustains():
    crowded = fleet(signals(2_000, waiting=5))
    answer = decide(crowded)
    assert answer.state.learned(("type", "t1")) == 2_000
    assert answer.numbers.capacity_tokens == 2_000


def test_a_pod_that_became_ready_a_moment_ago_teaches_nothing():
    fresh = Fleet(1, (pod(0, signals(2_000, waiting=5), ready_since=NOW - 20),))
    assert decide(fresh).state.uses == {}


def test_more_use_without_a_queue_unlearns_a_capacity_that_was_too_small():
    state = State(uses={("type", "t1"): (2_000.0,)})
    assert decide(fleet(signals(4_000)), state).state.learned(("type", "t1")) == 3_000


def test_capacity_is_never_learned_across_templates():
    state = decide(fleet(signals(2_000, waiting=5))).state
    other = Fleet(1, (pod(0, signals(100), kind=("type", "t2")),))
    assert decide(other, state).numbers.capacity_tokens == SUSTAINED


def test_a_mixed_fleet_counts_as_its_weakest_replica():
    strong = pod(0, signals(8_000, capacity_tokens=100_000.0), kind=("strong", "t1"))
    weak = pod(1, signals(8_000), kind=("weak", "t1"))
    assert decide(Fleet(2, (strong, weak))).numbers.needed == pytest.approx(16_000 / PER_REPLICA)


def test_replicas_without_a_node_are_withdrawn_and_tried_again_later():
    homeless = [pod(number, Unknown("-"), None, unschedulable_since=NOW - 400) for number in (1, 2)]
    stuck = Fleet(3, (pod(0, signals(3 * PER_REPLICA)), *homeless), spare=0)
    answer = decide(stuck)
    assert (answer.desired, answer.reason) == (1, Reason.WAITING_FOR_ACCELERATOR)
    alone = fleet(signals(3 * PER_REPLICA), spare=0)
    later = decide(alone, answer.state, now=NOW + 100)
    assert (later.desired, later.reason) == (1, Reason.WAITING_FOR_ACCELERATOR)
    assert decide(replace(alone, spare=2), later.state, now=NOW + 115).desired == 3
    assert decide(alone, later.state, now=NOW + 301).desired == 3


def test_a_short_wait_for_a_node_is_patience():
    waiting = pod(1, Unknown("-"), None, unschedulable_since=NOW - 100)
    assert decide(Fleet(2, (pod(0, signals(2 * PER_REPLICA)), waiting), spare=0)).desired == 2


def test_no_load_never_adds_replicas():
    answer = decide(fleet(signals(0), signals(0)))
    assert answer.desired == 2


def test_zero_without_a_wake_source_acts_as_one_and_says_so():
    chosen = replace(PLAIN, min_replicas=0)
    answer = decide(fleet(signals(0)), watched(idle_since=0.0), chosen)
    assert (answer.desired, answer.reason) == (1, Reason.NO_WAKE_SOURCE)


def test_an_idle_service_sleeps_and_is_woken():
    chosen = replace(PLAIN, min_replicas=0)
    idle = fleet(signals(0), wake=Wake(NOW - 700))
    busy_lately = decide(idle, watched(idle_since=NOW - 500), chosen)
    assert busy_lately.desired == 1
    asleep = decide(idle, watched(idle_since=NOW - 601), chosen)
    assert (asleep.desired, asleep.reason) == (0, Reason.IDLE)
    still = decide(Fleet(0, wake=Wake(NOW - 700)), asleep.state, chosen, NOW + 15)
    assert (still.desired, still.reason) == (0, Reason.IDLE)
    woken = decide(Fleet(0, wake=Wake(NOW + 20)), still.state, chosen, NOW + 30)
    assert (woken.desired, woken.reason) == (1, Reason.WOKEN)


def test_bounds_of_the_service_hold():
    few = PolicySettings(min_replicas=2, max_replicas=3)
    assert decide(fleet(signals(9 * PER_REPLICA)), chosen=few).desired == 3
    assert decide(Fleet(0), chosen=few).desired == 2


def test_the_state_survives_a_restart_and_holds_until_the_window_is_seen_again():
    state = decide(fleet(signals(2_000, waiting=5))).state
    loaded = State.load(state.dump())
    assert loaded.learned(("type", "t1")) == 2_000
    assert loaded.changes == state.changes
    assert decide(fleet(signals(1), signals(1)), loaded).reason == Reason.WATCHING


def test_a_state_of_another_version_is_refused():
    with pytest.raises(UnknownStateError, match="version 2"):
        State.load({"version": 2})


def test_requests_in_a_fuller_cache_are_taken_to_stay_longer():
    residency = Residency()
    for step, (use, held) in enumerate([(0.1, 1100.0), (0.5, 1500.0), (0.9, 1900.0)] * 20):
        residency = residency.with_seen(use, held, NOW + 15 * step, 60.0)
    assert residency.at(0.2) == pytest.approx(1200, rel=0.05)
    assert residency.at(0.8) == pytest.approx(1800, rel=0.05)


def test_demand_does_not_depend_on_how_many_replicas_serve_it():
    def needed(count: int) -> float:
        # Two requests a second; each holds 1000 token·s and as much again in a full cache.
        use = 1.0 / (count * CAPACITY / 2000 - 1.0)
        seen = signals(use * CAPACITY, arrivals=120 / count, completions=120 / count, recent_arrivals=0.0)
        return decide(fleet(*[seen] * count)).numbers.needed

    assert needed(1) == pytest.approx(needed(4), rel=0.02)


def test_a_pod_that_is_new_in_the_window_took_its_share_from_the_others():
    old = signals(100, arrivals=90.0, recent_arrivals=0.0)
    new = signals(100, arrivals=30.0, recent_arrivals=0.0, seen_seconds=20.0)
    assert decide(fleet(old, new)).numbers.arrivals_per_second == pytest.approx(2.0)


def test_a_burst_shows_in_the_recent_seconds_before_it_shows_in_the_window():
    seen = signals(100, arrivals=60.0, recent_arrivals=150.0)
    assert decide(fleet(seen)).numbers.arrivals_per_second == pytest.approx((150 - 150**0.5) / 15)
    chance = signals(100, arrivals=60.0, recent_arrivals=18.0)
    assert decide(fleet(chance)).numbers.arrivals_per_second == pytest.approx(1.0)


def test_a_removal_that_had_to_be_undone_is_not_tried_again_for_the_same_demand():
    three = fleet(*[signals(1)] * 3)
    removed = decide(three, watched(1.75))
    assert (removed.desired, removed.state.removal.count) == (2, 2)
    undone = decide(fleet(*[signals(1.2 * PER_REPLICA)] * 2), removed.state, now=NOW + 60)
    assert undone.desired == 3
    again = replace(undone.state, demands=((NOW + 900, 1.7),), watched_since=NOW)
    assert decide(three, again, now=NOW + 1000).desired == 3
    assert decide(three, replace(again, demands=((NOW + 900, 1.5),)), now=NOW + 1000).desired == 2


def test_small_fleets_get_more_room_for_uneven_shares():
    uneven = replace(PLAIN, imbalance=0.4)
    assert decide(fleet(signals(PER_REPLICA)), chosen=uneven).numbers.needed == pytest.approx(1.4)
    assert decide(fleet(*[signals(PER_REPLICA)] * 9), chosen=uneven).numbers.needed == pytest.approx(10.2)


def test_the_rate_of_a_replica_with_a_lasting_queue_is_what_it_can_serve():
    busy = signals(500, waiting=3, recent_completions=15.0, queued_seconds=40.0, arrivals=240.0, completions=60.0)
    answer = decide(fleet(busy))
    assert answer.state.learned_rate(("type", "t1")) == 1.0
    # 4 requests a second and 3 that wait, by replicas that end 0.8 of one a second each.
    assert answer.numbers.needed == pytest.approx((4.0 + 3 / 60) / 0.8)
    brief = replace(busy, queued_seconds=10.0)
    assert decide(fleet(brief)).state.learned_rate(("type", "t1")) is None


def test_by_default_the_window_follows_from_how_long_a_replica_takes_to_start():
    chosen = replace(PLAIN, scale_down_seconds=None)
    quick = [pod(number, startup_seconds=40.0) for number in (0, 1)]
    slow = [pod(number, startup_seconds=200.0) for number in (0, 1)]
    seen = watched(since=NOW - 250)
    assert decide(Fleet(2, tuple(quick)), seen, chosen).desired == 1
    answer = decide(Fleet(2, tuple(slow)), seen, chosen)
    assert (answer.desired, answer.reason) == (2, Reason.WATCHING)


def test_a_share_of_what_came_of_late_is_kept_and_goes_in_the_end():
    chosen = replace(PLAIN, scale_down_seconds=None, keep_share=0.5)
    pods = tuple(pod(number, startup_seconds=60.0) for number in range(4))
    state = watched(peaks=((NOW - 1000, 5.9),), rises=((NOW - 1000, 4.0),))
    answer = decide(Fleet(4, pods), state, chosen)
    assert (answer.desired, answer.reason) == (3, Reason.DEMAND_FELL)
    assert decide(Fleet(3, pods[:3]), state, chosen).desired == 3
    assert decide(Fleet(3, pods[:3]), state, chosen, NOW + 201).desired == 2
    waits_as_told = replace(chosen, scale_down_seconds=60.0)
    assert decide(Fleet(3, pods[:3]), state, waits_as_told).desired == 2
    never_rose_fast = replace(state, rises=((NOW - 1000, 1.5),))
    assert decide(Fleet(3, pods[:3]), never_rose_fast, chosen).desired == 2


def saw(*loads: float, rate: float = 50.0) -> tuple[Past, ...]:
    """One decision each 15 s, the last of them before this one."""
    times = [NOW - 15 * (len(loads) - at) for at in range(len(loads))]
    return tuple(Past(time, rate * load) for time, load in zip(times, loads, strict=True))


def test_a_steady_climb_is_met_before_it_is_there():
    chosen = replace(PLAIN, scale_down_seconds=None)
    load = fleet(signals(1.5 * PER_REPLICA), signals(1.5 * PER_REPLICA))
    climbed = watched(past=saw(*(0.125 * step for step in range(1, 25))))
    assert decide(load, watched(), chosen).desired == 3
    assert decide(load, climbed, chosen).desired == 4
    # A jump tells nothing of what comes next.
    jumped = watched(past=saw(*([0.5] * 12 + [3.0] * 12)))
    assert decide(load, jumped, chosen).desired == 3


def test_few_requests_make_no_trend():
    climb = [1.0 + 0.02 * step for step in range(24)]
    assert slope(saw(*climb, rate=50.0), 1.0) > 0
    assert slope(saw(*climb, rate=0.2), 1.0) == 0
    assert slope(saw(*[2.0] * 24), 1.0) == 0
    assert slope(saw(*climb[:3]), 1.0) == 0


def test_a_load_that_falls_steadily_is_followed_without_waiting():
    chosen = replace(PLAIN, scale_down_seconds=None, keep_share=0.0)
    load = fleet(*[signals(0.4 * PER_REPLICA)] * 5)
    fell = [2.0 + 0.125 * step for step in reversed(range(24))]
    recent = {"demands": ((NOW - 200, 4.6),)}
    assert decide(load, State(watched_since=0.0, past=saw(*fell), **recent), chosen).desired == 4
    assert decide(load, State(watched_since=0.0, **recent), chosen).desired == 5
    waits_as_told = replace(chosen, scale_down_seconds=240.0)
    assert decide(load, State(watched_since=0.0, past=saw(*fell), **recent), waits_as_told).desired == 5


def test_what_a_pod_that_went_had_received_is_no_fall_and_its_place_no_climb():
    chosen = replace(PLAIN, scale_down_seconds=None)
    calm = watched(past=saw(*[2.0] * 24), lows=((NOW - 30, 2.0),))
    one_went = replace(calm, counts=((NOW - 30, 3),))
    load = fleet(signals(PER_REPLICA), signals(PER_REPLICA))
    assert len(decide(load, calm, chosen).state.past) == len(calm.past) + 1
    answer = decide(load, one_went, chosen)
    assert (len(answer.state.past), answer.state.lows) == (len(calm.past), calm.lows)


def test_a_gap_in_the_metrics_ends_the_trend():
    climbed = watched(past=saw(*(0.1 * step for step in range(24))), lows=((NOW - 15, 1.0),))
    state = decide(fleet(Unknown("gone")), climbed, replace(PLAIN, scale_down_seconds=None)).state
    assert (state.past, state.lows) == ((), ())


def test_a_load_that_came_back_and_queued_is_waited_for_the_next_time():
    chosen = replace(PLAIN, scale_down_seconds=None, keep_share=0.0)
    pods = tuple(pod(number, startup_seconds=100.0) for number in (0, 1))
    removed = decide(Fleet(2, pods), watched(), chosen)
    assert removed.desired == 1
    back = (pod(0, signals(SUSTAINED, waiting=9), startup_seconds=100.0),)
    grown = decide(Fleet(1, back), removed.state, chosen, NOW + 300)
    assert grown.desired > 1
    queued = decide(Fleet(grown.desired, back), grown.state, chosen, NOW + 315)
    assert queued.state.lull == (NOW + 315, pytest.approx(515.0))
    again = replace(queued.state, watched_since=NOW + 400, demands=())
    answer = decide(Fleet(2, pods), again, chosen, NOW + 400 + 600)
    assert (answer.desired, answer.reason) == (2, Reason.WATCHING)
    assert decide(Fleet(2, pods), again, chosen, NOW + 400 + 650).desired == 1


def test_every_change_carries_its_numbers():
    [change] = decide(fleet(signals(3 * PER_REPLICA, queued=False))).state.changes
    assert (change.before, change.after) == (1, 3)
    assert "3.00 replicas" in change.message


uses = st.floats(0, CAPACITY)
any_signals = st.builds(
    lambda active, waiting, arrivals, preempted, queued: signals(
        active,
        waiting,
        arrivals=arrivals,
        completions=arrivals,
        preemptions=preempted,
        queued=queued and waiting > 0,
    ),
    uses,
    st.integers(0, 50).map(float),
    st.one_of(st.none(), st.floats(0, 3000)),
    st.sampled_from([0.0, 0.0, 0.0, 1.0]),
    st.booleans(),
)
any_pod = st.builds(
    lambda seen, ready, since: pod(0, seen, 0.0 if ready else None, unschedulable_since=None if ready else since),
    st.one_of(any_signals, st.just(Unknown("gone"))),
    st.booleans(),
    st.sampled_from([None, NOW - 10, NOW - 1000]),
)
any_fleet = st.builds(
    lambda pods, spare, rolling: Fleet(len(pods), tuple(pods), spare, None, rolling),
    st.lists(any_pod, max_size=6),
    st.sampled_from([None, 0, 3]),
    st.booleans(),
)


def remembered(peak: float, since: float, use: float | None, held: float | None, climb: float) -> State:
    loads = [max(0.0, 3.0 + climb * (step - 12)) for step in range(24)]
    past = {"past": saw(*loads), "peaks": ((NOW - 500, 2 * peak),), "rises": ((NOW - 500, peak),)}
    residency = Residency(NOW - 15, held, 1.0, 0.3, 0.09, held, 0.3 * held) if held else None
    return watched(peak, since=since, uses={("type", "t1"): (use,)} if use else {}, residency=residency, **past)


any_state = st.builds(
    remembered,
    st.floats(0, 8),
    st.sampled_from([NOW - 10, NOW - 1000]),
    st.sampled_from([None, 500.0, 3000.0]),
    st.one_of(st.none(), st.floats(1, 50_000)),
    st.sampled_from([-0.2, 0.0, 0.2]),
)
windows = st.sampled_from([replace(PLAIN, scale_down_seconds=None), PLAIN])


@given(any_fleet, any_state, st.integers(0, 3), st.integers(3, 9))
@settings(max_examples=300, deadline=None)
def test_every_count_is_bounded(a_fleet, state, low, high):
    chosen = PolicySettings(min_replicas=low, max_replicas=high)
    answer = decide(a_fleet, state, chosen)
    stuck = a_fleet.stuck(NOW, chosen.unschedulable_seconds)
    assert 0 <= answer.desired <= max(high, a_fleet.replicas)
    assert (
        answer.desired >= min(max(1, low), a_fleet.replicas - stuck) or answer.reason == Reason.WAITING_FOR_ACCELERATOR
    )
    assert answer.desired <= a_fleet.replicas + max(4, a_fleet.replicas)


@given(any_fleet, any_state, windows)
@settings(max_examples=300, deadline=None)
def test_never_down_with_missing_data(a_fleet, state, chosen):
    if a_fleet.unknown():
        answer = decide(a_fleet, state, chosen)
        # What no node was found for serves nobody: giving it up takes nothing away.
        assert answer.desired >= a_fleet.replicas - a_fleet.stuck(NOW, PLAIN.unschedulable_seconds)


@given(any_fleet, any_state, windows, st.integers(0, 5), st.floats(0, 1000), st.floats(0, 20), st.floats(0, 2000))
@settings(max_examples=300, deadline=None)
def test_more_demand_never_asks_for_fewer(a_fleet, state, chosen, which, more_arrivals, more_waiting, more_active):
    def calm(item: Pod) -> Pod:
        # What a queue teaches about capacity is another matter: here the same capacity meets more demand.
        return replace(item, seen=replace(item.seen, queued=False)) if isinstance(item.seen, Signals) else item

    pods = [calm(item) for item in a_fleet.pods]
    busier = list(pods)
    if pods and isinstance(pods[which % len(pods)].seen, Signals):
        seen = pods[which % len(pods)].seen
        busier[which % len(pods)] = replace(
            pods[which % len(pods)],
            seen=replace(
                seen,
                arrivals=(seen.arrivals or 0.0) + more_arrivals,
                waiting=seen.waiting + more_waiting,
                active_tokens=seen.active_tokens + more_active,
            ),
        )
    less = decide(replace(a_fleet, pods=tuple(pods)), state, chosen)
    more = decide(replace(a_fleet, pods=tuple(busier)), state, chosen)
    assert more.desired >= less.desired


@given(any_fleet, any_state, windows)
@settings(max_examples=200, deadline=None)
def test_a_decision_that_changes_nothing_is_the_same_when_taken_again(a_fleet, state, chosen):
    first = decide(a_fleet, state, chosen)
    if first.desired == a_fleet.replicas and first.state.uses == state.uses:
        again = decide(a_fleet, first.state, chosen)
        assert again.desired == first.desired
        assert again.state.changes == first.state.changes


def test_the_worked_example_of_the_docs_is_what_the_policy_says():
    page = Path(__file__).parents[2] / "docs" / "scaling.md"
    residency = Residency(NOW - 15, level=13_500 / 1.64)
    half = signals(
        18_000,
        capacity_tokens=38_000.0,
        arrivals=135.0,
        recent_arrivals=30.0,
        recent_completions=None,
        completions=None,
    )
    answer = decide(fleet(half, half), State(residency=residency), PolicySettings(1, 8))
    assert (answer.desired, answer.reason) == (3, Reason.DEMAND_GREW)
    assert answer.numbers.needed == pytest.approx(2.74, abs=0.01)
    assert f"{answer.reason.value}: {answer.message}\n" in page.read_text(encoding="utf-8")
