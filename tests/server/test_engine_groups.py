"""Families of requests that begin with the same blocks: kept as they come and go, equal to what a search finds."""

from __future__ import annotations

import numpy as np
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from octavo_server.engine.blocks import BlockPool
from octavo_server.engine.groups import LEAST_SAVED_TOKENS, SharingGroups
from octavo_server.engine.messages import SamplingParams, Submit
from octavo_server.engine.request import make_request
from octavo_server.engine.scheduler import Scheduler, SchedulerLimits

SLOTS = 8


class FamiliesMachine(RuleBasedStateMachine):
    """Requests join with blocks from a small tree of prefixes, and leave."""

    def __init__(self) -> None:
        super().__init__()
        self.groups = SharingGroups(SLOTS, 16)
        self.running: dict[int, list[int]] = {}

    @precondition(lambda self: len(self.running) < SLOTS)
    @rule(branch=st.lists(st.integers(0, 1), min_size=1, max_size=4), own=st.integers(1, 3))
    def join(self, branch: list[int], own: int) -> None:
        slot = min(set(range(SLOTS)) - set(self.running))
        # A block's number says which path leads to it, as in a prefix cache.
        shared = [100 + int("1" + "".join(map(str, branch[: depth + 1])), 2) for depth in range(len(branch))]
        blocks = shared + [1000 + 10 * slot + place for place in range(own)]
        self.running[slot] = blocks
        self.groups.join(slot, blocks)

    @precondition(lambda self: self.running)
    @rule(data=st.data())
    def leave(self, data: st.DataObject) -> None:
        slot = data.draw(st.sampled_from(sorted(self.running)))
        del self.running[slot]
        self.groups.leave(slot)

    @precondition(lambda self: self.running)
    @rule(data=st.data())
    def grow(self, data: st.DataObject) -> None:
        slot = data.draw(st.sampled_from(sorted(self.running)))
        self.running[slot].append(2000 + len(self.running[slot]) + 100 * slot)

    @invariant()
    def agrees(self) -> None:
        self.groups.check_integrity(self.running)
        slots = np.array(sorted(self.running), np.int64)
        families: dict[int, set[int]] = {}
        for slot, blocks in self.running.items():
            families.setdefault(blocks[0], set()).add(slot)
        together = {frozenset(members) for members in families.values() if len(members) > 1}
        ordered = self.groups.order(slots)
        assert (ordered is None) == (not together)
        if ordered is None:
            return
        assert sorted(ordered.tolist()) == slots.tolist()
        found: dict[int, list[int]] = {}
        for place, slot in enumerate(ordered.tolist()):
            found.setdefault(int(self.groups.family_of[slot]), []).append(place)
        assert {frozenset(ordered[places].tolist()) for number, places in found.items() if number >= 0} == together
        assert all(places == list(range(places[0], places[-1] + 1)) for places in found.values())


TestFamiliesMachine = FamiliesMachine.TestCase
TestFamiliesMachine.settings = settings(max_examples=80, stateful_step_count=30, deadline=None)


def test_a_step_names_the_rows_of_a_family_and_what_they_all_share() -> None:
    groups = SharingGroups(SLOTS, 16)
    shared = list(range(1, 1 + LEAST_SAVED_TOKENS // 16))
    groups.join(3, [900])
    for slot in (5, 0, 2):
        groups.join(slot, [*shared, 1000 + slot])
    ordered = groups.order(np.array([0, 2, 3, 5]))
    assert ordered is not None
    assert ordered.tolist() == [3, 0, 2, 5]
    found = groups.step_groups(ordered, np.full(4, LEAST_SAVED_TOKENS + 5))
    assert found is not None
    assert (found.starts.tolist(), found.lengths.tolist()) == ([1, 4], [LEAST_SAVED_TOKENS])
    assert found.saved_tokens == 2 * LEAST_SAVED_TOKENS


def test_sharing_that_saves_little_is_left_alone() -> None:
    groups = SharingGroups(SLOTS, 16)
    for slot in range(3):
        groups.join(slot, [1, 2, 100 + slot])
    ordered = groups.order(np.arange(3))
    assert ordered is not None
    assert groups.step_groups(ordered, np.full(3, 100)) is None


def _request(number: int, prompt: list[int], new_tokens: int = 4) -> Submit:
    data = np.array(prompt, "<i4").tobytes()
    return Submit(number, data, SamplingParams(), new_tokens)


def test_a_request_waits_for_a_prefix_that_is_being_computed_and_lets_others_pass() -> None:
    scheduler = Scheduler(BlockPool(200), SchedulerLimits(256, 8, 16))

    def add(number: int, prompt: list[int]) -> None:
        scheduler.add(
            make_request(_request(number, prompt), connection=0, arrival=number, now_seconds=0.0, block_size=16,
                         max_length=2000, vocabulary=50)
        )  # fmt: skip

    prefix = [1] * 160
    add(0, [*prefix, 2])
    add(1, [*prefix, 3])
    add(2, [4] * 20)
    plan = scheduler.schedule()
    assert [request.request_id for request in plan.requests] == [0, 2], "1 waits, 2 passes"
    scheduler.launched(plan)
    plan = scheduler.schedule()
    (late,) = [part for part in plan if part.request.request_id == 1]
    assert (late.start, late.count) == (160, 1), "the prefix was computed once"
    scheduler.check_integrity()


def test_a_request_whose_prefix_will_never_come_is_admitted() -> None:
    scheduler = Scheduler(BlockPool(200), SchedulerLimits(64, 8, 16))
    requests = [
        make_request(_request(number, [1] * 160 + [number]), connection=0, arrival=number, now_seconds=0.0,
                     block_size=16, max_length=2000, vocabulary=50)
        for number in range(2)
    ]  # fmt: skip
    for request in requests:
        scheduler.add(request)
    plan = scheduler.schedule()
    scheduler.launched(plan)
    scheduler.remove(requests[0])
    plan = scheduler.schedule()
    assert [(part.request.request_id, part.start) for part in plan] == [(1, 64)]
    scheduler.check_integrity()
