"""Starts, finds and ends a local cluster from Python."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import TracebackType

from octavo_localcluster.agent_config import FOLDER_VARIABLE
from octavo_localcluster.nodes import NodesFileError, load_nodes
from octavo_localcluster.processes import end_marked, end_processes, marked_processes
from octavo_localcluster.programs import CONTROL_PLANE, KWOK, Report, ensure_programs
from octavo_localcluster.state import ClusterOptions, ClusterState, Folder, FolderError, log_end, write_json

STOP_SECONDS = 60.0


class ClusterError(RuntimeError):
    """The cluster did not start, or is not there; the message tells why, with the end of the log where there is one."""


class Cluster:
    """A running cluster. As a context manager it is stopped, and its folder removed, at the end."""

    def __init__(self, folder: Folder, supervisor: subprocess.Popen[bytes] | None = None) -> None:
        self._folder = folder
        self._supervisor = supervisor

    @classmethod
    def start(cls, options: ClusterOptions, report: Report = lambda _line: None) -> Cluster:
        """Starts a cluster and waits until it is ready; a running one with the same options is returned as it is.

        Raises ClusterError, ProgramError, NodesFileError or FolderError.
        """
        folder = Folder(options.folder)
        options = checked_options(options, folder)
        programs = ensure_programs(report, (*CONTROL_PLANE, KWOK) if options.simulated_nodes else CONTROL_PLANE)
        folder.check_usable()
        with folder.command_lock():
            folder.check_usable()
            if folder.is_alive():
                running = folder.read_options()
                if running != options:
                    raise FolderError(f"{folder.path}: a cluster with other options runs here; run `down` first")
                report(f"the cluster in {folder.path} is already up")
                cluster = cls(folder)
            else:
                _clear_remains(folder, report)
                cluster = cls(folder, _launch(folder, options, programs))
            try:
                cluster._wait_until_ready(report)
            except KeyboardInterrupt:
                _end_and_remove(folder)
                raise
            return cluster

    @classmethod
    def attach(cls, folder: Path) -> Cluster:
        """The cluster that runs in a folder. Raises ClusterError when there is none."""
        found = Folder(folder)
        if not found.is_alive():
            remains = "; what is left there is cleared by `up` or `down`" if found.is_cluster() else ""
            raise ClusterError(f"no cluster runs in {found.path}{remains}")
        return cls(found)

    def __enter__(self) -> Cluster:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    @property
    def folder(self) -> Path:
        """The state folder."""
        return self._folder.path

    @property
    def kubeconfig(self) -> Path:
        """The admin's kubeconfig."""
        return self._folder.kubeconfig

    @property
    def audit_log(self) -> Path:
        """JSON lines of the API server's audit events; only with `audit=True`."""
        return self._folder.audit_log

    @property
    def state(self) -> ClusterState:
        """What the supervisor wrote last. Raises ClusterError when there is nothing."""
        state = self._folder.read_state()
        if state is None:
            raise ClusterError(f"{self._folder.state_file} is missing or broken")
        return state

    def program(self, name: str) -> Path:
        """Path of a program (`kubectl`, `helm`, …) that fits this cluster."""
        path = self.folder / "bin" / name
        if not path.exists():
            known = ", ".join(sorted(entry.name for entry in path.parent.glob("*")))
            raise ClusterError(f"{name!r} is none of this cluster's programs: {known}")
        return path

    def log(self, component: str) -> Path:
        """The log of a component."""
        return self._folder.log(component)

    def component_pid(self, name: str) -> int | None:
        """The process of a component; None while it does not run. Raises ClusterError for an unknown name."""
        components = self.state.components
        if name not in components:
            raise ClusterError(f"{name!r} is no component of this cluster: {', '.join(sorted(components))}")
        return components[name].pid

    def kill_component(self, name: str, number: int = signal.SIGKILL) -> int:
        """Sends a signal (by default the one that can't be caught) to a component. Returns its process number."""
        pid = self.component_pid(name)
        if pid is None or pid not in marked_processes(self.folder):
            raise ClusterError(f"{name} does not run now")
        os.kill(pid, number)
        return pid

    def processes(self) -> list[int]:
        """All processes of the cluster that live now, pods included."""
        return marked_processes(self.folder)

    def stop(self) -> None:
        """Ends all processes of the cluster and removes its folder. Does nothing where nothing is left."""
        stop_folder(self._folder)
        if self._supervisor is not None:
            self._supervisor.wait()

    def _wait_until_ready(self, report: Report) -> None:
        told = ""
        while True:
            state = self._folder.read_state()
            if state is not None and state.phase == "ready":
                return
            if state is not None and state.phase == "failed":
                if self._supervisor is not None:
                    self._supervisor.wait(STOP_SECONDS)  # It has ended everything else and is about to end itself.
                raise ClusterError(f"the cluster did not start: {state.message}\nLogs: {self.folder / 'logs'}")
            if state is not None and state.message != told:
                told = state.message
                report(told)
            # The lock is taken a moment after the launch; before that our own child tells whether it lives.
            ended = self._supervisor.poll() is not None if self._supervisor else not self._folder.is_alive()
            if ended:
                end = log_end(self._folder.log("supervisor")) or "its log is empty"
                raise ClusterError(f"the supervisor ended while the cluster started:\n{end}")
            time.sleep(0.05)


