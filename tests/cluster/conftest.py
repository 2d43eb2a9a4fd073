"""One cluster with Octavo installed through its chart, in namespaces that enforce the restricted pod security level."""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from octavo_localcluster import Cluster, ClusterOptions

ROOT = Path(__file__).resolve().parents[2]
MODEL = "SmolLM2-135M-Instruct.Q4_1.gguf"
OPERATOR_NAMESPACE = "octavo-system"
POLL_SECONDS = 0.2
Manifest = dict[str, Any]


class Octavo:
    """The installed system as a test sees it: kubectl, conditions, pods and their processes."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster

    def kubectl(self, *arguments: str, stdin: str | None = None, check: bool = True) -> str:
        """What kubectl prints; fails the test with its error unless `check` is false."""
        done = self._run("kubectl", *arguments, stdin=stdin)
        if check:
            assert done.returncode == 0, f"kubectl {' '.join(arguments)}: {done.stderr}"
        return done.stdout

    def helm(self, *arguments: str) -> str:
        done = self._run("helm", *arguments)
        assert done.returncode == 0, f"helm {' '.join(arguments)}: {done.stderr}"
        return done.stdout

    def _run(self, program: str, *arguments: str, stdin: str | None = None) -> subprocess.CompletedProcess[str]:
        command = [str(self.cluster.program(program)), "--kubeconfig", str(self.cluster.kubeconfig), *arguments]
        return subprocess.run(command, input=stdin, capture_output=True, text=True, check=False)

    def apply(self, *manifests: Manifest, namespace: str) -> None:
        self.kubectl("apply", "-n", namespace, "-f", "-", stdin=yaml.safe_dump_all(manifests))

    def get(self, kind: str, name: str, namespace: str) -> Manifest | None:
        """One object; None when there is none or the API server does not answer."""
        text = self.kubectl("get", kind, name, "-n", namespace, "-o", "json", "--ignore-not-found", check=False)
        return json.loads(text) if text.strip() else None

    def items(self, kind: str, namespace: str, selector: str = "") -> list[Manifest]:
        text = self.kubectl("get", kind, "-n", namespace, "-o", "json", "-l", selector, check=False)
        return json.loads(text)["items"] if text.strip() else []

    def conditions(self, name: str, namespace: str) -> dict[str, Manifest]:
        """Conditions of an InferenceService that speak of its present generation."""
        service = self.get("ois", name, namespace)
        if service is None:
            return {}
        generation = service["metadata"]["generation"]
        all_of_them = service.get("status", {}).get("conditions", [])
        return {c["type"]: c for c in all_of_them if c.get("observedGeneration", 0) >= generation}

    def is_ready(self, name: str, namespace: str) -> bool:
        return self.conditions(name, namespace).get("Ready", {}).get("status") == "True"

    def wait_ready(self, name: str, namespace: str, seconds: float = 120) -> None:
        self.wait(
            lambda: self.is_ready(name, namespace), f"{namespace}/{name} becomes Ready", seconds, (name, namespace)
        )

    def wait_condition(self, name: str, namespace: str, kind: str, status: str, seconds: float) -> Manifest:
        """The condition once it has this status."""

        def reached() -> bool:
            return self.conditions(name, namespace).get(kind, {}).get("status") == status

        self.wait(reached, f"{namespace}/{name} has {kind}={status}", seconds, (name, namespace))
        return self.conditions(name, namespace)[kind]

    def wait(
        self,
        condition: Callable[[], Any],
        what: str,
        seconds: float = 60,
        about: tuple[str, str] | None = None,
    ) -> None:
        """Wait until `condition` holds; a failure tells what was waited for and what can be seen."""
        deadline = time.monotonic() + seconds
        while not condition():
            if time.monotonic() > deadline:
                pytest.fail(f"not within {seconds:.0f} s: {what}\n{self.explain(about)}")
            time.sleep(POLL_SECONDS)

    def explain(self, about: tuple[str, str] | None) -> str:
        parts = [self.kubectl("logs", "-n", OPERATOR_NAMESPACE, "deployment/octavo-operator", "--tail=15", check=False)]
        if about is not None:
            name, namespace = about
            conditions = self.conditions(name, namespace).values()
            parts += [f"{c['type']}={c['status']} {c['reason']}: {c['message']}" for c in conditions]
            parts.append(self.kubectl("get", "pods,jobs", "-n", namespace, check=False))
            selector = f"serving.octavo.dev/service={name}"
            parts.append(self.kubectl("logs", "-n", namespace, "-l", selector, "--tail=15", check=False))
        return "\n".join(parts)

    def address(self, name: str, namespace: str) -> str:
        """Base address of a service: its ClusterIP, a loopback address that the node's forwarder serves."""
        service = self.get("service", name, namespace)
        assert service is not None
        return f"http://{service['spec']['clusterIP']}:{service['spec']['ports'][0]['port']}"

    def processes(self, *words: str) -> list[int]:
        """Processes of the cluster whose command line holds all the words."""
        found = []
        for pid in self.cluster.processes():
            try:
                command = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            except OSError:
                continue
            if all(word in command for word in words):
                found.append(pid)
        return found

    def kill(self, *words: str) -> None:
        """End, without a warning, every process of the cluster whose command line holds all the words."""
        pids = self.processes(*words)
        assert pids, f"no process of the cluster has {words} in its command line"
        for pid in pids:
            os.kill(pid, signal.SIGKILL)


