"""Faults of every kind at every point, in a simulated cluster: the end is always the same, and nobody waits for it.

The undisturbed way of a service – created, made ready, edited, scaled, deleted – is walked once; then again with the
operator killed at each of its calls in turn, before the call takes effect and after it.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from octavo_operator.cluster.client import ApiError
from octavo_operator.cluster.resources import watched

from tests.operator.test_plan_rollout import SETTINGS, labels, spec
from tests.operator.world import Api, Operator, World, condition, run

Object = dict[str, Any]


class Killed(BaseException):
    """The process ends here: nothing of it runs on, not even its handlers of exceptions."""


def small_world() -> World:
    world = World()
    world.add_node("n1", labels(), gpu="3")
    world.ready_after_ticks = 1
    return world


def create(world: World) -> None:
    world.user_applies("chat", spec(2))
    world.user_applies("other", spec(1, access={"networkPolicy": "Disabled"}))


def edit(world: World) -> None:
    world.user_applies("chat", spec(1, name="next", access={"networkPolicy": "Disabled"}))


def delete(world: World) -> None:
    from octavo_operator.cluster.resources import SERVICES

    world.remove(SERVICES, "team", "other")


STEPS: tuple[Callable[[World], None], ...] = (create, edit, delete)


def end_state(world: World) -> dict[tuple[str, str], Object]:
    """What is, without what differs by nature: ids, versions, times, random names of pods."""

    def plain(value: Any) -> Any:
        if isinstance(value, dict):
            dropped = ("uid", "resourceVersion", "creationTimestamp", "generation", "lastTransitionTime", "revision")
            return {key: plain(item) for key, item in value.items() if key not in (*dropped, "annotations")}
        return [plain(item) for item in value] if isinstance(value, list) else value

    found = {(kind, name): plain(item) for (kind, _, name), item in world.objects.items() if kind != "Pod"}
    pods = sorted(str(plain(pod["metadata"]["labels"])) for pod in world.pods())
    return {**found, ("Pods", ""): {"labels": pods}}


async def walk(disturb: Callable[[Operator], None], ticks: int = 14) -> tuple[World, int, Operator]:
    """Go the way; an operator that is killed is followed by a fresh one. Returns the world, the number of calls of the
    first operator's api, and the last operator."""
    world = small_world()
    api = Api(world)
    operator = Operator(world, SETTINGS, api)
    disturb(operator)
    started = False
    for step in STEPS:
        step(world)
        for _ in range(ticks):
            try:
                if not started:
                    await operator.start()
                    started = True
                await operator.work()
            except Killed:
                operator.stop()
                api.before = api.after = lambda _number, _call: None
                operator, started = Operator(world, SETTINGS, api), False
            world.tick()
    return world, len(api.calls), operator


_WALKED: list[tuple[World, int]] = []


async def undisturbed() -> tuple[World, int]:
    """The world at the end, which nobody changes any more, and the number of calls that led there."""
    if not _WALKED:
        world, calls, _ = await walk(lambda _operator: None)
        _WALKED.append((world, calls))
    return _WALKED[0]


def killer(number: int, after: bool) -> Callable[[Operator], None]:
    def disturb(operator: Operator) -> None:
        def kill(called: int, call: str) -> None:
            if called == number:
                raise Killed(call)

        setattr(operator.api, "after" if after else "before", kill)

    return disturb


async def test_the_undisturbed_way_ends_ready_and_tidy():
    world, calls = await undisturbed()
    assert condition(world, "chat", "Ready")["status"] == "True"
    assert {item["metadata"]["name"] for item in world.of_kind("InferenceService")} == {"chat"}
    assert len(world.of_kind("Deployment")) == 1
    assert world.of_kind("NetworkPolicy") == []
    assert calls > 40


@pytest.mark.parametrize("after", [False, True], ids=["before it takes effect", "after it took effect"])
async def test_killed_at_any_call_the_operator_comes_to_the_same_end(after):
    whole, calls = await undisturbed()
    wanted = end_state(whole)
    for number in range(calls):
        world, _, operator = await walk(killer(number, after))
        assert end_state(world) == wanted, f"killed at call {number}: {operator.api.calls[number]}"
        written = len(operator.api.writes)
        await run(operator, 3)
        assert len(operator.api.writes) == written, f"killed at call {number}, it does not come to rest"


