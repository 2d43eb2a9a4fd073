"""The engine without its socket: requests in, messages out, one step at a time.

On a GPU the next step is planned and launched while one runs: `step` queues the model's work of step n + 1, delivers
the tokens of step n, then queues the sampling of step n + 1, for which all earlier tokens are known by then. A token
that a request no longer wants, because the one before ended it, is dropped. On a CPU each step is delivered at once.

Every request ends with exactly one Finished. An exception in a step ends that step's requests with `error` and nothing
else: the pool's integrity is checked and the engine goes on.
"""

from __future__ import annotations

import logging
import time
from collections import defaultdict
from collections.abc import Callable
from concurrent.futures import FIRST_COMPLETED, Future, wait
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from octavo_server.engine.cost import StepCost
from octavo_server.engine.digests import RecentChains
from octavo_server.engine.grammars import Grammars
from octavo_server.engine.messages import Abort, Finished, Message, Outputs, PlainOutputs, RequestOutput, Stats, Submit
from octavo_server.engine.plan import StepPlan
from octavo_server.engine.request import Request, make_request
from octavo_server.engine.runner import Flight, Runner, StepResult
from octavo_server.engine.scheduler import Scheduler

if TYPE_CHECKING:
    from llguidance import LLMatcher

log = logging.getLogger(__name__)

Ints = npt.NDArray[np.int64]
Addressed = tuple[int, Message]
"""A message and the number of the connection it goes to."""

_CPU_STEP_SECONDS = 0.2
_GPU_STEP_SECONDS = 0.025
"""Longest step while requests generate, where the configuration says nothing."""
_LEARNING_STEPS = 4
"""Of steps in which all rows generate, one in so many is learned from: they are many and alike."""
_COMPILING_PAUSE_SECONDS = 0.002
"""Longest wait for a grammar when there is nothing else to do; messages are read in between."""


@dataclass(frozen=True)
class StepTrace:
    """One step, for those who measure: its size, the device's time, and the host's by what it did.

    The host plans and launches the next step, waits for this one, delivers it and queues the next one's sampling.
    """

    tokens: int
    rows: int
    device_seconds: float
    plan_seconds: float
    launch_seconds: float
    wait_seconds: float
    deliver_seconds: float
    sample_seconds: float

    @property
    def host_seconds(self) -> float:
        """All but the wait."""
        return self.plan_seconds + self.launch_seconds + self.deliver_seconds + self.sample_seconds


