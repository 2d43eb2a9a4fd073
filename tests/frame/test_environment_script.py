"""The environment is made anew exactly when what it is made from has changed."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from scripts.environment import PACKAGES, Unprepared, fingerprint, pinned_uv

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def sources(tmp_path):
    for name in ("requirements/dev.txt", *(f"{package}/pyproject.toml" for package in PACKAGES)):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        shutil.copy(ROOT / name, tmp_path / name)
    return tmp_path


@pytest.mark.parametrize("name", ["requirements/dev.txt", "operator/pyproject.toml", "kernels/pyproject.toml"])
def test_a_changed_requirement_is_noticed(sources, name):
    before = fingerprint(sources)
    assert before == fingerprint(sources)
    with (sources / name).open("a") as file:
        file.write("# more\n")
    assert fingerprint(sources) != before


def test_the_pinned_uv_carries_its_hashes():
    lines = pinned_uv((ROOT / "requirements" / "dev.txt").read_text()).splitlines()
    assert lines[0].startswith("uv==")
    assert all(line.strip().startswith("--hash=sha256:") for line in lines[1:])
    assert len(lines) > 1


def test_requirements_without_uv_are_refused():
    with pytest.raises(Unprepared, match="does not pin uv"):
        pinned_uv("ruff==1 \\\n    --hash=sha256:0\n")


def test_without_a_new_enough_python_one_line_says_what_to_install(tmp_path):
    for tool in ("bash", "dirname"):
        (tmp_path / tool).symlink_to(shutil.which(tool) or "")
    done = subprocess.run(
        [str(ROOT / "scripts" / "environment.sh")],
        env={"PATH": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    assert "Python 3.11 or newer" in done.stderr
    assert "apt-get install" in done.stderr


def test_requirements_name_no_address_and_hash_every_package():
    for path in sorted((ROOT / "requirements").glob("*.txt")):
        if path.name == "overrides.txt":
            continue
        text = path.read_text()
        assert "://" not in text, path.name
        blocks = [block for block in text.split("\n") if block and not block.startswith((" ", "#"))]
        assert all(block.endswith("\\") for block in blocks), path.name
