"""Create or refresh .venv from the pinned, hash-checked requirements; a call that finds it fresh costs a moment.

Run by whatever Python was found, hence the standard library alone. The stamp inside .venv holds a fingerprint of
everything the environment was made from, so that a changed requirement or pyproject.toml is noticed by the next verb.
An existing environment is brought up to date in place: processes that run from it are not disturbed.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
VENV = ROOT / ".venv"
PYTHON = VENV / "bin" / "python"
STAMP = VENV / "octavo-environment"
REQUIREMENTS = ROOT / "requirements" / "dev.txt"
PACKAGES = ("kernels", "server_image", "operator", "localcluster", "cli")
OLDEST_PYTHON = (3, 11)


class Unprepared(Exception):
    """The environment can't be made; the message says what a person can do."""


def fingerprint(root: Path = ROOT) -> str:
    """Hash of everything that the environment is made from."""
    digest = hashlib.sha256(Path(__file__).read_bytes())
    for path in (root / "requirements" / "dev.txt", *(root / package / "pyproject.toml" for package in PACKAGES)):
        digest.update(path.read_bytes())
        digest.update(b"\0")
    return digest.hexdigest()


def is_fresh(wanted: str) -> bool:
    """Whether .venv was made from exactly this."""
    return PYTHON.exists() and STAMP.exists() and STAMP.read_text(encoding="utf-8").strip() == wanted


def working_uv() -> str | None:
    """A uv that runs: from PATH, else from .venv. (A version manager's stand-in may be on PATH and fail.)"""
    for candidate in (shutil.which("uv"), str(VENV / "bin" / "uv")):
        if candidate and _runs([candidate, "--version"]):
            return candidate
    return None


def create_venv(uv: str | None) -> None:
    """Make .venv, or make it anew when its Python is gone or too old."""
    if _runs([str(PYTHON), "-c", f"import sys; sys.exit(sys.version_info < {OLDEST_PYTHON})"]):
        return
    say(f"creating .venv with Python {sys.version_info.major}.{sys.version_info.minor}")
    if uv is not None and Path(uv).parent != PYTHON.parent:
        run([uv, "venv", "--quiet", "--clear", "--python", sys.executable, str(VENV)])
        return
    try:
        import ensurepip  # noqa: F401
    except ImportError:
        version = f"{sys.version_info.major}.{sys.version_info.minor}"
        raise Unprepared(
            f"Python {version} at {sys.executable} has neither uv nor ensurepip. Install one of them: "
            f"'apt-get install python{version}-venv' on Debian and Ubuntu, or uv by any means."
        ) from None
    run([sys.executable, "-m", "venv", "--clear", str(VENV)])


def pinned_uv(requirements: str) -> str:
    """The lines of the requirements that pin uv itself, hashes included."""
    match = re.search(r"^uv==[^\n]*\\\n(?:    --hash=[^\n]*\n)+", requirements, re.MULTILINE)
    if match is None:
        raise Unprepared(f"{REQUIREMENTS} does not pin uv")
    return match.group(0)


def bootstrap_uv() -> str:
    """Install the pinned uv into .venv with its own pip."""
    say("no uv found: installing it into .venv with pip")
    with tempfile.NamedTemporaryFile("w", suffix=".txt", encoding="utf-8") as pins:
        pins.write(pinned_uv(REQUIREMENTS.read_text(encoding="utf-8")))
        pins.flush()
        if not _runs([str(PYTHON), "-m", "pip", "--version"]):
            run([str(PYTHON), "-m", "ensurepip", "--upgrade"])
        run([str(PYTHON), "-m", "pip", "install", "--quiet", "--require-hashes", "-r", pins.name])
    return str(VENV / "bin" / "uv")


def install(uv: str) -> None:
    """The pinned requirements, then Octavo's packages, editable."""
    say("installing the pinned requirements (a first time downloads about 3 GB, mostly torch)")
    target = ["--python", str(PYTHON)]
    # The set is complete: resolving it again would only pull in what the overrides leave out on purpose.
    run([uv, "pip", "install", "--quiet", *target, "--no-deps", "--require-hashes", "-r", str(REQUIREMENTS)])
    editable = [word for package in PACKAGES for word in ("-e", str(ROOT / package))]
    run([uv, "pip", "install", "--quiet", *target, "--no-deps", "--no-build-isolation", *editable])


def prepare() -> None:
    """Bring .venv up to date; one caller at a time."""
    wanted = fingerprint()
    if is_fresh(wanted):
        return
    with (ROOT / ".venv.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if is_fresh(wanted):
            return
        started = time.monotonic()
        uv = working_uv()
        create_venv(uv)
        install(working_uv() or bootstrap_uv())
        STAMP.write_text(wanted + "\n", encoding="utf-8")
        say(f"ready after {time.monotonic() - started:.0f} s")


def run(command: list[str]) -> None:
    """Run one step; its own output is the explanation when it fails."""
    environment = {key: value for key, value in os.environ.items() if key not in ("VIRTUAL_ENV", "PYTHONPATH")}
    done = subprocess.run(command, cwd=ROOT, env=environment, check=False)
    if done.returncode:
        raise Unprepared(f"this step failed with exit code {done.returncode}: {' '.join(command)}")


def _runs(command: list[str]) -> bool:
    try:
        return subprocess.run(command, capture_output=True, check=False).returncode == 0
    except OSError:
        return False


def say(text: str) -> None:
    print(f"environment: {text}", flush=True)


if __name__ == "__main__":
    try:
        prepare()
    except Unprepared as error:
        sys.exit(f"environment: {error}")
