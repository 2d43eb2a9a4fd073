"""What only the Triton backend has: splits, their merge, and static tables for captured graphs."""

from random import Random

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from octavo_kernels import AttentionShape, AttentionVariant, triton_backend
from octavo_kernels.batch import check_batch
from octavo_kernels.testing import random_case, relative_error

pytest.importorskip("triton")

import triton
import triton.language as tl
from octavo_kernels.plan import FIRST_PARTIAL, ITEM_COLUMNS, NEXT_PARTIAL, SPLITS
from octavo_kernels.triton_backend import TritonBackend
from octavo_kernels.triton_merge import merge_partials

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


def test_a_divided_last_round_changes_results_only_by_rounding(monkeypatch):
    case = random_case(AttentionShape(4, 2, 32, 16, torch.float32), [(70, 700), (1, 90)], device=DEVICE)
    expected, expected_lse = case.reference()
    for least, share in ((1, 12), (16, 12), (1, 40)):
        monkeypatch.setattr(triton_backend, "LEAST_LAST_BLOCKS", least)
        for _ in range(2):
            out, lse = attend_with_share(case, share)
            assert relative_error(out, expected) < 2e-6
            assert relative_error(lse, expected_lse) < 2e-6


def test_the_same_plan_gives_the_same_bits():
    case = random_case(AttentionShape(4, 2, 32, 16, torch.float32), [(1, 700), (4, 300)], device=DEVICE)
    first, second = attend_with_share(case, 9), attend_with_share(case, 9)
    assert torch.equal(first[0], second[0])
    assert torch.equal(first[1], second[1])


@settings(max_examples=15 if DEVICE.type == "cpu" else 60, deadline=None)
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


@triton.jit
def arrive(
    items_ptr, partial_ptr, sums_ptr, arrivals_ptr, out_ptr, lse_ptr, tokens, stride_token, stride_head, stride_lse,
    GROUP: tl.constexpr, HEAD_SIZE: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_D: tl.constexpr,
    MERGE_ROWS: tl.constexpr, MERGE_SPLITS: tl.constexpr,
):  # fmt: skip
    merge_partials(
        items_ptr, partial_ptr, sums_ptr, arrivals_ptr, out_ptr, lse_ptr, 0, tokens, 0, stride_token, stride_head,
        stride_lse, sums_ptr, GROUP, HEAD_SIZE, BLOCK_M, BLOCK_D, MERGE_ROWS, MERGE_SPLITS, False, True,
    )  # fmt: skip


@pytest.mark.parametrize(("merge_rows", "merge_splits"), [(2, 2), (4, 4), (16, 1)])
def test_merging_skips_empty_states_and_keeps_an_all_empty_one_empty(merge_rows, merge_splits):
    group, tokens, head_size, splits, block_m = 2, 3, 16, 3, 16
    places = [5, 1, 2]
    partial = torch.full((6, block_m, head_size), float("nan"))
    sums = torch.full((6, 2, block_m), float("nan"))
    partial[places] = torch.randn(splits, block_m, head_size)
    sums[places, 0] = torch.randn(splits, block_m) * 4
    sums[places, 1] = torch.rand(splits, block_m) + 1
    for place, row in ((5, 0), (5, 1), (2, 1), (5, 3), (1, 3), (2, 3)):
        sums[place, 0, row], sums[place, 1, row], partial[place, row] = float("-inf"), 0, 0
    item = torch.zeros(ITEM_COLUMNS, dtype=torch.int32)
    item[[FIRST_PARTIAL, NEXT_PARTIAL, SPLITS]] = torch.tensor([5, 1, splits], dtype=torch.int32)
    out = torch.full((tokens + 1, group, head_size), float("nan"))
    lse = torch.full((tokens + 1, group), float("nan"))
    arrivals = torch.zeros(6, dtype=torch.int32)
    item, partial_there, sums_there, arrivals, out, lse = (
        tensor.to(DEVICE) for tensor in (item, partial, sums, arrivals, out, lse)
    )
    for _ in range(2):
        for arrived in range(splits):
            assert arrivals.sum() == arrived
            assert arrived == 0 or torch.isnan(out).all(), "only the last one merges"
            arrive[(1,)](
                item, partial_there, sums_there, arrivals, out, lse, tokens,
                out.stride(0), out.stride(1), lse.stride(0),
                GROUP=group, HEAD_SIZE=head_size, BLOCK_M=block_m, BLOCK_D=head_size,
                MERGE_ROWS=merge_rows, MERGE_SPLITS=merge_splits,
            )  # fmt: skip
        assert arrivals.sum() == 0, "the next launch finds the count as this one did"
        rows = slice(0, tokens * group)
        weights = torch.exp2((sums[places, 0] - sums[places, 0].amax(0).nan_to_num(neginf=0)).double())[:, rows]
        total = (weights * sums[places, 1, rows]).sum(0)
        wanted = (weights[..., None] * partial[places, rows].double()).sum(0) / total.clamp(min=1e-30)[:, None]
        wanted_lse = (sums[places, 0].amax(0)[rows].double() + total.log2()) * 0.6931471805599453
        merged, merged_lse = out.cpu().reshape(-1, head_size), lse.cpu().reshape(-1)
        torch.testing.assert_close(merged[rows].double(), wanted, atol=1e-5, rtol=1e-5)
        torch.testing.assert_close(merged_lse[rows].double(), wanted_lse, atol=1e-5, rtol=1e-5)
        assert (merged[3] == 0).all()
        assert torch.isneginf(merged_lse[3])
        assert torch.isnan(merged[tokens * group :]).all()
        out.fill_(float("nan"))


