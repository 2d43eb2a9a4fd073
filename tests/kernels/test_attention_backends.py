"""Every backend against the reference in float64, on random batches whose free slots hold NaN."""

import pytest
import torch
from octavo_kernels import PAGE_SIZES, AttentionShape, AttentionVariant, PagedAttention
from octavo_kernels.testing import lse_error, random_case, relative_error

MIXED = [(1, 5), (7, 7), (1, 33), (5, 21), (0, 9), (16, 16), (3, 64), (1, 1), (2, 90)]
DECODE = [(1, 5), (1, 33), (1, 1), (1, 90), (1, 16), (1, 48)]
GPU = torch.cuda.is_available()
TOLERANCE = {torch.float32: 2e-5, torch.float16: 2e-3, torch.bfloat16: 1e-2}
TRITON_DTYPES = [torch.float32, torch.float16, *([torch.bfloat16] if GPU else [])]
BACKENDS = [
    *(("CPU", dtype) for dtype in (torch.float32, torch.bfloat16, torch.float16)),
    *(("Triton", dtype) for dtype in TRITON_DTYPES),
]


def check(backend, shape, sequences, *, variant=None, seed=0):
    if backend == "Triton":
        pytest.importorskip("triton")
    device = "cuda" if backend == "Triton" and GPU else "cpu"
    case = random_case(shape, sequences, variant=variant, device=device, seed=seed)
    expected, expected_lse = case.reference()
    attention = PagedAttention(shape, case.variant, device=device, backend=backend)
    out, lse = case.attend(attention)
    narrow = max(shape.dtype, shape.pool_dtype, key=TOLERANCE.__getitem__)
    assert relative_error(out, expected) < TOLERANCE[narrow]
    assert lse_error(lse, expected_lse) < 20 * TOLERANCE[narrow]
    out, _ = case.attend(attention, want_lse=False)
    assert relative_error(out, expected) < TOLERANCE[narrow]


@pytest.mark.parametrize(("backend", "dtype"), BACKENDS)
@pytest.mark.parametrize("sequences", [MIXED, DECODE], ids=["mixed", "decode"])
def test_backend_equals_the_reference_for_mixed_and_decode_batches(backend, dtype, sequences):
    check(backend, AttentionShape(9, 3, 64, 16, dtype), sequences)


@pytest.mark.parametrize("backend", ["CPU", "Triton"])
@pytest.mark.parametrize("ratio", [1, 2, 3, 4, 5, 6, 7, 8, 12, 16, 32])
def test_any_number_of_query_heads_may_share_a_kv_head(backend, ratio):
    kv_heads = 2 if ratio < 8 else 1
    check(backend, AttentionShape(ratio * kv_heads, kv_heads, 32, 16, torch.float32), [(1, 40), (6, 23), (3, 3)])


@pytest.mark.parametrize("backend", ["CPU", "Triton"])
@pytest.mark.parametrize("head_size", [64, 80, 96, 112, 120, 128, 192, 256])
def test_head_sizes_that_are_no_power_of_two_are_padded_rightly(backend, head_size):
    dtype = torch.bfloat16 if GPU else torch.float32
    check(backend, AttentionShape(4, 2, head_size, 16, dtype), [(1, 40), (6, 23)])


@pytest.mark.parametrize("backend", ["CPU", "Triton"])
@pytest.mark.parametrize("page_size", PAGE_SIZES)
def test_each_page_size_addresses_the_same_tokens(backend, page_size):
    check(backend, AttentionShape(3, 1, 32, page_size, torch.float32), [(1, 300), (9, 70), (1, page_size), (4, 4)])


@pytest.mark.parametrize("backend", ["CPU", "Triton"])
@pytest.mark.parametrize("window", [1, 7, 16, 50])
@pytest.mark.parametrize("sequences", [MIXED, DECODE], ids=["mixed", "decode"])
def test_pages_outside_a_window_may_hold_nan(backend, window, sequences):
    check(backend, AttentionShape(4, 2, 32, 8, torch.float32), sequences, variant=AttentionVariant(window=window))


@pytest.mark.parametrize("backend", ["CPU", "Triton"])
def test_soft_cap_and_scale_change_the_scores_as_defined(backend):
    variant = AttentionVariant(scale=0.7, soft_cap=3.0, window=30)
    check(backend, AttentionShape(4, 2, 32, 8, torch.float32), MIXED, variant=variant)


@pytest.mark.parametrize("backend", ["CPU", "Triton"])
@pytest.mark.parametrize("kv_dtype", [torch.float32, torch.float16])
def test_pool_and_queries_may_differ_in_dtype(backend, kv_dtype):
    dtype = torch.float16 if kv_dtype == torch.float32 else torch.float32
    check(backend, AttentionShape(4, 2, 32, 8, dtype, kv_dtype), MIXED)


