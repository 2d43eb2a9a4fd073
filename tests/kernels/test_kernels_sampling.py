"""Sampling: the definition against float64, the kernels against the definition, bit for bit."""

import math

import numpy as np
import pytest
import torch
from octavo_kernels.logprobs import describe_tokens, log_probabilities
from octavo_kernels.sampling import Biases, Penalties, Sampler, SamplingRows, TokenLists, TokenMasks
from octavo_kernels.sampling_reference import POWERS, random_bits, sample_reference, weights

GPU = torch.cuda.is_available()
COLUMNS = 9001


def rows_of(count, device="cpu", *, temperature=1.0, top_k=None, top_p=None, min_p=None, vocabulary=None, first=0):
    def filled(value, dtype):
        if value is None:
            return None
        return torch.as_tensor(value, dtype=dtype).expand(count).contiguous().to(device)

    return SamplingRows(
        temperature=filled(temperature, torch.float32),
        seeds=(torch.arange(count) * 7919 - 3).to(device),
        choices=torch.zeros(count, dtype=torch.int64, device=device),
        positions=(torch.arange(count) + first).to(device),
        top_k=filled(top_k, torch.int32),
        top_p=filled(top_p, torch.float32),
        min_p=filled(min_p, torch.float32),
        vocabulary=filled(vocabulary, torch.int32),
    )


def moved(thing, device):
    """A dataclass of tensors on another device."""
    if thing is None or isinstance(thing, torch.Tensor):
        return None if thing is None else thing.to(device)
    return type(thing)(**{name: moved(value, device) for name, value in vars(thing).items()})


def by_kernels(logits, rows, **adjustments):
    pytest.importorskip("triton")
    device = "cuda" if GPU else "cpu"
    sampler = Sampler(logits.shape[1], logits.shape[0], device, backend="Triton")
    changed = logits.to(device, copy=True)
    out = torch.full((logits.shape[0],), -7, dtype=torch.int64, device=device)
    sampler.sample(changed, moved(rows, device), **{k: moved(v, device) for k, v in adjustments.items()}, out=out)
    return out.cpu(), changed.cpu()


def by_reference(logits, rows, **adjustments):
    changed = logits.clone()
    return Sampler(logits.shape[1], logits.shape[0]).sample(changed, rows, **adjustments), changed


def peaked(rows, columns=COLUMNS, seed=0, spread=3.0):
    return torch.randn(rows, columns, generator=torch.Generator().manual_seed(seed)) * spread


def test_random_numbers_are_those_of_the_server():
    philox = pytest.importorskip("octavo_server.engine.philox")
    seeds = np.array([0, 1, 2**64 - 1, 2**63, 12345678901234567], dtype=np.uint64)
    choices, positions = (
        np.array([0, 3, 63, 1, 2], dtype=np.uint64),
        np.array([0, 1, 131071, 7, 2**33], dtype=np.uint64),
    )
    tensors = [torch.from_numpy(part.view(np.int64)) for part in (seeds, choices, positions)]
    numbers = random_bits(*tensors).double() * 2.0**-53
    assert np.array_equal(numbers.numpy(), philox.uniforms(seeds, choices, positions))


def test_weights_are_powers_of_two_to_float32_precision():
    exponents = -torch.rand(10_000) * 20
    ones = torch.ones(1)
    exact = 2.0 ** (exponents.double() + 40)
    assert POWERS[0] == 1.0
    assert int(weights(torch.zeros(1), torch.zeros(1), ones)[0]) == 1 << 40
    error = (weights(exponents, torch.zeros(1), ones).double() - exact) / exact
    # Two roundings beyond float32's own, and what is cut off below one.
    assert float(error.abs().max()) < 3e-6
    assert int(weights(torch.full((1,), float("-inf")), torch.zeros(1), ones)[0]) == 0


def kept_by_definition(x, k, p, m):
    """Which tokens remain, by sorting in float64, for one row of scaled logits."""
    keep = torch.ones_like(x, dtype=torch.bool)
    if 0 < k < len(x):
        keep &= x >= x.sort(descending=True).values[k - 1]
    if p < 1:
        weight = torch.where(keep, (x - x.max()).exp(), 0)
        ordered = x.sort(descending=True)
        reached = (weight[ordered.indices].cumsum(0) / weight.sum() >= p).nonzero()
        keep &= x >= ordered.values[int(reached[0])]
    if m > 0:
        keep &= x >= x.max() + math.log(m)
    return keep


