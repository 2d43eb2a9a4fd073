"""Appends write exactly the slots they are given, rotate as defined, and touch nothing else."""

import pytest
import torch
from octavo_kernels import append_kv, plan_append, rope_append_kv

GPU = torch.cuda.is_available()
PATHS = ["torch", "triton"]
SLOTS = [16, 17, -1, 19, 47, -1, 63, 30]


def append(path, k, v, kv, slots, *, q=None, positions=None, cos_sin=None, interleaved=False, plan=None):
    """Calls the torch path through the public functions, the Triton path through its launcher."""
    if path == "torch":
        if q is None:
            append_kv(k, v, kv, slots, plan=plan)
        else:
            rope_append_kv(q, k, v, positions, cos_sin, kv, slots, interleaved=interleaved, plan=plan)
        return
    pytest.importorskip("triton")
    from octavo_kernels.triton_append import launch_append

    device = "cuda" if GPU else "cpu"
    tensors = [None if t is None else t.to(device) for t in (q, k, v, positions, cos_sin, kv, slots)]
    launch_append(*tensors, interleaved=interleaved)
    for ours, theirs in zip((q, k, v, kv), (tensors[0], tensors[1], tensors[2], tensors[5]), strict=True):
        if ours is not None:
            ours.copy_(theirs)


def poisoned_pool(pages, kv_heads, page_size, head_size, dtype=torch.float32):
    return torch.full((pages, 2, kv_heads, page_size, head_size), float("nan"), dtype=dtype)


def rotated(x, positions, cos_sin, interleaved):
    """Rotation of each pair as a complex number, one pair at a time."""
    rope_size = cos_sin.shape[1]
    half = rope_size // 2
    result = x.double().clone()
    for pair in range(half):
        first, second = (2 * pair, 2 * pair + 1) if interleaved else (pair, pair + half)
        cos, sin = (cos_sin[positions, pair + shift].double()[:, None] for shift in (0, half))
        a, b = x[..., first].double(), x[..., second].double()
        result[..., first], result[..., second] = a * cos - b * sin, a * sin + b * cos
    return result


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("pool_dtype", [torch.float32, torch.float16])
def test_append_writes_its_slots_and_nothing_else(path, pool_dtype):
    kv = poisoned_pool(4, 3, 16, 64, pool_dtype)
    k, v = torch.randn(2, 8, 3, 64)
    append(path, k, v, kv, torch.tensor(SLOTS))
    written = torch.zeros(4, 16, dtype=torch.bool)
    for token, slot in enumerate(SLOTS):
        if slot >= 0:
            page, offset = divmod(slot, 16)
            written[page, offset] = True
            assert torch.equal(kv[page, 0, :, offset], k[token].to(pool_dtype))
            assert torch.equal(kv[page, 1, :, offset], v[token].to(pool_dtype))
    assert torch.isnan(kv.permute(0, 3, 1, 2, 4)[~written]).all()


