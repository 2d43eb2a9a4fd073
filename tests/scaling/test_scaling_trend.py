"""Where arrivals are heading: slopes count beyond chance, and what surprised before is provided for."""

from __future__ import annotations

import random

import pytest
from octavo_operator.scaling.policy.trend import Trend

STEP = 15.0


def told(rates: list[float], *, horizon: float = 120.0, memory: float = 900.0) -> Trend:
    trend = Trend()
    for number, rate in enumerate(rates):
        trend = trend.with_rate(number * STEP, rate, STEP, horizon, 1.0, memory)
    return trend


def test_a_line_is_continued():
    trend = told([2.0 + 0.15 * number for number in range(12)])
    level, slope, _ = trend.line()
    assert (level, slope) == (pytest.approx(3.65), pytest.approx(0.01))
    assert 4.0 < trend.ahead(100.0, 1.0) < trend.ahead(100.0, 0.0) == pytest.approx(4.65)


def test_even_arrivals_are_foreseen_to_go_on_though_chance_moves_them():
    draw = random.Random(5)
    foreseen = []
    for _ in range(40):
        counts = [sum(draw.expovariate(4.0 * STEP) < 1 / STEP / 4 for _ in range(60)) for _ in range(12)]
        rates = [4.0 * count / (sum(counts) / 12) for count in counts]
        foreseen.append(told(rates).ahead(100.0, 2.0))
    assert sum(value > 5.0 for value in foreseen) <= 4


def test_a_falling_load_is_not_foreseen_to_fall_on():
    trend = told([6.0 - 0.4 * number for number in range(12)])
    assert trend.ahead(100.0, 1.0) == pytest.approx(trend.line()[0])


def test_a_few_decisions_make_no_trend():
    assert told([1.0, 5.0, 9.0]).ahead(100.0, 1.0) == 9.0
    assert Trend().ahead(100.0, 1.0) == 0.0


def test_jumps_leave_room_for_the_next_one_and_even_loads_need_none():
    even = told([4.0] * 60)
    jumpy = told(([1.0] * 8 + [8.0] * 8) * 4)
    assert even.surprise == 0.0
    assert jumpy.surprise > 2.0


def test_what_surprised_is_forgotten():
    jumpy = told([1.0] * 20 + [8.0] * 4)
    calm = jumpy
    for number in range(24, 200):
        calm = calm.with_rate(number * STEP, 8.0, STEP, 120.0, 1.0, 900.0)
    assert calm.surprise < 0.2 * max(jumpy.surprise, 1.0)


def test_the_same_decision_taken_again_changes_nothing():
    trend = told([1.0, 2.0, 3.0, 4.0, 5.0])
    assert trend.with_rate(4 * STEP, 9.0, STEP, 120.0, 1.0, 900.0) is trend
