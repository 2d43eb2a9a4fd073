"""A user who may do nothing but edit InferenceServices tries to gain more; the cluster and the operator are real.

The namespace enforces no pod security level here, so that nothing but the operator itself stands in the way.
"""

from __future__ import annotations

import json

import pytest
import yaml

from benchmarks.operator_process import OperatorProcess, wait_until

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(240)]
SPACE = "attacked"
MALLORY = "mallory"
RBAC = "rbac.authorization.k8s.io"
API = "serving.octavo.dev/v1alpha1"
CONTROL_PLANE = "node-role.kubernetes.io/control-plane"
POLICY = ("--image-prefixes", "allowed.registry", "--tolerations", "dedicated=llm", "--priority-classes", "*")
PLAIN = {"model": {"uri": "file:///models/m"}, "placement": {"cpu": "Required"}}


def body(name: str, **sections):
    return {"apiVersion": API, "kind": "InferenceService", "metadata": {"name": name}, "spec": {**PLAIN, **sections}}


def placed(**more):
    return {"placement": {"cpu": "Required", **more}}


def pinned(reference: str):
    return {"image": {"policy": "Pinned", "reference": reference}}


def arguments(*texts: str):
    return {"engine": {"extraArgs": list(texts)}}


REFUSED_BY_THE_OPERATOR = {
    "image-host": pinned("allowed.registry.evil.com/x:1"),
    "image-port": pinned("allowed.registry:5000/x:1"),
    "image-user": pinned("allowed.registry@evil.com/x"),
    "image-dots": pinned("allowed.registry/../evil.com/x:1"),
    "image-infix": pinned("evil.com/allowed.registry/x:1"),
    "image-catalogue": pinned("octavo/octavo-server-evil:1"),
    "image-digest": pinned("octavo/octavo-server@evil.com/x"),
    "flag-template": arguments("--chat-template", "/proc/self/environ"),
    "flag-joined": arguments("--chat-template=/proc/self/environ"),
    "flag-behind": arguments("--max-sequences", "4", "--chat-template", "/etc/passwd"),
    "flag-short": arguments("-c", "/etc/passwd"),
    "taint-all": placed(tolerations=[{"operator": "Exists"}], nodeSelector={CONTROL_PLANE: ""}),
    "taint-control": placed(tolerations=[{"key": CONTROL_PLANE, "operator": "Exists"}]),
    "taint-value": placed(tolerations=[{"key": "dedicated", "operator": "Exists"}]),
    "priority": placed(priorityClassName="system-node-critical"),
    "token-mirror": {"model": {"uri": "hf://o/n", "endpoint": "https://evil.com", "secretRef": {"name": "robot"}}},
    "device": placed(resources={"limits": {"devices.kubevirt.io/kvm": "1"}}),
}
REFUSED_BY_THE_API_SERVER = {
    "host-uri": {"model": {"uri": "hostPath:///etc"}},
    "parent-uri": {"model": {"uri": "pvc://claim/../../etc"}},
    "remote-file": {"model": {"uri": "file://evil.com/etc"}},
    "flag-owned": arguments("--host=0.0.0.0"),
    "flag-model": arguments("--model", "/etc"),
    "image-blank": pinned("allowed.registry/x:1 --privileged"),
    "gpus": placed(resources={"limits": {"nvidia.com/gpu": "8"}}),
    "claim-name": {"model": {"uri": "pvc://Claim$/x"}},
    "secret-path": {"model": {"uri": "hf://a/b", "secretRef": {"name": "../x"}}},
    "served-name": {"model": {"uri": "file:///m", "servedName": "$(API_KEY)"}},
}
UNKNOWN_FIELDS = {
    "volumes": [{"name": "h", "hostPath": {"path": "/"}}],
    "hostNetwork": True,
    "runtimeClassName": "evil",
    "env": [{"name": "LD_PRELOAD", "value": "/models/evil.so"}],
    "template": {"spec": {"hostPID": True}},
    "serviceAccountName": "octavo-operator",
    "securityContext": {"privileged": True},
}


@pytest.fixture(scope="module")
def attacked(fleet, tmp_path_factory):
    """A namespace, a user with the chart's edit role there and nothing else, and an operator with a policy."""
    binding = {
        "apiVersion": f"{RBAC}/v1",
        "kind": "RoleBinding",
        "metadata": {"name": MALLORY, "namespace": SPACE},
        "roleRef": {"apiGroup": RBAC, "kind": "ClusterRole", "name": "octavo-operator-edit"},
        "subjects": [{"apiGroup": RBAC, "kind": "User", "name": MALLORY}],
    }
    reader = {**binding, "metadata": {"name": f"{MALLORY}-view", "namespace": SPACE}}
    reader["roleRef"] = {**binding["roleRef"], "name": "octavo-operator-view"}
    node = {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {
            "name": "control",
            "labels": {CONTROL_PLANE: "", "kubernetes.io/hostname": "control"},
            "annotations": {"kwok.x-k8s.io/node": "fake"},
        },
        "spec": {"taints": [{"key": CONTROL_PLANE, "effect": "NoSchedule"}]},
        "status": {"allocatable": {"cpu": "64", "memory": "1Ti", "pods": "250"}},
    }
    fleet.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": SPACE}}, binding, reader, node)
    with OperatorProcess(fleet.cluster, tmp_path_factory.mktemp("attacked"), *POLICY) as operator:
        operator.wait_for("working")
        yield operator
    fleet.kubectl("delete", "node", "control")
    fleet.kubectl("delete", "namespace", SPACE, "--wait=false")


