"""Steps that are launched before the tokens of the step before are known: the same answers as one after the other."""

from __future__ import annotations

import struct
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from octavo_server.config import CacheConfig, EngineConfig, ModelConfig, SchedulerConfig
from octavo_server.engine.core import Engine
from octavo_server.engine.messages import Abort, Finished, Outputs, SamplingParams, Submit
from octavo_server.engine.runner import Flight
from octavo_server.engine.startup import start

VOCABULARY = 64


pytestmark = pytest.mark.usefixtures("one_thread")


def begin(model: Path, *, overlaps: bool, blocks: int = 65) -> Engine:
    config = EngineConfig(
        ModelConfig(str(model), max_length_tokens=128),
        CacheConfig(block_size_tokens=8, pool_bytes=2 * 2 * 16 * 4 * 8 * blocks),
        SchedulerConfig(max_batched_tokens=32, max_sequences=8),
        device="CPU",
        cpu_threads=1,
    )
    engine, _ = start(config, lambda progress: None)
    engine._runner.overlaps = overlaps
    return engine


def submit(number: int, prompt: list[int], new_tokens: int, **sampling: Any) -> Submit:
    params = SamplingParams(**{"seed": number, **sampling})
    return Submit(number, struct.pack(f"<{len(prompt)}i", *prompt), params, new_tokens)


def traffic() -> list[Submit]:
    kinds: list[dict[str, Any]] = [
        {"temperature": 0.0},
        {},
        {"top_p": 0.8, "frequency_penalty": 0.5},
        {"repetition_penalty": 1.3, "temperature": 0.7},
        {"logprobs": 2},
        {"stop_token_ids": [3, 17], "min_tokens": 4},
        {"stop_token_ids": list(range(20)), "temperature": 3.0},
        {"prompt_logprobs": 1},
        {"bad_words": [[5], [1, 2]], "temperature": 0.0},
    ]
    return [
        submit(number, [(7 * number + place) % VOCABULARY for place in range(1 + 9 * number % 50)], 30, **kind)
        for number, kind in enumerate(kinds * 2)
    ]


def run(engine: Engine, submits: list[Submit]) -> dict[int, Any]:
    """By request: tokens, log-probabilities, prompt log-probabilities, and the end, which comes exactly once."""
    found: dict[int, Any] = {one.request_id: ([], [], [], []) for one in submits}
    messages = [message for one in submits for message in engine.submit(0, one)]
    while engine.busy or messages:
        for _, message in messages:
            if isinstance(message, Outputs):
                for output in message.outputs:
                    assert not found[output.request_id][3], "a token after the end"
                    found[output.request_id][0].extend(output.token_ids)
                    found[output.request_id][1].extend(output.logprobs)
                    found[output.request_id][2].extend(output.prompt_logprobs or [])
            elif isinstance(message, Finished):
                found[message.request_id][3].append((message.reason, message.stop_token_id))
        messages = engine.step() if engine.busy else []
        engine.scheduler.check_integrity()
    assert all(len(ends) == 1 for *_, ends in found.values())
    return found


@pytest.mark.parametrize("blocks", [65, 20])
def test_overlapping_steps_give_the_same_answers_with_every_kind_of_request_and_with_preemption(
    tiny_model: Path, blocks: int
) -> None:
    expected = run(begin(tiny_model, overlaps=False), traffic())
    engine = begin(tiny_model, overlaps=True, blocks=blocks)
    found = run(engine, traffic())
    for number, (tokens, logprobs, prompt_logprobs, ends) in expected.items():
        assert found[number][0] == tokens
        assert found[number][3] == ends
        # Prompts are cut otherwise, so sums may be rounded otherwise.
        for entries, others in ((logprobs, found[number][1]), (prompt_logprobs[1:], found[number][2][1:])):
            assert len(entries) == len(others)
            for one, other in zip(entries, others, strict=True):
                assert (one.token_id, one.rank) == (other.token_id, other.rank)
                assert one.logprob == pytest.approx(other.logprob, abs=1e-4)
    assert (engine.scheduler.preemptions > 0) == (blocks == 20)
    assert any(reason == "stop" for *_, ends in expected.values() for reason, _ in ends)
    assert engine.stats([]).active_blocks == 0


def test_a_length_end_costs_no_further_step_and_a_stop_exactly_one(tiny_model: Path) -> None:
    engine = begin(tiny_model, overlaps=True)
    launched: list[int] = []
    works = engine._runner.launch

    def counted(plan: Any) -> Flight:
        launched.append(len(plan))
        return works(plan)

    engine._runner.launch = counted  # type: ignore[method-assign]
    greedy = submit(1, [1, 2, 3], 12, temperature=0.0)
    whole = run(engine, [greedy])[1][0]
    assert len(launched) == 12
    del launched[:]
    stop = next(token for place, token in enumerate(whole) if place >= 1 and token not in whole[:place])
    stops = replace(greedy, sampling=replace(greedy.sampling, stop_token_ids=[stop]))
    tokens, *_, ends = run(engine, [stops])[1]
    assert (tokens, ends) == (whole[: whole.index(stop) + 1], [("stop", stop)])
    assert len(launched) == len(tokens) + 1


