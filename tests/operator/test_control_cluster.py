"""The operator against a real API server: drift, refusals, silence, deletion – and nothing of kopf on any object."""

from __future__ import annotations

import json

import pytest

from benchmarks.operator_process import Audit, OperatorProcess, user_of, wait_until

pytestmark = pytest.mark.cluster
LABEL = "serving.octavo.dev/service"
OWNED = "serviceaccounts,services,controllerrevisions,deployments,jobs,poddisruptionbudgets,networkpolicies"


def service(name: str, space: str, **sections):
    spec = {"model": {"uri": f"file:///models/{name}"}, "placement": {"cpu": "Required"}, **sections}
    return {
        "apiVersion": "serving.octavo.dev/v1alpha1",
        "kind": "InferenceService",
        "metadata": {"name": name, "namespace": space},
        "spec": spec,
    }


@pytest.fixture(scope="module")
def operator(fleet, space, tmp_path_factory):
    """It lists everything anew each second, so that a test of its silence covers many resyncs."""
    with OperatorProcess(fleet.cluster, tmp_path_factory.mktemp("operator"), "--resync-seconds", "1") as process:
        process.wait_for("working")
        yield process


@pytest.fixture(scope="module")
def chat(fleet, space, operator):
    """A service that is Ready."""
    fleet.apply(service("chat", space, scaling={"minReplicas": 2}))
    fleet.wait_condition(space, "chat", "Ready", "True")
    return "chat"


def deployment(fleet, space, name="chat"):
    [found] = fleet.items("deployments", space, f"{LABEL}={name}")
    return found


def test_objects_carry_their_owner_and_nothing_of_kopf(fleet, space, chat):
    [owner] = fleet.items("ois", space)
    objects = fleet.items(OWNED, space, f"{LABEL}={chat}")
    assert {item["kind"] for item in objects} == {
        "ServiceAccount",
        "Service",
        "ControllerRevision",
        "Deployment",
        "Job",
        "PodDisruptionBudget",
        "NetworkPolicy",
    }
    for item in objects:
        assert [ref["uid"] for ref in item["metadata"]["ownerReferences"]] == [owner["metadata"]["uid"]]
    for item in [owner, *objects, *fleet.items("pods", space), *fleet.items("nodes", space)]:
        assert "kopf" not in json.dumps(item)
    # Pods of Jobs have the job controller's own.
    assert not [item["metadata"]["name"] for item in [owner, *objects] if item["metadata"].get("finalizers")]


def test_at_rest_the_operator_writes_nothing_over_many_resyncs(fleet, chat, operator):
    written = Audit(fleet.cluster, user_of())
    lists = operator.metric("octavo_operator_reconcile_seconds_count")
    wait_until(
        lambda: operator.metric("octavo_operator_reconcile_seconds_count") >= lists + 6, "six more reconciliations"
    )
    assert written.writes() == []
    assert [r for r in written.requests() if r.resource == "leases" and r.verb == "update"], "the audit log is read"


def test_a_scaled_deployment_gets_its_count_back(fleet, space, chat):
    name = deployment(fleet, space)["metadata"]["name"]
    fleet.kubectl("scale", "deployment", name, "-n", space, "--replicas=5")
    wait_until(lambda: deployment(fleet, space)["spec"]["replicas"] == 2, "the count is 2 again", 30)


def test_a_foreign_container_is_taken_out_again(fleet, space, chat):
    name = deployment(fleet, space)["metadata"]["name"]
    patch = {
        "spec": {
            "template": {
                "spec": {
                    "containers": [{"name": "miner", "image": "miner:1"}],
                    "volumes": [{"name": "loot", "emptyDir": {}}],
                }
            }
        }
    }
    fleet.kubectl("patch", "deployment", name, "-n", space, "--type=strategic", "-p", json.dumps(patch))

    def clean() -> bool:
        pod = deployment(fleet, space)["spec"]["template"]["spec"]
        names = {item["name"] for item in (*pod["containers"], *pod["volumes"])}
        return not names & {"miner", "loot"}

    wait_until(clean, "only our container is left", 30)


