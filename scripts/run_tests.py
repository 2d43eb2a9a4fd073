"""Run the tests in two phases and close with one summary in pytest's own form.

Phase 1 is everything without the marker `cluster`, on two workers. Phase 2 is the cluster tests, one after another: a
control plane, an operator and a model server share the machine's cores then, and nothing else should. A failure in
phase 1 does not hide what phase 2 has to say; either makes the exit code 1. Arguments go to both phases.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SUMMARY = re.compile(r"^=+ (?P<counts>.*\S) in (?P<seconds>[\d.]+)s\b.*=+$")
COUNT = re.compile(r"(\d+) ([a-z]+)")
ORDER = ("failed", "passed", "skipped", "deselected", "xfailed", "xpassed", "warnings", "errors")
NO_TESTS_COLLECTED = 5
PHASES: tuple[tuple[str, list[str], dict[str, str]], ...] = (
    ("without a cluster", ["-m", "not cluster", "-n", "2", "--dist", "worksteal"], {"OMP_NUM_THREADS": "1"}),
    ("on the local cluster", ["-m", "cluster"], {}),
)


def run_phase(options: list[str], extra_environment: dict[str, str]) -> tuple[int, Counter[str]]:
    """Run pytest, pass its output on as it comes, and return exit code and counts of its summary line."""
    command = [sys.executable, "-m", "pytest", *options]
    counts: Counter[str] = Counter()
    with subprocess.Popen(
        command, cwd=ROOT, env={**os.environ, **extra_environment}, stdout=subprocess.PIPE, text=True, bufsize=1
    ) as process:
        assert process.stdout is not None
        for line in process.stdout:
            sys.stdout.write(line)
            sys.stdout.flush()
            if match := SUMMARY.match(line.strip()):
                counts = counts_of(match["counts"])
    return process.returncode, counts


def counts_of(text: str) -> Counter[str]:
    """`3 failed, 10 passed, 1 error` → counts by word, in the plural where pytest has two forms."""
    plural = {"error": "errors", "warning": "warnings"}
    return Counter({plural.get(word, word): int(number) for number, word in COUNT.findall(text)})


def summary_line(counts: Counter[str], seconds: float) -> str:
    """Counts in pytest's order and form; deselected ones are left out (each phase deselects the other's tests)."""
    parts = []
    for word in ORDER:
        number = counts[word]
        if number and word != "deselected":
            parts.append(f"{number} {word[:-1] if number == 1 and word in ('errors', 'warnings') else word}")
    text = ", ".join(parts) or "no tests ran"
    return f" {text} in {seconds:.2f}s ".center(80, "=")


def main(arguments: list[str]) -> int:
    started = time.monotonic()
    total: Counter[str] = Counter()
    codes = []
    for name, options, extra_environment in PHASES:
        print(f"\ntests {name}", flush=True)
        code, counts = run_phase([*options, *arguments], extra_environment)
        codes.append(code)
        total += counts
    print(f"\nboth phases: exit codes {', '.join(map(str, codes))}")
    print(summary_line(total, time.monotonic() - started), flush=True)
    return exit_code(codes, narrowed=bool(arguments))


def exit_code(codes: list[int], *, narrowed: bool) -> int:
    """0 when each phase passed. With arguments that narrow the run, one phase may have had nothing to do."""
    if narrowed:
        if all(code == NO_TESTS_COLLECTED for code in codes):
            return NO_TESTS_COLLECTED
        codes = [0 if code == NO_TESTS_COLLECTED else code for code in codes]
    return 1 if any(codes) else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
