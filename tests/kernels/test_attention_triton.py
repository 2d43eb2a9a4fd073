"""What only the Triton backend has: splits, their merge, and static tables for captured graphs."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from octavo_kernels import AttentionShape, AttentionVariant
from octavo_kernels.batch import check_batch
from octavo_kernels.testing import random_case, relative_error

pytest.importorskip("triton")

from octavo_kernels.plan import TILE_COLUMNS
from octavo_kernels.triton_backend import TritonBackend
from octavo_kernels.triton_merge import merge

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")


def attend_with_share(case, share):
    backend = TritonBackend(case.shape, case.variant, DEVICE, max_tokens=4096, share=share)
    batch = check_batch(case.query_starts, case.kv_lengths, case.page_table, case.slots, max_sequences=64)
    backend.plan(batch, case.q.shape[0])
    out = torch.full_like(case.q, float("nan"))
    lse = torch.full(case.q.shape[:2], float("nan"), device=DEVICE)
    backend.run(case.q, case.kv, out, lse)
    return out, lse


@pytest.mark.parametrize("sequences", [[(1, 700), (1, 3), (1, 65)], [(4, 500), (1, 300), (30, 30)]], ids=str)
def test_the_number_of_splits_changes_results_only_by_rounding(sequences):
    case = random_case(AttentionShape(4, 2, 32, 16, torch.float32), sequences, device=DEVICE)
    expected, expected_lse = case.reference()
    for share in (1, 2, 7, 40):
        out, lse = attend_with_share(case, share)
        assert relative_error(out, expected) < 2e-6
        assert relative_error(lse, expected_lse) < 2e-6


def test_the_same_plan_gives_the_same_bits():
    case = random_case(AttentionShape(4, 2, 32, 16, torch.float32), [(1, 700), (4, 300)], device=DEVICE)
    first, second = attend_with_share(case, 9), attend_with_share(case, 9)
    assert torch.equal(first[0], second[0])
    assert torch.equal(first[1], second[1])


@settings(max_examples=25 if DEVICE.type == "cpu" else 60, deadline=None)
@given(
    sequences=st.lists(
        st.integers(0, 150).flatmap(lambda length: st.tuples(st.integers(0, min(length, 12)), st.just(length))),
        min_size=1,
        max_size=5,
    ),
    heads=st.sampled_from([(1, 1), (3, 1), (4, 2), (5, 1)]),
    page_size=st.sampled_from([8, 16, 64]),
    window=st.none() | st.integers(1, 80),
    share=st.integers(1, 12),
    seed=st.integers(0, 2**31),
)
def test_any_batch_equals_the_reference(sequences, heads, page_size, window, share, seed):
    shape = AttentionShape(*heads, 16, page_size, torch.float32)
    case = random_case(shape, sequences, variant=AttentionVariant(window=window), device=DEVICE, seed=seed)
    expected, expected_lse = case.reference()
    out, lse = attend_with_share(case, share)
    assert relative_error(out, expected) < 2e-5
    assert relative_error(lse, expected_lse) < 2e-5


def test_merging_skips_empty_states_and_keeps_an_all_empty_one_empty():
    group, tokens, head_size, splits, block_m = 2, 3, 16, 3, 16
    partial = torch.randn(splits, 1, block_m, head_size)
    partial_lse = torch.randn(splits, 1, block_m) * 4
    partial_lse[0, 0, 0:2] = float("-inf")
    partial_lse[2, 0, 1] = float("-inf")
    partial_lse[:, 0, 3] = float("-inf")
    partial[:, 0, 3] = 0
    tiles = torch.tensor([[0, tokens, 0, splits], [3, 1, 0, 1], [0, 0, 0, 0]], dtype=torch.int32)
    out = torch.full((4, group, head_size), float("nan"))
    lse = torch.full((4, group), float("nan"))
    on_device = [tensor.to(DEVICE) for tensor in (tiles, partial, partial_lse, out, lse)]
    merge[(3, 1)](
        *on_device,
        out.stride(0),
        out.stride(1),
        lse.stride(0),
        GROUP=group,
        HEAD_SIZE=head_size,
        TILE_COLUMNS=TILE_COLUMNS,
        BLOCK_M=block_m,
        BLOCK_D=16,
        HAS_LSE=True,
    )
    merged, merged_lse = on_device[3].cpu(), on_device[4].cpu()
    natural = partial_lse[:, 0, : tokens * group].double() * 0.6931471805599453
    wanted_lse = torch.logsumexp(natural, 0)
    weights = torch.exp(natural - wanted_lse.masked_fill(torch.isneginf(wanted_lse), 0))
    wanted = (weights[..., None] * partial[:, 0, : tokens * group].double()).sum(0)
    torch.testing.assert_close(merged[:tokens].reshape(-1, head_size).double(), wanted, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(merged_lse[:tokens].reshape(-1).double(), wanted_lse, atol=1e-5, rtol=1e-5)
    assert (merged.reshape(-1, head_size)[3] == 0).all()
    assert torch.isnan(merged[tokens:]).all(), "a tile of one split was written by its own program"


@pytest.mark.gpu
def test_a_captured_graph_follows_later_plans_of_the_same_size():
    shape = AttentionShape(8, 2, 64, 16, torch.bfloat16)
    cases = [random_case(shape, lengths, device=DEVICE, seed=seed) for seed, lengths in enumerate(GRAPH_LENGTHS)]
    pages = max(case.kv.shape[0] for case in cases)
    kv = torch.full(shape.pool_shape(pages), float("nan"), dtype=shape.dtype, device=DEVICE)
    columns = max(case.page_table.shape[1] for case in cases)
    static = {
        "query_starts": torch.zeros(5, dtype=torch.int32, device=DEVICE),
        "kv_lengths": torch.zeros(4, dtype=torch.int32, device=DEVICE),
        "slots": torch.zeros(4, dtype=torch.int32, device=DEVICE),
        "page_table": torch.zeros(6, columns, dtype=torch.int32, device=DEVICE),
    }
    q = torch.zeros(8, 8, 64, dtype=shape.dtype, device=DEVICE)
    out = torch.zeros_like(q)
    backend = TritonBackend(shape, AttentionVariant(), DEVICE, max_tokens=64)

    def load(case):
        for name, tensor in static.items():
            source = getattr(case, name)
            tensor[tuple(slice(size) for size in source.shape)].copy_(source)
        q[: case.q.shape[0]].copy_(case.q)
        kv.fill_(float("nan"))
        kv[: case.kv.shape[0]].copy_(case.kv)

    def step():
        backend.plan(check_batch(**static, max_sequences=64), 8)
        backend.run(q, kv, out, None)

    load(cases[0])
    step()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    for _ in range(3):
        for case in cases:
            load(case)
            out.fill_(float("nan"))
            graph.replay()
            assert relative_error(out[: case.q.shape[0]], case.reference()[0]) < 1e-2


GRAPH_LENGTHS = [
    [(1, 700), (1, 3), (1, 65), (1, 1)],
    [(2, 5), (0, 0), (6, 1300), (0, 40)],
    [(8, 8), (0, 0), (0, 0), (0, 0)],
]
