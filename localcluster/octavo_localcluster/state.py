"""The state folder of one cluster: what lies where, who lives in it, and how it is cleared.

    state.json  options.json  agent.json      who we are and what runs
    kubeconfig  bin/                          for people: the admin's kubeconfig, the programs' names
    pki/  etcd/  logs/  audit.log             the control plane's
    pods/  agent/                             the node agent's

The supervisor holds a lock on supervisor.lock as long as it lives. The kernel drops the lock when it dies or the
machine restarts: a folder with a state.json and no lock is the remains of a cluster.
"""

from __future__ import annotations

import fcntl
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Literal, TypeVar

from pydantic import BaseModel, ValidationError

_Model = TypeVar("_Model", bound=BaseModel)
Phase = Literal["starting", "ready", "failed", "stopping", "stopped"]


class FolderError(ValueError):
    """The folder can't be used; one line that says why and what to do."""


class Crash(BaseModel):
    """A component that ended by itself."""

    at: float
    """Unix time in seconds."""
    exit: str
    """`exit code 1` or `signal 9 (SIGKILL)`."""
    log_end: str


class ComponentState(BaseModel):
    """One supervised process."""

    pid: int | None = None
    started: float = 0.0
    restarts: int = 0
    last_crash: Crash | None = None


class ClusterOptions(BaseModel):
    """What a cluster is started with."""

    folder: Path = Path(".state/cluster")
    nodes_file: Path | None = None
    """None: a control plane without nodes."""
    audit: bool = False
    """Whether the API server writes each request's metadata to audit.log."""
    simulated_nodes: int = 0
    """Nodes whose pods kwok pretends to run."""
    simulated_lease_seconds: int = 40
    """Duration of the Leases of simulated nodes; thousands of nodes need long ones, or renewals are all there is."""
    simulation_stages: Path | None = None
    """kwok stages (YAML) in place of simulation.yaml."""


class ClusterState(BaseModel):
    """Contents of state.json; the supervisor alone writes it."""

    phase: Phase
    message: str = ""
    """What is being waited for, or why the start failed."""
    supervisor_pid: int
    server: str = ""
    service_network: str = ""
    pod_network: str = ""
    components: dict[str, ComponentState] = {}


def write_json(path: Path, model: BaseModel) -> None:
    """Writes a file whole or not at all."""
    partial = path.with_name(f"{path.name}.partial")
    partial.write_text(model.model_dump_json(indent=2))
    partial.replace(path)


class Folder:
    """Names inside a state folder, its locks and its end."""

    def __init__(self, path: Path) -> None:
        self.path = Path(os.path.abspath(path)).resolve()

    @property
    def state_file(self) -> Path:
        return self.path / "state.json"

    @property
    def options_file(self) -> Path:
        return self.path / "options.json"

    @property
    def kubeconfig(self) -> Path:
        return self.path / "kubeconfig"

    @property
    def audit_log(self) -> Path:
        return self.path / "audit.log"

    def log(self, component: str) -> Path:
        return self.path / "logs" / f"{component}.log"

    def logs(self) -> list[str]:
        """Components that have a log."""
        return sorted(path.stem for path in (self.path / "logs").glob("*.log"))

    def read_state(self) -> ClusterState | None:
        """The state, or None when there is none or it can't be read."""
        return _read(self.state_file, ClusterState)

    def read_options(self) -> ClusterOptions | None:
        return _read(self.options_file, ClusterOptions)

    def is_cluster(self) -> bool:
        """Whether a cluster, running or not, made this folder its own."""
        return self.options_file.is_file() or self.state_file.is_file()

    def is_alive(self) -> bool:
        """Whether a supervisor runs for this folder."""
        try:
            file = (self.path / "supervisor.lock").open("r")
        except FileNotFoundError:
            return False
        with file:
            try:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:
                return True
        return False

    def hold_supervisor_lock(self) -> IO[str]:
        """Marks the folder as alive until this process ends. Raises FolderError when another supervisor lives."""
        file = (self.path / "supervisor.lock").open("a")
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.close()
            raise FolderError(f"{self.path}: a cluster is already running here") from None
        return file

    @contextmanager
    def command_lock(self) -> Iterator[None]:
        """One `up` or `down` at a time. Creates the folder."""
        self.path.mkdir(parents=True, exist_ok=True)
        lock = self.path / "command.lock"
        while True:
            with lock.open("a") as file:
                fcntl.flock(file, fcntl.LOCK_EX)
                # While we waited, a `down` may have removed the file that we hold.
                try:
                    same = os.path.samestat(os.fstat(file.fileno()), lock.stat())
                except FileNotFoundError:
                    self.path.mkdir(parents=True, exist_ok=True)
                    continue
                if same:
                    yield
                    return

    def check_usable(self) -> None:
        """Raises FolderError when the folder holds anything that is not a cluster's."""
        if self.path.exists() and not self.path.is_dir():
            raise FolderError(f"{self.path} is no folder; choose another with --folder")
        if not self.is_cluster():
            foreign = sorted(path.name for path in self.path.glob("*") if path.name != "command.lock")
            if foreign:
                raise FolderError(f"{self.path} holds {foreign[0]!r}, which is no cluster's; choose an empty --folder")

    def clear(self) -> None:
        """Removes all that a cluster left in its folder, but not the command's lock."""
        self.check_usable()
        # These two make the folder recognisable: they go last, so that a clearing that is cut short can be done again.
        last = ("options.json", "state.json", "command.lock")
        for entry in [
            *(path for path in self.path.glob("*") if path.name not in last),
            *map(self.path.joinpath, last[:2]),
        ]:
            if entry.is_dir() and not entry.is_symlink():
                shutil.rmtree(entry)
            else:
                entry.unlink(missing_ok=True)

    def remove(self) -> None:
        """Removes the folder. Call it with the command lock held."""
        self.clear()
        (self.path / "command.lock").unlink(missing_ok=True)
        self.path.rmdir()


def log_end(path: Path, lines: int = 15, max_bytes: int = 16384) -> str:
    """The last lines of a log; empty when there is none."""
    try:
        with path.open("rb") as file:
            file.seek(max(0, path.stat().st_size - max_bytes))
            text = file.read().decode(errors="replace")
    except OSError:
        return ""
    return "\n".join(text.splitlines()[-lines:])


def _read(path: Path, kind: type[_Model]) -> _Model | None:
    try:
        return kind.model_validate_json(path.read_text())
    except (OSError, ValidationError):
        return None