@pytest.mark.parametrize(("k", "p", "m"), [(0, 1.0, 0.0), (5, 1.0, 0.0), (0, 0.7, 0.0), (0, 1.0, 0.2), (40, 0.8, 0.01)])
def test_draws_follow_the_probabilities_of_the_kept_tokens(k, p, m):
    draws, temperature = 20_000, 0.8
    row = peaked(1, 100, seed=k)
    x = row[0].double() / temperature
    keep = kept_by_definition(x, k, p, m)
    wanted = torch.where(keep, x.exp(), 0)
    wanted /= wanted.sum()
    rows = rows_of(draws, temperature=temperature, top_k=k, top_p=p, min_p=m)
    found = torch.bincount(sample_reference(row.expand(draws, -1), rows), minlength=100).double()
    assert not found[~keep].any()
    likely = wanted * draws > 5
    score = float(((found - wanted * draws) ** 2 / (wanted * draws))[likely].sum())
    freedom = int(likely.sum())
    assert score < freedom + 5 * math.sqrt(2 * freedom) + 5


MIXED = {
    "temperature": torch.tensor([0.0, 1.0, 0.7, 1.3, 0.3, 1.0, 1.0, 2.0]),
    "top_k": torch.tensor([5, 0, 40, 1, 0, 700, 9000, 0]),
    "top_p": torch.tensor([0.5, 1.0, 0.9, 0.9, 0.95, 1.0, 0.8, 0.5]),
    "min_p": torch.tensor([0.0, 0.0, 0.0, 0.1, 0.0, 0.05, 0.0, 0.001]),
}


@pytest.mark.parametrize("spread", [0.0, 1.0, 8.0])
def test_kernels_choose_as_the_reference_does(spread):
    logits = peaked(8, seed=1, spread=spread)
    rows = rows_of(8, **MIXED)
    assert torch.equal(by_kernels(logits, rows)[0], by_reference(logits, rows)[0])


@pytest.mark.parametrize("columns", [1, 31, 4096, 4097])
def test_kernels_take_every_size_of_vocabulary(columns):
    logits = peaked(3, columns, seed=2)
    for rows in (rows_of(3), rows_of(3, top_k=3, top_p=0.9), rows_of(3, temperature=0.0)):
        assert torch.equal(by_kernels(logits, rows)[0], by_reference(logits, rows)[0])


def test_equal_logits_are_kept_together_and_greedy_takes_the_lowest_id():
    logits = torch.zeros(4, COLUMNS)
    logits[:, 5000:] = -1.0
    logits[:, 8000:8010] = 1.0
    rows = rows_of(4, temperature=[0.0, 1.0, 1.0, 1.0], top_k=[0, 3, 0, 12], top_p=[1.0, 1.0, 0.0005, 1.0])
    chosen = by_kernels(logits, rows)[0]
    assert torch.equal(chosen, by_reference(logits, rows)[0])
    assert chosen[0] == 8000
    assert 8000 <= chosen[1] < 8010
    assert 8000 <= chosen[2] < 8010
    assert torch.equal(by_kernels(logits, rows_of(4, top_k=12))[0], by_reference(logits, rows_of(4, top_k=12))[0])


def test_a_sample_that_misleads_costs_time_and_no_exactness():
    # The sampled places hold nothing of weight; what counts lies between them.
    logits = torch.full((2, COLUMNS), -5.0)
    places = torch.arange(2048) * COLUMNS // 2048
    between = torch.ones(COLUMNS, dtype=torch.bool)
    between[places] = False
    logits[:, between] = peaked(2, int(between.sum()), seed=3, spread=0.3)
    for rows in (rows_of(2, top_p=0.5), rows_of(2, top_k=600), rows_of(2, top_k=5000, top_p=0.4)):
        assert torch.equal(by_kernels(logits, rows)[0], by_reference(logits, rows)[0])


