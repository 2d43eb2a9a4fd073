"""Weights that are brought near while something else runs: which parts are asked for, and that no result changes."""

import pytest
import torch
from octavo_kernels import prefetch, rms_norm, silu_mul
from octavo_kernels.prefetch import CHUNK_BYTES, prefetch_of, spread


@pytest.mark.parametrize("size", [1 << 16, 4096 * 8192, 28672 * 8192, 6144 * 8192 + 640])
@pytest.mark.parametrize("most", [1 << 20, 12 << 20, 1 << 40])
def test_what_is_asked_for_lies_inside_the_weight_and_within_the_bound(size, most):
    found = spread(size, most)
    assert found.chunks > 0
    assert (found.chunks - 1) * found.stride + CHUNK_BYTES <= size
    assert found.chunks * CHUNK_BYTES <= max(most, CHUNK_BYTES)
    # At least half of what may be asked for, except that whole multiples of 16 chunks are taken.
    assert (found.chunks + 16) * CHUNK_BYTES >= min(size, most) / 2


def test_chunks_of_neighbouring_rows_begin_at_other_depths():
    found = spread(28672 * 8192, 12 << 20)
    assert found.stride % 128 == 0
    places = {chunk * found.stride % 8192 for chunk in range(found.chunks)}
    assert len(places) == 64, "a product would find all of them at the same depth"


def test_nothing_is_asked_for_where_it_would_not_help():
    assert spread(1000, 1 << 20) is None
    assert spread(1 << 24, 0) is None
    assert prefetch_of(None, 1, 1 << 20) is None
    assert prefetch_of(torch.zeros(1024, 1024), 1, 1 << 20) is None, "in host memory"


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("tokens", [1, 3, 64, prefetch.MAX_ROWS])
def test_results_are_the_same_bits_with_and_without_a_weight_to_bring_near(tokens, monkeypatch):
    from octavo_kernels import triton_fused

    for module in (prefetch, triton_fused):
        monkeypatch.setattr(module, "overlaps", lambda index: torch.cuda.get_device_capability(index)[0] >= 9)
    weight = torch.randn(1024, 4096, device="cuda", dtype=torch.bfloat16)
    before = weight.clone()
    x, scale = torch.randn(tokens, 4096, device="cuda", dtype=torch.bfloat16), torch.randn(4096, device="cuda")
    scale = scale.to(torch.bfloat16)
    residual = torch.randn_like(x)
    sums = [residual.clone(), residual.clone()]
    plain = rms_norm(x, scale, 1e-5, sums[0])
    assert torch.equal(rms_norm(x, scale, 1e-5, sums[1], following=weight), plain)
    assert torch.equal(*sums)
    assert torch.equal(silu_mul(x, following=weight), silu_mul(x))
    assert torch.equal(weight, before)
