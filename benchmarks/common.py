"""What every benchmark shares: the result file's shape, and the facts that make a figure mean something.

A benchmark collects rows and ends with `write_result("topic", rows, command="make bench-cpu")`, which writes
benchmarks/results/<topic>.json. `goal` is the figure that was asked for; `met` is computed here and never typed.
Only the standard library is imported, so that a benchmark can run in any environment.
"""

from __future__ import annotations

import datetime
import importlib.metadata
import json
import os
import platform
import re
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "benchmarks" / "results"
TOPICS = (
    "serving-cpu",
    "operator-scale",
    "attention-h200",
    "fused-h200",
    "engine-h200",
    "engine-host",
    "http",
    "scaling-simulation",
    "demo",
)
VERSIONED = (
    "torch",
    "triton",
    "transformers",
    "kopf",
    "kubernetes",
    "fastapi",
    "uvicorn",
    "llama-cpp-python",
    "vllm",
    "flashinfer-python",
    "sglang",
)
"""Distributions whose version is noted where they are installed."""


@dataclass(frozen=True)
class Row:
    """One measured figure."""

    name: str
    unit: str
    value: float
    better: Literal["higher", "lower"]
    goal: float | None = None
    """The figure that was asked for, in the same unit; None = measured for information."""
    peer: str = ""
    """Whose figure stands beside it, measured in the same run."""
    peer_value: float | None = None
    note: str = ""

    @property
    def met(self) -> bool | None:
        """Whether the goal is reached; None without a goal."""
        if self.goal is None:
            return None
        return self.value >= self.goal if self.better == "higher" else self.value <= self.goal


def write_result(
    topic: str,
    rows: Sequence[Row | Mapping[str, Any]],
    *,
    command: str,
    folder: Path = RESULTS,
    versions: Mapping[str, str] | None = None,
) -> Path:
    """Write benchmarks/results/<topic>.json and return its path.

    Rows are `Row`s or mappings with a Row's fields. `versions` adds entries to those found in this environment (a
    peer's program, for instance). Raises ValueError for an unknown topic, no rows, or a row that is not one.
    """
    if topic not in TOPICS:
        raise ValueError(f"topic {topic!r} is not one of {', '.join(TOPICS)}: add it to benchmarks/common.py")
    if not rows:
        raise ValueError(f"topic {topic!r} has no rows: a benchmark without figures writes no file")
    checked = [row if isinstance(row, Row) else _row_of(row) for row in rows]
    result = {
        "topic": topic,
        "machine": machine(),
        "versions": {**installed_versions(), **(versions or {})},
        "commit": commit(),
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "command": command,
        "rows": [{**asdict(row), "met": row.met} for row in checked],
    }
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{topic}.json"
    path.write_text(json.dumps(result, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    return path


def _row_of(mapping: Mapping[str, Any]) -> Row:
    given = {key: value for key, value in mapping.items() if key != "met"}
    try:
        row = Row(**given)
    except TypeError as error:
        raise ValueError(f"not a row of a result: {dict(mapping)!r} ({error})") from error
    if row.better not in ("higher", "lower"):
        raise ValueError(f"row {row.name!r}: better is {row.better!r}; it says 'higher' or 'lower'")
    return row


def machine() -> dict[str, Any]:
    """Processor, cores, memory, GPUs and system of this machine; no name or address of it."""
    return {
        "cpu": _cpu_model(),
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "memory_gib": _memory_gib(),
        "gpus": _gpus(),
        "system": f"{platform.system()} {platform.machine()}",
    }


def installed_versions() -> dict[str, str]:
    """Versions of Python and of the libraries that decide how fast things are, where they are installed."""
    found = {"python": platform.python_version()}
    for name in VERSIONED:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def commit() -> str:
    """The checkout's commit, with `-dirty` when tracked files other than results differ; `unknown` outside of git."""
    revision = _output(["git", "-C", str(ROOT), "rev-parse", "--short=12", "HEAD"])
    if not revision:
        return os.environ.get("OCTAVO_COMMIT", "unknown")
    changes = _output(
        ["git", "-C", str(ROOT), "status", "--porcelain", "--untracked-files=no", "--", ".", ":!benchmarks/results"]
    )
    return f"{revision}-dirty" if changes else revision


def _cpu_model() -> str:
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8")
    except OSError:
        return platform.processor() or platform.machine()
    match = re.search(r"^model name\s*:\s*(.+)$", text, re.MULTILINE)
    return match.group(1).strip() if match else platform.machine()


def _memory_gib() -> float:
    return round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1)


def _gpus() -> list[str]:
    listing = _output(["nvidia-smi", "--query-gpu=name,memory.total,driver_version", "--format=csv,noheader"])
    return [line.strip() for line in listing.splitlines() if line.strip()]


def _output(command: list[str]) -> str:
    """What a command prints; empty when it is missing or fails."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""


def read_results(folder: Path = RESULTS) -> list[dict[str, Any]]:
    """All result files, by topic in the order of TOPICS."""
    results = [json.loads(path.read_text(encoding="utf-8")) for path in sorted(folder.glob("*.json"))]
    order = {topic: index for index, topic in enumerate(TOPICS)}
    return sorted(results, key=lambda result: order.get(result["topic"], len(order)))


if __name__ == "__main__":
    json.dump({"machine": machine(), "versions": installed_versions(), "commit": commit()}, sys.stdout, indent=2)
    print()