def restricted_namespace(name: str) -> Manifest:
    labels = {"pod-security.kubernetes.io/enforce": "restricted"}
    return {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, "labels": labels}}


@pytest.fixture(scope="session")
def octavo(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Octavo]:
    """Octavo, installed on a cluster of its own whose second volume holds a broken model."""
    broken = tmp_path_factory.mktemp("broken-models")
    (broken / "broken.gguf").write_bytes(b"GGUF" + b"\x00" * 64)
    nodes = yaml.safe_load((ROOT / "localcluster" / "nodes" / "cpu.yaml").read_text())
    volume = {"name": "broken", "path": str(broken), "storageClassName": "broken-models", "count": 4}
    nodes["persistentVolumes"].append({**volume, "node": nodes["nodes"][0]["name"]})
    # A volume that fetched files are kept on, and a program that behaves like vLLM's in the place of its image.
    store = tmp_path_factory.mktemp("fetched-models")
    kept = {"name": "store", "path": str(store), "storageClassName": "fetched-models", "count": 2}
    nodes["persistentVolumes"].append({**kept, "node": nodes["nodes"][0]["name"]})
    vllm = tmp_path_factory.mktemp("vllm-image") / "vllm"
    program = ROOT / "tests" / "runtimes" / "stand_in.py"
    vllm.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} {shlex.quote(str(program))} VLLM "$@"\n')
    vllm.chmod(0o755)
    nodes["images"] = {**nodes.get("images", {}), "vllm-openai:*": str(vllm)}
    images = yaml.safe_load((ROOT / "charts" / "octavo" / "values.yaml").read_text())["serverImages"]
    images.append({"name": "vllm", "image": "vllm/vllm-openai:v0.34.0", "runtime": "VLLM"})
    values_file = broken / "values.yaml"
    values_file.write_text(yaml.safe_dump({"serverImages": images}))
    nodes_file = broken / "nodes.yaml"
    nodes_file.write_text(yaml.safe_dump(nodes))
    options = ClusterOptions(folder=tmp_path_factory.mktemp("octavo"), nodes_file=nodes_file, audit=True)
    with Cluster.start(options, report=print) as cluster:
        system = Octavo(cluster)
        system.apply(restricted_namespace(OPERATOR_NAMESPACE), namespace="default")
        chart = str(ROOT / "charts" / "octavo")
        system.helm(
            "upgrade", "--install", "octavo", chart, "-n", OPERATOR_NAMESPACE, "-f", str(values_file),
            "--set", "policy.priorityClasses={no-such-class}", "--set", "policy.tokenEndpoints={*}",
        )  # fmt: skip
        system.kubectl("rollout", "status", "deployment/octavo-operator", "-n", OPERATOR_NAMESPACE, "--timeout=90s")
        yield system


@pytest.fixture(scope="module")
def namespace(request: pytest.FixtureRequest, octavo: Octavo) -> Iterator[str]:
    """A fresh restricted namespace for the tests of one file; its services end with it."""
    name = Path(str(request.path)).stem.removeprefix("test_").replace("_", "-")
    octavo.apply(restricted_namespace(name), namespace="default")
    yield name
    octavo.kubectl("delete", "namespace", name, "--wait=false")


@pytest.fixture
def claim() -> Callable[..., Manifest]:
    """A PersistentVolumeClaim on the node's local volumes."""

    def make(name: str, storage_class: str = "local-models") -> Manifest:
        spec = {
            "accessModes": ["ReadOnlyMany"],
            "storageClassName": storage_class,
            "resources": {"requests": {"storage": "1Gi"}},
        }
        return {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": name}, "spec": spec}

    return make


@pytest.fixture
def service() -> Callable[..., Manifest]:
    """An InferenceService on a CPU node."""

    def make(name: str, uri: str = f"pvc://models/{MODEL}", **sections: Any) -> Manifest:
        model = {"uri": uri, **sections.pop("model", {})}
        spec = {"model": model, "placement": {"cpu": "Required"}, **sections}
        return {
            "apiVersion": "serving.octavo.dev/v1alpha1",
            "kind": "InferenceService",
            "metadata": {"name": name},
            "spec": spec,
        }

    return make
