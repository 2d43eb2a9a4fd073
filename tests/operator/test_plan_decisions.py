"""The small pure decisions: spread and quantities."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from octavo_operator.plan.quantities import canonical, quantity
from octavo_operator.plan.spread import spread

types = st.sampled_from("abcd")
counts = st.dictionaries(types, st.integers(0, 6))


@given(st.integers(0, 20), counts, counts, st.dictionaries(types, st.integers(1, 9), min_size=1))
def test_spread_keeps_the_total_and_moves_as_little_as_it_can(total, current, free, cost):
    shares = spread(total, current, free, cost)
    assert sum(shares.values()) == total
    moved = sum(abs(shares.get(name, 0) - current.get(name, 0)) for name in {*shares, *current})
    assert moved == abs(total - sum(current.values()))


@given(counts, st.dictionaries(types, st.integers(1, 9), min_size=2))
def test_spread_removes_from_the_dearest_type(current, cost):
    before = {name: count for name, count in current.items() if count and name in cost}
    if before:
        after = spread(sum(before.values()) - 1, before, {}, cost)
        smaller = next(name for name in before if after.get(name, 0) < before[name])
        assert cost[smaller] == max(cost[name] for name in before)


def test_spread_fills_the_cheapest_free_type_first_and_leaves_the_rest_pending_there():
    assert spread(5, {}, {"a": 2, "b": 1}, {"a": 1, "b": 2}) == {"a": 4, "b": 1}


@pytest.mark.parametrize(
    ("written", "spelling"),
    [("1000m", "1"), ("0.5", "500m"), ("1024Mi", "1Gi"), ("1.5Gi", "1536Mi"), (2, "2"), ("1000M", "1G"), ("0", "0")],
)
def test_a_quantity_is_spelled_as_the_api_server_would(written, spelling):
    assert canonical(written) == spelling


@given(st.integers(0, 10**6), st.sampled_from(["", "m", "k", "M", "Gi", "Ki"]))
def test_a_canonical_quantity_has_the_same_value(number, unit):
    assert quantity(canonical(f"{number}{unit}")) == quantity(f"{number}{unit}")
