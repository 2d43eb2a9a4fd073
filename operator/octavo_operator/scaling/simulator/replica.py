"""One replica in simulated time: continuous batching with chunked prefill over a KV cache of fixed size.

Between two events the batch is the same, so every sequence advances at the same, constant rate. One clock of decoded
tokens per sequence therefore orders all ends: a request admitted at clock c with n tokens to write ends at c + n.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from octavo_operator.scaling.sample import Sample

from .profile import Profile

_EPSILON = 1e-9
_WATERMARK = 0.99
"""Share of the cache that admission may fill: what runs needs some room to grow."""


@dataclass(slots=True)
class Request:
    """One request and what became of it."""

    arrival: float
    prompt_tokens: int
    output_tokens: int
    first_token: float = -1.0
    end: float = -1.0
    left: float = 0.0
    """Tokens still to write; grows never."""
    held: float = 0.0
    """Tokens whose cache entries must be computed at admission."""

    def begin(self) -> None:
        """Before it is given to a replica for the first time, or again after a failure."""
        self.left, self.held, self.first_token = float(self.output_tokens), float(self.prompt_tokens), -1.0


class Replica:
    """`advance` to a time, then `add` or read; `next_event` tells when something happens by itself."""

    def __init__(self, number: int, profile: Profile, asked_at: float, ready_at: float) -> None:
        self.number, self.profile = number, profile
        self.asked_at, self.ready_at = asked_at, ready_at
        self.draining = False
        self.gone_at: float | None = None
        self.waiting: deque[Request] = deque()
        self.waiting_tokens = 0.0
        self.received = self.finished = self.preemptions = 0
        self.kv = 0.0
        self._head: Request | None = None
        self._head_left = 0.0
        self._decoding: list[tuple[float, int, Request]] = []
        self._serial = 0
        self._clock = 0.0
        self._time = ready_at
        self._step = self._prefill_rate = 0.0

    @property
    def running(self) -> int:
        """Requests in the batch."""
        return len(self._decoding) + (self._head is not None)

    @property
    def idle(self) -> bool:
        """Whether it has nothing to do."""
        return not self._decoding and self._head is None and not self.waiting

    def sample(self, time: float) -> Sample:
        """What its /metrics would show."""
        return Sample(
            time,
            min(self.kv, self.profile.capacity_tokens),
            self.profile.capacity_tokens,
            self.running,
            len(self.waiting),
            self.finished,
            self.received,
            self.preemptions,
        )

    def add(self, request: Request) -> None:
        """A request arrives; the replica is advanced to now."""
        self.received += 1
        self.waiting.append(request)
        self.waiting_tokens += request.held
        self._admit()

    def _admit(self) -> None:
        profile = self.profile
        if self._head is None and self.waiting and len(self._decoding) < profile.max_sequences:
            request = self.waiting[0]
            if self.kv + request.held <= _WATERMARK * profile.capacity_tokens or not self._decoding:
                self.waiting.popleft()
                self.waiting_tokens -= request.held
                self._head, self._head_left = request, max(1.0, request.held)
                self.kv += request.held
        self._set_rates()

    def _set_rates(self) -> None:
        profile, count = self.profile, len(self._decoding)
        prompt = 0.0
        if self._head is not None:
            # Short prompts that wait share the step with the first one.
            prompt = min(float(profile.chunk_tokens), self._head_left + self.waiting_tokens)
        self._step = (
            profile.step_seconds
            + count * profile.sequence_seconds
            + self.kv * profile.cached_token_seconds
            + prompt * profile.prompt_token_seconds
        )
        self._prefill_rate = prompt / self._step

    def next_event(self) -> float:
        """When a prompt is done, a request ends, or the cache is full; infinite when idle."""
        soonest = float("inf")
        if self._head is not None:
            soonest = self._head_left / self._prefill_rate
        if self._decoding:
            soonest = min(soonest, (self._decoding[0][0] - self._clock) * self._step)
            room = self.profile.capacity_tokens - self.kv
            if self.running > 1:
                soonest = min(soonest, max(0.0, room) * self._step / len(self._decoding))
        return self._time + max(0.0, soonest)

    def advance(self, now: float, ended: Callable[[Request], None]) -> None:
        """Let time pass up to `now`, which is not beyond the next event; `ended` hears of each end."""
        passed = now - self._time
        if passed > 0:
            decoded = passed / self._step if self._decoding else 0.0
            self._clock += decoded
            self.kv += decoded * len(self._decoding)
            if self._head is not None:
                self._head_left -= passed * self._prefill_rate
        self._time = max(self._time, now)
        changed = False
        while self._decoding and self._decoding[0][0] - self._clock <= _EPSILON * max(1.0, self._clock):
            _, _, request = heapq.heappop(self._decoding)
            self._end(request, now, ended)
            changed = True
        if self._head is not None and self._head_left <= 1e-6:
            self._first_token(self._head, now, ended)
            self._head = None
            changed = True
        while self.kv >= self.profile.capacity_tokens - 1e-6 and self.running > 1 and self._decoding:
            self._preempt()
            changed = True
        if changed:
            if self.idle:
                self.kv = 0.0
            self._admit()

    def _end(self, request: Request, now: float, ended: Callable[[Request], None]) -> None:
        self.kv -= request.held + request.left
        self.finished += 1
        request.end = now
        ended(request)

    def _first_token(self, request: Request, now: float, ended: Callable[[Request], None]) -> None:
        if request.first_token < 0:
            request.first_token = now
        if request.left <= 1:
            self.kv += request.left
            self._end(request, now, ended)
            return
        self._serial += 1
        heapq.heappush(self._decoding, (self._clock + request.left, self._serial, request))

    def _preempt(self) -> None:
        """The youngest loses its blocks and goes back to the head of the queue, to be computed again."""
        if self._head is not None:
            head, self._head = self._head, None
            self.kv -= head.held
            self.waiting.appendleft(head)
            self.waiting_tokens += head.held
            self.preemptions += 1
            return
        index = max(range(len(self._decoding)), key=lambda at: self._decoding[at][1])
        due, _, request = self._decoding.pop(index)
        heapq.heapify(self._decoding)
        written = request.left - (due - self._clock)
        self.kv -= request.held + written
        request.held += written
        request.left -= written
        self.waiting.appendleft(request)
        self.waiting_tokens += request.held
        self.preemptions += 1

    def drop_all(self) -> list[Request]:
        """It failed: everything that it held, to be sent again."""
        lost = [item for _, _, item in self._decoding] + ([self._head] if self._head else []) + list(self.waiting)
        self._decoding, self._head = [], None
        self.waiting.clear()
        self.waiting_tokens = self.kv = 0.0
        return lost
