"""One container's process as the agent sees it: started or adopted, signalled, awaited.

The process belongs to a shim (see shim.py) that outlives the agent; all that the agent knows of it lies in the
attempt's folder.
"""

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from . import shim

MAX_LOG_BYTES = 10 * 1024 * 1024
POLL_SECONDS = 0.2


@dataclass(frozen=True)
class ProcessSpec:
    """What to run: `argv[0]` is an absolute path."""

    argv: list[str]
    env: dict[str, str]
    cwd: str
    log: str


@dataclass(frozen=True)
class Exit:
    """How a process ended; `error` is set when it could not be started, `lost` when nobody saw its end."""

    code: int
    signal: int
    error: str
    finished: str
    lost: bool = False


class ContainerProcess:
    """A running process group with its shim."""

    def __init__(self, folder: Path, shim_pid: int, child: subprocess.Popen[bytes] | None) -> None:
        self.folder = folder
        self.shim_pid = shim_pid
        self._child = child
        self._state = read_json(folder / "state.json")

    @classmethod
    async def start(cls, folder: Path, spec: ProcessSpec) -> "ContainerProcess":
        """Start the program; returns when it runs, or when it is known that it can't (then wait() tells why)."""
        child = spawn_shim(folder, spec)
        assert child.stdout is not None
        await readable(child.stdout.fileno())
        child.stdout.close()
        return cls(folder, child.pid, child)

    @classmethod
    def adopt(cls, folder: Path) -> "ContainerProcess":
        """Take over what a former agent started in this folder, running or ended."""
        state = read_json(folder / "state.json")
        alive = bool(state) and is_process(int(state["shim"]), int(state["shim_ticks"]))
        return cls(folder, int(state["shim"]) if alive else 0, None)

    @property
    def started(self) -> str:
        """RFC 3339 time of the start; empty when the program never ran."""
        return str(self._state.get("started", ""))

    @property
    def pid(self) -> int:
        """Process id of the program, which is its group's id as well; 0 when it never ran."""
        return int(self._state.get("pid", 0))

    async def wait(self) -> Exit:
        """Wait for the end of the program and of all that it started."""
        if self.shim_pid:
            await ended(self.shim_pid)
            if self._child is not None:
                self._child.wait()
            self.shim_pid = 0
        found = read_json(self.folder / "exit.json")
        if found:
            return Exit(int(found["code"]), int(found["signal"]), str(found["error"]), str(found["finished"]))
        return Exit(137, 9, "", "", lost=True)

    def send(self, number: signal.Signals) -> None:
        """Signal the whole process group; nothing happens when it has ended."""
        pid = self.pid
        if pid and is_process(pid, int(self._state["ticks"])):
            with contextlib.suppress(ProcessLookupError):
                os.killpg(pid, number)


def spawn_shim(folder: Path, spec: ProcessSpec) -> subprocess.Popen[bytes]:
    """Write `spec.json` and start the shim; its standard output ends when the program runs or can't."""
    folder.mkdir(parents=True, exist_ok=True)
    # Environments hold secrets: nobody else may read them.
    folder.chmod(0o700)
    content = {"argv": spec.argv, "env": spec.env, "cwd": spec.cwd, "log": spec.log, "max_log_bytes": MAX_LOG_BYTES}
    shim.write_json(folder / "spec.json", content)
    with open(folder / "shim.err", "wb") as errors:
        return subprocess.Popen(
            [sys.executable, "-I", "-S", shim.__file__, str(folder)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=errors,
            start_new_session=True,
            env={"OCTAVO_CLUSTER_FOLDER": spec.env.get("OCTAVO_CLUSTER_FOLDER", "")},
        )


def read_json(path: Path) -> dict[str, Any]:
    """The object in a file, or an empty one when there is no file."""
    try:
        value = json.loads(path.read_text())
    except FileNotFoundError:
        return {}
    return dict(value)


def is_process(pid: int, ticks: int) -> bool:
    """Whether this pid is alive and is the process that started at that tick."""
    try:
        return shim.start_ticks(pid) == ticks
    except (FileNotFoundError, ProcessLookupError):
        return False


async def readable(fd: int) -> None:
    """Wait until a descriptor can be read or is at its end."""
    loop = asyncio.get_running_loop()
    done: asyncio.Future[None] = loop.create_future()
    loop.add_reader(fd, _resolve, done)
    try:
        await done
    finally:
        loop.remove_reader(fd)


async def ended(pid: int) -> None:
    """Wait until a process has ended, whether or not it is our child."""
    try:
        fd = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    except OSError:
        # Kernels without pidfd_open: look now and then. A zombie counts as ended.
        while _runs(pid):  # noqa: ASYNC110 - nothing signals it
            await asyncio.sleep(POLL_SECONDS)
        return
    try:
        await readable(fd)
    finally:
        os.close(fd)


def _runs(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def _resolve(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)
