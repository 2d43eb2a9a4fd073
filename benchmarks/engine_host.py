"""What a step costs the engine's host process, on a device that computes nothing; and what its messages cost.

make bench-engine-host, or .venv/bin/python benchmarks/engine_host.py [--against FOLDER]

Scheduling, batches, page tables, delivery, block digests and encoding are the real ones; model and attention answer at
once (octavo_server/bench/host.py). Processes of this checkout and of the one in FOLDER take turns, so that what else
the machine does falls on both. A figure is the median step of the best round; its note tells the fastest step and the
processor time.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from benchmarks.common import RESULTS, Row, commit, write_result  # noqa: E402

GOAL_MILLISECONDS = 0.3
CASES: dict[str, tuple[int, dict[str, Any]]] = {
    "step of 256, greedy": (256, {"temperature": 0.0}),
    "step of 256, greedy, with stop ids": (256, {"temperature": 0.0, "stop_token_ids": [2, 3, 4]}),
    "step of 256, drawn at temperature 1": (256, {}),
    "step of 256, drawn with top-k and top-p": (256, {"top_k": 5, "top_p": 0.9}),
    "step of 256, greedy, with a frequency penalty": (256, {"temperature": 0.0, "frequency_penalty": 0.1}),
    "step of 1, greedy": (1, {"temperature": 0.0}),
    "step of 64, greedy": (64, {"temperature": 0.0}),
    "step of 1024, greedy": (1024, {"temperature": 0.0}),
}
LONG_PROMPT = 130_000


def measure_steps(sequences: int, sampling: dict[str, Any], steps: int) -> dict[str, Any]:
    """Milliseconds of steps in which all requests generate: median, least, processor time, and parts."""
    from octavo_server.bench.host import idle_engine
    from octavo_server.engine.messages import SamplingParams, Submit

    engine = idle_engine(sequences)
    for number in range(sequences):
        # Prompts of different lengths, so that each step gives some of the requests a new block.
        prompt = (number % 8).to_bytes(4, "little") * (100 + number % 16)
        assert engine.submit(0, Submit(number, prompt, SamplingParams(**sampling), steps + 200)) == []
    traces: list[Any] = []
    engine.observer = traces.append
    while not (traces and traces[-1].rows == traces[-1].tokens == sequences):
        engine.step()
    for _ in range(20):
        engine.step()
    del traces[:]
    times = []
    used = time.process_time()
    for _ in range(steps):
        begun = time.perf_counter()
        engine.step()
        times.append(time.perf_counter() - begun)
    used = time.process_time() - used
    parts = ("plan", "launch", "deliver", "sample")
    return {
        "median": 1e3 * statistics.median(times),
        "least": 1e3 * min(times),
        "processor": 1e3 * used / steps,
        "parts": {part: 1e6 * statistics.median(getattr(one, f"{part}_seconds") for one in traces) for part in parts},
    }


def measure_messages(repeats: int) -> dict[str, float]:
    """Microseconds and bytes of one step's message of 256 tokens, and what a long prompt costs either side."""
    import numpy as np
    from octavo_server.bench.host import idle_engine
    from octavo_server.engine.codec import decode, encode
    from octavo_server.engine.digests import digest_seed, digests
    from octavo_server.engine.messages import Outputs, PlainOutputs, SamplingParams, Submit

    def least(call: Any, times: int) -> float:
        found = []
        for _ in range(times):
            begun = time.perf_counter()
            call()
            found.append(time.perf_counter() - begun)
        return min(found)

    outputs = Outputs(PlainOutputs(np.arange(256, dtype=np.uint64) << 32, np.arange(256) * 500, []))
    payload = encode(outputs)
    prompt = np.arange(LONG_PROMPT, dtype="<i4") % 8
    data = prompt.tobytes()
    chain = digests(data, 16, digest_seed())
    engine = idle_engine(1, length=LONG_PROMPT + 100)
    numbers = iter(range(10_000))

    def submit(known: list[bytes]) -> None:
        number = next(numbers)
        assert engine.submit(0, Submit(number, data, SamplingParams(), 10, known, digest_seed())) == []

    return {
        "encode": 1e6 * least(lambda: encode(outputs), repeats),
        "bytes": float(len(payload)),
        "decode": 1e6 * least(lambda: decode(payload), repeats),
        "digests": 1e3 * least(lambda: digests(data, 16, digest_seed()), 5),
        "submit": 1e3 * least(lambda: submit(chain), 5),
    }


