"""Sampling: known random numbers, each parameter's effect, independence of the batch."""

from __future__ import annotations

import math
import struct
from collections import Counter
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from octavo_server.engine.messages import SamplingParams, Submit
from octavo_server.engine.philox import philox, uniforms
from octavo_server.engine.request import Request, make_request
from octavo_server.engine.sampler import logprob_tensors, sample

VOCABULARY = 50


def request(sampling: SamplingParams, prompt: tuple[int, ...] = (1, 2), answer: tuple[int, ...] = ()) -> Request:
    def data(tokens: tuple[int, ...]) -> bytes:
        return struct.pack(f"<{len(tokens)}i", *tokens)

    submit = Submit(1, data(prompt), sampling, 4000, resume_token_ids=data(answer))
    return make_request(
        submit, connection=0, arrival=0, now_seconds=0.0, block_size=16, max_length=10000, vocabulary=VOCABULARY
    )


def logits_of(probabilities: dict[int, float]) -> torch.Tensor:
    """float32 `[1, VOCABULARY]` with these probabilities and next to nothing elsewhere."""
    row = torch.full((1, VOCABULARY), -50.0)
    for token, probability in probabilities.items():
        row[0, token] = math.log(probability)
    return row


def draws(probabilities: dict[int, float], sampling: SamplingParams, count: int = 2000) -> Counter[int]:
    """Tokens drawn with seeds 0 … count − 1."""
    requests = [request(replace(sampling, seed=seed)) for seed in range(count)]
    return Counter(sample(logits_of(probabilities).repeat(count, 1), requests))