def test_a_row_chooses_alone_as_in_a_batch():
    logits = peaked(8, seed=4)
    rows = rows_of(8, **MIXED)
    together = by_kernels(logits, rows)[0]
    for row in (1, 4, 7):
        alone = SamplingRows(**{name: None if v is None else v[row : row + 1] for name, v in vars(rows).items()})
        assert by_kernels(logits[row : row + 1], alone)[0] == together[row]


def adjustments(rows):
    generator = torch.Generator().manual_seed(5)
    ids = torch.stack([torch.randperm(COLUMNS, generator=generator)[:600] for _ in range(4)]).int()
    lists = torch.tensor([3, -1, 0, 1, 2, -1, 1, 0])[:rows].int()
    tokens = TokenLists(ids, torch.tensor([600, 17, 0, 300]).int(), lists)
    floats = [torch.rand(rows, generator=generator) + 0.5 for _ in range(3)]
    penalties = Penalties(tokens, torch.randint(0, 4, ids.shape, generator=generator).int(), *floats)
    values = torch.randn(ids.shape, generator=generator)
    values[0, :5] = float("-inf")
    words = torch.randint(-(2**31), 2**31, (2, COLUMNS // 32 - 3), generator=generator).int()
    masks = TokenMasks(words, torch.tensor([-1, 0, -1, 1, 1, -1, 0, -1])[:rows].int())
    return {"penalties": penalties, "biases": Biases(tokens, values), "masks": masks}


def test_penalties_biases_and_masks_change_the_logits_as_the_reference_does():
    logits = peaked(8, seed=6)
    rows = rows_of(8, **MIXED, vocabulary=COLUMNS - 100)
    chosen, changed = by_kernels(logits, rows, **adjustments(8))
    wanted, expected = by_reference(logits, rows, **adjustments(8))
    assert torch.equal(chosen, wanted)
    assert torch.equal(changed[:, : COLUMNS - 100], expected[:, : COLUMNS - 100])


def test_penalties_follow_their_definition_token_by_token():
    logits = torch.tensor([[2.0, -2.0, 1.0, 0.5]])
    tokens = TokenLists(torch.tensor([[0, 1, 2]]).int(), torch.tensor([3]).int())
    one = torch.ones(1)
    penalties = Penalties(tokens, torch.tensor([[0, 2, 1]]).int(), 2 * one, 0.25 * one, 0.5 * one)
    by_reference_logits = by_reference(logits, rows_of(1), penalties=penalties)[1]
    assert by_reference_logits.tolist() == [[1.0, -4.0 - 1.25, 0.5 - 0.75, 0.5]]


def test_what_a_mask_or_the_vocabulary_forbids_is_never_chosen():
    logits = peaked(4, seed=7)
    logits[:, COLUMNS - 10 :] = 50.0
    words = torch.zeros(1, -(-COLUMNS // 32), dtype=torch.int32)
    words[0, 100] = 0b1010
    masks = TokenMasks(words, torch.tensor([-1, 0, 0, 0]).int())
    rows = rows_of(4, temperature=[1.0, 0.0, 1.0, 1.0], top_k=[0, 0, 0, 50], vocabulary=COLUMNS - 10)
    chosen = by_kernels(logits, rows, masks=masks)[0]
    assert torch.equal(chosen, by_reference(logits, rows, masks=masks)[0])
    assert chosen[0] < COLUMNS - 10
    assert set(chosen[1:].tolist()) <= {3201, 3203}


@pytest.mark.parametrize("top_p", [None, 0.9])
def test_broken_logits_choose_a_token_and_never_spoil_a_neighbour(top_p):
    logits = peaked(5, seed=8)
    healthy = logits[1:2].clone()
    logits[0] = float("-inf")
    logits[2, ::2] = float("nan")
    logits[3] = float("nan")
    logits[4, 77] = float("inf")
    rows = rows_of(5, top_p=top_p)
    chosen = by_kernels(logits, rows)[0]
    assert torch.equal(chosen, by_reference(logits, rows)[0])
    assert chosen[0] == chosen[3] == 0
    assert chosen[2] % 2 == 1
    assert chosen[4] == 77
    alone = SamplingRows(**{name: None if v is None else v[1:2] for name, v in vars(rows).items()})
    assert by_reference(healthy, alone)[0] == chosen[1]


def test_log_probabilities_describe_a_token_by_value_rank_and_neighbours():
    logits = torch.tensor([[0.0, 2.0, 1.0, 2.0], [9.0, 9.0, 9.0, 9.0], [3.0, 1.0, 0.0, 2.0]])
    raw = log_probabilities(logits, torch.tensor([2, 0]))
    found = describe_tokens(raw, torch.tensor([3, 2]), 2)
    torch.testing.assert_close(found.values, logits.log_softmax(1)[[2, 0], [3, 2]])
    assert found.ranks.tolist() == [2, 3]
    assert found.top_ids[0].tolist() == [0, 3]
    assert describe_tokens(raw, torch.tensor([3, 2])).top_ids.shape == (2, 0)
    with pytest.raises(ValueError, match=r"tokens is torch\.int64 \[1\]; it must be int64 \[2\]"):
        describe_tokens(raw, torch.tensor([3]))
    with pytest.raises(ValueError, match="count is 5"):
        describe_tokens(raw, torch.tensor([3, 2]), 5)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"logits": torch.zeros(2, 7)}, r"logits has shape \[2, 7\]; this Sampler was made for at most 2 rows of 8"),
        ({"logits": torch.zeros(2, 8).half()}, r"logits is torch\.float16"),
        ({"rows": rows_of(3)}, r"rows\.temperature is torch\.float32 \[3\]"),
        (
            {"rows": moved(rows_of(2, top_k=1), "cpu").__class__(**{**vars(rows_of(2)), "top_k": torch.ones(2)})},
            "top_k",
        ),
        ({"out": torch.zeros(2)}, r"out is torch\.float32"),
        ({"masks": TokenMasks(torch.zeros(1, 1).int())}, r"masks\.words is torch\.int32 \[1, 1\]"),
        (
            {"biases": Biases(TokenLists(torch.zeros(2, 3).int(), torch.zeros(2).int()), torch.zeros(2, 4))},
            "biases.values",
        ),
    ],
)
def test_sample_names_the_tensor_that_does_not_fit(change, message):
    arguments = {"logits": torch.zeros(2, 8), "rows": rows_of(2)}
    with pytest.raises(ValueError, match=message):
        Sampler(8, 2).sample(**(arguments | change))


