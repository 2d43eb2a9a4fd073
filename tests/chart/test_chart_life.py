"""Install, test, upgrade from an older version, roll back and uninstall, while a real model serves."""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[2]
CHART = ROOT / "charts" / "octavo"
[PREVIOUS] = (ROOT / "tests" / "chart" / "previous").glob("octavo-*.tgz")
"""The chart that was released before this one."""
SYSTEM = "octavo-life"
pytestmark = pytest.mark.cluster
Run = Callable[..., str]


@pytest.fixture(scope="module")
def life(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Run]:
    """`life(program, *arguments)` on a cluster with one CPU node, of this file alone."""
    from octavo_localcluster import Cluster, ClusterOptions

    nodes = ROOT / "localcluster" / "nodes" / "cpu.yaml"
    folder = tmp_path_factory.mktemp("chart-life")
    with Cluster.start(ClusterOptions(folder=folder, nodes_file=nodes), report=print) as cluster:

        def run(program: str, *arguments: str, stdin: str | None = None, check: bool = True) -> str:
            command = [str(cluster.program(program)), "--kubeconfig", str(cluster.kubeconfig), *arguments]
            done = subprocess.run(command, input=stdin, capture_output=True, text=True, check=False)
            assert done.returncode == 0 or not check, f"{program} {arguments}: {done.stdout}{done.stderr}"
            return done.stdout

        yield run


def until(condition: Callable[[], Any], what: str, seconds: float = 120) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"not within {seconds:.0f} s: {what}"
        time.sleep(0.3)


def server_pods(life: Run) -> set[tuple[str, int]]:
    """(uid, restarts) of the model's pods that are Ready."""
    pods = json.loads(life("kubectl", "get", "pods", "-l", "serving.octavo.dev/role=server", "-o", "json"))["items"]
    return {
        (pod["metadata"]["uid"], pod["status"]["containerStatuses"][0]["restartCount"])
        for pod in pods
        if any(c["type"] == "Ready" and c["status"] == "True" for c in pod["status"].get("conditions", []))
    }


def columns(life: Run) -> set[str]:
    crd = json.loads(life("kubectl", "get", "crd", "inferenceservices.serving.octavo.dev", "-o", "json"))
    return {column["name"] for column in crd["spec"]["versions"][0]["additionalPrinterColumns"]}


def leaders(life: Run) -> list[str]:
    """Pods of the operator that say of themselves that they hold the Lease."""
    holder = life("kubectl", "get", "lease", "octavo-operator", "-n", SYSTEM, "-o", "jsonpath={.spec.holderIdentity}")
    pods = life("kubectl", "get", "pods", "-n", SYSTEM, "-l", "app.kubernetes.io/name=octavo-operator", "-o", "name")
    return [pod for pod in pods.split() if holder.startswith(pod.removeprefix("pod/"))]


def stored_crd(life: Run) -> Any:
    """Schema of InferenceServices as the API server has it."""
    crd = json.loads(life("kubectl", "get", "crd", "inferenceservices.serving.octavo.dev", "-o", "json"))
    return crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]


def test_a_model_serves_on_through_upgrade_rollback_and_uninstall(life):
    label = {"pod-security.kubernetes.io/enforce": "restricted"}
    for name in (SYSTEM, "default"):
        document = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, "labels": label}}
        life("kubectl", "apply", "-f", "-", stdin=json.dumps(document))
    target = ("-n", SYSTEM, "--wait", "--timeout", "120s")
    life("helm", "install", "octavo", str(PREVIOUS), *target)
    assert "Nodes" not in columns(life)

    life("kubectl", "apply", "-f", str(ROOT / "examples" / "smollm2-cpu.yaml"))
    until(lambda: len(server_pods(life)) == 1, "the model's pod is ready")
    before = server_pods(life)

    life("helm", "upgrade", "octavo", str(CHART), *target, "--set", "logLevel=Debug,replicas=2")
    assert "Nodes" in columns(life)
    source = yaml.safe_load((ROOT / "crds" / "inferenceservices.yaml").read_text())["spec"]["versions"][0]
    wanted = source["schema"]["openAPIV3Schema"]["properties"]["spec"]["properties"].keys()
    assert stored_crd(life)["properties"].keys() == wanted
    until(lambda: len(leaders(life)) == 1, "one of the two operator pods holds the Lease")
    told = life("helm", "test", "octavo", "-n", SYSTEM, "--timeout", "90s")
    assert "Succeeded" in told
    assert server_pods(life) == before

    life("helm", "rollback", "octavo", "1", *target)
    assert "Nodes" not in columns(life)
    assert server_pods(life) == before

    # After the rollback's own operator worked: a change of the service is still carried out.
    life("kubectl", "patch", "ois", "smollm2", "--type=merge", "-p", '{"spec":{"scaling":{"idleSeconds":600}}}')
    generation = "{.metadata.generation}={.status.observedGeneration}"

    def caught_up() -> bool:
        wanted, seen = life("kubectl", "get", "ois", "smollm2", "-o", f"jsonpath={generation}").split("=")
        return wanted == seen

    until(caught_up, "the operator saw the change")
    assert server_pods(life) == before

    life("helm", "uninstall", "octavo", "-n", SYSTEM, "--wait")
    assert "smollm2" in life("kubectl", "get", "ois", "-o", "name")
    assert server_pods(life) == before


def test_services_can_be_removed_and_then_the_chart_with_its_crds(life):
    target = ("-n", SYSTEM, "--wait", "--timeout", "120s")
    # The CRDs that were kept are taken over again.
    life("helm", "install", "octavo", str(CHART), *target, "--set", "crds.keep=false", "--take-ownership")
    # First the services: the garbage collector can't ask for an owner whose kind is gone, and would leave its pods.
    life("kubectl", "delete", "ois", "--all", "--wait")
    until(lambda: not server_pods(life), "the model's pods are gone")
    life("helm", "uninstall", "octavo", "-n", SYSTEM, "--wait")
    until(lambda: "octavo" not in life("kubectl", "get", "crds", "-o", "name"), "the CRDs are gone")
