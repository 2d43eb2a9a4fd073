"""What is wrong is said in a condition, in time, and at a glance in `kubectl get ois`."""

from __future__ import annotations

import pytest

pytestmark = pytest.mark.cluster
INDEX_SECONDS = 5.0
CHECK_SECONDS = 30.0
START_SECONDS = 60.0
"""How long a check pod may take to be scheduled and started on a busy machine; its own 30 s count from there."""


def check_pod_started(octavo, name, namespace) -> bool:
    selector = f"serving.octavo.dev/service={name},serving.octavo.dev/role=check"
    pods = octavo.items("pods", namespace, selector)
    return any(pod.get("status", {}).get("phase", "Pending") != "Pending" or waiting(pod) for pod in pods)


def waiting(pod) -> bool:
    """Whether a container can't even be created (a missing Secret, for instance)."""
    states = pod.get("status", {}).get("containerStatuses", [])
    return any("Error" in state.get("state", {}).get("waiting", {}).get("reason", "") for state in states)


def test_a_model_file_that_is_missing_is_said_within_30_seconds_of_the_check(octavo, namespace, claim, service):
    octavo.apply(claim("models"), service("missing", "pvc://models/no-such-file.gguf"), namespace=namespace)
    octavo.wait(lambda: check_pod_started(octavo, "missing", namespace), "the check starts", START_SECONDS)
    condition = octavo.wait_condition("missing", namespace, "ModelReady", "False", CHECK_SECONDS)
    assert condition["reason"] == "ModelNotFound"
    assert "no-such-file.gguf" in condition["message"]
    assert not octavo.items("pods", namespace, "serving.octavo.dev/service=missing,serving.octavo.dev/role=server")


def test_a_broken_model_file_is_said_within_30_seconds_of_the_check(octavo, namespace, claim, service):
    octavo.apply(claim("broken", "broken-models"), service("broken", "pvc://broken/broken.gguf"), namespace=namespace)
    octavo.wait(lambda: check_pod_started(octavo, "broken", namespace), "the check starts", START_SECONDS)
    condition = octavo.wait_condition("broken", namespace, "ModelReady", "False", CHECK_SECONDS)
    assert condition["reason"] in {"ModelUnreadable", "FormatUnsupported", "ArchitectureUnsupported"}
    assert "broken.gguf" in condition["message"]


def test_an_unknown_secret_is_said_within_30_seconds_of_the_check(octavo, namespace, service):
    wanted = service("secretless", "hf://octavo-tests/private", model={"secretRef": {"name": "no-such-secret"}})
    octavo.apply(wanted, namespace=namespace)
    octavo.wait(lambda: check_pod_started(octavo, "secretless", namespace), "the check starts", START_SECONDS)
    condition = octavo.wait_condition("secretless", namespace, "ModelReady", "False", CHECK_SECONDS)
    assert "no-such-secret" in condition["message"]


def test_a_placement_that_no_node_fits_is_said_within_5_seconds(octavo, namespace, claim, service):
    placement = {"cpu": "Required", "nodeSelector": {"pool": "none-has-this"}}
    octavo.apply(claim("models"), service("nowhere", placement=placement), namespace=namespace)
    condition = octavo.wait_condition("nowhere", namespace, "NodeTypesResolved", "False", INDEX_SECONDS)
    assert "pool" in condition["message"]


def test_a_field_that_this_version_cannot_act_on_is_said_within_5_seconds(octavo, namespace, claim, service):
    octavo.apply(claim("models"), service("eight-bit", engine={"quantization": "FP8"}), namespace=namespace)
    condition = octavo.wait_condition("eight-bit", namespace, "SpecHonoured", "False", INDEX_SECONDS)
    assert "engine.quantization" in condition["message"]


def test_a_priority_that_the_administrator_does_not_allow_is_said_within_5_seconds(octavo, namespace, claim, service):
    placement = {"cpu": "Required", "priorityClassName": "system-node-critical"}
    octavo.apply(claim("models"), service("displaces", placement=placement), namespace=namespace)
    condition = octavo.wait_condition("displaces", namespace, "SpecHonoured", "False", INDEX_SECONDS)
    assert condition["reason"] == "NotAllowed"
    assert "policy.priorityClasses: no-such-class" in condition["message"]


def test_a_replica_that_the_api_server_refuses_is_said_with_what_it_misses(octavo, namespace, claim, service):
    placement = {"cpu": "Required", "priorityClassName": "no-such-class"}
    octavo.apply(claim("models"), service("refused", placement=placement), namespace=namespace)
    octavo.wait(lambda: check_pod_started(octavo, "refused", namespace), "the check starts", START_SECONDS)

    def said():
        found = octavo.conditions("refused", namespace).get("Ready", {})
        return found.get("reason") == "PodRefused" and "no-such-class" in found["message"]

    octavo.wait(said, "Ready names the priority class", CHECK_SECONDS)


def test_kubectl_get_tells_of_each_what_is_wrong(octavo, namespace):
    header, *lines = octavo.kubectl("get", "ois", "-n", namespace).splitlines()
    assert "REASON" in header
    reasons = {line.split()[0]: line.split()[2] for line in lines}
    assert {"missing", "broken", "secretless", "nowhere", "eight-bit"} <= reasons.keys()
    assert reasons["missing"] == "ModelNotFound"
    assert len({reasons["missing"], reasons["nowhere"], reasons["secretless"]}) == 3, reasons
