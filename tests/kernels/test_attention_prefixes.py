"""Shared prefixes: read once for a group, equal to the flat form, and found by the helper."""

from random import Random

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from octavo_kernels import AttentionShape, AttentionVariant, PagedAttention, SharedPrefixes, detect_shared_prefix
from octavo_kernels.testing import lse_error, random_case, relative_error

pytest.importorskip("triton")

from octavo_kernels.batch import check_batch
from octavo_kernels.plan import FIRST_ROW, PARTIAL, TOKENS
from octavo_kernels.triton_backend import TritonBackend

GPU = torch.cuda.is_available()
DEVICE = torch.device("cuda" if GPU else "cpu")


def shared_case(shape, groups, alone=(), seed=0, shuffled=False):
    """(pages shared, [(new tokens, own tokens before the step)…]) groups, then sequences of no group.

    shuffled: the sequences stand anywhere in the batch, and the groups name their members.
    """
    page, sequences, starts = shape.page_size, [], [0]
    for pages, members in groups:
        sequences += [(new, pages * page + own + new) for new, own in members]
        starts.append(len(sequences))
    sequences += alone
    place = list(range(len(sequences)))
    if shuffled:
        Random(seed).shuffle(place)
    order = sorted(range(len(place)), key=place.__getitem__)
    case = random_case(shape, [sequences[index] for index in order], device=DEVICE, seed=seed)
    members = torch.tensor(place[: starts[-1]], dtype=torch.int32)
    for (pages, _), first, last in zip(groups, starts, starts[1:], strict=False):
        rows = case.slots[members[first:last].long().to(DEVICE)].long()
        case.page_table[rows, :pages] = case.page_table[rows[0], :pages].clone()
    lengths = torch.tensor([pages * page for pages, _ in groups], dtype=torch.int32)
    tensors = (torch.tensor(starts, dtype=torch.int32).to(DEVICE), lengths.to(DEVICE))
    return case, SharedPrefixes(*tensors, members.to(DEVICE) if shuffled else None)


def attend(case, groups, share=None):
    backend = TritonBackend(case.shape, case.variant, DEVICE, max_tokens=4096, share=share)
    batch = check_batch(case.query_starts, case.kv_lengths, case.page_table, case.slots, groups, max_sequences=256)
    out = torch.full_like(case.q, float("nan"))
    lse = torch.full(case.q.shape[:2], float("nan"), device=DEVICE)
    backend.plan(batch, case.q.shape[0])
    backend.run(case.q, case.kv, out, lse)
    return backend, out, lse


@settings(max_examples=40 if GPU else 5, deadline=None)
@given(
    sizes=st.lists(st.tuples(st.integers(0, 40), st.integers(1, 12 if GPU else 6)), min_size=1, max_size=3),
    alone=st.integers(0, 2),
    heads=st.sampled_from([(4, 2), (3, 1), (8, 1)]),
    share=st.integers(1, 16),
    shuffled=st.booleans(),
    seed=st.integers(0, 2**31),
)
def test_reading_a_prefix_once_equals_the_reference_wherever_its_sequences_stand(
    sizes, alone, heads, share, shuffled, seed
):
    random = Random(seed)
    groups = [
        (pages, [(random.choice((0, 1, 1, 1, 2)), random.randint(0, 40)) for _ in range(members)])
        for pages, members in sizes
    ]
    others = [(1, random.randint(1, 90)) for _ in range(alone)]
    case, prefixes = shared_case(AttentionShape(*heads, 16, 8, torch.float32), groups, others, seed, shuffled)
    expected, expected_lse = case.reference()
    _, out, lse = attend(case, prefixes, share)
    assert relative_error(out, expected) < 2e-5
    assert lse_error(lse, expected_lse) < 2e-4
    _, again, _ = attend(case, prefixes, share)
    assert torch.equal(out, again)


def test_a_prefix_that_does_not_pay_leaves_its_sequences_to_the_flat_form():
    shape = AttentionShape(4, 1, 16, 8, torch.float32)
    case, prefixes = shared_case(shape, [(2, [(1, 40)] * 3), (1, [(1, 30)] * 2)])
    backend, out, _ = attend(case, prefixes, share=1)
    (work,) = backend._step.lists
    taken = work.items[work.items[:, TOKENS] > 0]
    assert (taken[:, PARTIAL] == -1).all()
    assert (work.groups.merges[:, [2, 6]] == 0).all()
    assert relative_error(out, case.reference()[0]) < 2e-5


def test_a_long_prefix_of_many_is_read_once_and_a_short_one_with_each_sequence():
    shape = AttentionShape(4, 1, 16, 8, torch.float32)
    case, prefixes = shared_case(shape, [(60, [(1, 3)] * 12), (1, [(1, 30)] * 2)])
    backend, _, _ = attend(case, prefixes, share=1)
    (work,) = backend._step.lists
    # Where a pair begins at a cut, its row stands twice; programs take one of them.
    rows = {tuple(row) for row in work.items[work.items[:, TOKENS] > 0][:, :7].tolist()}
    assert sum(row[4] == 0 and row[5] == 480 for row in rows) == 3, "12 rows in tiles of 4 tokens"
    assert sum(row[4] == 480 for row in rows) == 12
    assert sum(12 <= row[FIRST_ROW] < 14 and row[4] == 0 for row in rows) == 2


