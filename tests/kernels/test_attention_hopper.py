"""The kernels for Hopper GPUs against the reference: short and long tiles, whole and split, with NaN in free slots."""

from dataclasses import replace

import pytest
import torch
from octavo_kernels import AttentionShape, AttentionVariant, PagedAttention
from octavo_kernels.shape import LogitTransform
from octavo_kernels.testing import lse_error, random_case, relative_error

pytest.importorskip("triton")

from octavo_kernels.triton_backend import TritonBackend
from octavo_kernels.triton_hopper_choice import refuse_hopper
from octavo_kernels.triton_launch import Device

DEVICE = torch.device("cuda")
HOPPER = torch.cuda.is_available() and torch.cuda.get_device_capability()[0] == 9
BATCHES = {
    "decode": [(1, 900), (1, 1), (1, 64), (0, 5), (1, 2500), (1, 129)],
    "verify": [(3, 900), (5, 5), (1, 64), (4, 1000)],
    "prompt": [(200, 200)],
    "mixed": [(1, 900), (200, 333), (65, 1000), (0, 5), (40, 40), (7, 300), (1, 0)],
    "chunk": [(129, 3000)],
    "prompts": [(700, 700), (300, 1000), (128, 128)],
}
SHAPES = [
    (8, 2, 128, 16, torch.bfloat16, None),
    (6, 2, 128, 8, torch.bfloat16, {"window": 100, "soft_cap": 20.0}),
    (4, 4, 64, 64, torch.float16, None),
    (16, 1, 128, 256, torch.bfloat16, {"window": 300}),
    (5, 1, 64, 32, torch.bfloat16, {"soft_cap": 30.0}),
    (8, 2, 128, 16, torch.bfloat16, {"sinks": [0.5, -1.0, 2.0, 0.0, 9.0, -30.0, 1.0, 0.25]}),
    (6, 2, 112, 16, torch.bfloat16, None),
    (4, 2, 80, 32, torch.float16, {"sinks": [0.5, -1.0, 2.0, 0.0]}),
    (8, 2, 96, 64, torch.bfloat16, {"window": 70}),
    (4, 2, 40, 16, torch.bfloat16, None),
]


def variant_of(fields):
    fields = dict(fields or {})
    if "sinks" in fields:
        fields["sinks"] = torch.tensor(fields["sinks"], device=DEVICE)
    return AttentionVariant(**fields)


def attend(case, share):
    backend = TritonBackend(case.shape, case.variant, DEVICE, max_tokens=8192, share=share, hopper=True)
    batch = case.batch()
    out = torch.full_like(case.q, float("nan"))
    lse = torch.full(case.q.shape[:2], float("nan"), device=DEVICE)
    backend.plan(batch, case.q.shape[0])
    backend.run(case.q, case.kv, out, lse)
    return backend, out, lse


@pytest.mark.gpu
@pytest.mark.skipif(not HOPPER, reason="needs a GPU of compute capability 9")
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_hopper_kernels_equal_the_reference_whole_and_split(shape):
    *sizes, variant = shape
    for seed, (name, sequences) in enumerate(BATCHES.items()):
        case = random_case(AttentionShape(*sizes), sequences, variant=variant_of(variant), device=DEVICE, seed=seed)
        expected, expected_lse = case.reference()
        for share in (None, 1, 7, 40):
            backend, out, lse = attend(case, share)
            assert relative_error(out, expected) < 1e-2, (name, share)
            assert lse_error(lse, expected_lse) < 0.05, (name, share)
            again, lse_again = torch.full_like(out, float("nan")), torch.full_like(lse, float("nan"))
            for _ in range(3):
                backend.run(case.q, case.kv, again, lse_again)
            assert torch.equal(again, out), (name, share)
            assert torch.equal(lse_again, lse), (name, share)


def test_hopper_kernels_say_why_they_do_not_serve():
    hopper, ampere, none = Device(132, 9), Device(108, 8), Device(4, 0)
    shape = AttentionShape(32, 8, 128, 16, torch.bfloat16)
    plain = AttentionVariant(window=9, sinks=torch.zeros(32))
    assert refuse_hopper(shape, plain, hopper) is None
    assert refuse_hopper(AttentionShape(32, 8, 96, 16, torch.float16), plain, hopper) is None
    assert refuse_hopper(shape, plain, ampere) == refuse_hopper(shape, plain, none) == "no Hopper GPU"
    for fields, reason in (
        ({"head_size": 192}, "head_size 192 is above 128"),
        ({"dtype": torch.float32}, "has no warpgroup products"),
        ({"kv_dtype": torch.float8_e4m3fn}, "must be widened"),
        ({"query_heads": 65, "kv_heads": 1}, "65 query heads"),
    ):
        assert reason in refuse_hopper(replace(shape, **fields), AttentionVariant(), hopper)
    assert "transform" in refuse_hopper(shape, AttentionVariant(transform=LogitTransform(None, max)), hopper)
    assert "mask" in refuse_hopper(shape, AttentionVariant(custom_mask=True), hopper)
    assert PagedAttention(AttentionShape(2, 1, 32, 16, torch.float32)).fallback_reason is None


@pytest.mark.gpu
@pytest.mark.skipif(not HOPPER, reason="needs a GPU of compute capability 9")
def test_a_backend_on_a_hopper_gpu_names_the_reason_of_its_plain_kernel():
    wide = PagedAttention(AttentionShape(4, 2, 192, 16, torch.bfloat16), device=DEVICE)
    assert "head_size 192" in wide.fallback_reason
    assert PagedAttention(AttentionShape(4, 2, 112, 16, torch.bfloat16), device=DEVICE).fallback_reason is None


@pytest.mark.gpu
@pytest.mark.skipif(not HOPPER, reason="needs a GPU of compute capability 9")
def test_launches_that_begin_early_see_what_the_launches_before_wrote():
    """Layer after layer in one graph: each step's queries, keys and lengths are written just before it."""
    shape = AttentionShape(8, 2, 128, 16, torch.bfloat16)
    sequences = [(1, 900), (1, 2500), (1, 129), (1, 64)]
    layers = [random_case(shape, sequences, device=DEVICE, seed=seed) for seed in range(6)]
    backend = TritonBackend(shape, AttentionVariant(), DEVICE, max_tokens=64)
    static = random_case(shape, sequences, device=DEVICE, seed=99)
    outs = [torch.full_like(static.q, float("nan")) for _ in layers]

    def steps():
        for case, out in zip(layers, outs, strict=True):
            for name in ("page_table", "slots", "q", "kv"):
                getattr(static, name).copy_(getattr(case, name))
            backend.plan(static.batch(), 4)
            backend.run(static.q, static.kv, out, None)

    steps()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        steps()
    for _ in range(20):
        for out in outs:
            out.fill_(float("nan"))
        graph.replay()
        for case, out in zip(layers, outs, strict=True):
            assert relative_error(out, case.reference()[0]) < 1e-2


@pytest.mark.gpu
@pytest.mark.parametrize("page_size", [8, 16, 32, 64, 128, 256])
@pytest.mark.parametrize("head_size", [64, 80, 96, 112, 128, 192, 256])
def test_each_head_size_serves_each_page_size(head_size, page_size):
    shape = AttentionShape(6, 2, head_size, page_size, torch.bfloat16)
    case = random_case(shape, [(1, 700), (1, 3), (70, 300), (9, 9)], device=DEVICE, seed=page_size)
    expected, expected_lse = case.reference()
    out, lse = case.attend(PagedAttention(shape, device=DEVICE))
    assert relative_error(out, expected) < 1e-2
    assert lse_error(lse, expected_lse) < 0.05
