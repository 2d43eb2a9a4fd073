"""The scheduler with any traffic on a tiny pool: integrity after each step, progress always, order kept."""

from __future__ import annotations

import struct

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from octavo_server.engine.blocks import BlockPool
from octavo_server.engine.messages import SamplingParams, Submit
from octavo_server.engine.plan import Part, StepPlan
from octavo_server.engine.request import Request, make_request
from octavo_server.engine.scheduler import PROMPT_LOGPROB_ROWS, Scheduler, SchedulerLimits

VOCABULARY = 5


class Traffic:
    """A scheduler and a model that 'generates' the sum of the known tokens, modulo the vocabulary."""

    def __init__(
        self, *, blocks: int = 7, block_size: int = 4, budget: int = 8, sequences: int = 3, overlaps: bool = False
    ) -> None:
        self.overlaps = overlaps
        self.flight: StepPlan | None = None
        self.scheduler = Scheduler(BlockPool(blocks), SchedulerLimits(budget, sequences, block_size))
        self.capacity = (blocks - 1) * block_size
        self.living: list[Request] = []
        self.done: list[Request] = []
        self.arrivals = 0

    def submit(self, prompt: list[int], new_tokens: int, *, priority: int = 0, prompt_logprobs: int = -1) -> Request:
        submit = Submit(
            request_id=self.arrivals,
            prompt_token_ids=struct.pack(f"<{len(prompt)}i", *prompt),
            sampling=SamplingParams(prompt_logprobs=prompt_logprobs),
            max_new_tokens=new_tokens,
            priority=priority,
        )
        request = make_request(
            submit,
            connection=0,
            arrival=self.arrivals,
            now_seconds=0.0,
            block_size=self.scheduler.limits.block_size,
            max_length=self.capacity,
            vocabulary=VOCABULARY,
        )
        self.arrivals += 1
        self.living.append(request)
        self.scheduler.add(request)
        return request

    def step(self, prompt_budget: int | None = None) -> list[Part]:
        """Plans and launches a step, then collects the one before it, or this one as well when steps do not overlap."""
        plan = self.scheduler.schedule(prompt_budget=prompt_budget)
        parts = list(plan)
        assert plan.tokens == sum(part.count for part in parts) <= self.scheduler.limits.max_batched_tokens
        assert len({part.request.request_id for part in parts}) == len(parts)
        for part in parts:
            assert part.count > 0
            assert part.start == part.request.computed
        self.scheduler.launched(plan)
        self.scheduler.check_integrity()
        flights = [self.flight, plan if len(parts) else None]
        self.flight = flights.pop() if self.overlaps else None
        for flight in flights:
            if flight is not None:
                self.collect(flight)
        return parts

    def collect(self, plan: StepPlan) -> None:
        for part, alive in zip(plan, plan.alive.tolist(), strict=True):
            if part.samples and alive:
                known = part.request.tokens[: part.request.length]
                self.scheduler.table.append(np.array([part.request.slot]), np.array([int(known.sum()) % VOCABULARY]))
        self.scheduler.collected(plan)
        for part, alive in zip(plan, plan.alive.tolist(), strict=True):
            if part.samples and alive and part.request.length == part.request.max_length:
                self.remove(part.request)
                self.done.append(part.request)
        self.scheduler.check_integrity()

    def remove(self, request: Request) -> None:
        self.scheduler.remove(request)
        self.living.remove(request)


class SchedulerMachine(RuleBasedStateMachine):
    """Submits, steps and aborts in any order on a pool of six blocks."""

    overlaps = False

    def __init__(self) -> None:
        super().__init__()
        self.traffic = Traffic(overlaps=self.overlaps)

    @rule(
        prompt=st.lists(st.integers(0, 1), min_size=1, max_size=20),
        new_tokens=st.integers(1, 30),
        priority=st.integers(0, 1),
        prompt_logprobs=st.sampled_from([-1, -1, 0]),
    )
    def submit(self, prompt: list[int], new_tokens: int, priority: int, prompt_logprobs: int) -> None:
        self.traffic.submit(prompt, new_tokens, priority=priority, prompt_logprobs=prompt_logprobs)

    @precondition(lambda self: self.traffic.living)
    @rule(budget=st.sampled_from([None, 1, 3]))
    def step(self, budget: int | None) -> None:
        collects = self.traffic.flight is not None
        assert self.traffic.step(budget) or collects, "requests live and nothing was scheduled or collected"

    @precondition(lambda self: self.traffic.living)
    @rule(data=st.data())
    def abort(self, data: st.DataObject) -> None:
        request = data.draw(st.sampled_from(self.traffic.living))
        kept = data.draw(st.integers(0, request.generated))
        self.traffic.scheduler.withdraw(request, request.prompt_length + kept)
        self.traffic.remove(request)

    @invariant()
    def all_agrees(self) -> None:
        self.traffic.scheduler.check_integrity()

    def teardown(self) -> None:
        owed = sum(request.max_length for request in self.traffic.living)
        for _ in range(8 * owed + 2):
            if not self.traffic.living:
                break
            self.traffic.step()
        assert not self.traffic.living, "requests did not end"
        assert self.traffic.scheduler.pool.counts().active == 0


