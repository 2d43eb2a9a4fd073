"""The CPU backend's grouping: random batches, uneven lengths, and a sequence's independence of its neighbours."""

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from octavo_kernels import AttentionShape, AttentionVariant, PagedAttention
from octavo_kernels.batch import check_batch
from octavo_kernels.cpu_plan import GROUP_BYTES, plan_groups
from octavo_kernels.testing import lse_error, random_case, relative_error

SEQUENCES = st.lists(
    st.integers(0, 200).flatmap(
        lambda length: st.tuples(st.sampled_from([0, 1, 1, 1, 2, min(length, 30)]), st.just(length))
    ),
    min_size=1,
    max_size=8,
)


@settings(max_examples=120, deadline=None)
@given(
    sequences=SEQUENCES,
    heads=st.sampled_from([(1, 1), (9, 3), (4, 2), (5, 1)]),
    page_size=st.sampled_from([8, 16, 64]),
    window=st.none() | st.integers(1, 80),
    want_lse=st.booleans(),
    seed=st.integers(0, 2**31),
)
def test_any_batch_equals_the_reference_on_the_cpu(sequences, heads, page_size, window, want_lse, seed):
    shape = AttentionShape(*heads, 16, page_size, torch.float32)
    case = random_case(shape, sequences, variant=AttentionVariant(window=window), seed=seed)
    expected, expected_lse = case.reference()
    out, lse = case.attend(PagedAttention(shape, case.variant), want_lse=want_lse)
    assert relative_error(out, expected) < 2e-5
    assert not want_lse or lse_error(lse, expected_lse) < 1e-4


def test_a_sequence_attended_among_others_equals_itself_alone_up_to_rounding():
    shape = AttentionShape(9, 3, 64, 16, torch.float32)
    lengths = [5, 33, 500, 64, 65, 129, 1, 17, 300, 16, 48, 220, 90, 7, 31, 440]
    case = random_case(shape, [(1, length) for length in lengths])
    together, _ = case.attend(PagedAttention(shape), want_lse=False)
    alone = PagedAttention(shape)
    for index in range(len(lengths)):
        alone.plan(
            torch.tensor([0, 1]).int(), case.kv_lengths[index : index + 1], case.page_table, case.slots[index, None]
        )
        out = torch.empty(1, 9, 64)
        alone.run(case.q[index : index + 1], case.kv, out)
        assert relative_error(together[index : index + 1], out) < 2e-6


def test_groups_hold_every_sequence_once_and_stay_within_the_cache():
    shape = AttentionShape(9, 3, 64, 16, torch.float32)
    sequences = [(1, 1 + 37 * index % 900) for index in range(40)] + [(20, 60), (0, 9), (1, 0)]
    case = random_case(shape, sequences)
    batch = check_batch(case.query_starts, case.kv_lengths, case.page_table, case.slots, max_sequences=64)
    groups = plan_groups(batch, shape, None)
    rows = sorted(row for group in groups for span in group.spans for row in range(span.first_row, span.last_row))
    assert rows == list(range(case.q.shape[0]))
    assert any(len(group.spans) > 1 for group in groups)
    for group in groups:
        if len(group.spans) > 1:
            assert len(group.spans) * group.width * 2 * 3 * 64 * 4 <= GROUP_BYTES


def test_one_plan_serves_many_layers():
    shape = AttentionShape(4, 2, 32, 16, torch.float32)
    first = random_case(shape, [(1, 40), (3, 20), (1, 9)], seed=1)
    second = random_case(shape, [(1, 40), (3, 20), (1, 9)], seed=1)
    second.kv.mul_(0.5)
    attention = PagedAttention(shape)
    first.attend(attention)
    for case in (second, first, second):
        out = torch.empty_like(case.q)
        attention.run(case.q, case.kv, out)
        assert relative_error(out, case.reference()[0]) < 2e-5
