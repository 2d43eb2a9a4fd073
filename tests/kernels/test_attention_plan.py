"""The work list: every key that a query sees is attended exactly once, within capacities that follow from shapes."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("triton")

from octavo_kernels import AttentionShape, AttentionVariant, triton_backend
from octavo_kernels import plan as columns
from octavo_kernels.batch import check_batch
from octavo_kernels.triton_backend import SHORT_TILES, TritonBackend
from octavo_kernels.triton_launch import Device, Launch

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
SEQUENCES = st.lists(st.tuples(st.integers(0, 40), st.integers(0, 300)), min_size=1, max_size=12)


@pytest.fixture
def small_last_parts(monkeypatch):
    """Parts of the last round of long tiles, on four multiprocessors, may be as small as one block of keys."""
    monkeypatch.setattr(triton_backend, "LEAST_LAST_BLOCKS", 1)
    monkeypatch.setattr(triton_backend.Device, "of", classmethod(lambda cls, device: cls(4, 0)))


def planned(sequences, *, share, heads=(2, 2), window=None, block=16, rows=16, least_blocks=1, tokens=None):
    """The lists of items of a batch of (new tokens, tokens in the cache), in the order in which programs take them."""
    launch = Launch(rows, block, 4, 1, 1, least_blocks)
    backend = TritonBackend(
        AttentionShape(*heads, 16, 16, torch.float32),
        AttentionVariant(window=window),
        DEVICE,
        max_tokens=4096,
        share=share,
        decode_launch=launch,
        prefill_launch=launch,
    )
    starts = torch.tensor([0, *(new for new, _ in sequences)]).cumsum(0).int()
    lengths = torch.tensor([length for _, length in sequences], dtype=torch.int32)
    slots = torch.arange(100, 100 + len(sequences), dtype=torch.int32)
    table = torch.zeros(1, 1, dtype=torch.int32)
    batch = check_batch(*(tensor.to(DEVICE) for tensor in (starts, lengths, table, slots)), max_sequences=64)
    backend.plan(batch, int(starts[-1]) if tokens is None else tokens)
    lists = []
    for work in reversed(backend._step.lists):
        rows = work.items.tolist()
        programs = []
        for program in range(work.programs):
            items, at = [], program
            while at >= 0:
                items.append(rows[at])
                at = rows[at][columns.NEXT]
            programs.append([item for item in items if item[columns.TOKENS] > 0])
        lists.append((work, programs))
    return lists


def visible(sequences, window):
    wanted, row = {}, 0
    for index, (new, length) in enumerate(sequences):
        for token in range(new):
            position = length - new + token
            low = 0 if window is None else max(0, position - window + 1)
            wanted[100 + index, row] = list(range(low, position + 1))
            row += 1
    return wanted


@settings(max_examples=20 if DEVICE.type == "cpu" else 100, deadline=None)
@given(
    sequences=SEQUENCES,
    share=st.integers(1, 20),
    window=st.none() | st.integers(1, 60),
    block=st.sampled_from([16, 32]),
    heads=st.sampled_from([(2, 2), (12, 3), (4, 1)]),
)
def test_each_row_of_each_head_meets_its_keys_exactly_once(sequences, share, window, block, heads):
    seen = {head: {} for head in range(heads[1])}
    for work, programs in planned(sequences, share=share, window=window, block=block, heads=heads):
        partials = []
        for item in (item for program in programs for item in program):
            slot, first_row, tokens, position, begin, end, head, partial = item[:8]
            assert tokens <= work.launch.block_m // (heads[0] // heads[1])
            assert (partial >= 0) == (item[columns.SPLITS] > 1)
            partials.append(partial)
            for token in range(tokens):
                low = 0 if window is None else max(0, position + token - window + 1)
                keys = seen[head].setdefault((slot, first_row + token), [])
                keys.extend(key for key in range(begin, end) if low <= key <= position + token)
        used = [partial for partial in partials if partial >= 0]
        assert len(set(used)) == len(used)
        assert max(used, default=0) < work.arrivals.shape[0]
    for rows in seen.values():
        assert {row: sorted(keys) for row, keys in rows.items()} == visible(sequences, window)


@settings(max_examples=12 if DEVICE.type == "cpu" else 100, deadline=None)
@given(sequences=SEQUENCES, share=st.integers(1, 20), heads=st.sampled_from([(2, 2), (4, 1)]))
def test_the_partials_of_a_pair_stand_in_the_order_of_its_keys(sequences, share, heads):
    for _, programs in planned(sequences, share=share, heads=heads):
        items = [item for program in programs for item in program]
        by_partial = {item[columns.PARTIAL]: item for item in items if item[columns.PARTIAL] >= 0}
        for item in by_partial.values():
            places = [item[columns.FIRST_PARTIAL]]
            places += [item[columns.NEXT_PARTIAL] + split for split in range(item[columns.SPLITS] - 1)]
            parts = [by_partial[place] for place in places]
            pair = [columns.SLOT, columns.FIRST_ROW, columns.KV_HEAD, columns.FIRST_PARTIAL, columns.SPLITS]
            assert all([part[c] for c in pair] == [item[c] for c in pair] for part in parts)
            begins = [part[columns.BEGIN] for part in parts]
            assert begins == sorted(begins)


@settings(max_examples=12 if DEVICE.type == "cpu" else 100, deadline=None)
@given(st.lists(st.integers(1, 400), min_size=1, max_size=12), st.integers(1, 20))
def test_programs_of_short_tiles_differ_by_one_block_of_keys_at_most(lengths, share):
    ((work, programs),) = planned([(1, length) for length in lengths], share=share)
    blocks = [
        sum(-(-(item[columns.END] - item[columns.BEGIN]) // work.launch.block_n) for item in program)
        for program in programs
    ]
    each = [-(-length // 16) for length in lengths]
    assert sum(blocks) == 2 * sum(each)
    used = [count for count in blocks if count]
    most = -(-sum(blocks) // min(share, sum(blocks)))
    if len(set(each)) == 1:
        # Cuts may be put on the pairs' boundaries for one block in 25 at most.
        assert max(used) * 24 <= most * 25
    else:
        assert max(used) == most
        assert max(used) - min(used) <= 1


@pytest.mark.parametrize(
    ("batch", "length", "share", "programs", "items", "cut"),
    [
        (4, 800, 8, 8, 8, 0),
        (2, 800, 8, 8, 8, 8),
        (16, 640, 33, 32, 32, 0),
        (64, 320, 33, 32, 128, 0),
        (5, 480, 8, 8, 16, 12),
    ],
)
def test_equal_sequences_are_cut_where_they_meet_if_that_costs_little(batch, length, share, programs, items, cut):
    ((_, found),) = planned([(1, length)] * batch, share=share)
    taken = [item for program in found for item in program]
    assert sum(bool(program) for program in found) == programs
    assert len(taken) == items
    assert sum(item[columns.SPLITS] > 1 for item in taken) == cut


def test_a_mixed_batch_gives_few_new_tokens_short_tiles_and_prompts_long_ones_the_longest_first():
    sequences = [(40, 40), (1, 300), (100, 290), (0, 5), (16 * SHORT_TILES, 64), (1, 20)]
    (_, short), (_, long) = planned(sequences, share=1, heads=(1, 1))
    assert {item[columns.SLOT] for program in short for item in program} == {101, 104, 105}
    taken = [item[columns.SLOT] for program in long for item in program]
    assert taken == [102] * 7 + [100] * 3
    positions = [item[columns.FIRST_POSITION] for program in long for item in program][:7]
    assert positions == sorted(positions, reverse=True)


def test_a_long_context_for_few_rows_is_split_into_equal_parts():
    (_, short), (_, long) = planned([(40, 1000)], share=12, heads=(1, 1))
    assert not any(short)
    items = [item for program in long for item in program]
    assert len(items) == 12
    assert max(item[columns.END] - item[columns.BEGIN] for item in items) == 256


@pytest.mark.parametrize("beside", [[], [(1, 90)], [(1, 90), (0, 7)]], ids=["alone", "decode", "padding"])
@pytest.mark.parametrize(("new", "length", "share"), [(100, 400, 12), (56, 333, 7), (80, 330, 10)])
def test_the_last_round_of_a_lone_prompt_on_a_long_prefix_is_divided(small_last_parts, new, length, share, beside):
    sequences = [(new, length), *beside]
    (_, _), (work, programs) = planned(sequences, share=share, heads=(2, 1))
    items = [item for program in programs for item in program]
    pairs = -(-new // 8)
    left = pairs % 4
    parts = min(2 * share // left, 8, (length - new) // 16)
    assert parts > 1
    assert [item[columns.SPLITS] for item in items] == [1] * (pairs - left) + [parts] * (left * parts)
    used = [item[columns.PARTIAL] for item in items if item[columns.SPLITS] > 1]
    assert used == list(range(left * parts))
    assert int(work.tickets[0]) == len(items)
    keys = {}
    for _, row, tokens, position, begin, end, *_ in items:
        for token in range(tokens):
            seen = keys.setdefault(row + token, [])
            seen.extend(key for key in range(begin, end) if key <= position + token)
    assert {(100, row): sorted(seen) for row, seen in keys.items()} == visible(sequences[:1], None)


@pytest.mark.parametrize("sequences", [[(100, 100)], [(100, 250)], [(100, 400), (60, 400)]], ids=str)
def test_the_last_round_stays_whole_without_a_long_prefix_or_beside_other_prompts(small_last_parts, sequences):
    _, (_, programs) = planned(sequences, share=12, heads=(2, 1))
    assert {item[columns.SPLITS] for program in programs for item in program} == {1}


def test_shares_of_work_are_counted_beyond_32_bits():
    ((_, programs),) = planned([(1, 2**24)] * 40, share=20, heads=(8, 8), tokens=40)
    keys = [sum(item[columns.END] - item[columns.BEGIN] for item in program) for program in programs]
    assert sum(keys) == 40 * 8 * 2**24
    assert max(keys) - min(keys) <= 16


@pytest.mark.parametrize(
    ("sequences", "most", "least"),
    [([(1, 400)] * 6 + [(40, 300)], 3, 1), ([(1, 400)] * 6 + [(0, 9), (2, 90)], 4, 4), ([(60, 200), (40, 40)], 0, 0)],
    ids=["both", "short", "long"],
)
def test_kinds_that_run_side_by_side_share_the_multiprocessors_by_their_work(sequences, most, least):
    launch = Launch(16, 16, 4, 1, 1)
    shape = AttentionShape(2, 2, 16, 16, torch.float32)
    backend = TritonBackend(
        shape, AttentionVariant(), DEVICE, max_tokens=512, decode_launch=launch, prefill_launch=launch
    )
    backend._beside = True
    starts = torch.tensor([0, *(new for new, _ in sequences)]).cumsum(0).int().to(DEVICE)
    lengths = torch.tensor([length for _, length in sequences], dtype=torch.int32).to(DEVICE)
    backend.plan(check_batch(starts, lengths, torch.zeros(1, 1).int().to(DEVICE), max_sequences=64, slots=None), 512)
    long, short = backend._step.lists
    processors = backend._gpu.processors
    for_long = int(long.tickets[2])
    working = int((short.items[: short.programs, columns.TOKENS] > 0).sum())
    assert working <= processors - for_long
    if processors == 4:
        assert least <= processors - for_long <= most


def test_little_work_takes_one_program_a_multiprocessor_and_leaves_room_for_the_next_launch():
    launch = Launch(16, 16, 4, 1, programs=2)
    shape = AttentionShape(2, 2, 16, 16, torch.float32)
    backend = TritonBackend(
        shape, AttentionVariant(), DEVICE, max_tokens=64, decode_launch=launch, prefill_launch=launch, hopper=True
    )
    backend._gpu = Device(4, 9)
    starts = torch.arange(4, dtype=torch.int32, device=DEVICE)
    lengths = torch.full((3,), 40, dtype=torch.int32, device=DEVICE)

    def programs(columns, kv_tokens=None):
        table = torch.zeros(1, 1, dtype=torch.int32, device=DEVICE).expand(4, columns)
        backend.plan(check_batch(starts, lengths, table, None, kv_tokens=kv_tokens, max_sequences=8), 3)
        return backend._step.lists[0].programs

    assert programs(8) == 4
    assert programs(2**22) == 8
    assert programs(2**22, kv_tokens=120) == 4
