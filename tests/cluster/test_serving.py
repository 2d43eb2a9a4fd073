"""From `kubectl apply` to a real answer, through one change of the spec and to a clean end."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from scripts.demo_chat import stream_chat
from tests.cluster.asking import Client

pytestmark = pytest.mark.cluster
EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "smollm2-cpu.yaml"
QUESTION = "What is the capital of France?"
NAME = "smollm2"
OWNED = "deployments,replicasets,pods,services,jobs,serviceaccounts,controllerrevisions,networkpolicies"


@pytest.fixture(scope="module")
def example(octavo, namespace):
    """The example of the README, applied as it stands."""
    octavo.kubectl("apply", "-n", namespace, "-f", str(EXAMPLE))
    octavo.wait_ready(NAME, namespace)
    return octavo.address(NAME, namespace)


def test_the_example_streams_a_real_models_answer_through_its_service(example):
    pieces: list[str] = []
    answer = stream_chat(example, NAME, QUESTION, on_text=pieces.append)
    assert "Paris" in answer.text
    assert len(pieces) > 3, "the answer came in one piece"
    assert answer.finish_reason in {"stop", "length"}
    assert answer.completion_tokens >= len(pieces) // 2


def test_kubectl_get_shows_at_a_glance_that_all_is_well(octavo, namespace, example):
    header, line = octavo.kubectl("get", "ois", NAME, "-n", namespace).splitlines()
    assert {"NAME", "READY", "REASON", "MODEL"} <= set(header.split())
    assert "True" in line
    assert "SmolLM2" in line


def test_explain_needs_nothing_but_a_kubeconfig(octavo, namespace, example):
    environment = {**os.environ, "KUBECONFIG": str(octavo.cluster.kubeconfig)}

    def explain(*arguments):
        command = [sys.executable, "-m", "octavo_operator", "explain", *arguments]
        return subprocess.run(command, capture_output=True, text=True, env=environment, timeout=60)

    told = explain(NAME, "-n", namespace)
    assert told.returncode == 0, told.stderr
    assert "Ready" in told.stdout
    assert f"Deployment {NAME}" in told.stdout
    assert "applied" not in told.stdout
    told = explain("nodes")
    assert told.returncode == 0, told.stderr


def test_the_command_line_looks_explains_and_measures_with_nothing_but_a_kubeconfig(octavo, namespace, example):
    environment = {**os.environ, "KUBECONFIG": str(octavo.cluster.kubeconfig)}

    def call(*arguments):
        command = [sys.executable, "-m", "octavo_cli", *arguments]
        done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=120)
        assert done.returncode == 0, done.stderr
        return done.stdout

    [row] = [line.split() for line in call("top", "--once", "-n", namespace).splitlines() if NAME in line]
    assert row[:4] == [namespace, NAME, "True", "1/1"]
    assert row[4].endswith("%"), "the pod's metrics were read"
    assert "Conditions" in call("explain", NAME, "-n", namespace)
    told = call("bench", NAME, "-n", namespace, "--requests", "2", "--concurrency", "2", "--tokens", "4")
    assert "generated tokens per second" in told


def test_the_operators_pod_runs_under_the_charts_own_account(octavo, example):
    [pod] = octavo.items("pods", "octavo-system", "app.kubernetes.io/name=octavo-operator")
    assert pod["spec"]["serviceAccountName"] == "octavo-operator"
    # Other tests kill the operator, so its restarts prove nothing; that it works under these rights does.
    assert pod["status"]["containerStatuses"][0]["ready"] is True


def test_a_changed_spec_makes_exactly_one_rollout_without_a_gap(octavo, namespace, example):
    selector = f"serving.octavo.dev/service={NAME},serving.octavo.dev/role=server"
    before = {pod["metadata"]["name"] for pod in octavo.items("pods", namespace, selector)}
    replica_sets = {r["metadata"]["name"] for r in octavo.items("replicasets", namespace, selector)}
    with Client(example, NAME) as client:
        octavo.wait(lambda: client.answered >= 1, "the client gets an answer before the change")
        patch = '{"spec": {"engine": {"kvCache": {"blockSize": 32}}}}'
        octavo.kubectl("patch", "ois", NAME, "-n", namespace, "--type=merge", "-p", patch)
        octavo.wait_ready(NAME, namespace, 120)
        ready_at = client.answered
        octavo.wait(lambda: client.answered > ready_at or client.failed, "the client gets an answer after the change")
        octavo.wait(
            lambda: not before & {pod["metadata"]["name"] for pod in octavo.items("pods", namespace, selector)},
            "the old pod has drained and is gone",
            90,
        )
    assert client.failed == []
    after = octavo.items("pods", namespace, selector)
    [pod] = after
    assert "--block-size" in str(pod["spec"]["containers"][0]["args"])
    new = {r["metadata"]["name"] for r in octavo.items("replicasets", namespace, selector)} - replica_sets
    assert len(new) == 1, "one change of the spec made more than one pod template"


def test_a_deleted_service_leaves_nothing(octavo, namespace, example):
    octavo.kubectl("delete", "ois", NAME, "-n", namespace, "--wait=true", "--timeout=60s")
    octavo.wait(
        lambda: not octavo.items(OWNED, namespace, f"serving.octavo.dev/service={NAME}"),
        "all owned objects are collected",
        90,
    )
    octavo.wait(lambda: not octavo.processes("octavo-server", "serve"), "the server's processes have ended", 60)
    claims = [
        document for document in yaml.safe_load_all(EXAMPLE.read_text()) if document["kind"] != "InferenceService"
    ]
    for document in claims:
        kept = octavo.get(document["kind"], document["metadata"]["name"], namespace)
        assert kept is not None, "what the operator does not own is not its to delete"
