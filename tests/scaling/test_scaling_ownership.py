"""One owner of the count at a time, on a real control plane: HPA, KEDA's way, kubectl scale, applies that omit it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import yaml

if TYPE_CHECKING:
    from octavo_localcluster import Cluster

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(600)]
SPACE = "ownership"
EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
Object = dict[str, Any]


@dataclass
class World:
    """A control plane with simulated nodes, an operator, and an external-metrics API that tells what a test sets."""

    cluster: Cluster
    values: dict[str, float] = field(default_factory=dict)

    def kubectl(self, *arguments: str, stdin: str | None = None) -> str:
        from benchmarks.operator_process import run_program

        return run_program(self.cluster, "kubectl", *arguments, stdin=stdin)

    def apply(self, *manifests: Object, server_side: bool = False) -> None:
        # The mode was patched in between: a user who applies takes the field back.
        how = ("--server-side", "--field-manager=user", "--force-conflicts") if server_side else ()
        self.kubectl("apply", *how, "-f", "-", stdin=yaml.safe_dump_all(manifests))

    def patch(self, name: str, spec: Object) -> None:
        self.kubectl("patch", "ois", name, "-n", SPACE, "--type=merge", "-p", json.dumps({"spec": spec}))

    def service(self, name: str) -> Object:
        return dict(json.loads(self.kubectl("get", "ois", name, "-n", SPACE, "-o", "json")))

    def counts(self, name: str) -> tuple[int | None, int, int]:
        """(spec.replicas, the decision in status, replicas of the Deployments)."""
        found = self.service(name)
        text = self.kubectl("get", "deploy", "-n", SPACE, "-l", f"serving.octavo.dev/service={name}", "-o", "json")
        running = sum(item["spec"]["replicas"] for item in json.loads(text)["items"])
        return found["spec"].get("replicas"), found.get("status", {}).get("scaling", {}).get("desired", -1), running

    def settled(self, name: str, *counts: int | None, seconds: float = 90) -> None:
        """Wait until the three counts are these."""
        from benchmarks.operator_process import wait_until

        try:
            wait_until(lambda: self.counts(name) == counts, f"{name}: {counts}", seconds)
        except TimeoutError as error:
            described = self.kubectl("get", "hpa", "-n", SPACE, "-o", "yaml")
            raise AssertionError(f"{error}; it has {self.counts(name)}\n{described}") from None

    def observed(self, name: str) -> None:
        """Wait until the operator has seen the present spec."""
        from benchmarks.operator_process import wait_until

        def seen() -> bool:
            found = self.service(name)
            return found.get("status", {}).get("observedGeneration") == found["metadata"]["generation"]

        wait_until(seen, f"{name} was seen", 60)


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    from octavo_localcluster import Cluster, ClusterOptions

    from benchmarks.operator_process import OperatorProcess, install_rights, simulated_nodes, wait_until
    from benchmarks.scaling_adapter import Adapter

    options = ClusterOptions(folder=tmp_path_factory.mktemp("ownership"), simulated_nodes=1)
    with Cluster.start(options, report=print) as cluster:
        found = World(cluster)
        install_rights(cluster)
        found.apply(*simulated_nodes(2), {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": SPACE}})
        with (
            Adapter(cluster, lambda _space, metric: found.values.get(metric)) as adapter,
            OperatorProcess(cluster, tmp_path_factory.mktemp("operator")) as operator,
        ):
            found.apply(*adapter.registration())
            operator.wait_for("working")

            def served() -> bool:
                text = found.kubectl("get", "apiservice", "v1beta1.external.metrics.k8s.io", "-o", "json")
                told = json.loads(text).get("status", {}).get("conditions", ())
                return any(item["type"] == "Available" and item["status"] == "True" for item in told)

            wait_until(served, "the external metrics API is available", 60)
            yield found


def service(name: str, mode: str, **more: Any) -> Object:
    scaling = {"mode": mode, "minReplicas": 1, "maxReplicas": 8}
    return {
        "apiVersion": "serving.octavo.dev/v1alpha1",
        "kind": "InferenceService",
        "metadata": {"name": name, "namespace": SPACE},
        "spec": {
            "model": {"uri": f"file:///models/{name}"},
            "placement": {"cpu": "Required"},
            "scaling": scaling,
            **more,
        },
    }


def autoscaler(name: str, metric: str, hpa_name: str | None = None) -> Object:
    """The HPA of examples/scaled-by-hpa.yaml; KEDA makes one like it, under a name and a metric of its own."""
    _, found = yaml.safe_load_all((EXAMPLES / "scaled-by-hpa.yaml").read_text(encoding="utf-8"))
    found["metadata"] = {"name": hpa_name or name, "namespace": SPACE}
    found["spec"]["scaleTargetRef"]["name"] = name
    found["spec"]["metrics"][0]["external"]["metric"] = {"name": metric, "selector": {"matchLabels": {"service": name}}}
    return dict(found)


def test_the_api_server_takes_the_examples_with_kedas_published_schema_and_refuses_a_misspelt_one(world):
    from benchmarks.operator_process import wait_until

    world.kubectl("apply", "--server-side", "-f", str(Path(__file__).parent / "keda" / "scaledobjects.yaml"))
    strictly = ("apply", "--dry-run=server", "--validate=strict", "-n", SPACE, "-f")

    def told(path: str, stdin: str | None = None) -> str:
        try:
            return world.kubectl(*strictly, path, stdin=stdin)
        except RuntimeError as error:
            return str(error)

    keda = EXAMPLES / "scaled-by-keda.yaml"
    wait_until(lambda: "scaledobject.keda.sh/chat created" in told(str(keda)), "KEDA's kind is served", 30)
    assert "horizontalpodautoscaler.autoscaling/chat created" in told(str(EXAMPLES / "scaled-by-hpa.yaml"))
    wrong = keda.read_text(encoding="utf-8").replace("pollingInterval", "pollInterval")
    assert "pollInterval" in told("-", wrong)


def test_a_real_hpa_follows_the_published_count_up_and_down_and_a_change_of_mode_never_moves_it(world):
    world.apply(service("chat", "External"), server_side=True)
    world.settled("chat", 1, 1, 1)
    world.values["octavo_desired_replicas"] = 4
    world.apply(autoscaler("chat", "octavo_desired_replicas"))
    world.settled("chat", 4, 4, 4)
    # The operator takes the count over; the HPA is still there, and is refused.
    world.patch("chat", {"replicas": None, "scaling": {"mode": "Operator"}})
    world.observed("chat")
    assert world.counts("chat") == (None, 4, 4)
    # Back, by an apply that omits the count: it is seeded with the one in force.
    world.apply(service("chat", "External"), server_side=True)
    world.settled("chat", 4, 4, 4)
    world.values["octavo_desired_replicas"] = 2
    world.settled("chat", 2, 2, 2)


def test_kedas_way_works_an_hpa_of_its_own_and_zero_through_the_scale_subresource(world):
    world.apply(service("keda", "External", replicas=1))
    world.values["s0-prometheus"] = 3
    world.apply(autoscaler("keda", "s0-prometheus", "keda-hpa-keda"))
    world.settled("keda", 3, 3, 3)
    # KEDA takes its HPA's hands off below one replica: an HPA leaves a count of 0 alone.
    world.kubectl("scale", "ois", "keda", "-n", SPACE, "--replicas=0")
    world.settled("keda", 0, 0, 0)
    world.kubectl("scale", "ois", "keda", "-n", SPACE, "--replicas=1")
    world.settled("keda", 3, 3, 3)


def test_kubectl_scale_and_applies_that_omit_the_count_leave_it_over_every_change_of_mode(world):
    world.apply(service("plain", "Fixed"), server_side=True)
    world.settled("plain", 1, 1, 1)
    world.kubectl("scale", "ois", "plain", "-n", SPACE, "--replicas=3")
    world.settled("plain", 3, 3, 3)
    for mode in ("External", "Fixed"):
        world.apply(service("plain", mode), server_side=True)
        world.observed("plain")
        assert world.counts("plain") == (3, 3, 3)
    with pytest.raises(RuntimeError, match="scaling.mode"):
        world.patch("plain", {"scaling": {"mode": "Operator"}})
    world.patch("plain", {"replicas": None, "scaling": {"mode": "Operator"}})
    world.observed("plain")
    assert world.counts("plain") == (None, 3, 3)
    with pytest.raises(RuntimeError, match="scaling.mode"):
        world.kubectl("scale", "ois", "plain", "-n", SPACE, "--replicas=5")
    world.apply(service("plain", "Fixed"), server_side=True)
    world.settled("plain", 3, 3, 3)
