"""The chart's objects against a real API server: accepted as rendered, complete, and gone again as promised."""

from __future__ import annotations

import json
import subprocess
import time
from pathlib import Path

import pytest
import yaml

from tests.chart.monitoring_kinds import monitoring_crds

CHART = Path(__file__).resolve().parents[2] / "charts" / "octavo"
pytestmark = pytest.mark.cluster


@pytest.fixture(scope="module")
def own_control_plane(tmp_path_factory):
    """One for this file alone: helm refuses objects that something else has installed before."""
    from octavo_localcluster import Cluster, ClusterOptions

    with Cluster.start(ClusterOptions(folder=tmp_path_factory.mktemp("chart-cluster")), report=print) as running:
        yield running


@pytest.fixture
def kubectl(own_control_plane):
    def run(*arguments: str, stdin: str | None = None) -> str:
        command = [
            str(own_control_plane.program("kubectl")),
            "--kubeconfig",
            str(own_control_plane.kubeconfig),
            *arguments,
        ]
        done = subprocess.run(command, input=stdin, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        return done.stdout

    return run


def namespace(name: str) -> str:
    labels = {"pod-security.kubernetes.io/enforce": "restricted"}
    return json.dumps({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, "labels": labels}})


def test_the_api_server_accepts_every_object_as_it_is_rendered(render, kubectl, chart_values):
    for name in ("team-a", "team-b", "chart-test"):
        kubectl("apply", "-f", "-", stdin=namespace(name))
    kubectl("apply", "-f", "-", stdin=monitoring_crds())
    kubectl("wait", "--for=condition=Established", "crd", "--all", "--timeout=60s")
    objects = render(chart_values, namespace="chart-test")
    # A dry run leaves nothing behind, and the pod of `helm test` is refused without its service account.
    accounts = {item["spec"]["serviceAccountName"] for item in objects if item["kind"] == "Pod"}
    for account in accounts:
        kubectl("create", "serviceaccount", account, "-n", "chart-test")
    command = ("apply", "--server-side", "--dry-run=server", "--validate=strict", "-f", "-")
    told = kubectl(*command, stdin=yaml.safe_dump_all(objects))
    for account in accounts:
        kubectl("delete", "serviceaccount", account, "-n", "chart-test")
    assert len(told.splitlines()) == len(objects)


def test_an_uninstalled_chart_leaves_the_crds_and_nothing_else(helm, kubectl, own_control_plane):
    kubectl("apply", "-f", "-", stdin=namespace("chart-test"))
    target = ("--kubeconfig", str(own_control_plane.kubeconfig), "--namespace", "chart-test")
    done = helm("install", "octavo", str(CHART), *target)
    assert done.returncode == 0, done.stderr
    owned = (
        "get",
        "clusterroles,clusterrolebindings,deployments,roles,rolebindings,services,configmaps,leases,priorityclasses,pods",
        "-A",
        "-o",
        "name",
    )
    selected = (*owned, "-l", "app.kubernetes.io/part-of=octavo")
    assert len(kubectl(*selected).split()) >= 8
    deadline = time.monotonic() + 60
    while not all(verbs_of(kubectl, role) >= {"get", "list", "watch"} for role in ("view", "edit", "admin")):
        assert time.monotonic() < deadline, "the cluster's own roles never came to include InferenceServices"
        time.sleep(0.2)
    assert "create" not in verbs_of(kubectl, "view")
    while not all(verbs_of(kubectl, role) >= {"create", "patch", "delete"} for role in ("edit", "admin")):
        assert time.monotonic() < deadline, "who may edit never came to change InferenceServices"
        time.sleep(0.2)

    again = helm("upgrade", "octavo", str(CHART), *target)
    assert again.returncode == 0, again.stderr
    gone = helm("uninstall", "octavo", *target)
    assert gone.returncode == 0, gone.stderr
    assert kubectl(*selected).split() == []
    assert "customresourcedefinition.apiextensions.k8s.io/inferenceservices.serving.octavo.dev" in kubectl(
        "get", "crds", "-o", "name"
    )


def verbs_of(kubectl, role: str) -> set[str]:
    """What one of the cluster's own roles may do with InferenceServices."""
    rules = json.loads(kubectl("get", "clusterrole", role, "-o", "json"))["rules"]
    return {verb for rule in rules if "inferenceservices" in rule.get("resources", ()) for verb in rule["verbs"]}
