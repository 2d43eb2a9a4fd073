"""The number of threads: all while alone, one while other processes want the cores, all again later."""

from __future__ import annotations

import pytest
from octavo_server.engine.threads import ThreadGovernor


def begun(most: int) -> ThreadGovernor:
    """A governor whose first window, which says nothing, is over."""
    governor = ThreadGovernor(most)
    assert governor.decide(100.0, 0.0, 0) == most
    return governor


def test_threads_give_way_when_the_machine_is_crowded_and_come_back_when_it_is_not() -> None:
    governor = begun(4)
    assert governor.decide(100.3, 1.2, 5) == 4
    assert governor.decide(100.6, 2.0, 250) == 1
    assert governor.decide(103.0, 4.0, 260) == 1
    assert governor.decide(106.0, 7.0, 270) == 4
    assert governor.decide(106.3, 7.6, 500) == 1


@pytest.mark.parametrize("step_seconds", [0.3, 2.0, 20.0])
def test_a_crowd_is_seen_however_slow_it_makes_the_steps(step_seconds: float) -> None:
    governor = begun(2)
    assert governor.decide(100.0 + step_seconds, 0.3, 90) == 1, "90 turns of 3 ms were cut short"


def test_an_idle_time_is_not_taken_for_a_crowd_and_one_core_stays_one() -> None:
    governor = begun(2)
    assert governor.decide(1000.0, 0.05, 60) == 2, "waiting for requests: short turns, and few of them"
    assert begun(1).decide(100.5, 0.5, 5000) == 1
