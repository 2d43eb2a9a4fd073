"""The whole engine on a tiny pool with any traffic: aborts, lost connections and failing steps at any moment.

Scheduler, blocks, batches, delivery and sampling are the real ones; the model answers with noise.
"""

from __future__ import annotations

import struct
from typing import Any

import pytest
import torch
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from octavo_server.bench.host import idle_engine
from octavo_server.engine.blocks import BlockPool
from octavo_server.engine.core import Engine
from octavo_server.engine.messages import Abort, Finished, Outputs, SamplingParams, Submit
from octavo_server.engine.scheduler import Scheduler, SchedulerLimits

VOCABULARY = 8
BLOCK, BLOCKS, SLOTS, BUDGET = 4, 7, 3, 8
CAPACITY = BLOCK * (BLOCKS - 1)
KINDS: list[dict[str, Any]] = [
    {"temperature": 0.0},
    {"temperature": 5.0, "stop_token_ids": [1, 2]},
    {"temperature": 5.0, "stop_token_ids": list(range(1, 8)), "min_tokens": 3},
    {"temperature": 0.0, "logprobs": 2},
    {"prompt_logprobs": 0},
    {"frequency_penalty": 1.5, "repetition_penalty": 1.2, "logit_bias": {3: 1.0}},
    {"stop_token_ids": [number % VOCABULARY for number in range(20)]},
]


def noise(tokens: torch.Tensor) -> torch.Tensor:
    """float32 `[rows, VOCABULARY]` that each row's last token decides."""
    return torch.sin(tokens[:, None] * 7.0 + torch.arange(VOCABULARY) * 3.0)


FOLLOWING = noise(torch.arange(VOCABULARY)).argmax(dim=1).tolist()
"""Greedy choice after each token."""


pytestmark = pytest.mark.usefixtures("one_thread")


def tiny_engine(*, overlaps: bool, prefix_caching: bool) -> Engine:
    runner = idle_engine(SLOTS, length=16 * CAPACITY)._runner
    runner.block_size, runner.overlaps = BLOCK, overlaps

    def forward(step: Any, attention: Any, pool: Any) -> torch.Tensor:
        return noise(step.tokens if step.logit_rows is None else step.tokens[step.logit_rows])

    runner._decoder.forward = forward  # type: ignore[method-assign]
    pool = BlockPool(BLOCKS, prefix_caching=prefix_caching)
    scheduler = Scheduler(pool, SchedulerLimits(BUDGET, SLOTS, BLOCK))
    return Engine(runner, scheduler, max_length=CAPACITY, vocabulary=VOCABULARY)


