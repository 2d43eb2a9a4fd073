"""Real control planes: started, crashed, killed, started side by side, and gone without a trace."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from octavo_localcluster import Cluster, ClusterError, ClusterOptions, FolderError
from octavo_localcluster.__main__ import main
from octavo_localcluster.agent_config import Identity
from octavo_localcluster.nodes import PersistentVolumeSpec
from octavo_localcluster.programs import CONTROL_PLANE, ensure_programs
from octavo_localcluster.rest import ApiError, RestClient
from octavo_localcluster.seed import persistent_volumes, recycle_volumes, storage_class
from octavo_localcluster.state import Folder

pytestmark = pytest.mark.cluster

DEADLINE_SECONDS = 60.0


def wait_for(condition: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + DEADLINE_SECONDS
    while not condition():
        assert time.monotonic() < deadline, f"{what} did not happen within {DEADLINE_SECONDS} s"
        time.sleep(0.05)


def admin(cluster: Cluster) -> RestClient:
    pki = cluster.folder / "pki"
    identity = Identity(certificate=pki / "admin.crt", key=pki / "admin.key")
    return RestClient(cluster.state.server, pki / "ca.crt", identity)


def port_answers(server: str) -> bool:
    parts = urlsplit(server)
    with socket.socket() as probe:
        return probe.connect_ex((parts.hostname, parts.port)) == 0


def kubectl(cluster: Cluster, *arguments: str) -> str:
    command = [cluster.program("kubectl"), "--kubeconfig", cluster.kubeconfig, *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def test_kubectl_of_the_cluster_talks_to_its_api_server(control_plane: Cluster) -> None:
    assert "namespace/default" in kubectl(control_plane, "get", "namespaces", "-o", "name")
    version = json.loads(kubectl(control_plane, "version", "-o", "json"))
    assert version["serverVersion"]["gitVersion"] == version["clientVersion"]["gitVersion"] != "v0.0.0"


def test_controllers_and_scheduler_work(control_plane: Cluster) -> None:
    kubectl(control_plane, "create", "deployment", "idle", "--image=octavo-server:0")

    def pod_is_unschedulable() -> bool:
        pods = admin(control_plane).request("GET", "/api/v1/namespaces/default/pods?labelSelector=app%3Didle")["items"]
        return any(c.get("reason") == "Unschedulable" for p in pods for c in p["status"].get("conditions", ()))

    wait_for(pod_is_unschedulable, "the scheduler's verdict about a pod of the deployment")
    kubectl(control_plane, "delete", "deployment", "idle")


def test_endpoint_slices_are_not_made_since_they_refuse_loopback_addresses(control_plane: Cluster) -> None:
    kubectl(control_plane, "create", "service", "clusterip", "lonely", "--tcp=80")
    address = admin(control_plane).request("GET", "/api/v1/namespaces/default/services/lonely")["spec"]["clusterIP"]
    assert address.startswith(control_plane.state.service_network.removesuffix("0.0/16"))
    slices = "/apis/discovery.k8s.io/v1/namespaces/default/endpointslices"
    assert admin(control_plane).request("GET", slices)["items"] == []
    kubectl(control_plane, "delete", "service", "lonely")


def test_the_audit_log_tells_who_wrote_what(control_plane: Cluster) -> None:
    kubectl(control_plane, "create", "configmap", "counted")
    kubectl(control_plane, "delete", "configmap", "counted")
    events = [json.loads(line) for line in control_plane.audit_log.read_text().splitlines()]
    writes = [(e["user"]["username"], e["verb"]) for e in events if e.get("objectRef", {}).get("name") == "counted"]
    assert ("admin", "create") in writes
    assert ("admin", "delete") in writes


def test_a_volume_whose_claim_is_gone_can_be_claimed_again(control_plane: Cluster, tmp_path: Path) -> None:
    client = admin(control_plane)
    spec = PersistentVolumeSpec(name="reused", path=str(tmp_path), node="a", storage_class_name="reused")
    client.apply("/apis/storage.k8s.io/v1/storageclasses", storage_class("reused"))
    client.apply("/api/v1/persistentvolumes", persistent_volumes(spec)[0])
    claims = "/api/v1/namespaces/default/persistentvolumeclaims"
    claim = {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": {"name": "model"},
        "spec": {
            "accessModes": ["ReadOnlyMany"],
            "storageClassName": "reused",
            "volumeName": "reused",
            "resources": {"requests": {"storage": "1Gi"}},
        },
    }

    def phase_is(wanted: str) -> bool:
        recycle_volumes(client)
        return bool(client.request("GET", "/api/v1/persistentvolumes/reused")["status"]["phase"] == wanted)

    for _ in range(2):
        client.request("POST", claims, claim)
        wait_for(lambda: phase_is("Bound"), "the claim's binding")
        client.request("DELETE", f"{claims}/model")
        wait_for(lambda: phase_is("Available"), "the volume's return")


def test_a_crash_is_reported_with_the_end_of_its_log_and_mended(
    control_plane: Cluster, capsys: pytest.CaptureFixture[str]
) -> None:
    kubectl(control_plane, "create", "configmap", "survivor")
    old = control_plane.kill_component("kube-apiserver")
    wait_for(lambda: control_plane.component_pid("kube-apiserver") not in (None, old), "the API server's return")
    wait_for(lambda: admin(control_plane).healthy("/readyz"), "the API server's readiness")
    assert admin(control_plane).healthy("/api/v1/namespaces/default/configmaps/survivor")

    crash = control_plane.state.components["kube-apiserver"].last_crash
    assert crash is not None
    assert crash.exit == "signal 9 (SIGKILL)"
    assert crash.log_end.splitlines()[-1] in control_plane.log("kube-apiserver").read_text()
    assert main(["status", "--folder", str(control_plane.folder)]) == 0
    shown = capsys.readouterr().out
    assert "kube-apiserver ended at" in shown
    assert crash.log_end.splitlines()[-1] in shown
    with pytest.raises(ClusterError, match="is no component of this cluster: etcd, kube-apiserver"):
        control_plane.kill_component("kube-proxy")


def test_two_clusters_run_side_by_side_and_leave_nothing_when_they_are_stopped(
    control_plane: Cluster, tmp_path: Path
) -> None:
    with Cluster.start(ClusterOptions(folder=tmp_path / "second")) as second:
        first_state, second_state = control_plane.state, second.state
        networks = [first_state.service_network, first_state.pod_network]
        networks += [second_state.service_network, second_state.pod_network]
        assert len(set(networks)) == 4
        kubectl(second, "create", "namespace", "only-in-the-second")
        assert not admin(control_plane).healthy("/api/v1/namespaces/only-in-the-second")
        processes = second.processes()
        assert len(processes) == 5
        # Everything that the other cluster's users do stays theirs: its certificates are worth nothing here.
        foreign = RestClient(second_state.server, control_plane.folder / "pki" / "ca.crt")
        with pytest.raises(ApiError):
            foreign.request("GET", "/readyz")
    assert not (tmp_path / "second").exists()
    assert second.processes() == []
    assert not [pid for pid in processes if Path(f"/proc/{pid}").exists()]
    assert not port_answers(second_state.server)
    assert admin(control_plane).healthy("/readyz")


def test_starting_a_running_cluster_again_returns_it_and_other_options_are_refused(control_plane: Cluster) -> None:
    options = ClusterOptions(folder=control_plane.folder, audit=True)
    told: list[str] = []
    again = Cluster.start(options, report=told.append)
    assert again.component_pid("etcd") == control_plane.component_pid("etcd")
    assert "already up" in told[0]
    with pytest.raises(FolderError, match="other options"):
        Cluster.start(options.model_copy(update={"audit": False}))


def test_what_a_killed_supervisor_leaves_is_recognised_and_replaced(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "cluster"
    assert main(["up", "--folder", str(folder)]) == 0
    assert f"KUBECONFIG={folder}/kubeconfig" in capsys.readouterr().out
    cluster = Cluster.attach(folder)
    supervisor, old = cluster.state.supervisor_pid, cluster.processes()
    assert os.getsid(supervisor) == supervisor, "it lives on when the terminal closes"
    os.kill(supervisor, signal.SIGKILL)
    wait_for(lambda: cluster.processes() == [], "the end of all that the supervisor had started")
    assert main(["status", "--folder", str(folder)]) == 1
    assert "not running" in capsys.readouterr().out

    assert main(["up", "--folder", str(folder)]) == 0
    assert "remains of a cluster that no longer runs" in capsys.readouterr().err
    assert not set(Cluster.attach(folder).processes()) & set(old)
    assert main(["down", "--folder", str(folder)]) == 0
    assert not folder.exists()


NODES_FILE = """
nodes: [{name: worker}]
images: {"sleep:*": /bin/sleep}
persistentVolumes: [{name: data, path: FOLDER, node: worker, count: 2}]
"""


def test_a_cluster_with_nodes_ends_its_pods_when_it_is_stopped_and_never_touches_their_volumes(tmp_path: Path) -> None:
    data = tmp_path / "data"
    data.mkdir()
    (data / "model.gguf").touch()
    nodes = tmp_path / "nodes.yaml"
    nodes.write_text(NODES_FILE.replace("FOLDER", str(data)))
    with Cluster.start(ClusterOptions(folder=tmp_path / "cluster", nodes_file=nodes)) as started:
        assert kubectl(started, "get", "nodes", "-o", "name") == "node/worker\n"
        volumes = kubectl(started, "get", "persistentvolumes", "-o", "name").split()
        assert volumes == ["persistentvolume/data", "persistentvolume/data-2"]
        before = set(started.processes())
        kubectl(started, "run", "sleeper", "--image=sleep:1", "--command", "--", "/bin/sleep", "86399")
        kubectl(started, "wait", "--for=jsonpath={.status.phase}=Running", "pod/sleeper", "--timeout=60s")
        pod = set(started.processes()) - before
        assert any(b"86399" in Path(f"/proc/{pid}/cmdline").read_bytes() for pid in pod)
    assert started.processes() == []
    # Orphans are reaped by the machine's init process, in its own time.
    wait_for(lambda: not [pid for pid in pod if Path(f"/proc/{pid}").exists()], "the end of the pod's processes")
    assert not started.folder.exists()
    assert (data / "model.gguf").exists()


def install_etcd(folder: Path, monkeypatch: pytest.MonkeyPatch, script: str) -> None:
    """Puts a script in etcd's place; $ETCD in it is the real one, and its version is told as the real one does."""
    etcd = ensure_programs(print, CONTROL_PLANE)["etcd"]
    folder.mkdir()
    lines = ["#!/bin/sh", f"ETCD={etcd}", '[ "$1" = --version ] && exec $ETCD --version', script]
    (folder / "etcd").write_text("\n".join(lines))
    (folder / "etcd").chmod(0o755)
    monkeypatch.setenv("KUBEBUILDER_ASSETS", str(folder))


