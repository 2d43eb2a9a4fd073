"""Kernels compiled before they are needed, in several processes: Triton compiles one after the other at first launch.

Three parts: `recording` notes which kernels a program would launch, and launches none; `compile_ahead` has processes
compile them into Triton's cache folder, where the launches then find them; `python -m octavo_kernels.compile_ahead` is
such a process. It needs no GPU: it compiles for the target that it is told.

    with recording() as launches:
        step()                      # nothing runs; results are whatever lay in memory
    compile_ahead(launches, current_target(), processes=8)
"""

from __future__ import annotations

import hashlib
import importlib
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any

from octavo_kernels.compat import is_interpreting, triton_version

CACHE_VARIABLE = "TRITON_CACHE_DIR"
_MARKS = "octavo"
"""Folder in the cache folder with an empty file for each launch that was compiled."""
_LIMIT_SECONDS = 300.0


@dataclass(frozen=True)
class Target:
    """What kernels are compiled for: `cuda`, a compute capability as 90, and the threads of a warp."""

    backend: str
    arch: int
    warp_size: int


@dataclass(frozen=True)
class LaunchSpec:
    """A kernel with the types and constants of one launch, as Triton itself writes them down."""

    module: str
    name: str
    source: str
    """Of the kernel and all that it calls, as a digest."""
    data: str

    def mark(self, target: Target) -> str:
        """A name for this launch, compiled by this Triton for this target."""
        parts = (triton_version(), target.backend, target.arch, target.warp_size, self.module, self.source, self.data)
        return hashlib.sha256(repr(parts).encode()).hexdigest()


@dataclass
class Compiled:
    """What compile_ahead did. known: launches that had been compiled before."""

    compiled: int = 0
    known: int = 0
    seconds: float = 0.0
    failures: list[str] = field(default_factory=list)


@contextmanager
def recording() -> Iterator[list[LaunchSpec]]:
    """Inside, kernels that this process has not loaded are noted once per launch's types, and not launched.

    Kernels that it has loaded do run, on what the others did not write: record before the first launch.
    """
    from triton import knobs

    found: list[LaunchSpec] = []
    seen: set[tuple[str, str]] = set()

    def note(*, fn: Any, compile: dict[str, Any], **_: Any) -> bool:
        data = compile["specialization_data"]
        if (fn.name, data) not in seen:
            seen.add((fn.name, data))
            found.append(LaunchSpec(fn.module, fn.name, fn.jit_function.cache_key, data))
        return True

    before = knobs.runtime.jit_cache_hook
    knobs.runtime.jit_cache_hook = note
    try:
        yield found
    finally:
        knobs.runtime.jit_cache_hook = before


def current_target() -> Target:
    """The target of this process's GPU."""
    from triton.runtime import driver

    found = driver.active.get_current_target()
    return Target(found.backend, int(found.arch), found.warp_size)


def usable_cache_folder() -> Path:
    """Triton's cache folder, made where it is missing; one in the folder for temporary files where it can't be written.

    Sets TRITON_CACHE_DIR for this process and its children when it has to be another one.
    """
    home = os.environ.get("TRITON_HOME") or str(Path.home())
    wanted = Path(os.environ.get(CACHE_VARIABLE) or Path(home) / ".triton" / "cache")
    try:
        wanted.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=wanted):
            return wanted
    except OSError:
        folder = Path(tempfile.mkdtemp(prefix="octavo-kernels-"))
        os.environ[CACHE_VARIABLE] = str(folder)
        return folder


