"""Bit-packed masks: what a query sees is what its bits say, whole and split, and nothing else."""

import pytest
import torch
from octavo_kernels import AttentionShape, AttentionVariant, PackedMask, PagedAttention
from octavo_kernels.testing import lse_error, random_case, relative_error

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
SHAPE = AttentionShape(4, 2, 16, 8, torch.float32)
TREES = [(5, 61), (1, 90), (16, 16), (0, 9), (3, 200), (40, 45)]
MASKED = AttentionVariant(custom_mask=True)


@pytest.mark.parametrize("variant", [MASKED, AttentionVariant(custom_mask=True, soft_cap=4.0)], ids=str)
@pytest.mark.parametrize("sequences", [TREES, [(2, 300), (1, 17), (2, 5)]], ids=["mixed", "verify"])
def test_masks_of_any_shape_equal_the_reference(sequences, variant):
    pytest.importorskip("triton")
    from octavo_kernels.triton_backend import TritonBackend

    case = random_case(SHAPE, sequences, variant=variant, device=DEVICE, seed=3)
    expected, expected_lse = case.reference()
    assert torch.isneginf(expected_lse).any(), "some rows see nothing"
    for share in (None, 1, 9):
        backend = TritonBackend(SHAPE, variant, DEVICE, max_tokens=4096, share=share)
        out = torch.full_like(case.q, float("nan"))
        lse = torch.full(case.q.shape[:2], float("nan"), device=DEVICE)
        backend.plan(case.batch(), case.q.shape[0])
        backend.run(case.q, case.kv, out, lse)
        assert relative_error(out, expected) < 2e-5
        assert lse_error(lse, expected_lse) < 1e-4


def test_a_causal_mask_gives_what_no_mask_gives():
    pytest.importorskip("triton")
    plain = random_case(SHAPE, TREES, device=DEVICE)
    causal = PackedMask.pack(
        [torch.ones(new, length, dtype=torch.bool).tril(length - new).to(DEVICE) for new, length in TREES]
    )
    attention = PagedAttention(SHAPE, MASKED, device=DEVICE, backend="Triton")
    out = torch.full_like(plain.q, float("nan"))
    attention.plan(plain.query_starts, plain.kv_lengths, plain.page_table, plain.slots, mask=causal)
    attention.run(plain.q, plain.kv, out)
    assert relative_error(out, plain.reference()[0]) < 2e-5


def test_packing_keeps_every_bit_and_begins_each_row_at_a_byte():
    masks = [torch.rand(new, length) < 0.5 for new, length in TREES]
    packed = PackedMask.pack(masks)
    assert packed.bits.shape[0] == sum(new * -(-length // 8) for new, length in TREES)
    for index, (mask, (new, length)) in enumerate(zip(masks, TREES, strict=True)):
        assert torch.equal(packed.unpack(index, new, length), mask)
    first = PackedMask.pack([torch.tensor([[True, False, False, True]])])
    assert first.bits.tolist() == [0b1001]
    assert PackedMask.pack([]).starts.shape == (0,)


def test_masks_that_cannot_be_are_named():
    case = random_case(SHAPE, [(1, 5)], variant=MASKED)
    index = (case.query_starts, case.kv_lengths, case.page_table, case.slots)
    attention = PagedAttention(SHAPE, MASKED)
    assert attention.backend == "Reference"
    with pytest.raises(ValueError, match=r"plan was given no mask; this PagedAttention's variant needs one"):
        attention.plan(*index)
    with pytest.raises(ValueError, match=r"given a mask; this PagedAttention's variant takes none"):
        PagedAttention(SHAPE).plan(*index, mask=case.mask)
    with pytest.raises(ValueError, match=r"mask.starts is torch.int32 \[1\]; it must be int64 \[1\]"):
        attention.plan(*index, mask=PackedMask(case.mask.bits, case.mask.starts.int()))
    with pytest.raises(ValueError, match=r"mask.bits is torch.int64 \[1\]; it must be uint8"):
        attention.plan(*index, mask=PackedMask(case.mask.bits.long(), case.mask.starts))
    with pytest.raises(ValueError, match="window is 9; with custom_mask it must be None"):
        AttentionVariant(window=9, custom_mask=True)
