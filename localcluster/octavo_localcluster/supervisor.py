"""Keeps the processes of one cluster running: `python -m octavo_localcluster.supervisor --folder FOLDER`.

Started by `up` in a session of its own. It writes what it sees to state.json. A component that ends before the cluster
is ready makes the start fail; one that ends later is recorded with the end of its log and started again with back-off.
SIGTERM ends the cluster.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

from octavo_localcluster.layout import Layout, make_layout
from octavo_localcluster.network import ClaimedNetwork, NetworkError, claim_network
from octavo_localcluster.nodes import NodesFile, NodesFileError, load_nodes
from octavo_localcluster.processes import end_marked
from octavo_localcluster.rest import ApiError, RestClient
from octavo_localcluster.runner import Runner, StartFailed
from octavo_localcluster.seed import recycle_volumes, seed
from octavo_localcluster.state import ClusterOptions, ClusterState, Folder, FolderError, write_json

START_SECONDS = 120.0
START_TRIES = 3
RECYCLE_SECONDS = 2.0
_PORT_TAKEN = "address already in use"


class Stopped(Exception):
    """SIGTERM arrived."""


@dataclass
class Supervisor:
    """One cluster's life, from its folder to its end."""

    folder: Folder
    options: ClusterOptions
    nodes: NodesFile
    programs: dict[str, Path]
    state: ClusterState
    stop: threading.Event

    def live(self) -> int:
        """Runs until SIGTERM or a failed start. Returns the exit code."""
        services, pods = claim_network(), claim_network()
        self.state.service_network, self.state.pod_network = services.cidr, pods.cidr
        runner = Runner(self.folder, self.state, self._write)
        try:
            layout = self._start(runner, services, pods)
            self._tell("ready", "")
            self._watch(runner, layout)
        except Stopped:
            self._tell("stopping", "ending the pods and the control plane")
        except (StartFailed, ApiError, NetworkError, OSError) as error:
            runner.stop_all()
            self._tell("failed", str(error))
            return 1
        runner.stop_all()
        end_marked(self.folder.path)
        self._tell("stopped", "")
        return 0

    def _start(self, runner: Runner, services: ClaimedNetwork, pods: ClaimedNetwork) -> Layout:
        for left in reversed(range(START_TRIES)):
            try:
                layout = make_layout(self.folder, self.options, self.nodes, self.programs, services, pods)
                self.state.server = layout.server
                self._start_components(runner, layout)
                return layout
            except StartFailed as error:
                # Between looking for a free port and using it, someone else may have taken it.
                if not left or _PORT_TAKEN not in str(error):
                    raise
                runner.stop_all()
                shutil.rmtree(self.folder.path / "etcd", ignore_errors=True)  # It remembers its old port.
        raise AssertionError("unreachable")

    def _start_components(self, runner: Runner, layout: Layout) -> None:
        deadline = time.monotonic() + START_SECONDS
        client = RestClient(layout.server, layout.authority, layout.admin)
        parts = dict(layout.components)

        def begin(name: str) -> None:
            if name in parts:
                runner.start(parts[name])

        def wait(what: str, condition: Callable[[], bool]) -> None:
            self._wait(runner, what, condition, deadline)

        begin("etcd")
        begin("kube-apiserver")
        wait("the API server", lambda: client.healthy("/readyz"))
        begin("kube-controller-manager")
        begin("kube-scheduler")
        seed(client, self.nodes, self.options.simulated_nodes)
        begin("agent")
        begin("kwok")
        for name in ("kube-controller-manager", "kube-scheduler"):
            health = RestClient(parts[name].health, layout.authority, layout.admin)
            wait(f"{name}", lambda health=health: health.healthy("/healthz"))  # type: ignore[misc]
        account = "/api/v1/namespaces/default/serviceaccounts/default"
        wait("the default service account", lambda: client.healthy(account))
        names = {node.name for node in self.nodes.nodes}
        names |= {f"simulated-{number}" for number in range(1, self.options.simulated_nodes + 1)}
        if names:
            wait("the nodes", lambda: names <= ready_nodes(client))

    def _wait(self, runner: Runner, what: str, condition: Callable[[], bool], deadline: float) -> None:
        self._tell("starting", f"waiting for {what}")
        while True:
            if self.stop.is_set():
                raise Stopped
            runner.check_start()
            if condition():
                return
            if time.monotonic() > deadline:
                raise StartFailed(f"{what} did not become ready within {START_SECONDS:.0f} s; see the logs")
            self.stop.wait(0.1)

    def _watch(self, runner: Runner, layout: Layout) -> None:
        client = RestClient(layout.server, layout.authority, layout.admin)
        recycled = time.monotonic()
        while not self.stop.wait(0.1):
            runner.revive()
            if self.nodes.persistent_volumes and time.monotonic() - recycled >= RECYCLE_SECONDS:
                try:
                    recycle_volumes(client)
                except ApiError as error:
                    # The API server may be down for a while (revive sees to it); the next round tries again.
                    print(f"volumes: {error}", file=sys.stderr, flush=True)
                recycled = time.monotonic()
        raise Stopped

    def _tell(self, phase: str, message: str) -> None:
        self.state = self.state.model_copy(update={"phase": phase, "message": message})
        self._write()

    def _write(self) -> None:
        write_json(self.folder.state_file, self.state)


def ready_nodes(client: RestClient) -> set[str]:
    """Names of the nodes whose condition Ready is True."""
    try:
        items = client.request("GET", "/api/v1/nodes")["items"]
    except ApiError:
        return set()
    return {
        node["metadata"]["name"]
        for node in items
        for condition in node["status"].get("conditions", ())
        if condition["type"] == "Ready" and condition["status"] == "True"
    }


def main() -> int:
    """Entry point of the supervisor process."""
    parser = argparse.ArgumentParser(description="Supervises one local cluster (started by octavo-localcluster up).")
    parser.add_argument("--folder", type=Path, required=True)
    folder = Folder(parser.parse_args().folder)
    stop = threading.Event()

    def on_signal(_number: int, _frame: FrameType | None) -> None:
        stop.set()

    signal.signal(signal.SIGTERM, on_signal)
    signal.signal(signal.SIGINT, on_signal)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        lock = folder.hold_supervisor_lock()
        options = ClusterOptions.model_validate_json(folder.options_file.read_text())
        nodes = load_nodes(options.nodes_file) if options.nodes_file else NodesFile()
        programs = {name: Path(path) for name, path in json.loads((folder.path / "programs.json").read_text()).items()}
    except (FolderError, NodesFileError, OSError, ValueError) as error:
        print(error, file=sys.stderr)
        return 2
    with lock:
        state = ClusterState(phase="starting", supervisor_pid=os.getpid())
        return Supervisor(folder, options, nodes, programs, state, stop).live()


if __name__ == "__main__":
    sys.exit(main())