def as_mallory(fleet, verb: str, *documents, flags: tuple[str, ...] = ()) -> str:
    text = yaml.safe_dump_all(documents)
    return fleet.kubectl(verb, f"--as={MALLORY}", "-n", SPACE, *flags, "-f", "-", stdin=text)


def conditions(fleet, name: str):
    [item] = [item for item in fleet.items("ois", SPACE) if item["metadata"]["name"] == name]
    return {each["type"]: each for each in item.get("status", {}).get("conditions", ())}


def test_what_lies_outside_of_the_policy_is_said_and_makes_no_pod(fleet, attacked):
    as_mallory(fleet, "create", *(body(name, **sections) for name, sections in REFUSED_BY_THE_OPERATOR.items()))
    for name in REFUSED_BY_THE_OPERATOR:
        said = fleet.wait_condition(SPACE, name, "SpecHonoured", "False", "NotAllowed", 60)
        assert "the administrator does not allow this" in said["message"]
        assert fleet.condition(SPACE, name, "Ready")["reason"] == "NotAllowed"
    selector = f"serving.octavo.dev/service in ({','.join(REFUSED_BY_THE_OPERATOR)})"
    assert fleet.items("deployments,jobs,pods", SPACE, selector) == []


@pytest.mark.parametrize("name", REFUSED_BY_THE_API_SERVER)
def test_what_makes_no_sense_or_reaches_outside_is_refused_at_once(fleet, attacked, name):
    with pytest.raises(RuntimeError, match=r"Invalid|invalid"):
        as_mallory(fleet, "create", body(name, **REFUSED_BY_THE_API_SERVER[name]))


def test_fields_that_do_not_exist_change_nothing_also_where_the_client_does_not_check(fleet, attacked):
    wanted = body("smuggled", **UNKNOWN_FIELDS)
    wanted["metadata"]["annotations"] = {"pod.kubernetes.io/hostPath": "/", "serving.octavo.dev/template": "evil"}
    wanted["metadata"]["labels"] = {"serving.octavo.dev/service": "other", "serving.octavo.dev/role": "server"}
    with pytest.raises(RuntimeError, match="unknown field"):
        as_mallory(fleet, "create", wanted)
    as_mallory(fleet, "create", wanted, flags=("--validate=false",))
    fleet.wait_condition(SPACE, "smuggled", "Ready", "True", seconds=90)
    found = fleet.items("deployments,jobs,pods,serviceaccounts", SPACE, "serving.octavo.dev/service=smuggled")
    assert {item["kind"] for item in found} == {"Deployment", "Job", "Pod", "ServiceAccount"}
    text = json.dumps(found)
    for word in ("hostPath", "hostNetwork", "hostPID", "runtimeClassName", "LD_PRELOAD", 'octavo-operator"}'):
        assert word not in text
    assert '"privileged"' not in text
    for item in found:
        if item["kind"] == "Pod":
            assert item["spec"]["serviceAccountName"] == "smuggled"
            assert item["spec"]["automountServiceAccountToken"] is False
            assert item["spec"].get("nodeName") != "control"


def test_status_scale_and_owned_objects_are_not_the_users_to_write(fleet, attacked):
    as_mallory(fleet, "create", body("mine", scaling={"mode": "Fixed"}, replicas=1))
    fleet.wait_condition(SPACE, "mine", "Ready", "True", seconds=90)
    with pytest.raises(RuntimeError, match="forbidden"):
        fleet.kubectl("patch", "ois", "mine", f"--as={MALLORY}", "-n", SPACE, "--subresource=status", "--type=merge",
                      "-p", '{"status": {"address": "http://evil"}}')  # fmt: skip
    rights = fleet.kubectl("auth", "can-i", "--list", f"--as={MALLORY}", "-n", SPACE).splitlines()[1:]
    kinds = {line.split()[0] for line in rights if not line.startswith(" ")}
    ours = ("inferenceservices", "tuningprofiles", "selfsubject")
    assert {kind for kind in kinds if not kind.startswith(ours)} == set(), "rights beside those of the chart's roles"
    fleet.kubectl("scale", "ois", "mine", f"--as={MALLORY}", "-n", SPACE, "--replicas=2")
    wait_until(
        lambda: len(fleet.items("pods", SPACE, "serving.octavo.dev/service=mine,serving.octavo.dev/role=server")) == 2,
        "what the role gives works",
        60,
    )


def test_a_name_that_belongs_to_another_object_is_never_taken_over(fleet, attacked):
    before = [item for item in fleet.items("serviceaccounts", SPACE) if item["metadata"]["name"] == "default"]
    as_mallory(fleet, "create", body("default"))
    said = fleet.wait_condition(SPACE, "default", "Ready", "False", "NameTaken", 60)
    assert "ServiceAccount default" in said["message"]
    after = [item for item in fleet.items("serviceaccounts", SPACE) if item["metadata"]["name"] == "default"]
    assert after == before
