"""Two versions of the operator on one cluster: the later one restarts nothing, and neither does the way back."""

from __future__ import annotations

import sys

import pytest

from benchmarks.operator_process import ROOT, Audit, OperatorProcess, simulated_nodes, user_of, wait_until
from tests.operator.next_version import MARK

pytestmark = pytest.mark.cluster
QUICK = ("--lease-seconds", "4", "--lease-renew-seconds", "3", "--lease-retry-seconds", "0.5")
NEXT = (sys.executable, str(ROOT / "tests" / "operator" / "next_version.py"))
NEWER = """images:
  - {name: cpu, image: "octavo/octavo-server:0.2.0-cpu"}
  - {name: cuda12, image: "octavo/octavo-server:0.2.0-cuda12", cuda: "12.8", computeCapabilities: ["8.9", "9.0"]}
  - {name: cuda12.7, image: "octavo/octavo-server:0.2.0-cuda12.7", cuda: "12.7", computeCapabilities: ["8.9"]}
"""
KINDS = {"on-cpu": {"cpu": "Required"}, "on-gpu": {"accelerators": [{"vendor": "NVIDIA"}]}}


def service(name, space, **sections):
    spec = {"model": {"uri": f"file:///models/{name}"}, "placement": KINDS[name], **sections}
    meta = {"name": name, "namespace": space}
    return {"apiVersion": "serving.octavo.dev/v1alpha1", "kind": "InferenceService", "metadata": meta, "spec": spec}


def pods(fleet, space):
    return {pod["metadata"]["uid"] for pod in fleet.items("pods", space, "serving.octavo.dev/role=server")}


def generations(fleet, space):
    return {item["metadata"]["name"]: item["metadata"]["generation"] for item in fleet.items("deployments", space)}


def test_a_later_version_and_the_way_back_restart_no_pod_and_a_rollout_takes_up_what_is_new(
    fleet, space, account_folder
):
    fleet.apply(*simulated_nodes(1, gpus=4))
    scaling = {"minReplicas": 2}
    with OperatorProcess(fleet.cluster, account_folder, *QUICK, name="present") as present:
        present.wait_for("working")
        fleet.apply(*(service(name, space, scaling=scaling) for name in KINDS))
        for name in KINDS:
            fleet.wait_condition(space, name, "Ready", "True", seconds=120)
        before, counts = pods(fleet, space), generations(fleet, space)
        assert len(before) == 4
    later = OperatorProcess(fleet.cluster, account_folder, *QUICK, name="later", program=NEXT)
    (later.folder / "images.yaml").write_text(NEWER)
    with later:
        later.wait_for("working")
        for name in KINDS:
            fleet.wait_condition(space, name, "Tuned", "True", "UpdateAvailable")
            assert fleet.condition(space, name, "Ready")["status"] == "True"
        assert (pods(fleet, space), generations(fleet, space)) == (before, counts)
        fleet.apply(*(service(name, space, scaling=scaling, rollout={"drainSeconds": 1}) for name in KINDS))
        for name in KINDS:
            fleet.wait_condition(space, name, "Ready", "True", seconds=120)
        renewed = pods(fleet, space)
        assert not renewed & before
        for pod in fleet.items("pods", space, "serving.octavo.dev/role=server"):
            container = pod["spec"]["containers"][0]
            assert MARK in {entry["name"] for entry in container["env"]}
            assert "0.2.0" in container["image"]
        wait_until(lambda: len(generations(fleet, space)) == 2, "the Deployments under the old keys are pruned", 30)
        counts = generations(fleet, space)
    with OperatorProcess(fleet.cluster, account_folder, *QUICK, name="again") as again:
        written = Audit(fleet.cluster, user_of())
        again.wait_for("working")
        wait_until(
            lambda: again.metric("octavo_operator_reconcile_seconds_count") >= 4, "each was reconciled twice", 60
        )
        assert (pods(fleet, space), generations(fleet, space)) == (renewed, counts)
        assert not [item for item in written.writes() if item.resource == "deployments"]
