"""The work list: every key that a query sees is attended exactly once, within capacities that follow from shapes."""

from itertools import pairwise

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from octavo_kernels.plan import PlanLimits, build_work_list, tile_capacity

SEQUENCES = st.lists(st.tuples(st.integers(0, 40), st.integers(0, 300)), min_size=1, max_size=12)


def limits_for(sequences, tile_tokens, share, block):
    tokens = sum(new for new, _ in sequences)
    tiles = max(1, tile_capacity(tokens, len(sequences), tile_tokens))
    return PlanLimits(tile_tokens=tile_tokens, tiles=tiles, share=share, block=block, min_chunk=block)


def work_list(sequences, limits, window=None):
    starts = torch.tensor([0, *(new for new, _ in sequences)]).cumsum(0).int()
    lengths = torch.tensor([length for _, length in sequences], dtype=torch.int32)
    slots = torch.arange(100, 100 + len(sequences), dtype=torch.int32)
    return build_work_list(starts, lengths, slots, limits, window)


@settings(max_examples=150, deadline=None)
@given(SEQUENCES, st.integers(1, 16), st.integers(1, 20), st.sampled_from([1, 8, 16]), st.none() | st.integers(1, 60))
def test_each_row_meets_its_keys_exactly_once(sequences, tile_tokens, share, block, window):
    limits = limits_for(sequences, tile_tokens, share, block)
    items, tiles = work_list(sequences, limits, window)
    seen = {}
    for slot, first_row, tokens, first_position, begin, end, partial in items.tolist():
        assert tokens <= tile_tokens
        assert partial < limits.partials
        for token in range(tokens):
            position = first_position + token
            low = 0 if window is None else max(0, position - window + 1)
            keys = seen.setdefault((slot, first_row + token), [])
            keys.extend(key for key in range(begin, end) if low <= key <= position)
    wanted = {}
    row = 0
    for index, (new, length) in enumerate(sequences):
        for token in range(new):
            position = length - new + token
            low = 0 if window is None else max(0, position - window + 1)
            wanted[100 + index, row] = list(range(low, position + 1))
            row += 1
    assert seen == wanted
    partials = [partial for *_, partial in items.tolist() if partial >= 0]
    assert sorted(partials) == list(range(len(partials)))
    assert sum(splits for *_, splits in tiles.tolist() if splits > 1) == len(partials)


@settings(max_examples=100, deadline=None)
@given(SEQUENCES, st.integers(1, 16), st.integers(1, 20))
def test_partials_of_a_tile_lie_together_in_the_order_of_its_keys(sequences, tile_tokens, share):
    limits = limits_for(sequences, tile_tokens, share, 8)
    items, tiles = work_list(sequences, limits)
    by_partial = {item[6]: item for item in items.tolist() if item[6] >= 0}
    for first_row, tokens, first_partial, splits in tiles.tolist():
        if splits < 2:
            continue
        parts = [by_partial[first_partial + split] for split in range(splits)]
        assert all((part[1], part[2]) == (first_row, tokens) for part in parts)
        assert all(before[5] == after[4] for before, after in pairwise(parts))


def test_a_long_sequence_among_short_ones_is_split_and_short_ones_are_not():
    sequences = [(1, 10_000), *[(1, 100)] * 7]
    items, tiles = work_list(sequences, limits_for(sequences, 1, 16, 64))
    first, *others = [splits for *_, splits in tiles.tolist()]
    assert first >= 8
    assert others == [1] * 7
    assert max(end - begin for *_, begin, end, _ in items.tolist()) <= 2 * 10_700 // 16
