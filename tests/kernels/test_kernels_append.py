"""Appends write exactly the slots they are given, rotate as defined, and touch nothing else."""

import pytest
import torch
from octavo_kernels import append_kv, plan_append, rope_append_kv

GPU = torch.cuda.is_available()
PATHS = ["torch", "triton"]
SLOTS = [16, 17, -1, 19, 47, -1, 63, 30]


def append(path, k, v, kv, slots, *, q=None, positions=None, cos_sin=None, interleaved=False, plan=None, **more):
    """Calls the torch path through the public functions, the Triton path through its launcher."""
    if path == "torch":
        if q is None:
            append_kv(k, v, kv, slots, plan=plan, **more)
        else:
            rope_append_kv(q, k, v, positions, cos_sin, kv, slots, interleaved=interleaved, plan=plan, **more)
        return
    pytest.importorskip("triton")
    from octavo_kernels.triton_append import launch_append

    device = "cuda" if GPU else "cpu"
    tensors = [None if t is None else t.to(device) for t in (q, k, v, positions, cos_sin, kv, slots)]
    moved = {name: value.to(device) if isinstance(value, torch.Tensor) else value for name, value in more.items()}
    launch_append(*tensors, interleaved=interleaved, **moved)
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


def head_normed(x, weight, eps):
    return x.double() / torch.sqrt(x.double().pow(2).mean(-1, keepdim=True) + eps) * weight.double()


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=str)
@pytest.mark.parametrize(("interleaved", "rope_size"), [(False, 80), (True, 80), (False, 32)])
def test_heads_are_normalised_before_they_turn(path, dtype, interleaved, rope_size):
    heads, kv_heads, head_size, tokens, eps = 6, 2, 80, 8, 1e-2
    projection = torch.randn(tokens, heads + 2 * kv_heads, head_size).to(dtype)
    q, k, v = projection.split([heads, kv_heads, kv_heads], dim=1)
    weights = {"q_norm": torch.rand(head_size).to(dtype), "k_norm": torch.rand(head_size).to(dtype)}
    positions = torch.randint(0, 50, (tokens,))
    angles = torch.randn(50, rope_size // 2)
    cos_sin = torch.cat((angles.cos(), angles.sin()), 1)
    wanted_q, wanted_k = (
        rotated(head_normed(x, weight, eps), positions, cos_sin, interleaved)
        for x, weight in ((q, weights["q_norm"]), (k, weights["k_norm"]))
    )
    kv = poisoned_pool(4, kv_heads, 16, head_size, dtype)
    values = v.clone()
    angles_of = {"positions": positions, "cos_sin": cos_sin, "interleaved": interleaved}
    append(path, k, v, kv, torch.tensor(SLOTS), q=q, **angles_of, **weights, norm_eps=eps)
    near = {"atol": 2e-6, "rtol": 2e-6} if dtype == torch.float32 else {"atol": 1e-3, "rtol": 1e-3}
    torch.testing.assert_close(q.double(), wanted_q, **near)
    torch.testing.assert_close(k.double(), wanted_k, **near)
    assert torch.equal(v, values)
    for token, slot in enumerate(SLOTS):
        if slot >= 0:
            torch.testing.assert_close(kv[slot // 16, 0, :, slot % 16].double(), wanted_k[token], **near)
            assert torch.equal(kv[slot // 16, 1, :, slot % 16], values[token])


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("scaled", [False, True])
def test_eight_bit_pools_get_the_nearest_number_and_the_largest_for_what_is_larger(path, scaled):
    numbers = torch.arange(256, dtype=torch.uint8).view(torch.float8_e4m3fn).float()
    numbers = numbers[numbers.isfinite()].sort().values
    between = (numbers[1:] + numbers[:-1]) / 2
    beyond = torch.tensor([449.0, -1e9, float("inf"), -float("inf"), 460.0, 1e-9, -0.0, 2.0**-10, 3 * 2.0**-10])
    given = torch.cat((numbers, between, torch.nextafter(between, numbers[1:]), beyond))
    given = torch.cat((given, given.new_zeros(-len(given) % 64)))
    tokens = len(given) // 64
    k = given.view(tokens, 1, 64).clone()
    scales = torch.tensor([[0.3], [7.0]])
    v = k.flip(0).clone()
    wanted = (
        [x.clamp(-448, 448).to(torch.float8_e4m3fn) for x in (k / 0.3, v / 7.0)]
        if scaled
        else [x.clamp(-448, 448).to(torch.float8_e4m3fn) for x in (k, v)]
    )
    kv = torch.full((tokens, 2, 1, 16, 64), 0x7F, dtype=torch.uint8).view(torch.float8_e4m3fn)
    slots = torch.arange(tokens) * 16 + 5
    append(path, k, v, kv, slots, **({"scales": scales} if scaled else {}))
    for kind in (0, 1):
        stored = kv[:, kind, 0, 5].view(torch.uint8)
        assert torch.equal(stored, wanted[kind].view(torch.uint8).squeeze(1))
    assert int((kv.view(torch.uint8) == 0x7F).sum()) == tokens * 2 * 15 * 64


@pytest.mark.parametrize("path", PATHS)
def test_normed_keys_in_eight_bits_lie_within_a_sixteenth(path):
    q, k, v = torch.randn(4, 4, 64), torch.randn(4, 2, 64), torch.randn(4, 2, 64)
    scales = torch.tensor([[0.01, 0.02], [0.03, 0.04]])
    weight = torch.rand(64) + 0.5
    positions, slots = torch.arange(4), torch.tensor([3, 18, -1, 40])
    angles = torch.randn(20, 32)
    cos_sin = torch.cat((angles.cos(), angles.sin()), 1)
    wanted = rotated(head_normed(k, weight, 1e-6), positions, cos_sin, False)
    kv = torch.full((3, 2, 2, 16, 64), 0x7F, dtype=torch.uint8).view(torch.float8_e4m3fn)
    more = {"q_norm": weight, "k_norm": weight, "norm_eps": 1e-6, "scales": scales}
    values = v.clone()
    append(path, k, v, kv, slots, q=q, positions=positions, cos_sin=cos_sin, **more)
    for token in (0, 1, 3):
        page, offset = divmod(int(slots[token]), 16)
        for kind, truth in ((0, wanted[token]), (1, values[token].double())):
            read = kv[page, kind, :, offset].float().double() * scales[kind].double()[:, None]
            assert ((read - truth).abs() <= truth.abs() / 16 + scales[kind].double()[:, None] * 2.0**-10).all()
    assert int((kv.view(torch.uint8) == 0x7F).sum()) == (3 * 16 - 3) * 2 * 2 * 64


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"q_norm": torch.ones(16)}, "q_norm was given without k_norm"),
        ({"k_norm": torch.ones(16)}, "k_norm was given without q_norm"),
        ({"q_norm": torch.ones(8), "k_norm": torch.ones(16)}, r"q_norm has shape \[8\]; it must be \[16\]"),
        ({"scales": torch.ones(2, 1)}, "a torch.float32 pool takes none"),
    ],
)
def test_norms_and_scales_that_do_not_fit_are_named(change, message):
    heads = torch.zeros(3, 1, 16)
    cos_sin, slots = torch.ones(4, 16), torch.zeros(3, dtype=torch.int64)
    with pytest.raises(ValueError, match=message):
        rope_append_kv(heads, heads, heads, slots, cos_sin, torch.zeros(2, 2, 1, 8, 16), slots, **change)


def test_scales_of_another_shape_are_refused():
    kv = torch.zeros(2, 2, 1, 8, 16, dtype=torch.uint8).view(torch.float8_e4m3fn)
    with pytest.raises(ValueError, match=r"scales is torch.float32 \[2, 3\]; it must be float32 \[2, 1\]"):
        append_kv(torch.zeros(1, 1, 16), torch.zeros(1, 1, 16), kv, torch.zeros(1).long(), scales=torch.ones(2, 3))


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