@pytest.mark.parametrize("variant", [AttentionVariant(window=50), AttentionVariant(soft_cap=5.0)], ids=str)
def test_groups_change_no_result_of_any_variant_or_mixed_batch(variant):
    shape = AttentionShape(4, 2, 16, 8, torch.float32)
    for members in ([(1, 3)] * 6, [(40, 0), (1, 3), (1, 9)]):
        case, prefixes = shared_case(shape, [(30, members)])
        case = type(case)(**{**case.__dict__, "variant": variant})
        expected, _ = case.reference()
        for backend in ("Triton", *(() if GPU else ("CPU", "Reference"))):
            attention = PagedAttention(shape, variant, device=DEVICE, backend=backend)
            out = torch.full_like(case.q, float("nan"))
            tensors = (case.query_starts, case.kv_lengths, case.page_table, case.slots)
            attention.plan(*tensors, tokens=case.q.shape[0], groups=prefixes)
            attention.run(case.q, case.kv, out)
            assert relative_error(out, expected) < 2e-5


@pytest.mark.gpu
def test_a_shared_prefix_in_half_precision_equals_the_reference():
    for heads, head_size in (((8, 2), 128), ((5, 1), 64), ((4, 2), 96)):
        shape = AttentionShape(*heads, head_size, 16, torch.bfloat16)
        for shuffled in (False, True):
            groups = [(64, [(1, 130)] * 20), (9, [(2, 3)] * 7)]
            case, prefixes = shared_case(shape, groups, [(1, 700)], shuffled=shuffled)
            expected, expected_lse = case.reference()
            for share in (None, 7):
                _, out, lse = attend(case, prefixes, share)
                assert relative_error(out, expected) < 1e-2
                assert lse_error(lse, expected_lse) < 0.05


def test_the_helper_finds_groups_anywhere_in_the_batch_and_what_all_of_them_share():
    table = torch.tensor([[3, 4, 5, 9], [6, 1, 2, 0], [3, 4, 5, 8], [11, 0, 0, 0], [3, 4, 7, 0], [6, 1, 2, 0]]).int()
    past = torch.tensor([64, 48, 60, 9, 40, 33], dtype=torch.int32)
    found = detect_shared_prefix(table, past, page_size=16, least_tokens=32)
    assert found.members.tolist() == [0, 2, 4, 1, 5, 3]
    assert found.starts.tolist() == [0, 3, 5, 6]
    assert found.lengths.tolist() == [32, 32, 0]
    assert detect_shared_prefix(table, past, page_size=16, least_tokens=64).lengths.tolist() == [0] * 6
    with pytest.raises(ValueError, match="past_lengths"):
        detect_shared_prefix(table, past[:2], page_size=16)


def test_found_groups_serve_a_plan():
    shape = AttentionShape(4, 2, 16, 8, torch.float32)
    case, _ = shared_case(shape, [(40, [(1, 5)] * 5), (33, [(1, 9)] * 4)], [(1, 60)], shuffled=True)
    table = case.page_table[case.slots.long()]
    found = detect_shared_prefix(table, case.kv_lengths - 1, page_size=8)
    assert sorted(found.lengths.tolist()) == [0, 264, 320]
    backend, out, _ = attend(case, found, share=2)
    assert int(backend._step.lists[0].groups.shared.count_nonzero()) == 2
    assert relative_error(out, case.reference()[0]) < 2e-5


def test_groups_of_the_wrong_shape_are_named():
    shape = AttentionShape(4, 2, 16, 8, torch.float32)
    attention = PagedAttention(shape)
    one = torch.ones(1, dtype=torch.int32)
    with pytest.raises(ValueError, match=r"groups has starts of shape \[1\]"):
        attention.plan(torch.tensor([0, 1]).int(), one, torch.ones(1, 1).int(), groups=SharedPrefixes(one, one))
    groups = SharedPrefixes(torch.tensor([0, 1]).int(), torch.tensor([8]).int(), torch.tensor([0, 1]).int())
    with pytest.raises(ValueError, match=r"groups.members has shape \[2\]; it must be \[members\], at most 1"):
        attention.plan(torch.tensor([0, 1]).int(), one, torch.ones(1, 1).int(), groups=groups)
    groups = SharedPrefixes(torch.tensor([0, 1]).int(), torch.tensor([8]))
    with pytest.raises(ValueError, match=r"groups.lengths has dtype torch.int64"):
        attention.plan(torch.tensor([0, 1]).int(), one, torch.ones(1, 1).int(), groups=groups)
