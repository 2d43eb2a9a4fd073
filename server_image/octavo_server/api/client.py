"""Requests on their way through the engine: who waits for which id, and what to send again after a restart.

The engine owns every request; this side remembers what it sent and what came back, so that a new engine process can
take a request up where the old one lost it.

One of the requests that an engine held when it crashed may be what crashed it, and nobody knows which. So they are not
all sent again at once: first one, and once it has a token two, then four, and so on. If the engine crashes once more,
those of the group that had no token yet are failed; the others go on, and most never met the second crash.
"""

from __future__ import annotations

import logging
import time
from array import array
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Protocol

from octavo_server.engine.messages import Abort, Finished, Message, Outputs, RequestOutput, SamplingParams, Submit

_LOG = logging.getLogger("octavo.engine")
_STARTS_REMEMBERED = 64
CRASHES_PER_REQUEST = 2
"""A request that was with the engine in that many crashes may be what causes them: it is failed, not sent again. One
that had a token before the last of them gets one crash more, if another had none."""


class Sink(Protocol):
    """Receives what the engine says about one request. Called on the event loop; must not block."""

    def on_output(self, output: RequestOutput) -> None:
        """New tokens. May abort the request."""

    def on_finished(self, reason: str, message: str) -> None:
        """The request is over (`stop`, `length`, `abort`, `error`, `grammar`); nothing comes after it."""


@dataclass
class _Living:
    submit: Submit
    sink: Sink
    name: str
    received: array[int] = field(default_factory=lambda: array("i"))
    prompt_logprobs_received: bool = False
    sent: bool = False
    started: bool = False
    crashes: int = 0

    @property
    def request_id(self) -> int:
        return self.submit.request_id