def answers(kinds: dict[int, ApiError]) -> Callable[[Operator], None]:
    """The API server refuses these calls of the whole way; a retry follows, as the loop does it."""

    def disturb(operator: Operator) -> None:
        def refuse(called: int, _call: str) -> None:
            if called in kinds:
                raise kinds[called]

        operator.api.before = refuse
        reconcile = operator.reconciler.reconcile

        async def with_retries(key: tuple[str, str]) -> float | None:
            try:
                return await reconcile(key)
            except ApiError:
                return 1.0

        operator.reconciler.reconcile = with_retries  # type: ignore[method-assign]

    return disturb


PASSING = [
    ApiError(429, "TooManyRequests", "slow down"),
    ApiError(409, "Conflict", "the object has been modified"),
    ApiError(500, "InternalError", "etcdserver: leader changed"),
    ApiError(503, "ServiceUnavailable", "apiserver not ready"),
    ApiError(0, "Unreachable", "connection reset"),
]
CALLS_OF_THE_START = len(watched(True))
"""The lists at the start are repeated by the loop's own first fill, which this world has not."""


@settings(max_examples=12)
@given(st.dictionaries(st.integers(CALLS_OF_THE_START, 120), st.sampled_from(PASSING), max_size=25))
async def test_refusals_that_pass_change_nothing_about_the_end(kinds):
    wanted = end_state((await undisturbed())[0])
    world, _, _ = await walk(answers(kinds), ticks=25)
    assert end_state(world) == wanted


@settings(max_examples=12)
@given(st.randoms(use_true_random=False), st.integers(20, 100))
async def test_lost_events_are_made_good_by_the_next_complete_list(random, percent):
    wanted = end_state((await undisturbed())[0])

    def disturb(operator: Operator) -> None:
        operator.hears = lambda _resource, _item, _event: random.randrange(100) >= percent

    world = small_world()
    operator = Operator(world, SETTINGS)
    disturb(operator)
    await operator.start()
    for step in STEPS:
        step(world)
        for tick in range(30):
            if tick % 5 == 4:
                await operator.relist()
            await operator.work()
            world.tick()
    await operator.relist()
    await operator.work()
    assert end_state(world) == wanted


@settings(max_examples=12)
@given(st.randoms(use_true_random=False))
async def test_late_and_reordered_events_change_nothing_about_the_end(random):
    """A slow watch: events arrive ticks later and in any order between kinds; of one object the newest counts."""
    wanted = end_state((await undisturbed())[0])
    world = small_world()
    operator = Operator(world, SETTINGS)
    await operator.start()
    hear, held = operator._hear, []
    world.watchers.remove(hear)
    world.watchers.append(lambda *event: held.append(event))
    for step in STEPS:
        step(world)
        for _ in range(30):
            if random.random() < 0.4:
                random.shuffle(held)
                for event in held:
                    hear(*event)
                held.clear()
            await operator.work()
            world.tick()
    for event in held:
        hear(*event)
    await operator.relist()
    await operator.work()
    assert end_state(world) == wanted


async def test_a_service_whose_every_write_fails_delays_no_other():
    world = small_world()
    world.user_applies("bad", spec(1))
    world.user_applies("chat", spec(2))
    operator = Operator(world, SETTINGS)

    def disturb(called: int, call: str) -> None:
        if " bad" in call:
            raise ApiError(500, "InternalError", "always")

    operator.api.before = disturb
    reconcile = operator.reconciler.reconcile

    async def with_retries(key):
        try:
            return await reconcile(key)
        except ApiError:
            return 1.0

    operator.reconciler.reconcile = with_retries
    await operator.start()
    await run(operator, 12)
    assert condition(world, "chat", "Ready")["status"] == "True"
    assert world.pods("bad") == []


async def test_two_operators_one_after_the_other_write_nothing_twice():
    """A leader change at rest: the successor finds everything as it should be."""
    world, _, operator = await walk(lambda _operator: None)
    before = copy.deepcopy(world.objects)
    operator.stop()
    successor = await Operator(world, SETTINGS).start()
    await run(successor, 20)
    assert successor.api.writes == []
    assert {key: item["metadata"]["resourceVersion"] for key, item in before.items()} == {
        key: item["metadata"]["resourceVersion"] for key, item in world.objects.items()
    }
