"""Builds the control plane's programs from their published Go modules, once per go.sum and machine.

Two builds may run at once: a lock lets the second one wait and then use what the first one built. A program appears
under its name only when it is complete and has told its version.
"""

from __future__ import annotations

import fcntl
import os
import queue
import subprocess
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from octavo_localcluster.go import dotted, find_go
from octavo_localcluster.programs import (
    Program,
    ProgramError,
    Report,
    Version,
    bin_folder,
    find_cached,
    keep_in_cache,
    module_folder,
    required_version,
    tell_version,
)

HEARTBEAT_SECONDS = 10.0
_GO_ENVIRONMENT = {"GOTOOLCHAIN": "local", "GOFLAGS": "-mod=readonly", "GOWORK": "off", "CGO_ENABLED": "0"}


def linker_flags(kubernetes: Version) -> str:
    """Without the version, Kubernetes' programs call themselves v0.0.0 and version checks fail."""
    variable = "-X k8s.io/component-base/version"
    return (
        f"-s -w {variable}.gitVersion=v{dotted(kubernetes)} {variable}.gitMajor={kubernetes[0]} "
        f"{variable}.gitMinor={kubernetes[1]}"
    )


def build_programs(programs: Sequence[Program], report: Report) -> dict[str, Path]:
    """Builds programs into our cache. Returns name → path; raises ProgramError with the compiler's last lines."""
    built: dict[str, Path] = {}
    for number, program in enumerate(programs, start=1):
        folder = bin_folder(program)
        folder.mkdir(parents=True, exist_ok=True)
        with build_lock(folder, report):
            path = find_cached(program)
            if path is None:
                path = _build(program, folder, report, f"[{number}/{len(programs)}] {program.name}")
        built[program.name] = path
    return built


@contextmanager
def build_lock(folder: Path, report: Report) -> Iterator[None]:
    """One build at a time per folder; the lock ends with its process, however that ends."""
    with (folder / ".lock").open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            report("another build of the same programs is running; waiting for it")
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _build(program: Program, folder: Path, report: Report, title: str) -> Path:
    for left in folder.glob(f".{program.name}.*.partial*"):
        left.unlink(missing_ok=True)  # We hold the lock: whoever wrote it has died.
    module = module_folder(program)
    go = find_go(module, report)
    partial = folder / f".{program.name}.{os.getpid()}.partial"
    version = required_version(program)
    flags = linker_flags(version) if program.module == "k8s.io/kubernetes" else "-s -w"
    if program.name == "helm":
        # Helm compares its Kubernetes client's version with the charts' kubeVersion.
        flags = linker_flags(required_version(_kubectl()))
    report(f"{title} {dotted(version)}: building with {go}")
    start = time.monotonic()
    command = [str(go), "build", "-v", "-o", str(partial), "-ldflags", flags, program.package]
    try:
        compiled = _run_build(command, module, report, title)
        if tell_version(program, partial) is None:
            raise ProgramError(f"{program.name} was built but does not tell its version; remove {folder} and try again")
        keep_in_cache(partial, folder / program.name)
    finally:
        partial.unlink(missing_ok=True)
    report(f"{title}: done in {time.monotonic() - start:.0f} s ({compiled} packages compiled)")
    return folder / program.name


def _run_build(command: Sequence[str], module: Path, report: Report, title: str) -> int:
    """Runs `go build -v`, tells how far it is, returns how many packages were compiled (the rest was in Go's cache)."""
    process = subprocess.Popen(
        command,
        cwd=module,
        env={**os.environ, **_GO_ENVIRONMENT},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    lines: queue.SimpleQueue[str | None] = queue.SimpleQueue()
    reader = threading.Thread(target=_read_lines, args=(process, lines), daemon=True)
    reader.start()
    start = told = time.monotonic()
    compiled = downloaded = 0
    output: list[str] = []
    try:
        while True:
            try:
                line = lines.get(timeout=1.0)
            except queue.Empty:
                line = ""
            if line is None:
                break
            if line.startswith("go: downloading"):
                downloaded += 1
            elif line and " " not in line:
                compiled += 1
            elif line:
                output.append(line)
            now = time.monotonic()
            if now - told >= HEARTBEAT_SECONDS:
                told = now
                modules = f", {downloaded} modules downloaded" if downloaded else ""
                report(f"{title}: {now - start:.0f} s, {compiled} packages compiled{modules}")
        code = process.wait()
    except BaseException:
        process.terminate()
        process.wait()
        raise
    finally:
        reader.join()
    if code != 0:
        end = "\n".join(output[-15:])
        raise ProgramError(f"go build {command[-1]} failed with exit code {code}:\n{end}")
    return compiled


def _read_lines(process: subprocess.Popen[str], lines: queue.SimpleQueue[str | None]) -> None:
    assert process.stderr is not None
    with process.stderr as stream:
        for line in stream:
            lines.put(line.rstrip("\n"))
    lines.put(None)


def _kubectl() -> Program:
    from octavo_localcluster.programs import PROGRAMS

    return PROGRAMS["kubectl"]
