"""The work queue under any order of events, and with many workers at once."""

from __future__ import annotations

import asyncio
import random
from collections import Counter

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from octavo_operator.control.queue import LONGEST_RETRY_SECONDS, WorkQueue

KEYS = st.sampled_from("abcd")


class QueueModel(RuleBasedStateMachine):
    """Events, workers and time in any order; `owed` are keys that must be taken again."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        self.loop = asyncio.new_event_loop()
        self.queue: WorkQueue[str] = WorkQueue(lambda: self.now, lambda: 1.0)
        self.running: list[str] = []
        self.owed: set[str] = set()
        self.later: dict[str, float] = {}

    def teardown(self) -> None:
        for key in list(self.running):
            self.end(key)
        self.now += 1000.0
        while self.owed or self.later:
            self.take()
            self.end(self.running[0])
        assert self.queue.depth() == 0, "a key was taken more often than it was asked for"
        self.loop.close()

    def end(self, key: str) -> None:
        self.running.remove(key)
        self.queue.done(key)

    @rule(key=KEYS, urgent=st.booleans())
    def event(self, key: str, urgent: bool) -> None:
        self.queue.add(key, urgent=urgent)
        self.owed.add(key)

    @rule(key=KEYS, seconds=st.sampled_from([0.5, 2.0, 10.0]))
    def wish(self, key: str, seconds: float) -> None:
        self.queue.add_after(key, seconds)
        self.later[key] = min(self.later.get(key, float("inf")), self.now + seconds)

    @rule(seconds=st.sampled_from([0.1, 1.0, 20.0]))
    def time_passes(self, seconds: float) -> None:
        self.now += seconds

    def due(self) -> set[str]:
        return {key for key, due in self.later.items() if due <= self.now}

    @precondition(lambda self: (self.owed | self.due()) - set(self.running))
    @rule()
    def take(self) -> None:
        for key in self.due():
            del self.later[key]
            self.owed.add(key)
        key = self.loop.run_until_complete(asyncio.wait_for(self.queue.take(), 5))
        assert key not in self.running, "two workers at one key"
        assert key in self.owed, "nobody asked for it"
        self.owed.discard(key)
        self.running.append(key)

    @precondition(lambda self: self.running)
    @rule(data=st.data(), failed=st.booleans())
    def work_ends(self, data: st.DataObject, failed: bool) -> None:
        key = data.draw(st.sampled_from(self.running))
        if failed:
            wait = self.queue.retry(key)
            assert 0 < wait <= LONGEST_RETRY_SECONDS
            self.later[key] = min(self.later.get(key, float("inf")), self.now + wait)
        else:
            self.queue.succeed(key)
        self.end(key)

    @invariant()
    def each_key_waits_once(self) -> None:
        assert self.queue.depth() <= len(self.owed)


TestQueueModel = QueueModel.TestCase


async def test_no_wish_of_a_thousand_is_lost_with_eight_workers() -> None:
    clock = asyncio.get_running_loop().time
    queue: WorkQueue[int] = WorkQueue(clock)
    newest: Counter[int] = Counter()
    seen: dict[int, int] = {}
    running: set[int] = set()
    dice = random.Random(7)

    async def worker() -> None:
        while True:
            key = await queue.take()
            assert key not in running
            running.add(key)
            state = newest[key]
            await asyncio.sleep(0)
            seen[key] = state
            running.discard(key)
            queue.done(key)

    workers = [asyncio.create_task(worker()) for _ in range(8)]
    for _ in range(1000):
        key = dice.randrange(20)
        newest[key] += 1
        queue.add(key)
        if dice.random() < 0.3:
            await asyncio.sleep(0)
    async with asyncio.timeout(20):
        while seen != dict(newest):
            await asyncio.sleep(0)
            assert all(not task.done() for task in workers)
    for task in workers:
        task.cancel()


def test_the_wait_doubles_with_each_failure_and_starts_anew_after_a_success() -> None:
    queue: WorkQueue[str] = WorkQueue(lambda: 0.0, lambda: 1.0)
    assert [queue.retry("a") for _ in range(10)] == [0.5, 1, 2, 4, 8, 16, 32, 60, 60, 60]
    assert queue.retry("b") == 0.5, "one key's failures must not slow another"
    queue.succeed("a")
    assert queue.retry("a") == 0.5


async def test_a_waiting_worker_wakes_when_a_later_wish_comes_first() -> None:
    clock = asyncio.get_running_loop().time
    queue: WorkQueue[str] = WorkQueue(clock)
    queue.add_after("late", 3600)
    taker = asyncio.create_task(queue.take())
    await asyncio.sleep(0)
    queue.add_after("soon", 0.01)
    assert await asyncio.wait_for(taker, 20) == "soon"


def test_the_age_is_that_of_the_oldest_waiting_key() -> None:
    now = 0.0
    queue: WorkQueue[str] = WorkQueue(lambda: now)
    assert queue.oldest_seconds() == 0
    queue.add("a")
    now = 3.0
    queue.add("b")
    queue.add("a")
    now = 5.0
    assert queue.oldest_seconds() == 5.0
    assert queue.depth() == 2


async def test_an_urgent_key_comes_before_a_thousand_others_also_when_it_waits_among_them():
    queue: WorkQueue[int] = WorkQueue(lambda: 0.0)
    for key in range(1000):
        queue.add(key)
    queue.add(700, urgent=True)
    queue.add(2000, urgent=True)
    assert [await queue.take() for _ in range(3)] == [700, 2000, 0]
    taken = [await queue.take() for _ in range(998)]
    assert 700 not in taken
    assert queue.depth() == 0
