"""Where the control plane's programs come from.

Order: the folder named by KUBEBUILDER_ASSETS, our cache, PATH, and else a build from go.mod (build.py). A program that
is not from our cache is used only when it tells a version that fits go.mod.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

Report = Callable[[str], None]
"""Takes one line for a person who waits."""

Version = tuple[int, int, int]


class ProgramError(RuntimeError):
    """A program can't be found or built; the message says why and what to do."""


@dataclass(frozen=True)
class Program:
    """One program: its name here, its Go package, the module that gives its version, and how it is asked for it."""

    name: str
    package: str
    module: str
    version_arguments: tuple[str, ...]
    same: int
    """How many leading parts of the version must equal go.mod's."""
    folder: str = ""
    """Subfolder of localcluster/ with its go.mod and go.sum."""


_KUBERNETES = "k8s.io/kubernetes"
CONTROL_PLANE = (
    Program("etcd", "go.etcd.io/etcd/server/v3", "go.etcd.io/etcd/server/v3", ("--version",), 2),
    Program("kube-apiserver", f"{_KUBERNETES}/cmd/kube-apiserver", _KUBERNETES, ("--version",), 2),
    Program("kube-controller-manager", f"{_KUBERNETES}/cmd/kube-controller-manager", _KUBERNETES, ("--version",), 2),
    Program("kube-scheduler", f"{_KUBERNETES}/cmd/kube-scheduler", _KUBERNETES, ("--version",), 2),
    Program("kubectl", f"{_KUBERNETES}/cmd/kubectl", _KUBERNETES, ("version", "--client"), 2),
    Program("helm", "helm.sh/helm/v4/cmd/helm", "helm.sh/helm/v4", ("version", "--short"), 1),
)
KWOK = Program("kwok", "sigs.k8s.io/kwok/cmd/kwok", "sigs.k8s.io/kwok", ("--version",), 2, folder="kwok")
PROGRAMS = {program.name: program for program in (*CONTROL_PLANE, KWOK)}


def platform_name() -> str:
    """`linux-amd64` or `linux-arm64`. Raises ProgramError elsewhere."""
    machine = {"x86_64": "amd64", "aarch64": "arm64"}.get(platform.machine())
    if sys.platform != "linux" or machine is None:
        here = f"{platform.system()} {platform.machine()}"
        raise ProgramError(
            f"the local cluster runs on Linux x86-64 and arm64; this is {here}: use a Linux machine or VM"
        )
    return f"linux-{machine}"


def cache_folder() -> Path:
    """`${OCTAVO_CACHE_DIR:-${XDG_CACHE_HOME:-~/.cache}/octavo}`."""
    if own := os.environ.get("OCTAVO_CACHE_DIR"):
        return Path(own).absolute()
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache").absolute() / "octavo"


def module_folder(program: Program) -> Path:
    """The folder with the go.mod that the program is built from."""
    folder = Path(__file__).resolve().parents[1] / program.folder
    if not (folder / "go.mod").is_file():
        raise ProgramError(f"{folder}/go.mod is missing: install octavo-localcluster from a checkout (pip install -e)")
    return folder


def cache_key(module: Path, target: str) -> str:
    """Names the build: the same go.sum on the same platform gives the same programs."""
    return f"{hashlib.sha256((module / 'go.sum').read_bytes()).hexdigest()[:16]}-{target}"


def bin_folder(program: Program) -> Path:
    """Where our cache keeps this program."""
    return cache_folder() / "bin" / cache_key(module_folder(program), platform_name())


def required_version(program: Program) -> Version:
    """The version of the program's module in go.mod."""
    text = (module_folder(program) / "go.mod").read_text()
    found = re.search(rf"^\s*(?:require )?{re.escape(program.module)} (v\S+)", text, re.MULTILINE)
    version = parse_version(found[1]) if found else None
    if version is None:
        raise ProgramError(f"{module_folder(program)}/go.mod requires no version of {program.module}")
    return version


def parse_version(text: str) -> Version | None:
    """The first a.b or a.b.c in a program's output; a missing patch counts as 0."""
    found = re.search(r"\bv?(\d+)\.(\d+)(?:\.(\d+))?", text)
    return (int(found[1]), int(found[2]), int(found[3] or 0)) if found else None


def fits(program: Program, found: Version, required: Version) -> bool:
    """Whether a program of version `found` may take the place of the one that go.mod gives."""
    return found[: program.same] == required[: program.same]


def tell_version(program: Program, path: Path) -> Version | None:
    """Asks a program for its version; None when it does not start, answer or fit the machine."""
    try:
        answer = subprocess.run(
            [path, *program.version_arguments],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=30,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return parse_version(answer.stdout) if answer.returncode == 0 else None


def find_program(program: Program, report: Report) -> Path | None:
    """A usable program that is already on this machine, or None when it has to be built."""
    required = required_version(program)
    wanted = ".".join(str(part) for part in required[: program.same])
    if assets := os.environ.get("KUBEBUILDER_ASSETS"):
        path = Path(assets).absolute() / program.name
        if path.is_file() and _fits_here(program, path, required, wanted, report):
            return path
    if (cached := find_cached(program)) is not None:
        return cached
    if (on_path := shutil.which(program.name)) and _fits_here(program, Path(on_path), required, wanted, report):
        return Path(on_path).absolute()
    return None


def find_cached(program: Program) -> Path | None:
    """The program in our cache, if a finished build lies there (its size is the one that was noted)."""
    path = bin_folder(program) / program.name
    try:
        noted = json.loads(_note(path).read_text())
        return path if path.stat().st_size == noted["size_bytes"] and os.access(path, os.X_OK) else None
    except (OSError, ValueError, KeyError, TypeError):
        return None


def keep_in_cache(partial: Path, path: Path) -> None:
    """Moves a finished build to its name in one step, after the note by which find_cached knows that it is whole."""
    partial.chmod(0o755)
    note = _note(partial)
    note.write_text(json.dumps({"size_bytes": partial.stat().st_size}))
    note.replace(_note(path))
    partial.replace(path)


def ensure_programs(report: Report, programs: Iterable[Program] = CONTROL_PLANE) -> dict[str, Path]:
    """Finds the programs, or builds those that are missing.

    Returns name → absolute path. Raises ProgramError when one can neither be found nor built.
    """
    from octavo_localcluster.build import build_programs

    platform_name()
    wanted = tuple(programs)
    found = {program.name: find_program(program, report) for program in wanted}
    missing = tuple(program for program in wanted if found[program.name] is None)
    built = build_programs(missing, report) if missing else {}
    return {name: path for name, path in (found | built).items() if path is not None}


def _note(path: Path) -> Path:
    return path.with_name(f"{path.name}.json")


def _fits_here(program: Program, path: Path, required: Version, wanted: str, report: Report) -> bool:
    version = tell_version(program, path)
    if version is not None and fits(program, version, required):
        return True
    told = "tells no version" if version is None else f"is {'.'.join(map(str, version))}"
    report(f"{path} is not used: it {told}, and {program.name} {wanted} is needed")
    return False