class EngineClient:
    """The table of living requests of one API process."""

    def __init__(self, process_number: int = 0, on_count: Callable[[int, int], None] = lambda living, queued: None):
        # A process that was started again must not meet ids that its predecessor's last requests still have.
        self._next_id = (process_number << 48) + (time.time_ns() // 1000 % (1 << 40) if process_number else 0)
        self._on_count = on_count
        self._suspects: deque[_Living] = deque()
        self._unproven: set[int] = set()
        self._group = 1
        self._living: dict[int, _Living] = {}
        self._send: Callable[[Message], None] | None = None
        self._starts: deque[float] = deque(maxlen=_STARTS_REMEMBERED)
        self._started = 0

    @property
    def living(self) -> int:
        """Requests that have no end yet."""
        return len(self._living)

    @property
    def queued(self) -> int:
        """Requests that have no token yet."""
        return len(self._living) - self._started

    def wait_seconds(self, now: float) -> float:
        """How long a request that came now would wait for its first token, as the last ones did; 1 if none did."""
        if len(self._starts) < 2:
            return 1.0
        return self.queued * (now - self._starts[0]) / len(self._starts)

    def submit(self, submit: Submit, sink: Sink, name: str) -> int:
        """Sends a request, or keeps it until the engine is there; returns its id."""
        self._next_id += 1
        submit = replace(submit, request_id=self._next_id)
        entry = self._living[self._next_id] = _Living(submit, sink, name)
        self._on_count(self.living, self.queued)
        self._transmit(entry)
        return self._next_id

    def abort(self, request_id: int, kept_tokens: int) -> None:
        """Forgets a request and tells the engine; its sink hears nothing more. Unknown ids are fine."""
        entry = self._forget(request_id)
        if entry is not None and entry.sent and self._send is not None:
            self._send(Abort(request_id, kept_tokens))

    def fail_all(self, message: str) -> None:
        """Ends every living request with an error."""
        for request_id, entry in list(self._living.items()):
            self.abort(request_id, len(entry.received))
            entry.sink.on_finished("error", message)

    def on_message(self, message: Message) -> None:
        """Hands outputs and ends to their sinks; what belongs to no living request is dropped."""
        if isinstance(message, Outputs):
            living = self._living
            for output in message.outputs:
                entry = living.get(output.request_id)
                if entry is not None:
                    entry.received.extend(output.token_ids)
                    if not entry.started:
                        entry.started = True
                        self._started += 1
                        self._starts.append(time.monotonic())
                        self._on_count(self.living, self.queued)
                    if output.prompt_logprobs is not None:
                        entry.prompt_logprobs_received = True
                    self._deliver(entry, output)
                    if self._unproven:
                        self._proven(output.request_id)
        elif isinstance(message, Finished):
            entry = self._forget(message.request_id)
            if entry is not None:
                entry.sink.on_finished(message.reason, message.message)

    def _deliver(self, entry: _Living, output: RequestOutput) -> None:
        """A fault in one request's text must not end the connection, and with it all others."""
        try:
            entry.sink.on_output(output)
        except Exception:  # noqa: BLE001  logged with its traceback, and the request is failed
            _LOG.exception("request %s failed: its output could not be handled", entry.name)
            self.abort(output.request_id, len(entry.received))
            entry.sink.on_finished("error", "the server failed to handle this request's output")

    def on_connected(self, send: Callable[[Message], None]) -> None:
        """A ready engine: sends all that waits, and what the last engine lost in growing groups."""
        self._send = send
        self._group = 1
        # Those that had tokens have done a step without harm: they are the likelier ones to go on.
        lost = sorted((entry for entry in self._living.values() if entry.crashes), key=lambda entry: not entry.started)
        self._suspects = deque(lost)
        self._send_suspects()
        for entry in [entry for entry in self._living.values() if not entry.crashes]:
            self._transmit(entry)

    def _send_suspects(self) -> None:
        while self._suspects and len(self._unproven) < self._group:
            entry = self._suspects.popleft()
            if entry.request_id in self._living:
                self._transmit(entry)
                if entry.sent:
                    self._unproven.add(entry.request_id)

    def _proven(self, request_id: int) -> None:
        """A suspect got a token, or its end. When all of a group did, twice as many are sent."""
        self._unproven.discard(request_id)
        if not self._unproven and self._suspects:
            self._group *= 2
            self._send_suspects()

    def on_lost(self) -> None:
        """The engine is gone: requests wait for the next one, but for those that are suspected of having ended it."""
        self._send = None
        unproven, self._unproven = self._unproven, set()
        self._suspects.clear()
        for request_id, entry in list(self._living.items()):
            if not entry.sent:
                continue
            entry.sent = False
            entry.crashes += 1
            # Who had a token from this engine is less likely to have ended it than who had none; but not for ever.
            suspected = request_id in unproven if unproven else True
            if entry.crashes > CRASHES_PER_REQUEST or (suspected and entry.crashes == CRASHES_PER_REQUEST):
                self._forget(request_id)
                _LOG.error("request %s failed: the engine crashed %d times while it ran", entry.name, entry.crashes)
                entry.sink.on_finished("error", f"the engine crashed {entry.crashes} times while this request ran")

    def _forget(self, request_id: int) -> _Living | None:
        entry = self._living.pop(request_id, None)
        if entry is not None:
            if entry.started:
                self._started -= 1
            self._on_count(self.living, self.queued)
            if request_id in self._unproven:
                self._proven(request_id)
        return entry

    def _transmit(self, entry: _Living) -> None:
        if self._send is None:
            return
        ended = _already_over(entry)
        if ended is not None:
            self._forget(entry.submit.request_id)
            entry.sink.on_finished(ended, "")
            return
        entry.sent = True
        self._send(_resumed(entry))


def _already_over(entry: _Living) -> str | None:
    """The end of a request whose last token arrived and whose Finished was lost with the engine."""
    if entry.received and entry.received[-1] in entry.submit.sampling.stop_token_ids:
        return "stop"
    return "length" if len(entry.received) >= entry.submit.max_new_tokens else None


def _resumed(entry: _Living) -> Submit:
    if not entry.received and not entry.prompt_logprobs_received:
        return entry.submit
    sampling: SamplingParams = entry.submit.sampling
    if entry.prompt_logprobs_received:
        sampling = replace(sampling, prompt_logprobs=-1)
    return replace(entry.submit, sampling=sampling, resume_token_ids=entry.received.tobytes())