def test_a_deleted_object_and_a_removed_label_come_back(fleet, space, chat):
    fleet.kubectl("delete", "poddisruptionbudget", chat, "-n", space)
    fleet.kubectl("label", "service", chat, "-n", space, f"{LABEL}-")

    def back() -> bool:
        kinds = {item["kind"] for item in fleet.items("services,poddisruptionbudgets", space, f"{LABEL}={chat}")}
        return kinds == {"Service", "PodDisruptionBudget"}

    wait_until(back, "both are back", 30)


def test_what_the_plan_no_longer_holds_is_pruned(fleet, space, operator):
    fleet.apply(service("shrinks", space))
    fleet.wait_condition(space, "shrinks", "Ready", "True")
    assert fleet.items("networkpolicies", space, f"{LABEL}=shrinks")
    fleet.apply(service("shrinks", space, access={"networkPolicy": "Disabled"}))
    wait_until(lambda: not fleet.items("networkpolicies", space, f"{LABEL}=shrinks"), "the policy is gone", 30)


def test_a_refused_object_becomes_a_condition_that_hides_no_other_service_and_heals(fleet, space, chat, operator):
    policy = {
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": "ValidatingAdmissionPolicy",
        "metadata": {"name": "no-refused"},
        "spec": {
            "failurePolicy": "Fail",
            "matchConstraints": {
                "resourceRules": [
                    {"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["services"]}
                ]
            },
            "validations": [{"expression": "object.metadata.name != 'refused'", "message": "the house allows none"}],
        },
    }
    binding = {
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": "ValidatingAdmissionPolicyBinding",
        "metadata": {"name": "no-refused"},
        "spec": {"policyName": "no-refused", "validationActions": ["Deny"]},
    }
    trial = {"apiVersion": "v1", "kind": "Service", "metadata": {"name": "refused", "namespace": space}}
    trial["spec"] = {"ports": [{"port": 80}]}

    def is_enforced() -> bool:
        try:
            fleet.kubectl("create", "--dry-run=server", "-f", "-", stdin=json.dumps(trial))
        except RuntimeError as error:
            return "the house allows none" in str(error)
        return False

    fleet.apply(policy, binding)
    try:
        wait_until(is_enforced, "the API server enforces the policy")
        fleet.apply(service("refused", space), service("beside", space))
        said = fleet.wait_condition(space, "refused", "Progressing", "False", "Invalid")
        assert "the house allows none" in said["message"]
        assert fleet.condition(space, "refused", "Ready")["status"] == "False"
        fleet.wait_condition(space, "beside", "Ready", "True")
        events = [e for e in fleet.items("events", space) if e["involvedObject"]["name"] == "refused"]
        assert [e for e in events if e["reason"] == "Invalid" and e["type"] == "Warning"]
    finally:
        fleet.kubectl("delete", "validatingadmissionpolicybinding,validatingadmissionpolicy", "no-refused")
    fleet.wait_condition(space, "refused", "Ready", "True")


def test_a_deleted_service_takes_everything_with_it(fleet, space, operator):
    fleet.apply(service("leaves", space))
    fleet.wait_condition(space, "leaves", "Ready", "True")
    fleet.kubectl("delete", "ois", "leaves", "-n", space, "--wait=true", "--timeout=30s")
    wait_until(lambda: not fleet.items(f"{OWNED},pods", space, f"{LABEL}=leaves"), "nothing is left")


def test_explain_tells_conditions_and_objects_and_writes_nothing(fleet, space, chat, operator, monkeypatch, capsys):
    from octavo_operator.__main__ import main

    monkeypatch.setenv("KUBECONFIG", str(fleet.cluster.kubeconfig))
    written = Audit(fleet.cluster, "admin")
    catalogue = str(operator.folder / "images.yaml")
    assert main(["explain", chat, "-n", space, "--catalogue", catalogue]) == 0
    told = capsys.readouterr().out
    assert "Ready" in told
    assert f"Deployment {deployment(fleet, space)['metadata']['name']}: as it should be" in told
    assert written.writes() == []
    assert main(["explain", "nodes", "--catalogue", catalogue]) == 0
    told = capsys.readouterr().out
    assert "cpu-0: CPU" in told
    assert "octavo/octavo-server:0.1.0-cpu" in told
    assert written.writes() == []
    assert main(["explain", "nobody", "-n", space, "--catalogue", catalogue]) == 1
    assert f"{space}/{chat}" in capsys.readouterr().err