class EngineMachine(RuleBasedStateMachine):
    """Requests of three connections; every id gets exactly one end and no token after it."""

    overlaps = False
    prefix_caching = True

    def __init__(self) -> None:
        super().__init__()
        self.engine = tiny_engine(overlaps=self.overlaps, prefix_caching=self.prefix_caching)
        self.living: dict[int, tuple[int, int]] = {}
        """Request → its connection, and the tokens that it may still get."""
        self.ended: set[int] = set()
        self.number = 0
        self.last: dict[int, int] = {}
        """Greedy request → its last token, from which its next one follows."""

    def take(self, messages: list[Any]) -> None:
        for connection, message in messages:
            if isinstance(message, Outputs):
                for output in message.outputs:
                    owner, left = self.living[output.request_id]
                    assert owner == connection, "a token went to another connection"
                    assert len(output.token_ids) == 1
                    assert left > 0, "more tokens than were asked for"
                    if output.request_id in self.last:
                        before = self.last[output.request_id]
                        assert output.token_ids == [FOLLOWING[before]], "not the token that follows"
                        self.last[output.request_id] = output.token_ids[0]
                    self.living[output.request_id] = (owner, left - 1)
            elif isinstance(message, Finished):
                assert message.request_id not in self.ended, "a second end"
                owner, left = self.living.pop(message.request_id)
                assert owner == connection
                assert message.reason in ("stop", "length", "abort", "error")
                assert left == 0 or message.reason != "length"
                self.ended.add(message.request_id)

    @rule(
        prompt=st.lists(st.integers(0, 1), min_size=1, max_size=CAPACITY - 1),
        answer=st.lists(st.integers(0, 7), max_size=3),
        new_tokens=st.integers(1, 2 * CAPACITY),
        priority=st.integers(0, 2),
        connection=st.integers(0, 2),
        kind=st.sampled_from(KINDS),
    )
    def submit(
        self,
        prompt: list[int],
        answer: list[int],
        new_tokens: int,
        priority: int,
        connection: int,
        kind: dict[str, Any],
    ) -> None:
        self.number += 1
        most = min(new_tokens, CAPACITY - len(prompt))
        answer = answer[:most]
        prompt_ids, resumed = (struct.pack(f"<{len(ids)}i", *ids) for ids in (prompt, answer))
        sampling = SamplingParams(seed=self.number, **kind)
        self.living[self.number] = (connection, most - len(answer))
        if kind.get("temperature") == 0.0:
            self.last[self.number] = [*prompt, *answer][-1]
        message = Submit(self.number, prompt_ids, sampling, new_tokens, priority=priority, resume_token_ids=resumed)
        self.take(self.engine.submit(connection, message))

    @precondition(lambda self: self.living)
    @rule()
    def step(self) -> None:
        steps, flight = self.engine.stats([]).steps_total, self.engine._flight
        self.take(self.engine.step())
        moved = self.engine.stats([]).steps_total > steps or self.engine._flight is not flight
        assert moved or not self.living, "requests live and nothing moved"

    @precondition(lambda self: self.living)
    @rule(data=st.data(), foreign=st.booleans())
    def abort(self, data: st.DataObject, foreign: bool) -> None:
        number = data.draw(st.sampled_from(sorted(self.living)))
        connection, _ = self.living[number]
        kept = data.draw(st.integers(0, CAPACITY))
        answers = self.engine.abort((connection + 1) % 3 if foreign else connection, Abort(number, kept))
        assert bool(answers) != foreign, "another connection's abort has an effect, or the owner's has none"
        self.take(answers)

    @rule(connection=st.integers(0, 2))
    def lose(self, connection: int) -> None:
        self.engine.drop_connection(connection)
        for number in [number for number, (owner, _) in self.living.items() if owner == connection]:
            del self.living[number]
            self.ended.add(number)

    @precondition(lambda self: self.living)
    @rule(place=st.sampled_from(["launch", "sample", "collect"]))
    def fail(self, place: str) -> None:
        runner = self.engine._runner

        def fails(_: Any) -> Any:
            delattr(runner, place)
            raise RuntimeError("the kernel is on fire")

        setattr(runner, place, fails)
        self.take(self.engine.step())
        # An overlapping engine has nothing to collect in its first step.
        vars(runner).pop(place, None)

    @invariant()
    def all_agrees(self) -> None:
        self.engine.scheduler.check_integrity()
        stats = self.engine.stats([])
        assert stats.running + stats.waiting == len(self.living)
        assert stats.active_blocks + stats.cached_blocks + stats.free_blocks == BLOCKS - 1
        assert 0 <= stats.used_slots <= stats.allocated_slots
        assert stats.prefix_hit_tokens_total <= stats.prefix_queried_tokens_total
        if not self.prefix_caching:
            assert (stats.cached_blocks, stats.prefix_queried_tokens_total) == (0, 0)

    def teardown(self) -> None:
        steps = 0
        while self.engine.busy:
            self.take(self.engine.step())
            steps += 1
            assert steps < 3000, "requests push each other out for ever"
        assert not self.living, "requests did not end"
        assert len(self.ended) == self.number
        scheduler = self.engine.scheduler
        scheduler.check_integrity()
        assert self.engine.stats([]).active_blocks == 0
        assert sorted(scheduler.table.free) == list(range(SLOTS))
        assert not scheduler._computing, "a prefix is still said to be computed"


class OverlappingEngine(EngineMachine):
    """The same, each step launched before the one before it is delivered."""

    overlaps = True


class UncachedEngine(EngineMachine):
    """The same without a prefix cache."""

    overlaps = True
    prefix_caching = False


SETTINGS = settings(max_examples=25, stateful_step_count=40, deadline=None)
TestEngine = EngineMachine.TestCase
TestEngine.settings = SETTINGS
TestOverlappingEngine = OverlappingEngine.TestCase
TestOverlappingEngine.settings = SETTINGS
TestUncachedEngine = UncachedEngine.TestCase
TestUncachedEngine.settings = settings(max_examples=12, stateful_step_count=40, deadline=None)