def test_the_token_after_a_stop_is_never_found_in_the_prefix_cache(tiny_model: Path) -> None:
    engine = begin(tiny_model, overlaps=True)
    prompt = [1, 2, 3, 4, 5, 6]
    whole = run(engine, [submit(1, prompt, 40, temperature=0.0)])[1][0]
    fresh = begin(tiny_model, overlaps=True)
    # The stop is the last token of the first block: with the step that ran in vain the block would be full.
    stop = whole[1]
    assert stop != whole[0]
    run(fresh, [submit(2, prompt, 40, temperature=0.0, stop_token_ids=[stop])])
    assert fresh.stats([]).cached_blocks == 0


def test_an_abort_between_launch_and_delivery_drops_the_token_and_leaves_nothing(tiny_model: Path) -> None:
    engine = begin(tiny_model, overlaps=True)
    for number in range(4):
        assert engine.submit(0, submit(number, [number + 1] * 9, 40, temperature=0.0)) == []
    for _ in range(5):
        engine.step()
    ended = engine.abort(0, Abort(1, 2))
    assert [message.reason for _, message in ended if isinstance(message, Finished)] == ["abort"]
    # Its slot and blocks go to another request at once, while a step for the first one is still in flight.
    assert engine.submit(0, submit(9, [50, 51], 20, temperature=0.0)) == []
    later: list[int] = []
    while engine.busy:
        for _, message in engine.step():
            if isinstance(message, Outputs):
                assert all(output.request_id != 1 for output in message.outputs)
                later += [token for one in message.outputs if one.request_id == 9 for token in one.token_ids]
        engine.scheduler.check_integrity()
    assert later == run(begin(tiny_model, overlaps=False), [submit(9, [50, 51], 20, temperature=0.0)])[9][0]
    assert engine.stats([]).active_blocks == 0


@pytest.mark.parametrize("place", ["launch", "sample", "collect"])
def test_a_step_that_fails_anywhere_ends_its_requests_and_leaves_no_block_of_it_in_the_cache(
    tiny_model: Path, place: str
) -> None:
    engine = begin(tiny_model, overlaps=True)
    prompt = list(range(1, 30))
    works = getattr(engine._runner, place)

    def fails(_: Any) -> Any:
        setattr(engine._runner, place, works)
        raise RuntimeError("the kernel is on fire")

    setattr(engine._runner, place, fails)
    assert engine.submit(0, submit(1, prompt, 10, temperature=0.0)) == []
    ends: list[Finished] = []
    while engine.busy:
        ends += [message for _, message in engine.step() if isinstance(message, Finished)]
    assert [(end.reason, "on fire" in end.message) for end in ends] == [("error", True)]
    assert engine.stats([]).cached_blocks == engine.stats([]).active_blocks == 0
    expected = run(begin(tiny_model, overlaps=False), [submit(2, prompt, 10, temperature=0.0)])
    assert run(engine, [submit(2, prompt, 10, temperature=0.0)]) == expected


def test_evictions_hits_and_misses_are_counted_and_shared_reads_only_where_kernels_share(tiny_model: Path) -> None:
    engine = begin(tiny_model, overlaps=False, blocks=17)
    prompts = [[first] * 57 for first in (1, 2, 1, 3)]
    for number, prompt in enumerate(prompts):
        run(engine, [submit(number, prompt, 2, temperature=0.0)])
    stats = engine.stats([])
    # Sixteen blocks keep the seven whole ones of two prompts; the third finds its own, the fourth needs eight: two are
    # free.
    assert stats.prefix_queried_tokens_total == 4 * 57
    assert stats.prefix_hit_tokens_total == 56
    assert stats.prefix_evicted_blocks_total == 6
    engine = begin(tiny_model, overlaps=False)
    launches = engine._runner.launch

    def shares(plan: Any) -> Flight:
        return replace(launches(plan), shared_read_tokens=7)

    assert engine.stats([]).shared_read_tokens_total == 0
    run(engine, [submit(number, [5] * 40, 3, temperature=0.0) for number in range(3)])
    assert engine.stats([]).shared_read_tokens_total == 0, "attention on a CPU reads for each request"
    engine._runner.launch = shares  # type: ignore[method-assign]
    run(engine, [submit(9, [6], 3, temperature=0.0)])
    assert engine.stats([]).shared_read_tokens_total == 3 * 7