def checked_options(options: ClusterOptions, folder: Folder) -> ClusterOptions:
    """Options with absolute paths and a checked nodes file."""
    paths: dict[str, Path] = {"folder": folder.path}
    if options.nodes_file is not None:
        paths["nodes_file"] = options.nodes_file.resolve()
        load_nodes(paths["nodes_file"])
    if options.simulation_stages is not None:
        paths["simulation_stages"] = options.simulation_stages.resolve()
        if not paths["simulation_stages"].is_file():
            raise NodesFileError(f"{options.simulation_stages}: no such file")
    return options.model_copy(update=paths)


def stop_folder(folder: Folder, report: Report = lambda _line: None) -> bool:
    """Ends whatever belongs to the folder and removes it. Returns whether there was anything.

    Raises FolderError when the folder is not a cluster's.
    """
    if not folder.path.exists():
        return bool(end_marked(folder.path))
    folder.check_usable()
    with folder.command_lock():
        found = folder.is_cluster()
        left = _end_and_remove(folder)
        if left:
            report(f"{len(left)} processes had been left behind and were ended")
    return found or bool(left)


def _end_and_remove(folder: Folder) -> list[int]:
    """With the command lock held: ends the cluster, removes the folder, returns processes that nobody looked after."""
    if folder.is_alive():
        _end_supervisor(folder)
    left = end_marked(folder.path)
    folder.remove()
    return left


def _end_supervisor(folder: Folder) -> None:
    state = folder.read_state()
    if state is None:
        return

    def is_ours(pid: int) -> bool:
        return pid in marked_processes(folder.path)

    end_processes([state.supervisor_pid], STOP_SECONDS, is_ours)


def _clear_remains(folder: Folder, report: Report) -> None:
    state = folder.read_state()
    if folder.is_cluster():
        why = "did not start" if state and state.phase == "failed" else "no longer runs"
        report(f"{folder.path} holds the remains of a cluster that {why}; clearing them")
    end_marked(folder.path)
    folder.clear()


def _launch(folder: Folder, options: ClusterOptions, programs: dict[str, Path]) -> subprocess.Popen[bytes]:
    write_json(folder.options_file, options)
    (folder.path / "programs.json").write_text(json.dumps({name: str(path) for name, path in programs.items()}))
    names = folder.path / "bin"
    names.mkdir()
    for name, path in programs.items():
        (names / name).symlink_to(path)
    log = folder.log("supervisor")
    log.parent.mkdir()
    with log.open("ab") as output:
        return subprocess.Popen(
            [sys.executable, "-m", "octavo_localcluster.supervisor", "--folder", str(folder.path)],
            cwd="/",
            env={**os.environ, FOLDER_VARIABLE: str(folder.path)},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
