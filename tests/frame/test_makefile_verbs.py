"""`make help` is the list of what can be done here."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
VERBS = {
    "demo", "demo-down", "test", "test-gpu", "lint", "types", "imports", "generate", "verify", "bench", "bench-cpu",
    "bench-report", "clean", "help", "dist", "e2e-kind",
}  # fmt: skip


def test_help_lists_every_verb_with_a_line():
    make = shutil.which("make")
    assert make is not None
    done = subprocess.run([make, "-C", str(ROOT)], capture_output=True, text=True, check=True)
    assert done.stderr == "", "a target is defined twice"
    listed = dict(re.findall(r"^  make ([a-z0-9-]+) +(\S.*)$", done.stdout, re.MULTILINE))
    assert listed.keys() >= VERBS
    assert all(len(text) > 10 for text in listed.values())


def test_every_script_that_a_verb_runs_exists():
    text = (ROOT / "Makefile").read_text()
    named = set(re.findall(r"((?:scripts|benchmarks)/[a-z0-9_]+\.(?:py|sh))", text))
    assert named
    assert [name for name in sorted(named) if not (ROOT / name).exists()] == []
