"""One answer while it grows: tokens to text, stop strings, log-probabilities, and what its reader hasn't taken yet.

The engine's side (`on_output`, `on_finished`) never waits: text piles up, merged, until the client's connection takes
it. So a slow client costs memory of its own answer, up to a limit at which the answer ends with an error, and delays
nobody else.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Protocol

from octavo_server.engine.messages import RequestOutput, TokenLogprobs
from octavo_server.text.detokenizer import Detokenizer
from octavo_server.text.stops import StopMatcher


@dataclass(frozen=True)
class TokenEntry:
    """Log-probabilities of one token and where its text begins in the answer, in characters."""

    logprobs: TokenLogprobs
    offset: int


_ENTRY_BYTES = 512
"""About what the log-probabilities of one token take."""


@dataclass(slots=True)
class Delta:
    """What is new since the last one. `finish_reason` is set in the last: stop, length or error."""

    text: str = ""
    entries: list[TokenEntry] = field(default_factory=list)
    finish_reason: str | None = None
    error: str = ""
    wrong_grammar: bool = False
    """The error is that of the form which the request asked for."""

    def __bool__(self) -> bool:
        return bool(self.text or self.entries or self.finish_reason)


class Observer(Protocol):
    """Counts and times a choice."""

    def new_tokens(self, count: int) -> None:
        """Tokens of one step arrived."""

    def ended(self, reason: str) -> None:
        """The choice is over."""


class Choice:
    """Sink of one engine request.

    `abort` is called with the number of tokens that count when a stop string is found; `news` is set when there is
    something to take (choices of one request share it).
    """

    def __init__(
        self,
        index: int,
        detokenizer: Detokenizer,
        stops: StopMatcher,
        stop_token_ids: Iterable[int],
        *,
        news: asyncio.Event,
        abort: Callable[[int], None],
        observer: Observer,
        max_unread_bytes: int = 0,
        hidden: bool = False,
    ) -> None:
        self.index = index
        self.prompt_logprobs: list[TokenLogprobs | None] | None = None
        self.cached_tokens = 0
        self.completion_tokens = 0
        self.finished = False
        self._detokenizer = detokenizer
        self._stops = stops
        self._stop_token_ids = frozenset(stop_token_ids)
        self._abort = abort
        self._observer = observer
        self._delta = Delta()
        self._news = news
        self._entries: deque[tuple[int, TokenEntry]] = deque()
        self._decoded = 0
        self._released = 0
        self._max_unread = max_unread_bytes
        self._hidden = hidden
        """Nothing of the answer counts or is shown: the prompt alone was asked for."""

    def on_output(self, output: RequestOutput) -> None:
        """Takes the tokens of one step."""
        if output.cached_tokens >= 0:
            self.cached_tokens = output.cached_tokens
        if output.prompt_logprobs is not None:
            self.prompt_logprobs = output.prompt_logprobs
        self._observer.new_tokens(len(output.token_ids))
        if self._hidden:
            return
        if self._stops.none and not output.logprobs:
            self._add_plain(output.token_ids)
        else:
            for position, token_id in enumerate(output.token_ids):
                if self.finished:
                    break
                self._add_token(token_id, output.logprobs[position] if output.logprobs else None)
        if self._max_unread and not self.finished and self._unread() > self._max_unread:
            self._end("error", f"the client left more than {self._max_unread} bytes of this answer unread")
            self._abort(self.completion_tokens)
        self._news.set()

    def on_finished(self, reason: str, message: str) -> None:
        """Takes the end. What was held back as a possible stop string belongs to the answer after all."""
        if self.finished:
            return
        if self._hidden and reason == "stop":
            reason = "length"
        if reason in ("stop", "length"):
            self._release(self._stops.flush(), whole=True)
        self._delta.wrong_grammar = reason == "grammar"
        self._end("error" if reason in ("abort", "grammar") else reason, message or "the engine ended this request")

    def take(self) -> Delta:
        """What is there now, perhaps nothing."""
        delta, self._delta = self._delta, Delta()
        return delta

    def _unread(self) -> int:
        return len(self._delta.text) + _ENTRY_BYTES * len(self._delta.entries)

    def _add_plain(self, token_ids: list[int]) -> None:
        """The short way, where text can be sent as it comes."""
        if self.finished:
            return
        for token_id in token_ids:
            self.completion_tokens += 1
            if token_id not in self._stop_token_ids:
                self._delta.text += self._detokenizer.feed(token_id)

    def _add_token(self, token_id: int, logprobs: TokenLogprobs | None) -> None:
        self.completion_tokens += 1
        begin = self._decoded
        text = "" if token_id in self._stop_token_ids else self._detokenizer.feed(token_id)
        self._decoded += len(text)
        if logprobs is not None and token_id not in self._stop_token_ids:
            self._entries.append((self._decoded, TokenEntry(logprobs, begin)))
        match = self._stops.feed(text)
        self._release(match.text)
        if match.stop is not None:
            while self._entries and self._entries[0][1].offset < self._released:
                self._delta.entries.append(self._entries.popleft()[1])
            self._end("stop", "")
            self._abort(self.completion_tokens)

    def _release(self, text: str, *, whole: bool = False) -> None:
        """Text may be sent, and with it the log-probabilities of tokens whose text is out."""
        self._delta.text += text
        self._released += len(text)
        while self._entries and (whole or self._entries[0][0] <= self._released):
            self._delta.entries.append(self._entries.popleft()[1])

    def _end(self, reason: str, message: str) -> None:
        self.finished = True
        self._delta.finish_reason = reason
        self._delta.error = message
        self._observer.ended(reason)
        self._news.set()
