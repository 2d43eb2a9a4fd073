"""The version: the file VERSION is its one place; packages and chart repeat it where their tools look for it."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = ("kernels", "server_image", "operator", "localcluster", "cli")
_VERSION = re.compile(r"\d+\.\d+\.\d+(?:-(?:alpha|beta|rc)\.\d+)?")
_IN_PACKAGE = re.compile(r'^version = ".*"$', re.MULTILINE)
_IN_CHART = re.compile(r"^(version|appVersion): .*$", re.MULTILINE)


def version(root: Path = ROOT) -> str:
    """What the next release is called. Raises ValueError."""
    text = (root / "VERSION").read_text(encoding="utf-8").strip()
    if not _VERSION.fullmatch(text):
        raise ValueError(f"VERSION holds {text!r}; write MAJOR.MINOR.PATCH, or that with -rc.N behind it")
    return text


def python_version(of: str) -> str:
    """The same in Python's spelling, as wheels carry it: 1.0.0-rc.2 is 1.0.0rc2."""
    number, _, stage = of.partition("-")
    name, _, count = stage.partition(".")
    return number + {"alpha": "a", "beta": "b"}.get(name, name) + count


def _replaced(pattern: re.Pattern[str], line: str, path: Path, times: int) -> str:
    text, count = pattern.subn(line, path.read_text(encoding="utf-8"))
    assert count == times, f"{path}: the version is not there {times} times"
    return text


def generate() -> dict[Path, str]:
    """Wanted text by path."""
    now = version()
    own = f'version = "{python_version(now)}"'
    packages = [ROOT / package / "pyproject.toml" for package in PACKAGES]
    chart = ROOT / "charts" / "octavo" / "Chart.yaml"
    return {
        **{path: _replaced(_IN_PACKAGE, own, path, 1) for path in packages},
        chart: _replaced(_IN_CHART, rf'\1: "{now}"', chart, 2),
    }
