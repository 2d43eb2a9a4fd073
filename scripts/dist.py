"""`make dist`: all that a release consists of, in dist/, made of the checkout's tracked files alone.

Two builds of one commit give the same bytes: nothing of the machine, its clock or its user gets in. Times inside of
archives are SOURCE_DATE_EPOCH, or else the commit's own.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from scripts.archive import checksums, pack_files, repack  # noqa: E402
from scripts.versions import PACKAGES, version  # noqa: E402

CHART = "charts/octavo"
CONTEXT = ("kernels/", "server_image/", "operator/", "requirements/", ".dockerignore", "VERSION", "LICENSE")
"""What image builds read; .dockerignore says the same to builders."""
OWNED = ("octavo_*.whl", "octavo-*.tgz", "octavo-*.tar.gz", "octavo-*.yaml", "SHA256SUMS")
"""Names of what was built before, which goes when dist/ is built anew."""
Say = Callable[[str], object]


class DistFailed(Exception):
    """A step did not do what it should; the message says which and what a person can do."""


def _git(*words: str) -> str:
    done = subprocess.run(["git", "-C", str(ROOT), *words], capture_output=True, text=True, check=False)
    if done.returncode:
        raise DistFailed(f"git {words[0]} failed ({done.stderr.strip()}); a release is built from a git checkout")
    return done.stdout


def tracked() -> list[str]:
    """Files that git knows and that are here."""
    return [name for name in _git("ls-files", "-z").split("\0") if name and (ROOT / name).is_file()]


def epoch() -> int:
    """Seconds since 1970 that archives carry. Raises DistFailed."""
    text = os.environ.get("SOURCE_DATE_EPOCH") or _git("log", "-1", "--format=%ct").strip()
    if not text.isdecimal():
        raise DistFailed(f"SOURCE_DATE_EPOCH={text}: must be seconds since 1970, or unset")
    return int(text)


def export(names: list[str], folder: Path, seconds: int) -> None:
    """A copy of the files with one time, and with modes that no umask decides."""
    for name in names:
        target = folder / name
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(ROOT / name, target)
        target.chmod(0o755 if (ROOT / name).stat().st_mode & 0o100 else 0o644)
        os.utime(target, (seconds, seconds))


def crd_bundle(source: Path = ROOT) -> str:
    """All CRDs as one file for kubectl."""
    parts = sorted(path for path in (source / "crds").glob("*.yaml") if path.name != "kustomization.yaml")
    return "".join(f"---\n{path.read_text(encoding='utf-8')}" for path in parts)


def _run(command: list[str], folder: Path, **environment: str) -> None:
    done = subprocess.run(command, cwd=folder, env={**os.environ, **environment}, capture_output=True, text=True)
    if done.returncode:
        raise DistFailed(f"'{' '.join(command)}' failed:\n{(done.stderr or done.stdout).strip()}")


def wheels(source: Path, target: Path, seconds: int) -> Iterator[Path]:
    """One wheel per package, as they come."""
    for package in PACKAGES:
        before = set(target.glob("*.whl"))
        # As a program of its own: hatchling keeps what it has read of one project.
        command = [sys.executable, "-m", "hatchling", "build", "--target", "wheel", "--directory", str(target)]
        _run(command, source / package, SOURCE_DATE_EPOCH=str(seconds), PYTHONHASHSEED="0")
        yield from set(target.glob("*.whl")) - before


def chart_package(source: Path, target: Path, seconds: int) -> Path:
    """helm's own package; helm writes the present time into it, so it is packed anew."""
    from octavo_localcluster.programs import PROGRAMS, ProgramError, ensure_programs

    try:
        helm = ensure_programs(lambda text: print(f"dist: {text}", flush=True), [PROGRAMS["helm"]])["helm"]
    except ProgramError as error:
        raise DistFailed(str(error)) from error
    _run([str(helm), "package", str(source / CHART), "--destination", str(target)], source)
    [path] = target.glob("octavo-*.tgz")
    path.write_bytes(repack(path.read_bytes(), seconds))
    return path


def build(target: Path, say: Say) -> list[Path]:
    """Everything, into a folder that is made if need be. Raises DistFailed."""
    started, now, seconds = time.monotonic(), version(), epoch()
    target.mkdir(parents=True, exist_ok=True)
    for pattern in OWNED:
        for old in target.glob(pattern):
            old.unlink()
    made: list[Path] = []

    def told(path: Path) -> None:
        made.append(path)
        say(f"{time.monotonic() - started:5.1f} s  {path.stat().st_size / 1024:8.1f} KiB  {path.name}")

    def written(name: str, content: bytes) -> None:
        path = target / name
        path.write_bytes(content)
        told(path)

    names = tracked()
    with tempfile.TemporaryDirectory(prefix="octavo-dist-") as place:
        source = Path(place)
        export(names, source, seconds)
        for path in wheels(source, target, seconds):
            told(path)
        told(chart_package(source, target, seconds))
        context = [name for name in names if name.startswith(CONTEXT)]
        folder = f"octavo-images-{now}"
        written(f"{folder}.tar.gz", pack_files(source, context, seconds, folder))
        written(f"octavo-crds-{now}.yaml", crd_bundle(source).encode())
    written("SHA256SUMS", checksums({path.name: path.read_bytes() for path in made}).encode())
    return made


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--output", type=Path, default=ROOT / "dist", help="folder (default: dist)")
    folder = parser.parse_args().output.absolute()
    say: Say = lambda text: print(f"dist: {text}", flush=True)  # noqa: E731
    try:
        commit = _git("log", "-1", "--format=%h of %cs").strip()
        changed = bool(_git("status", "--porcelain", "--untracked-files=no").strip())
        say(f"Octavo {version()} from commit {commit}{', with changes that are not committed' if changed else ''}")
        made = build(folder, say)
    except (DistFailed, ValueError) as error:
        print(f"dist: {error}", file=sys.stderr)
        return 1
    say(f"{len(made)} files in {folder.name}/; check them with: sha256sum --check SHA256SUMS")
    return 0


if __name__ == "__main__":
    sys.exit(main())
