"""Every head size with every page size: all batches of a serving engine against the float64 reference, free slots NaN.

On a GPU the device's own kernels run, whole and split; elsewhere the CPU backend.
"""

from dataclasses import replace

import pytest
import torch
from octavo_kernels import PAGE_SIZES, AttentionShape, PagedAttention
from octavo_kernels.testing import lse_error, random_case, relative_error

GPU = torch.cuda.is_available()
DEVICE = torch.device("cuda" if GPU else "cpu")
HEAD_SIZES = (64, 80, 96, 112, 128, 192, 256)
BATCHES = {
    "decode": [(1, 900), (1, 1), (1, 64), (0, 5), (1, 2500), (1, 129)],
    "verify": [(3, 300), (5, 5), (1, 64), (4, 700)],
    "mixed": [(1, 900), (200, 333), (65, 400), (0, 5), (40, 40), (7, 300), (1, 0)],
}


@pytest.mark.parametrize("page_size", PAGE_SIZES)
@pytest.mark.parametrize("head_size", HEAD_SIZES)
def test_a_head_size_and_a_page_size_equal_the_reference_on_every_path(head_size, page_size):
    dtype, bound = (torch.bfloat16, 1e-2) if GPU else (torch.float32, 1e-4)
    shape = AttentionShape(6, 2, head_size, page_size, dtype)
    for seed, sequences in enumerate(BATCHES.values()):
        case = random_case(shape, sequences, device=DEVICE, seed=seed)
        expected, expected_lse = case.reference()
        out, lse = case.attend(PagedAttention(shape, device=DEVICE, max_tokens=512))
        assert relative_error(out, expected) < bound
        assert lse_error(lse, expected_lse) < 20 * bound


@pytest.mark.gpu
@pytest.mark.parametrize("page_size", [8, 64, 256])
@pytest.mark.parametrize("head_size", HEAD_SIZES)
def test_the_plain_kernel_equals_the_reference_where_hopper_kernels_would_serve_and_from_eight_bits(
    head_size, page_size
):
    pytest.importorskip("triton")
    from octavo_kernels.triton_backend import TritonBackend

    shape = AttentionShape(6, 2, head_size, page_size, torch.bfloat16)
    for pool in (None, torch.float8_e4m3fn):
        chosen = replace(shape, kv_dtype=pool)
        for seed, sequences in enumerate(BATCHES.values()):
            case = random_case(chosen, sequences, device=DEVICE, seed=seed)
            expected, _ = case.reference()
            backend = TritonBackend(chosen, case.variant, DEVICE, max_tokens=512, hopper=False)
            backend.plan(case.batch(), case.q.shape[0])
            out = torch.full_like(case.q, float("nan"))
            backend.run(case.q, case.kv, out, None, case.scales)
            assert relative_error(out, expected) < 1e-2