class OverlappingMachine(SchedulerMachine):
    """The same, each step planned before the tokens of the one before it are known."""

    overlaps = True


TestSchedulerMachine = SchedulerMachine.TestCase
TestSchedulerMachine.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
TestOverlappingMachine = OverlappingMachine.TestCase
TestOverlappingMachine.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)


@settings(max_examples=40, deadline=None)
@given(
    blocks=st.integers(3, 6),
    jobs=st.lists(st.tuples(st.integers(1, 12), st.integers(1, 12)), min_size=2, max_size=6),
    overlaps=st.booleans(),
)
def test_a_pool_of_very_few_blocks_always_makes_progress(
    blocks: int, jobs: list[tuple[int, int]], overlaps: bool
) -> None:
    traffic = Traffic(blocks=blocks, block_size=4, budget=4, sequences=4, overlaps=overlaps)
    jobs = [(min(prompt, traffic.capacity - 1), new) for prompt, new in jobs]
    for number, (prompt, new) in enumerate(jobs):
        traffic.submit([number % VOCABULARY] * prompt, new)
    # Each request recomputes at most its own length per block another one grows by.
    limit = 2 * sum(prompt + new for prompt, new in jobs) * (len(jobs) + 1)
    steps = 0
    while traffic.living:
        traffic.step()
        steps += 1
        assert steps <= limit, "requests push each other out for ever"
    assert len(traffic.done) == len(jobs)


@pytest.mark.parametrize("overlaps", [False, True])
def test_preemption_changes_no_token_and_the_preempted_request_is_the_next_to_run(overlaps: bool) -> None:
    alone = Traffic(blocks=20)
    expected = [alone.submit([number], 18) for number in (1, 2)]
    while alone.living:
        alone.step()
    assert alone.scheduler.preemptions == 0
    tight = Traffic(blocks=7, overlaps=overlaps)
    first, second = tight.submit([1], 18), tight.submit([2], 18)
    late = tight.submit([3], 1)
    while tight.scheduler.preemptions == 0:
        tight.step()
    assert second in tight.scheduler.waiting
    assert tight.scheduler.waiting[0] is second or late in tight.done
    while tight.living:
        tight.step()
    for request, same in zip((first, second), expected, strict=True):
        assert request.tokens.tolist() == same.tokens.tolist()


def test_a_lower_priority_number_runs_first() -> None:
    traffic = Traffic(sequences=1)
    traffic.submit([1], 2)
    plain, urgent = traffic.submit([1], 2, priority=1), traffic.submit([1], 2)
    while traffic.living:
        traffic.step()
    assert traffic.done.index(urgent) < traffic.done.index(plain)


def test_generation_goes_on_while_a_long_prompt_is_computed_in_chunks() -> None:
    traffic = Traffic(blocks=40, budget=8)
    generating = traffic.submit([1], 30)
    traffic.step()
    long = traffic.submit([2] * 40, 1)
    lengths = []
    while long.computed < 39 and long in traffic.living:
        traffic.step(prompt_budget=5)
        lengths.append(generating.length)
    assert len(lengths) >= 8
    assert lengths == list(range(lengths[0], lengths[0] + len(lengths)))


def test_the_last_token_is_always_computed_again_and_hits_are_whole_blocks() -> None:
    traffic = Traffic(blocks=40, budget=64)
    traffic.submit([1] * 16, 1)
    traffic.step()
    again, longer = traffic.submit([1] * 16, 1), traffic.submit([1] * 17, 1)
    traffic.step()
    assert again.cached_tokens == 12
    assert longer.cached_tokens == 16
    assert (traffic.scheduler.queried_tokens, traffic.scheduler.hit_tokens) == (16 + 16 + 17, 12 + 16)


def test_tokens_past_the_kept_length_are_not_found_again() -> None:
    traffic = Traffic(blocks=40, budget=64)
    request = traffic.submit([1] * 8, 20)
    for _ in range(10):
        traffic.step()
    traffic.scheduler.withdraw(request, 8 + 2)
    prefix = request.tokens[: request.computed].tolist()
    traffic.remove(request)
    again = traffic.submit(prefix, 1)
    traffic.step()
    assert again.cached_tokens == 8


def test_prompt_logprobs_are_computed_in_bounded_parts_without_the_cache() -> None:
    traffic = Traffic(blocks=2 * PROMPT_LOGPROB_ROWS, budget=4 * PROMPT_LOGPROB_ROWS)
    prompt = [1] * (PROMPT_LOGPROB_ROWS + 10)
    traffic.submit(prompt, 1)
    traffic.step()
    request = traffic.submit(prompt, 2, prompt_logprobs=0)
    counts = [part.count for _ in range(2) for part in traffic.step()]
    assert counts == [PROMPT_LOGPROB_ROWS, 10]
    assert request.cached_tokens == 0
