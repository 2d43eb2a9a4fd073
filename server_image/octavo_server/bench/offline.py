"""A load on an engine in this process: no HTTP, no second process."""

from __future__ import annotations

import sys
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from octavo_server.bench.figures import Record
from octavo_server.bench.workloads import Session, Turn
from octavo_server.engine.messages import Finished, Message, Outputs, SamplingParams, Submit
from octavo_server.progress_bar import Bar

if TYPE_CHECKING:
    from octavo_server.llm import LLM

_CONNECTION = 0
_PAUSE_SECONDS = 0.01


@dataclass
class _Living:
    """A session in the engine: the turns that are left, what was said, the request that runs."""

    turns: deque[Turn]
    record: Record
    said: list[int] = field(default_factory=list)


class Load:
    """Sessions that are given to an engine, at their times and so many at once."""

    def __init__(self, llm: LLM, sampling: SamplingParams) -> None:
        self._llm, self._sampling = llm, sampling
        self._living: dict[int, _Living] = {}
        self.records: list[Record] = []

    def run(self, sessions: Sequence[Session], starts: Sequence[float], *, concurrency: int, limit_seconds: float,
            progress: bool) -> float:  # fmt: skip
        """Seconds until the last request ended or the time was over; what runs then is dropped.

        starts: seconds at which each session may begin. concurrency: sessions at once, 0 = no limit.
        """
        engine, waiting = self._llm.engine, deque(zip(starts, sessions, strict=True))
        bar = Bar(sys.stderr, "requests") if progress else None
        total = sum(map(len, sessions))
        begun = now = time.monotonic()
        try:
            while (waiting or self._living) and now < begun + limit_seconds:
                while waiting and now >= begun + waiting[0][0] and len(self._living) < (concurrency or len(sessions)):
                    _, session = waiting.popleft()
                    self._submit(_Living(deque(session), Record(now, 0)))
                if engine.busy:
                    for _, message in engine.step():
                        self._take(message)
                elif waiting:
                    time.sleep(min(_PAUSE_SECONDS, max(0.0, begun + waiting[0][0] - now)))
                now = time.monotonic()
                if bar is not None:
                    over = sum(1 for record in self.records if record.ended or record.error)
                    bar.show(over, total, sum(record.tokens for record in self.records))
        finally:
            engine.drop_connection(_CONNECTION)
            while engine.busy:
                engine.step()
            self._living.clear()
            if bar is not None:
                bar.end()
        return time.monotonic() - begun

    def _submit(self, living: _Living) -> None:
        turn = living.turns.popleft()
        living.said += turn.added
        living.record = Record(time.monotonic(), len(living.said))
        self.records.append(living.record)
        number = self._llm.take_id()
        self._living[number] = living
        data = np.array(living.said, dtype="<i4").tobytes()
        for _, message in self._llm.engine.submit(
            _CONNECTION, Submit(number, data, self._sampling, turn.output_tokens)
        ):
            self._take(message)

    def _take(self, message: Message) -> None:
        now = time.monotonic()
        if isinstance(message, Outputs):
            for output in message.outputs:
                living = self._living[output.request_id]
                living.record.arrived(now, len(output.token_ids))
                living.said += output.token_ids
                living.record.cached_tokens = max(living.record.cached_tokens, output.cached_tokens)
        elif isinstance(message, Finished):
            living = self._living.pop(message.request_id)
            if message.reason == "error":
                living.record.error = message.message
                return
            living.record.ended = True
            if living.turns:
                self._submit(living)
