"""The engine without its socket: requests in, messages out, one step at a time.

Every request ends with exactly one Finished. An exception in a step ends that step's requests with `error` and nothing
else: the pool's integrity is checked and the engine goes on.
"""

from __future__ import annotations

import logging
import time
from collections import defaultdict
from collections.abc import Iterable
from concurrent.futures import FIRST_COMPLETED, Future, wait

from llguidance import LLMatcher

from octavo_server.engine.grammars import Grammars
from octavo_server.engine.messages import Abort, Finished, Message, Outputs, RequestOutput, Stats, Submit
from octavo_server.engine.request import Request, make_request
from octavo_server.engine.runner import Runner, StepResult
from octavo_server.engine.scheduler import Part, Scheduler

log = logging.getLogger(__name__)

Addressed = tuple[int, Message]
"""A message and the number of the connection it goes to."""

_LONG_PARTS_SECONDS = 0.2
"""Time that prompt parts may add to a step while other requests generate."""
_FIRST_LONG_PARTS_TOKENS = 256
_COMPILING_PAUSE_SECONDS = 0.002
"""Longest wait for a grammar when there is nothing else to do; messages are read in between."""


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
    ) -> None:
        self.scheduler = scheduler
        self._runner = runner
        self._grammars = grammars
        self._compiling: dict[int, tuple[Request, str, Future[LLMatcher]]] = {}
        self._max_length = max_length
        self._vocabulary = vocabulary
        self._requests: dict[int, Request] = {}
        self._arrivals = 0
        self._steps = 0
        self._prompt_tokens = 0
        self._generated_tokens = 0
        self._queue_seconds: list[float] = []
        self._long_parts_tokens_per_second = 0.0

    @property
    def busy(self) -> bool:
        """Whether a step has something to do."""
        return bool(self._requests)

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
        started = time.monotonic()
        parts = self.scheduler.schedule(long_parts_budget=self._long_parts_budget())
        if not parts:
            compiling = [compiled for _, _, compiled in self._compiling.values()]
            wait(compiling, _COMPILING_PAUSE_SECONDS, FIRST_COMPLETED)
            return []
        self._note_first_scheduling(parts, started)
        try:
            result = self._runner.step(parts)
        except Exception as error:  # noqa: BLE001 - whatever it is, only this step's requests may suffer
            return self._fail(parts, error)
        self._steps += 1
        self._learn_speed(parts, time.monotonic() - started)
        self.scheduler.complete(parts)
        return self._deliver(parts, result)

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
            used_slots=self._used_slots(),
            preemptions_total=self.scheduler.preemptions,
            prefix_queried_tokens_total=self.scheduler.queried_tokens,
            prefix_hit_tokens_total=self.scheduler.hit_tokens,
            prompt_tokens_total=self._prompt_tokens,
            generation_tokens_total=self._generated_tokens,
            steps_total=self._steps,
            queue_seconds=queue_seconds,
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
            return [self._finish(request, Finished(request_id, "error", f"grammar: {grammar.error}"))]
        if grammar.complete:
            return [self._finish(request, Finished(request_id, "stop"))]
        request.grammar = grammar
        del self._compiling[request_id]
        self.scheduler.add(request)
        return []

    def _used_slots(self) -> int:
        """Token slots of active blocks that hold a token; shared blocks counted once."""
        size = self.scheduler.limits.block_size
        filled: dict[int, int] = {}
        for request in self.scheduler.running:
            for index, block in enumerate(request.blocks):
                here = min(max(request.computed - index * size, 0), size)
                filled[block] = max(filled.get(block, 0), here)
        return sum(filled.values())

    def _long_parts_budget(self) -> int:
        speed = self._long_parts_tokens_per_second
        return max(16, int(speed * _LONG_PARTS_SECONDS)) if speed else _FIRST_LONG_PARTS_TOKENS

    def _learn_speed(self, parts: list[Part], seconds: float) -> None:
        """Keeps a moving average of tokens per second over steps that are mostly prompt."""
        tokens = sum(part.count for part in parts)
        if tokens >= 64 and tokens > 4 * len(parts) and seconds > 0:
            old = self._long_parts_tokens_per_second
            speed = tokens / seconds
            self._long_parts_tokens_per_second = speed if not old else 0.8 * old + 0.2 * speed

    def _note_first_scheduling(self, parts: list[Part], now_seconds: float) -> None:
        for part in parts:
            if not part.request.scheduled_once:
                part.request.scheduled_once = True
                self._queue_seconds.append(now_seconds - part.request.arrived_seconds)

    def _deliver(self, parts: list[Part], result: StepResult) -> list[Addressed]:
        outputs: dict[int, list[RequestOutput]] = defaultdict(list)
        finished: list[Addressed] = []
        for index, part in enumerate(parts):
            request = part.request
            if index in result.prompt_logprobs:
                entries = result.prompt_logprobs[index]
                request.prompt_logprobs[part.start + 1 : part.start + 1 + len(entries)] = entries
            if not part.samples:
                continue
            token = result.tokens[index]
            stopped = token in request.stop_ids and request.generated >= request.sampling.min_tokens
            request.append(token)
            self._generated_tokens += 1
            asked = request.sampling.logprobs >= 0
            first = not request.first_output_sent
            request.first_output_sent = True
            wants_prompt = first and request.sampling.prompt_logprobs >= 0
            outputs[request.connection].append(
                RequestOutput(
                    request.request_id,
                    [token],
                    [result.logprobs[index]] if asked else [],
                    list(request.prompt_logprobs) if wants_prompt else None,
                    request.cached_tokens if first else -1,
                )
            )
            if request.grammar is not None:
                request.grammar.accept([token])
            if request.grammar is not None and request.grammar.error:
                request.grammar.owner.forget(request.grammar.text)
                reason = f"grammar: {request.grammar.error}"
                finished.append(self._finish(request, Finished(request.request_id, "error", reason)))
            elif stopped:
                finished.append(self._finish(request, Finished(request.request_id, "stop", "", token)))
            elif request.grammar is not None and request.grammar.complete:
                finished.append(self._finish(request, Finished(request.request_id, "stop")))
            elif request.length == request.max_length:
                finished.append(self._finish(request, Finished(request.request_id, "length")))
        return [*((connection, Outputs(items)) for connection, items in outputs.items()), *finished]

    def _finish(self, request: Request, message: Finished) -> Addressed:
        if self._compiling.pop(request.request_id, None) is None:
            self.scheduler.remove(request)
        del self._requests[request.request_id]
        return (request.connection, message)

    def _fail(self, parts: Iterable[Part], error: Exception) -> list[Addressed]:
        """Ends the requests of a failed step; nothing they wrote in it was offered to the prefix cache."""
        log.exception("a step failed; its requests end with an error")
        text = f"the engine failed on this request's step: {type(error).__name__}: {error}"
        messages = [self._finish(part.request, Finished(part.request.request_id, "error", text)) for part in parts]
        self.scheduler.check_integrity()
        return messages
