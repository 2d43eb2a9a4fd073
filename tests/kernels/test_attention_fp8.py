"""Pools of eight-bit floats: exact on the stored numbers, and near what sixteen bits give."""

import pytest
import torch
from octavo_kernels import AttentionShape, AttentionVariant, PagedAttention
from octavo_kernels.testing import lse_error, random_case, relative_error

GPU = torch.cuda.is_available()
DEVICE = torch.device("cuda" if GPU else "cpu")
FP8 = torch.float8_e4m3fn
MIXED = [(1, 90), (5, 21), (0, 9), (16, 16), (1, 1), (3, 200)]
DTYPES = [torch.float32, torch.float16, *([torch.bfloat16] if GPU else [])]
TOLERANCE = {torch.float32: 2e-5, torch.float16: 2e-3, torch.bfloat16: 1e-2}


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("fields", [{}, {"window": 30, "soft_cap": 6.0}], ids=str)
@pytest.mark.parametrize("head_size", [64, 80])
def test_stored_numbers_times_scales_are_the_keys_and_values(dtype, fields, head_size):
    pytest.importorskip("triton")
    shape = AttentionShape(4, 2, head_size, 16, dtype, FP8)
    case = random_case(shape, MIXED, variant=AttentionVariant(**fields), device=DEVICE)
    expected, expected_lse = case.reference()
    out, lse = case.attend(PagedAttention(shape, case.variant, device=DEVICE, backend="Triton"))
    assert relative_error(out, expected) < TOLERANCE[dtype]
    assert lse_error(lse, expected_lse) < 20 * TOLERANCE[dtype]


def test_bytes_read_as_numbers_give_what_the_device_converts():
    pytest.importorskip("triton")
    from dataclasses import replace

    from octavo_kernels.triton_backend import TritonBackend

    shape = AttentionShape(2, 1, 16, 16, torch.float16, FP8)
    case = random_case(shape, [(1, 256)], device=DEVICE)
    # Every finite number once as a value of a sequence whose keys are equal: the mean of all of them.
    numbers = torch.arange(256, dtype=torch.uint8)
    numbers[[0x7F, 0xFF]] = 0
    pages = case.page_table[case.slots[0].long(), :16].long()
    stored = case.kv.view(torch.uint8)
    stored[pages, 0] = 0
    stored[pages, 1] = numbers.view(16, 1, 16, 1).expand(16, 1, 16, 16).to(DEVICE)
    stored[pages[0], 1, :, 0, 0] = 0x01
    results = []
    for bits in (True, False) if GPU else (True,):
        backend = TritonBackend(shape, AttentionVariant(), DEVICE, max_tokens=16)
        backend._runner = replace(backend._runner, fp8_bits=bits)
        backend.plan(case.batch(), 1)
        out = torch.full_like(case.q, float("nan"))
        backend.run(case.q, case.kv, out, None, None)
        results.append(out)
    wanted = numbers.view(FP8).double().mean()
    torch.testing.assert_close(results[0][0, 0, 1].double().cpu(), wanted, atol=2e-3, rtol=2e-3)
    assert all(torch.equal(result, results[0]) for result in results)


def test_eight_bits_are_near_sixteen():
    """e4m3 keeps four significant bits: each number is off by 1/16 at most, their sums by less."""
    pytest.importorskip("triton")
    exact = random_case(AttentionShape(8, 2, 64, 16, torch.float32), [(1, 400), (7, 300), (60, 60)], device=DEVICE)
    largest = exact.kv.nan_to_num(0).abs().amax((0, 3, 4))
    scales = largest / 448
    stored = (exact.kv / scales[:, :, None, None]).to(FP8)
    shape = AttentionShape(8, 2, 64, 16, torch.float32, FP8)
    attention = PagedAttention(shape, device=DEVICE, backend="Triton")
    attention.plan(exact.query_starts, exact.kv_lengths, exact.page_table, exact.slots)
    out = torch.full_like(exact.q, float("nan"))
    attention.run(exact.q, stored, out, scales=scales)
    error = relative_error(out, exact.reference()[0])
    assert 1e-3 < error < 0.05


def test_the_reference_serves_such_pools_in_host_memory_and_scales_are_checked():
    shape = AttentionShape(4, 2, 16, 16, torch.float32, FP8)
    case = random_case(shape, [(1, 40)])
    attention = PagedAttention(shape)
    assert attention.backend == "Reference"
    out, _ = case.attend(attention)
    assert relative_error(out, case.reference()[0]) < 1e-6
    with pytest.raises(ValueError, match=r"scales is torch.float64 \[2, 2\]; it must be float32 \[2, 2\]"):
        attention.run(case.q, case.kv, out, scales=case.scales.double())
    plain = random_case(AttentionShape(4, 2, 16, 16, torch.float32), [(1, 40)])
    attention = PagedAttention(plain.shape)
    plain.attend(attention)
    with pytest.raises(ValueError, match=r"a torch.float32 pool takes none"):
        attention.run(plain.q, plain.kv, out, scales=case.scales)
    with pytest.raises(ValueError, match="no float8 pool"):
        PagedAttention(shape, backend="CPU")
