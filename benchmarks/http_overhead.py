"""What the HTTP side costs: streamed tokens per second of processor, added latency, 5,000 streams; beside llama.cpp's
server in the same run.

`python benchmarks/http_overhead.py`, on a machine with other work behind `chrt -r 10`. Both servers get tokens from a
stand-in that has them at once, so that nothing but the path from a token to the client's socket is measured. The peer
needs an environment of its own, which serving_cpu.py makes; the server's extra requirements are added to it.
"""

from __future__ import annotations

import argparse
import bisect
import contextlib
import importlib.metadata
import json
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks import serving_cpu
from benchmarks.common import Row, write_result
from benchmarks.http_engine import model_file

HERE = Path(__file__).resolve().parent
DIGITS = "0123456789"
GOAL_TOKENS, GOAL_LATENCY_MS, GOAL_BLOCKED_MS = 15_000.0, 3.0, 50.0
STREAMS, MANY = 100, 5_000
PACE_SECONDS = 0.05
_TICKS = os.sysconf("SC_CLK_TCK")


@dataclass
class Running:
    """A server process."""

    process: subprocess.Popen[bytes]
    port: int

    def cpu_seconds(self) -> float:
        """Processor time of the process without its children: the API process alone."""
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rsplit(")", 1)[1].split()
        return (int(fields[11]) + int(fields[12])) / _TICKS

    def memory_mib(self) -> float:
        """Largest resident memory so far."""
        text = Path(f"/proc/{self.process.pid}/status").read_text()
        return int(text.split("VmHWM:")[1].split()[0]) / 1024

    def histogram(self, name: str) -> dict[float, float]:
        """Upper bound → how many were at most that."""
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/metrics") as response:
            lines = response.read().decode().splitlines()
        found = [line.split('le="')[1].split('"} ') for line in lines if line.startswith(f"{name}_bucket")]
        return {float(bound): float(count) for bound, count in found}


@contextlib.contextmanager
def server(command: list[str], ready: str) -> Iterator[Running]:
    """Starts a server on a free port, given as the text PORT in the command."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    with tempfile.TemporaryFile() as log:
        process = subprocess.Popen([part.replace("PORT", str(port)) for part in command], stdout=log, stderr=log)
        try:
            deadline = time.monotonic() + 120
            while not _answers(f"http://127.0.0.1:{port}{ready}"):
                if process.poll() is not None or time.monotonic() > deadline:
                    log.seek(0)
                    raise SystemExit(f"the server did not start: {log.read()[-2000:].decode()}")
                time.sleep(0.1)
            yield Running(process, port)
        finally:
            process.terminate()
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def ours(*engine: str, processes: int = 1) -> contextlib.AbstractContextManager[Running]:
    """Octavo with the dummy engine."""
    command = [
        sys.executable, str(HERE / "http_server.py"), "--model", str(model_file()), "--served-name", "dummy", "--host",
        "127.0.0.1", "--port", "PORT", "--drain-notice-seconds", "0", "--max-queued", "0", "--api-processes",
        str(processes), "--", *engine,
    ]  # fmt: skip
    return server(command, "/ready")


def peer(python: Path) -> contextlib.AbstractContextManager[Running]:
    """llama.cpp's server with a stand-in for the model."""
    return server([str(python), str(HERE / "http_peer.py"), "PORT"], "/v1/models")


def load(running: Running, streams: int, tokens: int, *flags: str) -> dict[str, Any]:
    """Runs the client; raises when a stream was lost."""
    command = [sys.executable, str(HERE / "http_client.py"), str(running.port), str(streams), str(tokens), *flags]
    found: dict[str, Any] = json.loads(subprocess.run(command, stdout=subprocess.PIPE, check=True).stdout)
    if found["complete"] != streams:
        raise SystemExit(f"{streams - found['complete']} of {streams} streams did not end rightly: {found}")
    return found


def per_core(running: Running, streams: int, tokens: int) -> tuple[float, float]:
    """(tokens, events) per second of the API process's processor time."""
    load(running, streams, 20)
    before = running.cpu_seconds()
    found = load(running, streams, tokens)
    used = running.cpu_seconds() - before
    return streams * tokens / used, found["events"] / used


def added_latency(streams: int, tokens: int) -> list[float]:
    """Milliseconds from the engine's socket to the arrival at the client's, for each token, ascending."""
    with tempfile.TemporaryDirectory() as folder:
        times = Path(folder) / "times"
        with ours("--pace", str(PACE_SECONDS), "--by-step", "--text", DIGITS, "--times", str(times)) as running:
            load(running, streams, 5)
            pieces = load(running, streams, tokens, "--times")["pieces"]
        steps = [tuple(map(int, line.split())) for line in times.read_text().splitlines()]
    sent = [at for _, at in steps]
    found: list[float] = []
    for at, _, texts in pieces:
        for text in texts:
            for digit in text:
                # The last step before the arrival that gave this digit; a digit comes again after ten steps.
                # A step is stamped once its bytes are sent, which on another core may be after they are read.
                index = bisect.bisect_right(sent, at + 2_000_000) - 1
                while index >= 0 and steps[index][0] % len(DIGITS) != int(digit):
                    index -= 1
                found.append(max(0, at - sent[index]) / 1e6)
    return sorted(found)