def child(name: str, steps: int) -> None:
    """Measures one case in this process and prints it."""
    import torch

    torch.set_num_threads(1)
    print(json.dumps(measure_messages(steps) if name == "messages" else measure_steps(*CASES[name], steps)))


def run(folder: Path, name: str, steps: int) -> dict[str, Any]:
    """One case in a process that uses the server of this folder."""
    path = os.pathsep.join(str(folder / part) for part in ("server_image", "kernels"))
    command = [sys.executable, __file__, "--child", name, "--steps", str(steps)]
    told = subprocess.run(command, env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True, timeout=300)
    if told.returncode:
        raise SystemExit(f"{name} in {folder}: {told.stderr.strip()[-2000:]}")
    found: dict[str, Any] = json.loads(told.stdout)
    return found


def commit_of(folder: Path) -> str:
    """Short name of a checkout's commit."""
    told = subprocess.run(["git", "-C", str(folder), "rev-parse", "--short=12", "HEAD"], capture_output=True, text=True)
    return told.stdout.strip() or "unknown"


def step_row(name: str, found: list[dict[str, Any]], before: list[dict[str, Any]], against: str) -> Row:
    best = min(found, key=lambda one: one["median"])
    parts = ", ".join(f"{part} {value:.0f}" for part, value in best["parts"].items())
    drawn = "; with the draw's arithmetic, which is the device's" if "drawn" in name or "penalty" in name else ""
    note = f"fastest step {best['least']:.3f} ms, processor time {best['processor']:.3f} ms a step; {parts} µs{drawn}"
    peer = min((one["median"] for one in before), default=None)
    return Row(
        name,
        "ms",
        float(f"{best['median']:.3g}"),
        "lower",
        GOAL_MILLISECONDS if name.startswith("step of 256") and not drawn else None,
        against if before else "",
        None if peer is None else float(f"{peer:.3g}"),
        note,
    )


def message_rows(found: dict[str, float]) -> list[Row]:
    tokens = "one message with two arrays per step and API process"
    return [
        Row("encode a step's 256 tokens", "µs", round(found["encode"], 1), "lower", note=tokens),
        Row("size of a step's 256 tokens", "bytes", found["bytes"], "lower"),
        Row("decode a step's 256 tokens in the API process", "µs", round(found["decode"], 1), "lower"),
        Row("digests of a 130,000-token prompt, in the API process", "ms", float(f"{found['digests']:.3g}"), "lower"),
        Row("take a 130,000-token prompt with its digests into the engine", "ms", float(f"{found['submit']:.3g}"),
            "lower"),
    ]  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--against", type=Path, help="another checkout, whose figures stand beside these")
    parser.add_argument("--steps", type=int, default=300, help="per round (default: 300)")
    parser.add_argument("--rounds", type=int, default=5, help="of each case (default: 5)")
    parser.add_argument("--results", type=Path, default=RESULTS, help="folder for the result file")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.child:
        child(arguments.child, arguments.steps)
        return
    rows = []
    against = f"commit {commit_of(arguments.against)}" if arguments.against else ""
    for name in CASES:
        found, before = [], []
        for _ in range(arguments.rounds):
            found.append(run(ROOT, name, arguments.steps))
            if arguments.against:
                before.append(run(arguments.against, name, arguments.steps))
        rows.append(step_row(name, found, before, against))
        print(f"{name}: {rows[-1].value} ms, before {rows[-1].peer_value}; {rows[-1].note}", flush=True)
    rows += message_rows(run(ROOT, "messages", arguments.steps))
    for row in rows[len(CASES) :]:
        print(f"{row.name}: {row.value} {row.unit}", flush=True)
    path = write_result("engine-host", rows, command="make bench-engine-host", folder=arguments.results)
    print(f"wrote {path.name} of commit {commit()}")


if __name__ == "__main__":
    main()
