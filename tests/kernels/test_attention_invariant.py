"""Batch-invariant mode: the same bits for a sequence, whatever else is in the batch."""

from random import Random

import pytest
import torch
from octavo_kernels import AttentionShape, AttentionVariant, PagedAttention
from octavo_kernels.plan import INVARIANT_PARTS, invariant_chunk
from octavo_kernels.testing import random_case, relative_error

GPU = torch.cuda.is_available()
DEVICE = torch.device("cuda" if GPU else "cpu")
SHAPES = [AttentionShape(4, 2, 16, 8, torch.float32)]
if GPU:
    SHAPES += [AttentionShape(8, 2, 128, 16, torch.bfloat16), AttentionShape(4, 2, 192, 16, torch.bfloat16)]
SEQUENCES = [(1, 1100), (1, 70), (3, 1030), (0, 40), (45, 60), (1, 1024)]
if GPU:
    SEQUENCES += [(1, 2500), (50, 1300), (1, 1025), (9, 9), (130, 130)]


def attend(attention, case, chosen):
    """The outputs of some of a case's sequences, in a batch of these alone."""
    rows = [torch.arange(case.query_starts[n], case.query_starts[n + 1]) for n in chosen]
    q = torch.cat([case.q[row.to(DEVICE)] for row in rows])
    starts = torch.tensor([0, *(row.shape[0] for row in rows)]).cumsum(0).int().to(DEVICE)
    index = torch.tensor(chosen, device=DEVICE)
    out = torch.full_like(q, float("nan"))
    lse = torch.full(q.shape[:2], float("nan"), device=DEVICE)
    attention.plan(starts, case.kv_lengths[index], case.page_table, case.slots[index], tokens=q.shape[0])
    attention.run(q, case.kv, out, lse)
    sizes = [row.shape[0] for row in rows]
    return dict(zip(chosen, zip(out.split(sizes), lse.split(sizes), strict=True), strict=True))


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("fields", [{}, *([{"window": 900}] if GPU else [])], ids=str)
def test_a_sequence_has_the_same_bits_alone_and_in_any_batch(shape, fields):
    pytest.importorskip("triton")
    variant = AttentionVariant(**fields)
    case = random_case(shape, SEQUENCES, variant=variant, device=DEVICE)
    attention = PagedAttention(
        shape, variant, device=DEVICE, backend="Triton", max_tokens=512, max_sequences=16, batch_invariant=True
    )
    random = Random(1)
    everyone = list(range(len(SEQUENCES)))
    together = attend(attention, case, everyone)
    whole = torch.cat([together[n][0] for n in everyone])
    assert relative_error(whole, case.reference()[0]) < (1e-2 if shape.dtype == torch.bfloat16 else 2e-5)
    batches = [[n] for n in everyone if SEQUENCES[n][0]]
    batches += [random.sample(everyone, random.randint(2, 6)) for _ in range(10)]
    for chosen in batches if GPU else [[0], [2, 4]]:
        for n, (out, lse) in attend(attention, case, chosen).items():
            assert torch.equal(out, together[n][0]), (chosen, n)
            assert torch.equal(lse, together[n][1]), (chosen, n)


def test_cuts_follow_from_the_longest_sequence_that_a_table_holds():
    assert [invariant_chunk(tokens) for tokens in (16, 8192, 8193, 131072)] == [1024, 1024, 2048, 16384]
    assert all(-(-tokens // invariant_chunk(tokens)) <= INVARIANT_PARTS for tokens in range(1, 200_000, 777))
