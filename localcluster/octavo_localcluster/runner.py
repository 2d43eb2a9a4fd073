"""Starts, watches, revives and ends components as child processes of the supervisor."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable

from octavo_localcluster.agent_config import FOLDER_VARIABLE
from octavo_localcluster.layout import Component
from octavo_localcluster.processes import end_with_parent
from octavo_localcluster.state import ClusterState, ComponentState, Crash, Folder, log_end

BACKOFF_SECONDS = (0.2, 1.0, 2.0, 5.0, 10.0)
STABLE_SECONDS = 30.0
"""A component that ran this long starts again without delay."""


class StartFailed(RuntimeError):
    """A component ended, or was not ready in time, while the cluster started."""


class Runner:
    """The running components of one cluster; notes each change in the state and calls `changed`."""

    def __init__(self, folder: Folder, state: ClusterState, changed: Callable[[], None]) -> None:
        self._folder = folder
        self._components = state.components
        self._changed = changed
        self._processes: dict[str, tuple[Component, subprocess.Popen[bytes]]] = {}
        self._waiting: dict[str, tuple[Component, float]] = {}
        self._failures: dict[str, int] = {}

    def start(self, component: Component) -> None:
        """Starts a component; its output is added to its log."""
        log = self._folder.log(component.name)
        log.parent.mkdir(exist_ok=True)
        # The agent is asked to end when the supervisor dies, since it has pods to end; the others need no farewell.
        farewell = signal.SIGTERM if component.name == "agent" else signal.SIGKILL
        with log.open("ab") as output:
            process = subprocess.Popen(
                component.command,
                cwd=self._folder.path,
                env={**os.environ, FOLDER_VARIABLE: str(self._folder.path)},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                preexec_fn=end_with_parent(farewell),
            )
        self._processes[component.name] = (component, process)
        known = self._components.setdefault(component.name, ComponentState())
        known.pid, known.started = process.pid, time.time()
        self._changed()

    def check_start(self) -> None:
        """Raises StartFailed with the end of the log when a component has ended."""
        for name in self._collect_ended():
            crash = self._components[name].last_crash
            assert crash is not None
            end = f":\n{crash.log_end}" if crash.log_end else "; its log is empty"
            raise StartFailed(f"{name} ended with {crash.exit} while the cluster started{end}")

    def revive(self) -> None:
        """Notes components that ended, and starts those whose back-off is over."""
        for name in self._collect_ended():
            component, _ = self._processes.pop(name)
            if time.time() - self._components[name].started >= STABLE_SECONDS:
                self._failures[name] = 0
            failures = self._failures[name] = self._failures.get(name, 0) + 1
            delay = BACKOFF_SECONDS[min(failures, len(BACKOFF_SECONDS)) - 1]
            self._waiting[name] = (component, time.monotonic() + delay)
        for name, (component, when) in list(self._waiting.items()):
            if time.monotonic() >= when:
                del self._waiting[name]
                self._components[name].restarts += 1
                self.start(component)

    def stop_all(self) -> None:
        """Ends the agent with its pods while the API server still answers, then all others at once."""
        self._waiting.clear()
        self._stop(["agent", "kwok"])
        self._stop([name for name in self._processes if name != "etcd"])
        self._stop(["etcd"])

    def _stop(self, names: list[str]) -> None:
        chosen = [self._processes.pop(name) for name in names if name in self._processes]
        for _, process in chosen:
            process.terminate()
        start = time.monotonic()
        for component, process in chosen:
            try:
                process.wait(max(0.0, component.stop_seconds - (time.monotonic() - start)))
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
            self._components[component.name].pid = None

    def _collect_ended(self) -> list[str]:
        """Names of components that have ended since the last look; their crash is in the state."""
        ended = []
        for name, (_, process) in self._processes.items():
            if (code := process.poll()) is not None and self._components[name].pid is not None:
                end = log_end(self._folder.log(name))
                self._components[name].last_crash = Crash(at=time.time(), exit=describe_exit(code), log_end=end)
                self._components[name].pid = None
                ended.append(name)
        if ended:
            self._changed()
        return ended


def describe_exit(code: int) -> str:
    """`exit code 1`, or `signal 9 (SIGKILL)` for a code below 0."""
    if code >= 0:
        return f"exit code {code}"
    try:
        return f"signal {-code} ({signal.Signals(-code).name})"
    except ValueError:
        return f"signal {-code}"