@pytest.mark.parametrize("path", PATHS)
def test_padding_alone_writes_nothing(path):
    kv = poisoned_pool(2, 1, 8, 16)
    append(path, torch.randn(3, 1, 16), torch.randn(3, 1, 16), kv, torch.full((3,), -1))
    assert torch.isnan(kv).all()


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize("rope_size", [64, 32])
@pytest.mark.parametrize("merged", [True, False])
def test_rope_rotates_queries_and_appended_keys(path, interleaved, rope_size, merged):
    heads, kv_heads, head_size, tokens = 6, 2, 64, 8
    projection = torch.randn(tokens, heads + 2 * kv_heads, head_size)
    q, k, v = projection.split([heads, kv_heads, kv_heads], dim=1)
    if not merged:
        q, k, v = q.contiguous(), k.contiguous(), v.contiguous()
    positions = torch.randint(0, 50, (tokens,))
    angles = torch.randn(50, rope_size // 2)
    cos_sin = torch.cat((angles.cos(), angles.sin()), 1)
    wanted_q, wanted_k = (rotated(x, positions, cos_sin, interleaved) for x in (q, k))
    kv = poisoned_pool(4, kv_heads, 16, head_size)
    values = v.clone()
    append(path, k, v, kv, torch.tensor(SLOTS), q=q, positions=positions, cos_sin=cos_sin, interleaved=interleaved)
    torch.testing.assert_close(q.double(), wanted_q, atol=1e-5, rtol=1e-5)
    assert torch.equal(v, values)
    for token, slot in enumerate(SLOTS):
        if slot >= 0:
            torch.testing.assert_close(kv[slot // 16, 0, :, slot % 16].double(), wanted_k[token], atol=1e-5, rtol=1e-5)
            assert torch.equal(kv[slot // 16, 1, :, slot % 16], values[token])
    assert int(torch.isnan(kv[:, 0, 0, :, 0]).sum()) == 64 - 6


def test_a_prepared_append_does_the_same_for_every_layer():
    positions, slots = torch.arange(8), torch.tensor(SLOTS)
    angles = torch.randn(20, 16)
    cos_sin = torch.cat((angles.cos(), angles.sin()), 1)
    plan = plan_append(slots, kv_heads=2, page_size=16, positions=positions, cos_sin=cos_sin)
    for _ in range(2):
        q, k, v = torch.randn(8, 4, 32), torch.randn(8, 2, 32), torch.randn(8, 2, 32)
        pools = [poisoned_pool(4, 2, 16, 32) for _ in range(2)]
        q_alone, k_alone = q.clone(), k.clone()
        rope_append_kv(q, k, v, positions, cos_sin, pools[0], slots, plan=plan)
        rope_append_kv(q_alone, k_alone, v, positions, cos_sin, pools[1], slots)
        assert torch.equal(q, q_alone)
        assert torch.equal(pools[0].nan_to_num(7.0), pools[1].nan_to_num(7.0))


@pytest.mark.parametrize("path", PATHS)
def test_a_slot_beyond_two_to_the_31_elements_is_written_rightly(path):
    if path == "triton" and GPU:
        pytest.skip("the pool would have to be copied to the device")
    pages = 2**31 // (2 * 256 * 64) + 3
    kv = torch.empty(pages, 2, 1, 256, 64, dtype=torch.float16)
    kv[pages - 1].fill_(float("nan"))
    k, v = torch.randn(2, 1, 1, 64).half()
    if path == "torch":
        append_kv(k, v, kv, torch.tensor([pages * 256 - 1]))
    else:
        pytest.importorskip("triton")
        from octavo_kernels.triton_append import launch_append

        launch_append(None, k, v, None, None, kv, torch.tensor([pages * 256 - 1]))
    assert torch.equal(kv[pages - 1, 0, 0, 255], k[0, 0])
    assert torch.equal(kv[pages - 1, 1, 0, 255], v[0, 0])
    assert torch.isnan(kv[pages - 1, :, :, :255]).all()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"k": torch.zeros(3, 2, 16)}, r"k has shape \[3, 2, 16\]"),
        ({"kv": torch.zeros(2, 1, 8, 16)}, r"kv has shape \[2, 1, 8, 16\]"),
        ({"slot_mapping": torch.zeros(3, dtype=torch.int32)}, "slot_mapping has dtype torch.int32"),
        ({"plan": plan_append(torch.zeros(3).long(), kv_heads=1, page_size=16)}, "pages of 16 tokens"),
    ],
)
def test_append_names_the_tensor_that_does_not_fit(change, message):
    arguments = {
        "k": torch.zeros(3, 1, 16),
        "v": torch.zeros(3, 1, 16),
        "kv": torch.zeros(2, 2, 1, 8, 16),
        "slot_mapping": torch.zeros(3, dtype=torch.int64),
    }
    with pytest.raises(ValueError, match=message):
        append_kv(**(arguments | change))
