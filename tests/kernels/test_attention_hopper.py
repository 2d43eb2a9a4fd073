"""The kernels for Hopper GPUs against the reference: short and long tiles, whole and split, with NaN in free slots."""

import pytest
import torch
from octavo_kernels import AttentionShape, AttentionVariant
from octavo_kernels.batch import check_batch
from octavo_kernels.testing import lse_error, random_case, relative_error

pytest.importorskip("triton")

from octavo_kernels.triton_backend import TritonBackend
from octavo_kernels.triton_launch import Device, serves_hopper

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
]


def attend(case, share):
    backend = TritonBackend(case.shape, case.variant, DEVICE, max_tokens=8192, share=share, hopper=True)
    batch = check_batch(case.query_starts, case.kv_lengths, case.page_table, case.slots, max_sequences=64)
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
        case = random_case(
            AttentionShape(*sizes), sequences, variant=AttentionVariant(**(variant or {})), device=DEVICE, seed=seed
        )
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


def test_hopper_kernels_are_for_half_precision_of_two_head_sizes_on_their_gpus():
    hopper, ampere, none = Device(132, 9), Device(108, 8), Device(4, 0)
    shape = AttentionShape(32, 8, 128, 16, torch.bfloat16)
    plain = AttentionVariant(window=9)
    assert serves_hopper(shape, plain, hopper)
    assert not serves_hopper(shape, plain, ampere)
    assert not serves_hopper(shape, plain, none)
    assert not serves_hopper(AttentionShape(32, 8, 96, 16, torch.bfloat16), plain, hopper)
    assert not serves_hopper(AttentionShape(32, 8, 128, 16, torch.float32), plain, hopper)
    assert not serves_hopper(AttentionShape(32, 8, 128, 16, torch.bfloat16, torch.float32), plain, hopper)
    assert not serves_hopper(shape, AttentionVariant(sinks=torch.zeros(32)), hopper)