def test_a_port_that_someone_took_in_the_meantime_is_replaced_by_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = tmp_path / "first-try"
    script = f'[ -e {first} ] && exec $ETCD "$@"\ntouch {first}; echo "bind: address already in use" >&2; exit 1'
    install_etcd(tmp_path / "assets", monkeypatch, script)
    with Cluster.start(ClusterOptions(folder=tmp_path / "cluster")) as started:
        assert first.exists()
        assert admin(started).healthy("/readyz")


def test_simulated_nodes_run_pods_and_jobs_to_their_end(tmp_path: Path) -> None:
    with Cluster.start(ClusterOptions(folder=tmp_path / "cluster", simulated_nodes=3)) as simulated:
        names = kubectl(simulated, "get", "nodes", "-l", "nvidia.com/gpu.present=true", "-o", "name").split()
        assert names == ["node/simulated-1", "node/simulated-2", "node/simulated-3"]
        kubectl(simulated, "create", "deployment", "idle", "--image=octavo-server:0", "--replicas=4")
        kubectl(simulated, "create", "job", "check", "--image=octavo-server:0")
        kubectl(simulated, "wait", "--for=condition=available", "deployment/idle", "--timeout=60s")
        kubectl(simulated, "wait", "--for=condition=complete", "job/check", "--timeout=60s")
        kubectl(simulated, "delete", "deployment", "idle")
        kubectl(simulated, "wait", "--for=delete", "pod", "-l", "app=idle", "--timeout=60s")


def test_a_component_that_ends_while_the_cluster_starts_is_reported_with_the_end_of_its_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    install_etcd(tmp_path / "assets", monkeypatch, "echo no room left >&2; exit 3")
    folder = tmp_path / "cluster"
    assert main(["up", "--folder", str(folder)]) == 1
    error = capsys.readouterr().err
    assert "etcd ended with exit code 3 while the cluster started:\nno room left" in error
    assert Cluster(Folder(folder)).processes() == []
    assert main(["logs", "etcd", "--folder", str(folder)]) == 0
    assert capsys.readouterr().out == "no room left\n"
    assert main(["down", "--folder", str(folder)]) == 0