class Replayed:
    """A bucket of static inputs of one shape; on a GPU, a captured graph that plans and attends."""

    def __init__(self, shape, batch, tokens, pages, columns, variant=None, share=None):
        self.tokens = tokens
        self.kv = torch.full(shape.pool_shape(pages), float("nan"), dtype=shape.dtype, device=DEVICE)
        self.static = {
            "query_starts": torch.zeros(batch + 1, dtype=torch.int32, device=DEVICE),
            "kv_lengths": torch.zeros(batch, dtype=torch.int32, device=DEVICE),
            "slots": torch.zeros(batch, dtype=torch.int32, device=DEVICE),
            "page_table": torch.zeros(batch + 2, columns, dtype=torch.int32, device=DEVICE),
        }
        self.q = torch.zeros(tokens, shape.query_heads, shape.head_size, dtype=shape.dtype, device=DEVICE)
        self.out = torch.zeros_like(self.q)
        self.backend = TritonBackend(shape, variant or AttentionVariant(), DEVICE, max_tokens=tokens, share=share)
        self.graph = None

    def load(self, case):
        for name, tensor in self.static.items():
            source = getattr(case, name)
            tensor.zero_()
            tensor[tuple(slice(size) for size in source.shape)].copy_(source)
        # Sequences of the bucket that the batch lacks have no new tokens.
        self.static["query_starts"][case.query_starts.shape[0] :] = case.query_starts[-1]
        self.q.fill_(float("nan"))
        self.q[: case.q.shape[0]].copy_(case.q)
        self.kv.fill_(float("nan"))
        self.kv[: case.kv.shape[0]].copy_(case.kv)
        self.out.fill_(7.0)

    def step(self):
        self.backend.plan(check_batch(**self.static, max_sequences=64), self.tokens)
        self.backend.run(self.q, self.kv, self.out, None)

    def check(self, case, tolerance):
        self.load(case)
        if self.graph is not None:
            self.graph.replay()
        else:
            self.step()
        assert relative_error(self.out[: case.q.shape[0]], case.reference()[0]) < tolerance
        assert (self.out[case.q.shape[0] :] == 7.0).all()

    def capture(self):
        self.step()
        torch.cuda.synchronize()
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph):
            self.step()


def random_mix(random, batch, tokens, longest):
    """A batch of a bucket: any number of sequences, decodes, prompts and chunks, within the bucket's tokens."""
    left, sequences = tokens, []
    for _ in range(random.randint(1, batch)):
        new = min(left, random.choice((0, 1, 1, 1, 1, 3, 9, 40)))
        left -= new
        sequences.append((new, random.choice((new, random.randint(new, 80), random.randint(new, longest)))))
    return sequences


@pytest.mark.parametrize(("batch", "tokens"), [(6, 12), (5, 60)], ids=["decode", "mixed"])
def test_one_bucket_serves_every_mix_of_lengths(batch, tokens):
    random = Random(batch)
    shape = AttentionShape(4, 2, 32, 16, torch.float32)
    bucket = Replayed(shape, batch, tokens, pages=140, columns=24, share=5)
    for seed in range(6):
        bucket.check(random_case(shape, random_mix(random, batch, tokens, 300), device=DEVICE, seed=seed), 2e-5)


@pytest.mark.gpu
@pytest.mark.parametrize(("batch", "tokens"), [(12, 24), (10, 200)], ids=["decode", "mixed"])
def test_a_captured_graph_is_right_in_a_thousand_replays_of_random_mixes(batch, tokens):
    random = Random(tokens)
    shape = AttentionShape(8, 2, 64, 16, torch.bfloat16)
    bucket = Replayed(shape, batch, tokens, pages=900, columns=90)
    bucket.load(random_case(shape, random_mix(random, batch, tokens, 1300), device=DEVICE))
    bucket.capture()
    for seed in range(1000):
        case = random_case(shape, random_mix(random, batch, tokens, 1300), device=DEVICE, seed=seed)
        bucket.check(case, 1e-2)
        first = bucket.out.clone()
        # Replayed again, the mix gives the same bits.
        bucket.out.fill_(7.0)
        bucket.graph.replay()
        assert torch.equal(bucket.out, first), seed
