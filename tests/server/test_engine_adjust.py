"""Rules of single requests, applied to all rows of a step at once: each row as if alone, by a plain reference."""

from __future__ import annotations

import struct
from collections import Counter
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from octavo_server.engine.adjust import adjust
from octavo_server.engine.counts import TokenCounts
from octavo_server.engine.messages import SamplingParams, Submit
from octavo_server.engine.request import Request, make_request

VOCABULARY = 12
TOKENS = st.lists(st.integers(0, VOCABULARY - 1), max_size=9)
RULES = st.fixed_dictionaries(
    {},
    optional={
        "repetition_penalty": st.sampled_from([1.0, 1.5, 0.5]),
        "presence_penalty": st.sampled_from([0.0, 1.25, -0.5]),
        "frequency_penalty": st.sampled_from([0.0, 0.75, -2.0]),
        "logit_bias": st.dictionaries(st.integers(0, VOCABULARY - 1), st.sampled_from([-3.0, 2.5]), max_size=3),
        "bad_words": st.lists(st.lists(st.integers(0, VOCABULARY - 1), min_size=1, max_size=3), max_size=3),
        "allowed_token_ids": st.lists(st.integers(0, VOCABULARY - 1), max_size=4),
        "min_tokens": st.integers(0, 4),
        "stop_token_ids": st.lists(st.integers(0, VOCABULARY - 1), max_size=3),
    },
)


def request(prompt: list[int], answer: list[int], rules: dict[str, Any]) -> Request:
    prompt_bytes, answer_bytes = (struct.pack(f"<{len(ids)}i", *ids) for ids in (prompt, answer))
    submit = Submit(1, prompt_bytes, SamplingParams(**rules), 50, resume_token_ids=answer_bytes)
    return make_request(
        submit, connection=0, arrival=0, now_seconds=0.0, block_size=16, max_length=100, vocabulary=VOCABULARY
    )


def expected(row: list[float], prompt: list[int], answer: list[int], rules: dict[str, Any]) -> list[float]:
    """One rule after the other, token by token."""
    sampling, row = SamplingParams(**rules), list(row)
    for token in set(prompt + answer):
        penalty = sampling.repetition_penalty
        row[token] = row[token] / penalty if row[token] > 0 else row[token] * penalty
    for token, count in Counter(answer).items():
        row[token] -= sampling.presence_penalty + sampling.frequency_penalty * count
    for token, bias in sampling.logit_bias.items():
        row[token] += bias
    for token in {word[-1] for word in sampling.bad_words if answer[len(answer) - len(word) + 1 :] == word[:-1]
                  and len(answer) >= len(word) - 1}:  # fmt: skip
        row[token] -= 1e9
    if sampling.allowed_token_ids:
        row = [value if token in sampling.allowed_token_ids else -np.inf for token, value in enumerate(row)]
    if len(answer) < sampling.min_tokens:
        row = [-np.inf if token in sampling.stop_token_ids else value for token, value in enumerate(row)]
    return row


@settings(max_examples=120, deadline=None)
@given(rows=st.lists(st.tuples(TOKENS.filter(bool), TOKENS, RULES), min_size=1, max_size=5), seed=st.integers(0, 9))
def test_each_row_is_changed_by_its_own_rules_alone(rows: list[Any], seed: int) -> None:
    logits = torch.from_numpy(np.random.default_rng(seed).normal(size=(len(rows), VOCABULARY)).astype(np.float32)) * 3
    requests = [request(*row) for row in rows]
    found = logits.clone()
    adjust(found, [number for number, one in enumerate(requests) if one.adjusted], requests)
    for row, (prompt, answer, rules) in enumerate(rows):
        np.testing.assert_allclose(
            found[row].numpy(), expected(logits[row].tolist(), prompt, answer, rules), rtol=1e-5, atol=1e-5
        )


@pytest.mark.parametrize("piece", [1, 7, 100, 1000])
def test_counts_are_the_same_however_the_text_arrives(piece: int) -> None:
    text = np.random.default_rng(piece).integers(0, 300, 1000).astype(np.int32)
    counts = TokenCounts()
    for begin in range(0, len(text), piece):
        counts.take(text[begin : begin + piece])
    assert counts.taken == len(text)
    assert dict(zip(counts.ids.tolist(), counts.counts.tolist(), strict=True)) == Counter(text.tolist())
