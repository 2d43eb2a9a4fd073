"""Plans that nodes cause: soon where few change, in turn and with half of the time left to others in a storm."""

from __future__ import annotations

import pytest
from octavo_operator.control.queue import WorkQueue
from octavo_operator.control.waves import GATHER_SECONDS, NodeWaves


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def test_a_few_services_are_planned_once_the_wave_is_gathered():
    waves = NodeWaves(Clock(), jitter=lambda: 0.5)
    waves.took(0.01)
    assert [waves.wait() for _ in range(5)] == [1.5 * GATHER_SECONDS] * 5


def test_in_a_storm_plans_take_half_of_the_time_and_each_service_has_its_turn():
    clock = Clock()
    waves, queue = NodeWaves(clock, jitter=lambda: 0.5), WorkQueue[int](clock)
    waves.took(0.02)
    planned: list[int] = []
    while clock.now < 200.0:
        for key in range(500):  # each change of a node concerns them all
            if queue.seconds_until(key) > waves.length():
                queue.add_after(key, waves.wait())
        clock.now += 0.1
        queue._release_due()
        for key in [key for key in range(500) if queue.seconds_until(key) == 0.0]:
            queue._since.pop(key)
            planned.append(key)
    spent = 0.02 * len(planned)
    assert 0.40 * 100 <= spent <= 0.51 * 100
    turns = [planned.count(key) for key in range(500)]
    assert max(turns) - min(turns) <= 1, "none is planned twice before another was planned once"


def test_the_mean_of_the_last_plans_counts():
    clock = Clock()
    waves = NodeWaves(clock, jitter=lambda: 0.0)
    for _ in range(1000):
        waves.took(0.1)
    for _ in range(1000):
        waves.took(0.01)
    for _ in range(1000):
        waves.wait()
    assert waves.length() == pytest.approx(1000 * 0.01 / 0.5, rel=0.01)


def test_a_key_that_comes_up_much_later_by_itself_is_asked_for_sooner():
    clock = Clock()
    queue = WorkQueue[str](clock)
    assert queue.seconds_until("a") == float("inf")
    queue.add_after("a", 300.0)
    assert queue.seconds_until("a") == pytest.approx(300.0)
    queue.add("a")
    assert queue.seconds_until("a") == 0.0
