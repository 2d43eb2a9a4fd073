"""A real Prometheus and a real prometheus-adapter behind the API server of a local cluster, for a real HPA.

The adapter is a Go program that we do not ship. To build it, put `require sigs.k8s.io/prometheus-adapter v0.12.0` into
the go.mod of an empty module and run
`go build -mod=mod -o FILE sigs.k8s.io/prometheus-adapter/cmd/adapter`; then name FILE in PROMETHEUS_ADAPTER.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import tempfile
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml
from octavo_localcluster import Cluster

from benchmarks.common import ROOT
from benchmarks.operator_process import NAMESPACE, run_program, wait_until
from benchmarks.scaling_adapter import ROOT as API
from dashboards.prometheus import programs

VALUES = ROOT / "examples" / "prometheus-adapter-values.yaml"
PROGRAM = "PROMETHEUS_ADAPTER"
# The API server of a local cluster has no certificate for what it passes on, so the adapter sees nobody in particular.
READERS: list[dict[str, Any]] = [
    {
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "ClusterRole",
        "metadata": {"name": "external-metrics-reader"},
        "rules": [
            {"apiGroups": ["external.metrics.k8s.io"], "resources": ["*"], "verbs": ["get", "list"]},
            # The API server looks here whether the adapter is there.
            {"nonResourceURLs": [API, f"{API}/*"], "verbs": ["get"]},
        ],
    },
    {
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "ClusterRoleBinding",
        "metadata": {"name": "external-metrics-reader"},
        "roleRef": {
            "apiGroup": "rbac.authorization.k8s.io",
            "kind": "ClusterRole",
            "name": "external-metrics-reader",
        },
        "subjects": [
            {"apiGroup": "rbac.authorization.k8s.io", "kind": "Group", "name": "system:unauthenticated"},
        ],
    },
]


def free_port() -> int:
    """A port of this machine that nobody listens on."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


def operator_address(cluster: Cluster) -> str:
    """Where the operator's metrics are."""
    pods = json.loads(run_program(cluster, "kubectl", "get", "pods", "-n", NAMESPACE, "-o", "json"))["items"]
    [address] = [pod["status"]["podIP"] for pod in pods]
    return f"{address}:8080"


def registration(port: int) -> list[dict[str, Any]]:
    """Objects that make the API server ask the adapter."""
    group, _, version = API.removeprefix("/apis/").partition("/")
    service = {"name": "prometheus-adapter", "namespace": "kube-system"}
    return [
        *READERS,
        {
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": service,
            # A name of its own instead of endpoints, which refuse loopback addresses.
            "spec": {"type": "ExternalName", "externalName": "localhost"},
        },
        {
            "apiVersion": "apiregistration.k8s.io/v1",
            "kind": "APIService",
            "metadata": {"name": f"{version}.{group}"},
            "spec": {
                "group": group,
                "version": version,
                "groupPriorityMinimum": 100,
                "versionPriority": 100,
                "insecureSkipTLSVerify": True,
                "service": service | {"port": port},
            },
        },
    ]


@contextlib.contextmanager
def prometheus_adapter(cluster: Cluster) -> Iterator[int]:
    """Prometheus that scrapes the operator, and the adapter with the rules of our example; gives the adapter's port."""
    program = os.environ.get(PROGRAM)
    if not program:
        raise SystemExit(f"{PROGRAM} names no program; benchmarks/scaling_prometheus.py tells how to build it")
    scrape = {"job_name": "octavo", "static_configs": [{"targets": [operator_address(cluster)]}]}
    ports, kubeconfig = (free_port(), free_port()), str(cluster.kubeconfig)
    with tempfile.TemporaryDirectory() as name, contextlib.ExitStack() as stack:
        folder = Path(name)
        (folder / "prometheus.yml").write_text(
            yaml.safe_dump({"global": {"scrape_interval": "5s"}, "scrape_configs": [scrape]})
        )
        rules = yaml.safe_load(VALUES.read_text(encoding="utf-8"))["rules"]["external"]
        (folder / "adapter.yml").write_text(yaml.safe_dump({"externalRules": rules}))
        commands = {
            "prometheus": [
                programs()["prometheus"], f"--config.file={folder}/prometheus.yml",
                f"--storage.tsdb.path={folder}/data", f"--web.listen-address=127.0.0.1:{ports[0]}",
            ],
            "adapter": [
                program, f"--secure-port={ports[1]}", "--bind-address=127.0.0.1", f"--cert-dir={folder}/certs",
                f"--config={folder}/adapter.yml", f"--prometheus-url=http://127.0.0.1:{ports[0]}",
                f"--lister-kubeconfig={kubeconfig}", f"--authentication-kubeconfig={kubeconfig}",
                f"--authorization-kubeconfig={kubeconfig}", "--metrics-relist-interval=10s",
            ],
        }  # fmt: skip
        for what, command in commands.items():
            log = stack.enter_context((folder / f"{what}.log").open("wb"))
            process = stack.enter_context(subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT))
            stack.callback(process.terminate)
            if what == "prometheus":
                wait_until(lambda: _holds(ports[0]), "Prometheus holds the recommendation", 120)
        try:
            yield ports[1]
        finally:
            print((folder / "adapter.log").read_text(errors="replace")[-1500:])


def _holds(port: int) -> bool:
    address = f"http://127.0.0.1:{port}/api/v1/query?query=octavo_desired_replicas"
    try:
        with urllib.request.urlopen(address, timeout=3) as answer:
            return bool(json.load(answer)["data"]["result"])
    except (OSError, ValueError):
        return False


def served(cluster: Cluster) -> bool:
    """Whether the API server gives the recommendation."""
    try:
        found = run_program(cluster, "kubectl", "get", "--raw", f"{API}/namespaces/team/octavo_desired_replicas")
    except RuntimeError as error:
        print(error)
        return False
    return bool(json.loads(found)["items"])
