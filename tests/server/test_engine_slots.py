"""Numbers by slot: tokens that wait for their request, random numbers drawn ahead, rows that stay as they were."""

from __future__ import annotations

import struct

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from octavo_server.engine.messages import SamplingParams, Submit
from octavo_server.engine.philox import NumbersAhead, uniforms
from octavo_server.engine.request import Request, make_request
from octavo_server.engine.sampler import rules_of
from octavo_server.engine.slots import RECENT, SlotTable
from octavo_server.engine.staging import Staging


def seated(table: SlotTable, prompt: list[int], **sampling: float) -> Request:
    """A request of up to 400 generated tokens in a slot."""
    params = SamplingParams(**sampling)  # type: ignore[arg-type]
    submit = Submit(1, struct.pack(f"<{len(prompt)}i", *prompt), params, 400)
    request = make_request(
        submit, connection=0, arrival=0, now_seconds=0.0, block_size=16, max_length=1000, vocabulary=1000
    )
    request.table, request.blocks = table, [1]
    request.slot = table.take(request, computed=0)
    return request


@settings(max_examples=40, deadline=None)
@given(
    prompt=st.integers(1, 3 * RECENT), steps=st.integers(1, 3 * RECENT), look=st.integers(1, 200), again=st.booleans()
)
def test_tokens_are_the_same_whenever_somebody_looks_and_after_the_slot_was_given_back(
    prompt: int, steps: int, look: int, again: bool
) -> None:
    table = SlotTable(2)
    known = [place % 997 for place in range(prompt)]
    request = seated(table, known)
    for step in range(steps):
        known.append((7 * step + 3) % 991)
        table.append(np.array([request.slot]), np.array([known[-1]]))
        if step % look == 0:
            assert request.tokens[: request.length].tolist() == known
    for index in range(len(known) // 16):
        block = table.recent_block(request.slot, index, 16)
        assert block in (None, np.array(known[16 * index : 16 * (index + 1)], np.int32).tobytes())
    if len(known) % 16 == 0:
        assert table.recent_block(request.slot, len(known) // 16 - 1, 16) is not None, (
            "the newest block was not at hand"
        )
    assert table.recent_block(request.slot, len(known) // 16, 16) is None, "a block that is not full was given"
    request.leave_slot()
    assert (request.length, request.tokens[: len(known)].tolist()) == (len(known), known)
    if again:
        # Preempted and admitted anew, in another slot.
        other = seated(table, [1])
        request.slot = table.take(request, computed=0)
        assert request.slot != other.slot
        table.append(np.array([request.slot]), np.array([5]))
        assert request.tokens[: request.length].tolist() == [*known, 5]


@settings(max_examples=30, deadline=None)
@given(places=st.lists(st.lists(st.integers(0, 5), min_size=1, max_size=6, unique=True), min_size=1, max_size=40))
def test_numbers_drawn_ahead_are_those_of_their_positions_whoever_takes_part_in_a_step(places: list[list[int]]) -> None:
    seeds, choices = np.arange(6, dtype=np.uint64) * 977, np.arange(6, dtype=np.uint64) % 2
    ahead, positions = NumbersAhead(seeds, choices), np.arange(6) * 1000
    for number, slots in enumerate(places):
        if number == 20:
            seeds[3] = 5
            ahead.restart(3)
        chosen = np.array(slots)
        expected = uniforms(seeds[chosen], choices[chosen], positions[chosen].astype(np.uint64))
        assert ahead.at(chosen, positions[chosen]).tolist() == expected.tolist()
        positions[chosen] += 1


def test_rules_by_slot_are_the_rules_of_the_requests() -> None:
    table = SlotTable(4)
    kinds: list[dict[str, float]] = [
        {"temperature": 0.0},
        {"seed": 2**64 - 1, "choice_index": 3},
        {"top_k": 7, "top_p": 0.25, "min_p": 0.125, "presence_penalty": 1.0, "vocabulary_size": 9},
    ]
    requests = [seated(table, list(range(1, 30 + number)), **kind) for number, kind in enumerate(kinds)]
    found, expected = table.rules(np.array([one.slot for one in requests])), rules_of(requests)
    for name in ("temperature", "vocabulary", "adjusted", "top_k", "top_p", "min_p", "numbers"):
        assert getattr(found, name).tolist() == getattr(expected, name).tolist(), name


def test_numbers_beyond_64_bits_are_taken_and_mean_no_limit() -> None:
    table = SlotTable(1)
    request = seated(table, [1], top_k=2**70, min_tokens=2**70, vocabulary_size=2**70)
    rules = table.rules(np.array([request.slot]))
    assert min(rules.top_k[0], rules.vocabulary[0], table.stop_from[request.slot]) > 2**40


@pytest.mark.parametrize(("mark", "tokens", "held"), [(1, 8, True), (2, 8, False), (None, 8, False), (1, 4, False)])
def test_a_buffer_is_filled_anew_for_other_rows_or_another_size(mark: int | None, tokens: int, held: bool) -> None:
    staging = Staging(tokens=8, sequences=8, updates=4, slots=8, device=torch.device("cpu"))
    marks = {1: object(), 2: object(), None: None}
    arrays = staging.begin()
    assert not arrays.holds(marks[1], 8, 8)
    assert arrays.holds(marks[mark], tokens, 8) is held
    assert arrays.holds(marks[1], 8, 8) is held, "what was written between was forgotten"