def compile_ahead(
    launches: Sequence[LaunchSpec],
    target: Target,
    *,
    processes: int,
    progress: Callable[[int, int], None] = lambda done, total: None,
    limit_seconds: float = _LIMIT_SECONDS,
) -> Compiled:
    """Compiles what is not yet in Triton's cache folder; returns when all is done or the time is over.

    progress: is told how many of how many are done. A launch that can't be compiled is a line in `failures` and changes
    nothing: Triton will compile it, or say why it can't, when it is launched.
    """
    begun, result = time.monotonic(), Compiled()
    marks = usable_cache_folder() / _MARKS
    marks.mkdir(exist_ok=True)
    missing = [launch for launch in launches if not (marks / launch.mark(target)).exists()]
    result.known = len(launches) - len(missing)
    # The attention kernels take longest: they come first, so that none of them is the last one running.
    missing.sort(key=lambda launch: ("attend" not in launch.name, -len(launch.data)))
    waiting: SimpleQueue[LaunchSpec] = SimpleQueue()
    for launch in missing:
        waiting.put(launch)
    count = max(1, min(processes, len(missing)))
    workers = [_Worker(target) for _ in range(count if missing else 0)]

    def kill() -> None:
        for worker in workers:
            worker.kill()

    over = threading.Timer(limit_seconds, kill)
    over.daemon = True
    lock = threading.Lock()

    def work(worker: _Worker) -> None:
        while True:
            try:
                launch = waiting.get_nowait()
            except Empty:
                return
            failure = worker.compile(launch)
            with lock:
                if failure is None:
                    (marks / launch.mark(target)).touch()
                    result.compiled += 1
                else:
                    result.failures.append(f"{launch.name}: {failure}")
                progress(result.compiled + len(result.failures), len(missing))

    threads = [threading.Thread(target=work, args=(worker,), daemon=True) for worker in workers]
    over.start()
    try:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        over.cancel()
        for worker in workers:
            worker.end()
    result.seconds = time.monotonic() - begun
    return result


class _Worker:
    """A process that compiles; requests and answers are lines of JSON."""

    def __init__(self, target: Target) -> None:
        command = [sys.executable, "-m", "octavo_kernels.compile_ahead", target.backend]
        command += [str(target.arch), str(target.warp_size)]
        environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
        # It finds the same packages as this process, in the same order.
        environment["PYTHONPATH"] = os.pathsep.join(map(os.path.abspath, sys.path))
        # It must never make a context on the GPU, which would take memory of it.
        environment["CUDA_VISIBLE_DEVICES"] = ""
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            env=environment,
        )

    def compile(self, launch: LaunchSpec) -> str | None:
        """None, or why it could not be compiled."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        try:
            self._process.stdin.write(json.dumps([launch.module, launch.name, launch.data]) + "\n")
            self._process.stdin.flush()
            answer = self._process.stdout.readline()
        except OSError as error:
            return f"the compiling process is gone: {error}"
        if not answer:
            return "the compiling process ended"
        failure: str | None = json.loads(answer)
        return failure

    def kill(self) -> None:
        self._process.kill()

    def end(self) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        try:
            self._process.stdin.close()
        except OSError:
            self._process.kill()
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process.stdout.close()


class _NoDevice:
    """What Triton asks of a driver while it compiles."""

    def __init__(self, target: Target) -> None:
        from triton.backends.compiler import GPUTarget

        self._target = GPUTarget(target.backend, target.arch, target.warp_size)

    def get_current_target(self) -> Any:
        return self._target

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, device: int) -> int:
        return 0


def use_target(target: Target) -> None:
    """Makes Triton in this process compile for a target without asking for a device; nothing can be launched then."""
    from triton.runtime import driver

    driver.set_active(_NoDevice(target))  # type: ignore[arg-type, unused-ignore]


def main() -> int:
    """The process: a line with module, kernel and launch in; a line with null or the fault out."""
    assert not is_interpreting(), "the interpreter compiles nothing"
    # What compilers print must not get among the answers.
    answers, sys.stdout = sys.stdout, sys.stderr
    use_target(Target(sys.argv[1], int(sys.argv[2]), int(sys.argv[3])))
    for line in sys.stdin:
        module, name, data = json.loads(line)
        failure = None
        try:
            getattr(importlib.import_module(module), name).preload(data)
        except Exception as error:  # noqa: BLE001 - whatever it is, the launch itself will show it
            failure = f"{type(error).__name__}: {str(error)[:300]}"
        print(json.dumps(failure), file=answers, flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
