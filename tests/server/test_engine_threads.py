"""The number of threads: all while alone, one while other processes want the cores, all again later."""

from __future__ import annotations

from octavo_server.engine.threads import ThreadGovernor


def test_threads_give_way_when_the_machine_is_crowded_and_come_back_when_it_is_not() -> None:
    governor = ThreadGovernor(4)
    assert governor.decide(100.0, 1000) == 4, "what happened before the first window says nothing"
    assert governor.decide(100.3, 1002) == 4
    assert governor.decide(100.6, 1152) == 1
    assert governor.decide(103.0, 1110) == 1
    assert governor.decide(106.0, 1120) == 4
    assert governor.decide(106.3, 1300) == 1


def test_an_idle_time_is_not_taken_for_a_crowd_and_one_core_stays_one() -> None:
    governor = ThreadGovernor(2)
    governor.decide(10.0, 0)
    assert governor.decide(100.0, 50000) == 2
    single = ThreadGovernor(1)
    single.decide(10.0, 0)
    assert single.decide(10.5, 5000) == 1