@pytest.mark.parametrize("backend", ["CPU", "Triton"])
def test_a_view_into_a_merged_projection_serves_as_queries(backend):
    device = "cuda" if backend == "Triton" and GPU else "cpu"
    shape = AttentionShape(4, 2, 32, 8, torch.float32)
    case = random_case(shape, MIXED, device=device)
    expected, _ = case.reference()
    merged = torch.full((case.q.shape[0], 9, 32), float("nan"), device=device)
    merged[:, :4] = case.q
    attention = PagedAttention(shape, device=device, backend=backend)
    out = torch.empty_like(case.q)
    attention.plan(case.query_starts, case.kv_lengths, case.page_table, case.slots)
    attention.run(merged[:, :4], case.kv, out)
    assert relative_error(out, expected) < 2e-5


@pytest.mark.parametrize("backend", ["CPU", "Triton"])
def test_rows_that_see_nothing_give_zero_and_minus_infinity(backend):
    device = "cuda" if backend == "Triton" and GPU else "cpu"
    shape = AttentionShape(4, 2, 32, 8, torch.float32)
    case = random_case(shape, [(1, 0), (5, 3), (1, 20), (4, 0)], device=device)
    expected, expected_lse = case.reference()
    assert torch.isneginf(expected_lse[[0, 1, 2, 7, 8, 9, 10]]).all()
    attention = PagedAttention(shape, device=device, backend=backend)
    for want_lse in (True, False):
        out, lse = case.attend(attention, want_lse=want_lse)
        assert (out[[0, 1, 2, 7, 8, 9, 10]] == 0).all()
        assert relative_error(out, expected) < 2e-5
        assert not want_lse or lse_error(lse, expected_lse) < 1e-4


@pytest.mark.parametrize("backend", ["Reference", "CPU", "Triton"])
def test_logits_below_every_large_negative_constant_are_real(backend):
    device = "cuda" if backend == "Triton" and GPU else "cpu"
    shape = AttentionShape(2, 1, 32, 8, torch.float32)
    case = random_case(shape, [(1, 20)], variant=AttentionVariant(scale=1.0), device=device)
    case.q.fill_(-1e18)
    case.kv[:, 0].clamp_(1e16, 1e16)
    expected, expected_lse = case.reference()
    assert (expected_lse < -1e34).all()
    # Equal scores weigh equally: the mean of the values, whatever the size of the scores.
    own = case.kv[case.page_table[case.slots[0], :3].long(), 1, 0].reshape(24, 32)[:20]
    assert relative_error(expected, own.mean(0).expand(1, 2, 32)) < 1e-6
    attention = PagedAttention(shape, case.variant, device=device, backend=backend)
    out, lse = case.attend(attention)
    assert relative_error(out, expected) < 2e-5
    assert relative_error(lse, expected_lse) < 2e-5
    assert relative_error(case.attend(attention, want_lse=False)[0], expected) < 2e-5


@pytest.mark.parametrize("backend", ["CPU", "Triton"])
def test_an_empty_batch_and_a_batch_without_new_tokens_write_nothing(backend):
    device = "cuda" if backend == "Triton" and GPU else "cpu"
    shape = AttentionShape(2, 1, 32, 8, torch.float32)
    attention = PagedAttention(shape, device=device, backend=backend)
    for sequences in ([], [(0, 5), (0, 0)]):
        case = random_case(shape, sequences, device=device)
        out, _ = case.attend(attention)
        assert out.shape == (0, 2, 32)


@pytest.mark.parametrize("backend", ["CPU", "Triton"])
def test_rows_past_the_last_sequence_stay_as_they_are(backend):
    device = "cuda" if backend == "Triton" and GPU else "cpu"
    shape = AttentionShape(2, 1, 32, 8, torch.float32)
    case = random_case(shape, [(1, 5), (3, 9)], device=device)
    attention = PagedAttention(shape, device=device, backend=backend)
    attention.plan(case.query_starts, case.kv_lengths, case.page_table, case.slots, tokens=8)
    q = torch.cat((case.q, torch.full((4, 2, 32), float("nan"), device=device)))
    out = torch.full_like(q, 7.0)
    attention.run(q, case.kv, out)
    assert (out[4:] == 7.0).all()
    assert relative_error(out[:4], case.reference()[0]) < 2e-5


@pytest.mark.parametrize("backend", ["CPU", "Triton"])
def test_a_pool_beyond_two_to_the_31_elements_is_addressed_rightly(backend):
    # Untouched memory of the pool is only reserved, never used.
    device = "cuda" if backend == "Triton" and GPU else "cpu"
    shape = AttentionShape(2, 1, 64, 256, torch.float16)
    pages = 2**31 // (2 * 256 * 64) + 3
    small = random_case(shape, [(1, 300)], device=device)
    kv = torch.empty(shape.pool_shape(pages), dtype=torch.float16, device=device)
    own = small.page_table[small.slots[0].item(), :2].tolist()
    table = torch.zeros_like(small.page_table)
    table[small.slots[0].item(), :2] = torch.tensor([pages - 1, pages - 2], dtype=torch.int32, device=device)
    kv[pages - 1], kv[pages - 2] = small.kv[own[0]], small.kv[own[1]]
    out = torch.empty_like(small.q)
    attention = PagedAttention(shape, device=device, backend=backend)
    attention.plan(small.query_starts, small.kv_lengths, table, small.slots)
    attention.run(small.q, kv, out)
    assert relative_error(out, small.reference()[0]) < 2e-3
