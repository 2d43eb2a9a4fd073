"""The cost of steps: learned from those that ran, kept under the limit."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from octavo_server.engine.cost import StepCost
from octavo_server.engine.plan import StepPlan, empty_plan
from octavo_server.engine.slots import SlotTable


def plan(singles: int, cached: int, tokens: int, before: int) -> StepPlan:
    rows = singles + (tokens > 0)
    starts = np.full(rows, cached // max(1, singles), np.int64)
    counts = np.ones(rows, np.int64)
    if tokens:
        starts[-1], counts[-1] = before, tokens
    return replace(empty_plan(SlotTable(1)), requests=[None] * rows, starts=starts, counts=counts, singles=singles)


def seconds(singles: int, cached: int, tokens: int, before: int) -> float:
    """A device: 4 ms for the weights, then what each kind of work takes."""
    return 0.004 + 15e-6 * singles + 1e-9 * 32 * cached + 20e-6 * tokens + 1e-9 * tokens * (before + tokens / 2)


def trained(limit: float) -> StepCost:
    cost = StepCost(limit)
    random = np.random.default_rng(1)
    for _ in range(400):
        case = (int(random.integers(1, 256)), int(random.integers(0, 200_000)), int(random.integers(0, 1200)),
                int(random.integers(0, 8000)))  # fmt: skip
        cost.learn(plan(*case), seconds(*case) * random.normal(1, 0.01))
    return cost


@pytest.mark.parametrize("case", [(64, 20_000), (256, 130_000), (8, 1000)])
@pytest.mark.parametrize("before", [0, 6000])
def test_a_learned_budget_uses_most_of_the_limit_and_stays_below_it(case: tuple[int, int], before: int) -> None:
    cost = trained(0.025)
    budget = cost.budget(*case, before)
    assert 0.7 * 0.025 < seconds(*case, budget, before) < 0.025


def test_before_anything_was_measured_and_beyond_what_was_the_budget_is_careful() -> None:
    cost = StepCost(10.0)
    assert cost.budget(64, 1000, 0) <= 256
    for _ in range(20):
        cost.learn(plan(64, 1000, 300, 0), seconds(64, 1000, 300, 0))
    assert cost.budget(64, 1000, 0) <= 600


def test_some_prompt_moves_on_even_when_decoding_alone_takes_the_limit() -> None:
    assert trained(0.001).budget(256, 100_000, 0) >= 1
