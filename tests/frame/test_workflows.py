"""The workflows of a public forge run nothing but verbs and scripts that exist here, with actions of fixed versions."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[2]
FILES = sorted((ROOT / ".github" / "workflows").glob("*.y*ml"))
VERBS = set(re.findall(r"^([a-z0-9-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))


def steps(path: Path) -> list[dict[str, Any]]:
    jobs = yaml.safe_load(path.read_text())["jobs"]
    return [step for job in jobs.values() for step in job["steps"]]


def why_unknown(line: str) -> str:
    """What is wrong with one command; empty when it is a verb of the Makefile or a script that can be run."""
    words = line.split()
    if words[0] == "make":
        missing = [word for word in words[1:] if "=" not in word and word not in VERBS]
        return f"no verb {', '.join(missing)}" if missing or len(words) == 1 else ""
    script = ROOT / words[0]
    return "" if script.is_file() and script.stat().st_mode & 0o111 else f"no script {words[0]}"


def test_there_are_jobs_for_checks_tests_a_release_and_a_cluster():
    [only] = FILES
    jobs = yaml.safe_load(only.read_text())["jobs"]
    assert set(jobs) == {"checks", "tests", "release", "kind"}
    assert all(job["timeout-minutes"] <= 90 for job in jobs.values())
    assert len(only.read_text().splitlines()) < 80


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_every_command_is_a_verb_or_a_script_of_this_checkout(path):
    lines = [line for step in steps(path) for line in step.get("run", "").splitlines() if line.strip()]
    assert len(lines) >= 4
    assert [f"{line}: {why}" for line in lines if (why := why_unknown(line))] == []


@pytest.mark.parametrize("line", ["make nothing", "make", "scripts/none.sh", "pip install x", "VERSION"])
def test_a_command_that_is_neither_is_seen(line):
    assert why_unknown(line)


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_every_action_is_of_one_version(path):
    used = [step["uses"] for step in steps(path) if "uses" in step]
    assert used
    assert [name for name in used if not re.fullmatch(r"[\w.-]+/[\w./-]+@(v\d+\.\d+\.\d+|[0-9a-f]{40})", name)] == []


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_a_workflow_may_write_nothing_and_names_no_host(path):
    content = yaml.safe_load(path.read_text())
    assert content["permissions"] == {"contents": "read"}
    assert not any("permissions" in job for job in content["jobs"].values())
    assert re.findall(r"\b[\w-]+\.(?:io|com|org|dev|net|co)\b|://", path.read_text()) == []


def test_the_script_for_kind_is_one_that_bash_can_read():
    done = subprocess.run(["bash", "-n", str(ROOT / "scripts" / "e2e_kind.sh")], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
