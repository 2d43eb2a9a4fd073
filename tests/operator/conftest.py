"""An operator of our own beside a control plane with simulated nodes, under the rights that the chart grants."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import yaml
from hypothesis import settings

if TYPE_CHECKING:
    from octavo_localcluster import Cluster

Object = dict[str, Any]
# A busy machine is no fault of the code under test.
settings.register_profile("busy", deadline=None)
settings.load_profile("busy")


class Fleet:
    """The cluster as the operator's tests see it."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster

    def kubectl(self, *arguments: str, stdin: str | None = None) -> str:
        from benchmarks.operator_process import run_program

        return run_program(self.cluster, "kubectl", *arguments, stdin=stdin)

    def apply(self, *manifests: Object) -> None:
        self.kubectl("apply", "-f", "-", stdin=yaml.safe_dump_all(manifests))

    def items(self, kind: str, namespace: str, selector: str = "") -> list[Object]:
        found = json.loads(self.kubectl("get", kind, "-n", namespace, "-l", selector, "-o", "json"))
        return list(found["items"])

    def condition(self, namespace: str, name: str, kind: str) -> Object:
        """A condition that speaks of the present generation; empty while there is none."""
        [service] = [item for item in self.items("ois", namespace) if item["metadata"]["name"] == name]
        generation = service["metadata"]["generation"]
        found = service.get("status", {}).get("conditions", ())
        return next((c for c in found if c["type"] == kind and c["observedGeneration"] == generation), {})

    def wait_condition(
        self, namespace: str, name: str, kind: str, status: str, reason: str | None = None, seconds: float = 60
    ) -> Object:
        from benchmarks.operator_process import wait_until

        def reached() -> Object | None:
            found = self.condition(namespace, name, kind)
            return found if found.get("status") == status and reason in (None, found["reason"]) else None

        return wait_until(reached, f"{namespace}/{name} has {kind}={status} {reason or ''}", seconds)


@pytest.fixture(scope="session")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    """A control plane with an audit log, simulated CPU nodes, and the chart's CRDs and rights."""
    from octavo_localcluster import Cluster, ClusterOptions

    from benchmarks.operator_process import install_rights, simulated_nodes

    # Leases outlive an outage of the API server: a kubelet would tell of its pods anew afterwards, kwok does not.
    options = ClusterOptions(
        folder=tmp_path_factory.mktemp("fleet"), audit=True, simulated_nodes=1, simulated_lease_seconds=600
    )
    with Cluster.start(options, report=print) as cluster:
        found = Fleet(cluster)
        install_rights(cluster)
        found.apply(*simulated_nodes(2))
        yield found


@pytest.fixture
def account_folder(tmp_path: Path) -> Path:
    """Where a test's operators keep their tokens and logs."""
    return tmp_path / "operators"


@pytest.fixture(scope="module")
def space(request: pytest.FixtureRequest, fleet: Fleet) -> Iterator[str]:
    """A namespace for the services of one file; it admits restricted pods alone."""
    name = Path(str(request.path)).stem.removeprefix("test_").replace("_", "-")
    labels = {"pod-security.kubernetes.io/enforce": "restricted"}
    fleet.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, "labels": labels}})
    yield name
    fleet.kubectl("delete", "namespace", name, "--wait=false")