class Engine:
    """Requests of all connections, keyed by (connection, request id)."""

    def __init__(
        self,
        runner: Runner,
        scheduler: Scheduler,
        *,
        max_length: int,
        vocabulary: int,
        grammars: Grammars | None = None,
        step_seconds: float = 0.0,
    ) -> None:
        """step_seconds: a step's predicted time while requests generate; 0 = by device, infinite = no limit."""
        self.scheduler = scheduler
        self._runner = runner
        self._grammars = grammars
        self._compiling: dict[int, tuple[Request, str, Future[LLMatcher]]] = {}
        self._max_length = max_length
        self._vocabulary = vocabulary
        self._requests: dict[int, Request] = {}
        self._chains = RecentChains(scheduler.limits.block_size)
        self._arrivals = 0
        self._steps = 0
        self._prompt_tokens = 0
        self._generated_tokens = 0
        self._shared_read_tokens = 0
        self._queue_seconds: list[float] = []
        usual = _GPU_STEP_SECONDS if runner.overlaps else _CPU_STEP_SECONDS
        self._step_seconds = step_seconds or usual
        self._cost = StepCost(self._step_seconds)
        self._flight: Flight | None = None
        self.observer: Callable[[StepTrace], None] | None = None
        """Is told of every delivered step."""
        self._times = [0.0] * 4
        self._failed: list[Addressed] = []

    def limit_steps(self, seconds: float) -> None:
        """Changes the predicted time of a step while requests generate; infinite = no limit."""
        self._step_seconds = seconds
        self._cost.limit_seconds = seconds

    @property
    def busy(self) -> bool:
        """Whether a step has something to do."""
        return bool(self._requests) or self._flight is not None

    def submit(self, connection: int, message: Submit) -> list[Addressed]:
        """Takes a request; a wrong one ends at once with `error` and a message that names the field."""
        if message.request_id in self._requests:
            reason = (
                f"request_id {message.request_id} belongs to a living request; ids are unique among living requests"
            )
            return [(connection, Finished(message.request_id, "error", reason))]
        try:
            request = make_request(
                message,
                connection=connection,
                arrival=self._arrivals,
                now_seconds=time.monotonic(),
                block_size=self.scheduler.limits.block_size,
                max_length=self._max_length,
                vocabulary=self._vocabulary,
                chains=self._chains,
            )
        except (ValueError, TypeError) as error:
            return [(connection, Finished(message.request_id, "error", str(error)))]
        if request.length == request.max_length:
            return [(connection, Finished(message.request_id, "length"))]
        if message.grammar and self._grammars is None:
            return [(connection, Finished(message.request_id, "error", "grammar: this engine takes none"))]
        self._arrivals += 1
        self._prompt_tokens += request.prompt_length
        self._requests[request.request_id] = request
        if message.grammar and self._grammars is not None:
            compiled = self._grammars.start(message.grammar)
            self._compiling[request.request_id] = (request, message.grammar, compiled)
            return self._begin(request.request_id) if compiled.done() else []
        self.scheduler.add(request)
        return []

    def abort(self, connection: int, message: Abort) -> list[Addressed]:
        """Ends a request of this connection; its cache entries past the kept tokens are withdrawn."""
        request = self._requests.get(message.request_id)
        if request is None or request.connection != connection:
            return []
        kept = max(0, min(message.kept_tokens, request.generated))
        if request.request_id not in self._compiling:
            self.scheduler.withdraw(request, request.prompt_length + kept)
        return [self._finish(request, Finished(request.request_id, "abort"))]

    def drop_connection(self, connection: int) -> None:
        """Ends all requests of a connection that is gone."""
        for request in [request for request in self._requests.values() if request.connection == connection]:
            self._finish(request, Finished(request.request_id, "abort"))

    def step(self) -> list[Addressed]:
        """Runs one step and returns its messages: at most one Outputs per connection, then what finished."""
        messages: list[Addressed] = []
        for number in [number for number, (_, _, compiled) in self._compiling.items() if compiled.done()]:
            messages += self._begin(number)
        return messages + self._compute()

    def _compute(self) -> list[Addressed]:
        launched = self._launch()
        messages = self._land()
        delivered = time.perf_counter()
        if launched is None:
            if not messages and self._flight is None and self._compiling:
                compiling = [compiled for _, _, compiled in self._compiling.values()]
                wait(compiling, _COMPILING_PAUSE_SECONDS, FIRST_COMPLETED)
            return messages
        try:
            self._runner.sample(launched)
        except Exception as error:  # noqa: BLE001 - whatever it is, only this step's requests may suffer
            self.scheduler.undo(launched.plan)
            return messages + self._fail(launched.plan, error)
        self._times[3] = time.perf_counter() - delivered
        self._flight = launched
        if not self._runner.overlaps:
            messages += self._land()
        return messages

    def _launch(self) -> Flight | None:
        """Plans a step and queues the model's work; None when there is nothing to compute or it failed."""
        begun = time.perf_counter()
        limited = self._step_seconds < float("inf")
        plan = self.scheduler.schedule(prompt_budget=self._prompt_budget if limited else None)
        if not len(plan):
            return None
        self._note_first_scheduling(plan, time.monotonic())
        planned = time.perf_counter()
        try:
            flight = self._runner.launch(plan)
        except Exception as error:  # noqa: BLE001 - as in _compute
            self._failed += self._fail(plan, error)
            return None
        self.scheduler.launched(plan)
        self._shared_read_tokens += flight.shared_read_tokens
        self._times[0], self._times[1] = planned - begun, time.perf_counter() - planned
        return flight

    def _prompt_budget(self, singles: int, cached: int, before: int) -> int:
        """Tokens of longer parts beside generating requests; as many as fill a graph, where one is near."""
        tokens = self._cost.budget(singles, cached, before)
        filled = self._runner.graphs.most_tokens(singles + tokens) - singles
        return filled if 2 * filled > tokens else tokens

    def _land(self) -> list[Addressed]:
        """Waits for the step in flight and delivers its tokens."""
        failed, self._failed = self._failed, []
        flight, self._flight = self._flight, None
        if flight is None:
            return failed
        begun = time.perf_counter()
        try:
            result = self._runner.collect(flight)
        except Exception as error:  # noqa: BLE001 - as in _compute
            self.scheduler.undo(flight.plan)
            return failed + self._fail(flight.plan, error)
        self._steps += 1
        waited = time.perf_counter()
        if flight.plan.singles < len(flight.plan) or self._steps % _LEARNING_STEPS == 0:
            self._cost.learn(flight.plan, result.seconds)
        messages = self._deliver(flight.plan, result)
        if self.observer is not None:
            plan, launch, _, sample = self._times
            deliver = time.perf_counter() - waited
            step = flight.plan
            self.observer(
                StepTrace(step.tokens, len(step), result.seconds, plan, launch, waited - begun, deliver, sample)
            )
        return failed + messages

    def take_queue_seconds(self) -> list[float]:
        """Times from arrival to first scheduling since the last call."""
        taken, self._queue_seconds = self._queue_seconds, []
        return taken

    def stats(self, queue_seconds: list[float]) -> Stats:
        """Gauges now and counters since the start, with the given queue times."""
        counts = self.scheduler.pool.counts()
        size = self.scheduler.limits.block_size
        return Stats(
            running=len(self.scheduler.running),
            waiting=len(self.scheduler.waiting) + len(self._compiling),
            active_blocks=counts.active,
            cached_blocks=counts.cached,
            free_blocks=counts.free,
            allocated_slots=counts.active * size,
            used_slots=self.scheduler.used_slots(),
            preemptions_total=self.scheduler.preemptions,
            prefix_queried_tokens_total=self.scheduler.queried_tokens,
            prefix_hit_tokens_total=self.scheduler.hit_tokens,
            prompt_tokens_total=self._prompt_tokens,
            generation_tokens_total=self._generated_tokens,
            steps_total=self._steps,
            queue_seconds=queue_seconds,
            prefix_evicted_blocks_total=self.scheduler.pool.evicted,
            shared_read_tokens_total=self._shared_read_tokens,
        )

    def _begin(self, request_id: int) -> list[Addressed]:
        """Hands a request whose grammar is compiled to the scheduler, or ends it."""
        request, text, compiled = self._compiling[request_id]
        assert self._grammars is not None
        try:
            grammar = self._grammars.begin(text, compiled)
        except Exception as error:
            log.exception("a grammar could not be compiled")
            return [self._finish(request, Finished(request_id, "error", f"grammar: {error}"))]
        grammar.accept(request.tokens[request.prompt_length : request.length].tolist())
        if grammar.error:
            return [self._finish(request, Finished(request_id, "grammar", grammar.error))]
        if grammar.complete:
            return [self._finish(request, Finished(request_id, "stop"))]
        request.grammar = grammar
        del self._compiling[request_id]
        self.scheduler.add(request)
        return []

    def _note_first_scheduling(self, plan: StepPlan, now_seconds: float) -> None:
        """Only requests that are new can be among the longer parts or among rows without a token on the device."""
        for row in np.flatnonzero(~plan.table.drawn[plan.slots]).tolist():
            request = plan.requests[row]
            if not request.scheduled_once:
                request.scheduled_once = True
                self._queue_seconds.append(now_seconds - request.arrived_seconds)

    def _deliver(self, plan: StepPlan, result: StepResult) -> list[Addressed]:
        """Appends a step's tokens to their requests, and says which of them end."""
        table = self.scheduler.table
        for row, entries in result.prompt_logprobs.items():
            first = int(plan.starts[row]) + 1
            plan.requests[row].prompt_logprobs[first : first + len(entries)] = entries
        rows = np.flatnonzero(plan.samples & plan.alive)
        slots, tokens = plan.slots[rows], result.tokens[rows]
        before = table.known[slots]
        table.append(slots, tokens)
        self._generated_tokens += len(rows)
        stopped = (tokens[:, None] == table.stops[slots]).any(axis=1) & (before >= table.stop_from[slots])
        full = before + 1 == table.limit[slots]
        single = table.silent[slots] | table.special[slots]
        table.silent[slots] = False
        others: dict[int, list[RequestOutput]] = defaultdict(list)
        for row in rows[single].tolist():
            request = plan.requests[row]
            others[request.connection].append(self._output(request, result, row))
        plain = slots, tokens
        if others:
            plain = slots[~single], tokens[~single]
        messages = self._outputs(*plain, others)
        for place in np.flatnonzero(stopped | full | table.special[slots]).tolist():
            request, token = plan.requests[int(rows[place])], int(tokens[place])
            late = int(before[place]) >= request.prompt_length + request.sampling.min_tokens
            stops = late and token in request.stop_ids
            end = self._end(request, token, stops=stops, full=bool(full[place]))
            if end is not None:
                messages.append(self._finish(request, end))
        # Only now: a step in flight may have filled the block of a request that ended with its last token.
        self.scheduler.collected(plan)
        return messages

    def _outputs(self, slots: Ints, tokens: Ints, others: dict[int, list[RequestOutput]]) -> list[Addressed]:
        """One Outputs per connection: plain tokens as arrays, the others one by one."""
        table = self.scheduler.table
        connections = table.connection[slots]
        messages: list[Addressed] = []
        if not others and len(connections) and (connections == connections[0]).all():
            plain = PlainOutputs(table.request_id[slots], tokens, [])
            return [(int(connections[0]), Outputs(plain))]
        for connection in sorted({*np.unique(connections).tolist(), *others}):
            mine = connections == connection
            plain = PlainOutputs(table.request_id[slots[mine]], tokens[mine], others.get(connection, []))
            messages.append((connection, Outputs(plain)))
        return messages

    def _output(self, request: Request, result: StepResult, row: int) -> RequestOutput:
        asked = request.sampling.logprobs >= 0
        first = not request.first_output_sent
        request.first_output_sent = True
        wants_prompt = first and request.sampling.prompt_logprobs >= 0
        return RequestOutput(
            request.request_id,
            [int(result.tokens[row])],
            [result.logprobs[row]] if asked else [],
            list(request.prompt_logprobs) if wants_prompt else None,
            request.cached_tokens if first else -1,
        )

    def _end(self, request: Request, token: int, *, stops: bool, full: bool) -> Finished | None:
        """How a request ends with this token, or None."""
        number, grammar = request.request_id, request.grammar
        if grammar is not None:
            grammar.accept([token])
            if grammar.error:
                grammar.owner.forget(grammar.text)
                return Finished(number, "grammar", grammar.error)
        if stops:
            return Finished(number, "stop", "", token)
        if grammar is not None and grammar.complete:
            return Finished(number, "stop")
        return Finished(number, "length") if full else None

    def _finish(self, request: Request, message: Finished) -> Addressed:
        if self._compiling.pop(request.request_id, None) is None:
            self.scheduler.remove(request)
        del self._requests[request.request_id]
        return (request.connection, message)

    def _fail(self, plan: StepPlan, error: Exception) -> list[Addressed]:
        """Ends the requests of a failed step; nothing they wrote in it stays in the prefix cache."""
        log.exception("a step failed; its requests end with an error")
        text = f"the engine failed on this request's step: {type(error).__name__}: {error}"
        living = [plan.requests[row] for row in np.flatnonzero(plan.alive).tolist()]
        messages = [self._finish(request, Finished(request.request_id, "error", text)) for request in living]
        self.scheduler.check_integrity()
        return messages