@pytest.mark.parametrize(
    ("counter", "key", "expected"),
    [
        (0, 0, (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
        (0xFFFFFFFF, 0xFFFFFFFF, (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
    ],
)
def test_philox_gives_the_published_words(counter: int, key: int, expected: tuple[int, ...]) -> None:
    word = np.array([counter], dtype=np.uint64)
    keys = np.array([key], dtype=np.uint64)
    assert tuple(int(value[0]) for value in philox((word,) * 4, (keys,) * 2)) == expected


def test_each_of_seed_choice_and_position_changes_the_number() -> None:
    grid = [(seed, choice, place) for seed in (0, 1, 2**40) for choice in (0, 1) for place in (5, 6)]
    numbers = uniforms(*(np.array(column, dtype=np.uint64) for column in zip(*grid, strict=True)))
    assert len(set(numbers.tolist())) == len(grid)
    assert ((numbers >= 0) & (numbers < 1)).all()


def test_frequencies_follow_the_probabilities_and_the_temperature() -> None:
    found = draws({3: 0.5, 7: 0.3, 9: 0.2}, SamplingParams())
    for token, probability in ((3, 0.5), (7, 0.3), (9, 0.2)):
        assert abs(found[token] / 2000 - probability) < 0.05
    hot = draws({3: 0.9, 7: 0.1}, SamplingParams(temperature=2.0))
    assert abs(hot[7] / 2000 - 0.25) < 0.05


@pytest.mark.parametrize(
    ("sampling", "allowed"),
    [
        (SamplingParams(temperature=0.0), {3}),
        (SamplingParams(top_k=2), {3, 7}),
        (SamplingParams(top_p=0.6), {3, 7}),
        (SamplingParams(top_p=0.49), {3}),
        (SamplingParams(min_p=0.5), {3, 7}),
        (SamplingParams(logit_bias={9: -100.0}), {3, 7}),
        (SamplingParams(logit_bias={20: 100.0}), {20}),
        (SamplingParams(stop_token_ids=[3], min_tokens=2), {7, 9}),
        (SamplingParams(allowed_token_ids=[7, 9]), {7, 9}),
        (SamplingParams(bad_words=[[3], [5, 7]]), {7, 9}),
        (SamplingParams(vocabulary_size=8), {3, 7}),
    ],
    ids=[
        "greedy",
        "top_k",
        "top_p",
        "top_p below the first",
        "min_p",
        "ban",
        "force",
        "min_tokens",
        "allowed",
        "bad words",
        "vocabulary",
    ],
)
def test_only_these_tokens_can_be_drawn(sampling: SamplingParams, allowed: set[int]) -> None:
    assert set(draws({3: 0.5, 7: 0.3, 9: 0.2}, sampling, 300)) == allowed


def test_top_p_is_right_when_it_needs_more_than_the_first_candidates() -> None:
    values = torch.zeros(1, 2000)
    values[0, 1500:] = -1.0
    one = replace_vocabulary(SamplingParams(top_p=0.85), 2000)
    tokens = sample(values.repeat(400, 1), [replace_seed(one, seed) for seed in range(400)])
    # 1500 equal tokens hold 0.89 of the probability: p = 0.85 ends among them, and equal ones are kept together.
    assert max(tokens) < 1500
    assert max(tokens) > 1200


def replace_vocabulary(sampling: SamplingParams, vocabulary: int) -> Request:
    submit = Submit(1, struct.pack("<i", 1), sampling, 4)
    return make_request(
        submit, connection=0, arrival=0, now_seconds=0.0, block_size=16, max_length=100, vocabulary=vocabulary
    )


def replace_seed(one: Request, seed: int) -> Request:
    return replace(one, sampling=replace(one.sampling, seed=seed))


@pytest.mark.parametrize(
    ("sampling", "expected"),
    [
        (SamplingParams(temperature=0.0), 5),
        (SamplingParams(temperature=0.0, presence_penalty=1.5), 6),
        (SamplingParams(temperature=0.0, frequency_penalty=0.6), 6),
        (SamplingParams(temperature=0.0, frequency_penalty=0.4), 5),
        (SamplingParams(temperature=0.0, repetition_penalty=1.6), 6),
    ],
)
def test_penalties_move_the_choice_away_from_generated_tokens(sampling: SamplingParams, expected: int) -> None:
    row = torch.zeros(1, VOCABULARY)
    row[0, 5], row[0, 6] = 3.0, 2.0
    assert sample(row, [request(sampling, answer=(5, 5))]) == [expected]


def test_presence_and_frequency_count_the_answer_and_repetition_the_prompt_as_well() -> None:
    row = torch.zeros(1, VOCABULARY)
    row[0, 5], row[0, 6] = 3.0, 2.0
    kept = SamplingParams(temperature=0.0, presence_penalty=5.0, frequency_penalty=5.0)
    assert sample(row.clone(), [request(kept, prompt=(5, 5))]) == [5]
    assert sample(row.clone(), [request(SamplingParams(temperature=0.0, repetition_penalty=2.0), prompt=(5,))]) == [6]


def test_a_row_draws_the_same_token_alone_and_beside_any_others() -> None:
    torch.manual_seed(1)
    kinds: list[dict[str, Any]] = [
        {},
        {"temperature": 0.0},
        {"top_p": 0.8},
        {"top_k": 7},
        {"min_p": 0.05, "temperature": 1.7},
        {"top_p": 0.9, "top_k": 20, "frequency_penalty": 0.7},
        {"logit_bias": {4: 2.0}, "repetition_penalty": 1.3},
    ]
    requests = [request(SamplingParams(seed=seed, **kinds[seed % len(kinds)]), answer=(1, 4, 4)) for seed in range(40)]
    logits = torch.randn(40, VOCABULARY) * 3
    together = sample(logits.clone(), requests)
    assert together == [sample(logits[row : row + 1].clone(), [requests[row]])[0] for row in range(40)]
    assert together[::-1] == sample(logits.flip(0), requests[::-1])
    assert len(set(together)) > 5


def test_logprobs_are_those_before_anything_is_changed_with_rank_and_the_most_likely() -> None:
    values = torch.tensor([[1.0, 3.0, 2.0, 0.0]]).log_softmax(dim=1)
    (entry,) = logprob_tensors(values, torch.tensor([2]), 2).entries([2])
    assert (entry.token_id, entry.rank, entry.top_ids) == (2, 2, [1, 2])
    assert entry.logprob == pytest.approx(values[0, 2].item())
    assert entry.top_logprobs == pytest.approx([values[0, 1].item(), values[0, 2].item()])
    (bare,) = logprob_tensors(values, torch.tensor([1]), 0).entries([0])
    assert (bare.rank, bare.top_ids, bare.top_logprobs) == (1, [], [])


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("temperature", -1.0),
        ("temperature", math.nan),
        ("top_p", 0.0),
        ("top_k", -1),
        ("min_p", 1.5),
        ("repetition_penalty", 0.0),
        ("seed", 2**64),
        ("logit_bias", {VOCABULARY: 1.0}),
        ("logit_bias", {1: math.inf}),
    ],
)
def test_a_number_without_meaning_is_refused_with_the_name_of_its_field(field: str, value: Any) -> None:
    with pytest.raises(ValueError, match=field):
        request(replace(SamplingParams(), **{field: value}))
