"""The choices of one HTTP request: submitted together, read together, ended together."""

from __future__ import annotations

import asyncio
import time
from array import array
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, replace

from octavo_server.api.choice import Choice, Delta
from octavo_server.api.client import EngineClient
from octavo_server.api.errors import ApiError, bad_field
from octavo_server.api.state import ServerState
from octavo_server.engine.digests import digest_seed, digests
from octavo_server.engine.messages import SamplingParams, Submit
from octavo_server.metrics import Metrics
from octavo_server.text.detokenizer import Detokenizer, unfinished_tail
from octavo_server.text.grammar_check import reason
from octavo_server.text.stops import StopMatcher

_LARGE_TOKENS = 4096
_TAIL_TOKENS = 8
_LONGEST_RETRY_SECONDS = 60


@dataclass(frozen=True)
class PromptJob:
    """One prompt of the request and what is wanted of it."""

    token_ids: list[int]
    sampling: SamplingParams
    max_new_tokens: int
    grammar: str = ""
    """What the answer must fit; empty = nothing."""
    grammar_field: str = ""
    """The field that asked for it."""
    hidden: bool = False
    """The prompt alone is asked for; the one token that is made is not shown."""


class Generation:
    """`start`, then `stream` or `collect`, and `close` in any case."""

    def __init__(
        self,
        state: ServerState,
        name: str,
        jobs: Sequence[PromptJob],
        *,
        n: int,
        stops: Sequence[str],
        priority: int = 0,
        cache_salt: str = "",
        piece: Callable[[int], bytes] | None = None,
        include_stop: bool = False,
        streams: bool = False,
        logged_name: str = "",
    ) -> None:
        self._state = state
        self._logged_name = logged_name or name
        self._streams = streams
        self._name = name
        self._news = asyncio.Event()
        self._ids: dict[int, int] = {}
        self._stops = stops
        self._priority = priority
        self._salt = cache_salt
        self._n = n
        self._piece = piece
        self._include_stop = include_stop
        self.jobs = list(jobs)
        self.choices: list[Choice] = []
        self._expired = False

    async def start(self) -> None:
        """Submits every choice. Raises the 400 for a request_id that is in use."""
        if self._name in self._state.living_names:
            raise bad_field("request_id", f"{self._name!r} belongs to a request that still runs; choose another")
        self._check_queue()
        self._state.living_names.add(self._name)
        try:
            for job in self.jobs:
                await self._submit(job)
        except BaseException:
            self.close()
            raise

    def _check_queue(self) -> None:
        """Raises the 429 when too many wait already."""
        limit, client = self._state.config.api.max_queued, self._state.client
        queued = int(self._state.metrics.queued.total)
        if limit and queued + len(self.jobs) * self._n > limit and queued:
            error = ApiError(
                429, f"{queued} choices wait for their first token, the limit is {limit}; try again later",
                code="queue_full",
            )  # fmt: skip
            wait = client.wait_seconds(time.monotonic())
            error.retry_after_seconds = min(max(1, round(wait)), _LONGEST_RETRY_SECONDS)
            raise error

    def close(self) -> None:
        """Aborts what has no end yet; safe to call more than once."""
        for choice in self.choices:
            if not choice.finished:
                choice.finished = True
                self._state.client.abort(self._ids[choice.index], choice.completion_tokens)
                self._state.metrics.finished["abort"].inc()
        self._state.living_names.discard(self._name)

    async def stream(self) -> AsyncIterator[list[tuple[Choice, Delta]]]:
        """News of the choices, as much as there is each time, until every one has ended.

        Raises the error of a choice that failed, and the 504 at the limit of time.
        """
        open_choices = list(self.choices)
        seconds = self._state.config.api.request_timeout_seconds
        timer = asyncio.get_running_loop().call_later(seconds, self._expire) if seconds else None
        try:
            while open_choices:
                await self._news.wait()
                self._news.clear()
                news = [(choice, delta) for choice in open_choices if (delta := choice.take())]
                ended = [delta for _, delta in news if delta.finish_reason is not None]
                failed = next((delta for delta in ended if delta.finish_reason == "error"), None)
                if failed is not None and failed.wrong_grammar:
                    message = f"the answer can't go on in this form ({reason(failed.error)}); simplify it"
                    raise bad_field(self.jobs[0].grammar_field, message)
                if failed is not None:
                    raise ApiError(503 if self._state.draining else 500, failed.error, code="engine_error")
                if self._expired:
                    raise ApiError(504, f"not done within {seconds:g} s, the limit of this server", code="timeout")
                if ended:
                    done = {choice.index for choice, delta in news if delta.finish_reason is not None}
                    open_choices = [choice for choice in open_choices if choice.index not in done]
                if news:
                    yield news
        finally:
            if timer is not None:
                timer.cancel()

    def _expire(self) -> None:
        self._expired = True
        self._news.set()

    async def collect(self) -> list[Delta]:
        """The whole of each choice, in order."""
        whole = [Delta() for _ in self.choices]
        async for news in self.stream():
            for choice, delta in news:
                target = whole[choice.index]
                target.text += delta.text
                target.entries += delta.entries
                target.finish_reason = delta.finish_reason
        return whole

    def usage(self) -> dict[str, object]:
        """OpenAI's usage object. A prompt counts once, however many choices share it."""
        prompt = sum(len(job.token_ids) for job in self.jobs)
        completion = sum(choice.completion_tokens for choice in self.choices)
        cached = sum(choice.cached_tokens for choice in self.choices[:: self._n])
        return {
            "prompt_tokens": prompt,
            "completion_tokens": completion,
            "total_tokens": prompt + completion,
            "prompt_tokens_details": {"cached_tokens": cached},
        }

    async def _submit(self, job: PromptJob) -> None:
        tokenizer, ready = self._state.serving()
        prompt = array("i", job.token_ids).tobytes()
        seed = digest_seed(salt=self._salt)
        chain: list[bytes] = []
        if self._state.config.engine.cache.prefix_caching:
            if len(job.token_ids) > _LARGE_TOKENS:
                chain = await asyncio.to_thread(digests, prompt, ready.block_size_tokens, seed)
            else:
                chain = digests(prompt, ready.block_size_tokens, seed)
        pending = unfinished_tail(b"".join(map(tokenizer.text_bytes, job.token_ids[-_TAIL_TOKENS:])))
        for choice_index in range(self._n):
            index = len(self.choices)
            choice = Choice(
                index,
                Detokenizer(self._piece or tokenizer.text_bytes, pending=pending),
                StopMatcher(self._stops, include=self._include_stop, after=job.sampling.min_tokens),
                job.sampling.stop_token_ids,
                news=self._news,
                abort=_abort(self._state.client, self._ids, index),
                observer=_Observer(self._state.metrics, len(job.token_ids)),
                max_unread_bytes=self._state.config.api.max_unread_bytes if self._streams else 0,
                hidden=job.hidden,
            )
            self.choices.append(choice)
            submit = Submit(
                request_id=0,
                prompt_token_ids=prompt,
                sampling=replace(job.sampling, choice_index=choice_index),
                max_new_tokens=job.max_new_tokens,
                block_digests=chain,
                digest_seed=seed,
                priority=self._priority,
                grammar=job.grammar,
            )
            self._ids[index] = self._state.client.submit(submit, choice, self._logged_name)


def _abort(client: EngineClient, ids: dict[int, int], index: int) -> Callable[[int], None]:
    """Ends one choice. It holds no Generation, which holds the choice: a circle would stay until the collector comes,
    and where thousands of requests end, its work is what stops the event loop longest."""
    return lambda kept: client.abort(ids[index], kept)


class _Observer:
    """Feeds the metrics of one choice."""

    def __init__(self, metrics: Metrics, prompt_tokens: int) -> None:
        self._metrics = metrics
        self._prompt_tokens = prompt_tokens
        self._arrival = time.perf_counter()
        self._last: float | None = None
        metrics.received.inc()

    def new_tokens(self, count: int) -> None:
        if count == 0:
            return
        now = time.perf_counter()
        self._metrics.generation_tokens.inc(count)
        if self._last is None:
            self._metrics.time_to_first_token.observe(now - self._arrival)
            self._metrics.prompt_tokens.inc(self._prompt_tokens)
        else:
            self._metrics.inter_token_latency.observe((now - self._last) / count)
        self._last = now

    def ended(self, reason: str) -> None:
        self._metrics.finished[reason].inc()
        self._metrics.duration.observe(time.perf_counter() - self._arrival)