def test_a_sampler_that_cannot_work_names_its_argument():
    with pytest.raises(ValueError, match="vocabulary is 0"):
        Sampler(0, 1)
    with pytest.raises(ValueError, match="max_rows is 0"):
        Sampler(8, 0)
    with pytest.raises(ValueError, match="one of Auto, Reference, Triton"):
        Sampler(8, 1, backend="CUDA")


@pytest.mark.gpu
@pytest.mark.parametrize("spread", [0.0, 1.0, 3.0])
def test_one_graph_samples_every_mix_as_the_cpu_does(spread):
    count, columns = 64, 128_256
    sampler = Sampler(columns, count, "cuda")
    assert sampler.backend == "Triton"
    logits = torch.empty(count, columns, device="cuda")
    rows = rows_of(count, "cuda", top_k=0, top_p=1.0, min_p=0.0)
    out = torch.empty(count, dtype=torch.int64, device="cuda")
    sampler.sample(logits.zero_(), rows, out=out)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        sampler.sample(logits, rows, out=out)
    generator = torch.Generator().manual_seed(9)
    for step in range(4):
        values = peaked(count, columns, seed=step, spread=spread)
        rows.temperature.copy_(torch.randint(0, 4, (count,), generator=generator) / 2)
        rows.top_k.copy_(torch.randint(0, 3, (count,), generator=generator) * 40)
        rows.top_p.copy_(1 - torch.randint(0, 3, (count,), generator=generator) * 0.2)
        rows.min_p.copy_(torch.randint(0, 2, (count,), generator=generator) * 0.02)
        rows.positions.add_(1)
        logits.copy_(values)
        graph.replay()
        assert torch.equal(out.cpu(), sample_reference(values, moved(rows, "cpu")))