def many_streams() -> list[Row]:
    """5,000 streams at once, of which 10 read nothing until the others have ended."""
    with ours("--pace", "0.5") as running:
        before = running.memory_mib()
        found = load(running, MANY, 40)
        late, work = (running.histogram(f"octavo_event_loop_{name}_seconds") for name in ("delay", "work"))
        memory = running.memory_mib() - before
    return [
        Row(f"{MANY:,} streams at once, ended rightly", "streams", found["complete"], "higher", goal=MANY),
        Row("their memory in the API process", "KiB per stream", round(memory * 1024 / MANY, 1), "lower"),
        Row("longest time for which its own work blocked the event loop", "ms, at most", _most_ms(work), "lower",
            goal=GOAL_BLOCKED_MS,
            note="100 looks a second: how late each came, and no more than the processor time used since the last"),
        Row("looks that came more than 50 ms late", "per 1,000", round(_above(late, 0.05), 2), "lower",
            note="as the clock on the wall has it: engine, client and others share the two cores"),
    ]  # fmt: skip


def _most_ms(histogram: dict[float, float]) -> float:
    whole = histogram[float("inf")]
    return 1000 * min(bound for bound, count in histogram.items() if count == whole)


def _above(histogram: dict[float, float], bound: float) -> float:
    whole = histogram[float("inf")]
    return 1000 * (whole - histogram[bound]) / whole


def peer_python() -> Path:
    """The peer's environment, made where it is missing, with its server's requirements."""
    python = serving_cpu.CACHE / "bin" / "python"
    serving_cpu.prepare_peer(python)
    install = [sys.executable, "-m", "uv", "pip", "install", "-q", "--python", str(python)]
    subprocess.run([*install, "llama-cpp-python[server]", "uvicorn[standard]"], check=True)
    return python


def _answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=2) as response:
            return bool(response.status == 200)
    except (urllib.error.URLError, OSError):
        return False


def main() -> None:
    """Measures and writes benchmarks/results/http.json."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--no-peer", action="store_true", help="leave llama.cpp's server out")
    given = parser.parse_args()
    python = None if given.no_peer else peer_python()
    rounds = 3
    real_time = os.sched_getscheduler(0) in (os.SCHED_FIFO, os.SCHED_RR)
    # On a machine that others use as well, the wait for a processor would be measured in place of the server.
    aside = "; at real-time priority, beside other work on the machine" if real_time else ""
    command = ("chrt -r 10 " if real_time else "") + "python benchmarks/http_overhead.py"
    tokens, events, theirs, theirs_one = [], [], [], []
    for _ in range(rounds):
        with ours() as running:
            at_once = per_core(running, STREAMS, 1000)
        with ours("--pace", "0.01") as running:
            apart = per_core(running, STREAMS, 200)
        tokens.append(at_once[0])
        events.append(apart[1])
        if python is not None:
            with peer(python) as running:
                theirs.append(per_core(running, STREAMS, 20)[0])
                theirs_one.append(per_core(running, 1, 2000)[0])
        print(f"tokens per core second: {tokens[-1]:,.0f}; events apart: {events[-1]:,.0f}", flush=True)
    name = "llama.cpp's server" if theirs else ""
    other = statistics.median(theirs) if theirs else None
    latencies = added_latency(STREAMS, 100)
    one = added_latency(1, 100)

    def part(values: list[float], share: float) -> float:
        return round(values[min(len(values) - 1, int(share * len(values)))], 2)

    rows = [
        Row(f"streamed tokens, {STREAMS} streams, engine at once", "tok/s per core of API process",
            round(statistics.median(tokens)), "higher", goal=GOAL_TOKENS, peer=name,
            peer_value=round(other) if other else None, note="tokens that came together share an event"),
        Row(f"streamed tokens, {STREAMS} streams, an event for each", "events/s per core of API process",
            round(statistics.median(events)), "higher", goal=GOAL_TOKENS, peer=name,
            peer_value=round(other) if other else None, note="a step of the engine each 10 ms, one token per stream"),
        *([Row("streamed tokens of the peer with one stream", "tok/s per core of API process",
               round(statistics.median(theirs_one)), "higher",
               note="llama.cpp's server answers one stream at a time, the others wait")] if theirs_one else []),
        Row(f"added latency, {STREAMS} streams, median", "ms", part(latencies, 0.5), "lower", goal=GOAL_LATENCY_MS,
            note=f"from the engine's socket to the client's; all streams get a token in the same step{aside}"),
        Row(f"added latency, {STREAMS} streams, 99th percentile", "ms", part(latencies, 0.99), "lower"),
        Row("added latency, one stream, median", "ms", part(one, 0.5), "lower"),
        *many_streams(),
    ]  # fmt: skip
    for row in rows:
        print(f"{row.value:>12,} {row.unit:<32} {row.name}", flush=True)
    versions = {name: importlib.metadata.version(name) for name in ("uvloop", "httptools", "starlette")}
    print(write_result("http", rows, command=command, versions=versions))


if __name__ == "__main__":
    main()
