"""The plan of a whole service: from nothing to ready, steady, rolled over, refused."""

from __future__ import annotations

import copy
import json
from datetime import UTC, datetime, timedelta

import pytest
from octavo_operator.plan import CatalogueImage, Facts, Plan, PlanSettings, difference, plan
from octavo_operator.plan import server_contract as contract

NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
SETTINGS = PlanSettings(images=(CatalogueImage("cpu", "octavo/octavo-server:1-cpu"),))


def node(name="n1", *, labels=None, cpu="4", **amounts):
    resources = {"cpu": cpu, "memory": "16Gi", "pods": "110", **amounts}
    return {"metadata": {"name": name, "labels": labels or {}}, "spec": {}, "status": {"allocatable": resources}}


def service(**spec):
    body = {"model": {"uri": "pvc://models/a.gguf"}, "placement": {"cpu": "Required"}, **spec}
    return {"metadata": {"name": "chat", "namespace": "team", "uid": "u-1", "generation": 1}, "spec": body}


def check_pod(planned: Plan, result: dict, code: int = 0):
    job = next(item for item in planned.objects if item["kind"] == "Job")
    state = {"terminated": {"exitCode": code, "message": json.dumps(result)}}
    metadata = {
        "name": job["metadata"]["name"] + "-x",
        "namespace": "team",
        "labels": job["spec"]["template"]["metadata"]["labels"],
        "ownerReferences": [{"kind": "Job", "name": job["metadata"]["name"]}],
    }
    status = {"phase": "Succeeded", "containerStatuses": [{"name": "check", "state": state}]}
    return {"metadata": metadata, "spec": job["spec"]["template"]["spec"], "status": status}


def server_pod(item, index, ready):
    template = item["spec"]["template"]
    name = f"{item['metadata']['name']}-{index}"
    return {
        "metadata": {"name": name, "namespace": "team", "labels": template["metadata"]["labels"]},
        "spec": {**template["spec"], "nodeName": "n1"},
        "status": {"phase": "Running", "conditions": [{"type": "Ready", "status": str(ready)}]},
    }


def server_pods(planned: Plan, *, ready=True):
    deployments = [item for item in planned.objects if item["kind"] == "Deployment"]
    return [server_pod(item, n, ready) for item in deployments for n in range(item["spec"]["replicas"])]


def live(planned: Plan):
    return copy.deepcopy(list(planned.objects))


def condition(planned: Plan, kind: str):
    return next(item for item in planned.status["conditions"] if item["type"] == kind)


def facts(body, *, now=NOW, owned=(), pods=(), nodes=None, settings=SETTINGS):
    return Facts(body, now, settings, owned, pods, nodes if nodes is not None else [node()])


def settle(body, **more):
    """Plans until the service is ready, as the operator would; the last plan and the facts of it."""
    first = plan(facts(body, **more))
    ok = check_pod(first, {"ok": True, "reason": "ModelFound", "message": "fine"})
    second = plan(facts(body, owned=live(first), pods=[ok], **more))
    pods = [ok, *server_pods(second)]
    third = plan(facts(body, owned=live(second), pods=pods, **more))
    body = {**body, "status": third.status}
    last = facts(body, owned=live(third), pods=pods, **more)
    return plan(last), last


def kinds(planned: Plan):
    return [item["kind"] for item in planned.objects]


def test_no_replica_starts_before_the_model_is_proven():
    planned = plan(facts(service()))
    assert kinds(planned) == ["ServiceAccount", "Service", "PodDisruptionBudget", "NetworkPolicy", "Job"]
    assert condition(planned, "ModelReady")["reason"] == "CheckPending"
    assert planned.prune


def test_a_proven_model_starts_the_wanted_replicas_and_ends_ready():
    planned, _ = settle(service(scaling={"mode": "Fixed"}, replicas=3))
    deployment = next(item for item in planned.objects if item["kind"] == "Deployment")
    assert deployment["spec"]["replicas"] == 3
    assert condition(planned, "Ready")["status"] == "True"
    assert planned.status["readyReplicas"] == 3
    assert planned.status["address"] == "http://chat.team.svc.cluster.local"


def test_a_settled_service_changes_nothing_however_late_it_is():
    planned, before = settle(service())
    assert planned.status == before.service["status"]
    assert planned.events == ()
    objects = {(item["kind"], item["metadata"]["name"]): item for item in before.owned}
    assert len(objects) == len(planned.objects)
    for item in planned.objects:
        assert difference(item, objects[item["kind"], item["metadata"]["name"]]) is None
    later = Facts(before.service, NOW + timedelta(hours=9), SETTINGS, before.owned, before.pods, before.nodes)
    assert plan(later) == planned


def test_the_same_facts_in_another_order_give_the_same_plan():
    planned, before = settle(service(), nodes=[node("n1"), node("n2"), node("n3")])
    turned = Facts(before.service, NOW, SETTINGS, before.owned[::-1], before.pods[::-1], before.nodes[::-1])
    assert plan(turned) == planned


def test_a_refused_model_is_said_with_its_reason_in_ready_and_retried_later():
    first = plan(facts(service()))
    bad = check_pod(
        first, {"ok": False, "reason": "ModelNotFound", "message": "/models/models/a.gguf: no such file"}, 2
    )
    owned = live(first)
    job = next(item for item in owned if item["kind"] == "Job")
    job["status"] = {"conditions": [{"type": "Failed", "status": "True", "lastTransitionTime": "2026-01-02T03:04:05Z"}]}
    planned = plan(facts(service(), owned=owned, pods=[bad]))
    assert condition(planned, "ModelReady")["status"] == "False"
    assert condition(planned, "Ready")["reason"] == "ModelNotFound"
    assert "no such file" in condition(planned, "Ready")["message"]
    assert planned.requeue_seconds == 300
    assert "Deployment" not in kinds(planned)
    body = {**service(), "status": planned.status}
    late = plan(facts(body, owned=owned, pods=[bad], now=NOW + timedelta(seconds=301)))
    [again] = [item for item in late.objects if item["kind"] == "Job"]
    assert again["metadata"]["name"] != job["metadata"]["name"]
    assert condition(late, "ModelReady") == condition(planned, "ModelReady"), "the finding stands while it is checked"


def test_a_model_that_keeps_failing_is_checked_less_and_less_often_and_status_is_written_once():
    body, pods, owned, waits, now = service(), [], [], [], NOW
    for _ in range(7):
        planned = plan(facts(body, owned=owned, pods=pods, now=now))
        owned = live(planned)
        [job] = [item for item in owned if item["kind"] == "Job"]
        ended = {"type": "Failed", "status": "True", "lastTransitionTime": now.strftime("%Y-%m-%dT%H:%M:%SZ")}
        job["status"] = {"conditions": [ended]}
        told = {"ok": False, "reason": "AccessDenied", "message": "no"}
        pods = [check_pod(planned, told, 2)]
        seen = plan(facts(body, owned=owned, pods=pods, now=now))
        waits.append(seen.requeue_seconds)
        assert body.get("status") in (None, seen.status)
        body = {**body, "status": seen.status}
        now += timedelta(seconds=seen.requeue_seconds + 1)
    assert waits == [300, 600, 1200, 2400, 3600, 3600, 3600]


def test_a_check_that_someone_deleted_takes_nothing_from_a_service_that_serves_the_model():
    _, before = settle(service())
    rest = [item for item in before.owned if item["kind"] != "Job"]
    pods = [pod for pod in before.pods if pod["metadata"]["labels"][contract.ROLE_LABEL] == contract.ROLE_SERVER]
    again = plan(Facts(before.service, NOW, SETTINGS, rest, pods, before.nodes))
    assert condition(again, "ModelReady")["reason"] == "Serving"
    assert condition(again, "Ready")["status"] == "True"
    assert "Job" in kinds(again)


def test_a_missing_secret_is_a_condition_that_names_it():
    body = service(model={"uri": "hf://org/name", "secretRef": {"name": "hub"}})
    first = plan(facts(body))
    pod = check_pod(first, {})
    waiting = {"reason": "CreateContainerConfigError", "message": 'secret "hub" not found'}
    pod["status"] = {"phase": "Pending", "containerStatuses": [{"name": "check", "state": {"waiting": waiting}}]}
    planned = plan(facts(body, owned=live(first), pods=[pod]))
    assert condition(planned, "ModelReady")["reason"] == "CreateContainerConfigError"
    assert "hub" in condition(planned, "ModelReady")["message"]


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"engine": {"quantization": "FP8"}}, "engine.quantization"),
        ({"engine": {"kvCache": {"dtype": "FP8"}}}, "engine.kvCache.dtype"),
        ({"engine": {"parallelism": {"tensor": 2}}}, "engine.parallelism.tensor"),
    ],
)
def test_a_service_with_an_essential_field_without_effect_is_not_run(change, field):
    planned = plan(facts(service(**change)))
    assert condition(planned, "SpecHonoured")["reason"] == "UnsupportedFields"
    assert field in condition(planned, "SpecHonoured")["message"]
    assert not {"Job", "Deployment"} & set(kinds(planned))


def test_a_field_without_effect_is_listed_and_the_service_runs():
    planned, _ = settle(service(scaling={"minReplicas": 1, "maxReplicas": 4}))
    assert "scaling.maxReplicas (4)" in condition(planned, "SpecHonoured")["message"]
    assert condition(planned, "Ready")["status"] == "True"


def test_a_placement_that_no_node_fits_names_what_was_asked_and_what_exists():
    body = service(placement={"cpu": "Required", "nodeSelector": {"pool": "blue"}})
    planned = plan(facts(body))
    assert condition(planned, "NodeTypesResolved")["status"] == "False"
    assert "pool=blue" in condition(planned, "Ready")["message"]
    assert "1 nodes exist (CPU)" in condition(planned, "Ready")["message"]


def test_nothing_is_pruned_while_no_node_is_listed():
    planned = plan(facts(service(), nodes=[]))
    assert not planned.prune
    assert condition(planned, "NodeTypesResolved")["status"] == "Unknown"


def test_a_running_service_is_held_while_its_nodes_are_gone():
    planned, before = settle(service())
    gone = Facts(
        before.service, NOW, SETTINGS, before.owned, before.pods, [node(labels={"x": "y"}, **{"amd.com/gpu": "1"})]
    )
    held = plan(gone)
    assert condition(held, "NodeTypesResolved")["status"] == "False"
    old = next(item for item in planned.objects if item["kind"] == "Deployment")
    new = next(item for item in held.objects if item["kind"] == "Deployment")
    assert new["spec"]["template"] == old["spec"]["template"]
    assert new["spec"]["replicas"] == 1


def test_a_new_catalogue_restarts_no_pod_until_the_spec_changes():
    planned, before = settle(service())
    newer = PlanSettings(images=(CatalogueImage("cpu", "octavo/octavo-server:2-cpu"),))
    same = plan(Facts(before.service, NOW, newer, before.owned, before.pods, before.nodes))
    assert [i for i in same.objects if i["kind"] == "Deployment"] == [
        i for i in planned.objects if i["kind"] == "Deployment"
    ]
    assert condition(same, "Tuned")["reason"] == "UpdateAvailable"
    body = copy.deepcopy(before.service)
    body["spec"]["engine"] = {"quantization": "Int8"}
    rolled = plan(Facts(body, NOW, newer, before.owned, before.pods, before.nodes))
    deployment = next(item for item in rolled.objects if item["kind"] == "Deployment")
    assert deployment["spec"]["template"]["spec"]["containers"][0]["image"] == "octavo/octavo-server:2-cpu"
    assert condition(rolled, "Ready")["reason"] == "RollingOut"


def test_going_back_to_an_older_spec_uses_its_stored_template_verbatim():
    _, before = settle(service())
    body = copy.deepcopy(before.service)
    body["spec"]["engine"] = {"quantization": "Int8"}
    owned = live(plan(Facts(body, NOW, SETTINGS, before.owned, before.pods, before.nodes)))
    stored = [item for item in owned if item["kind"] == "ControllerRevision"]
    assert len(stored) == 2
    for item in stored:
        item["data"]["template"]["spec"]["containers"][0]["args"].append("--as-stored")
    back = plan(Facts(before.service, NOW, SETTINGS, owned, before.pods, before.nodes))
    deployment = next(item for item in back.objects if item["kind"] == "Deployment")
    assert deployment["spec"]["template"]["spec"]["containers"][0]["args"][-1] == "--as-stored"


@pytest.mark.parametrize(("cpu", "surge"), [("4", 1), ("1100m", 0)])
def test_a_rollout_surges_when_a_node_has_room_and_replaces_otherwise(cpu, surge):
    nodes = [node(cpu=cpu)]
    _, before = settle(service(scaling={"minReplicas": 2}), nodes=nodes)
    body = copy.deepcopy(before.service)
    body["spec"]["model"] = {"uri": "pvc://models/a.gguf", "servedName": "other"}
    planned = plan(Facts(body, NOW, SETTINGS, before.owned, before.pods, nodes))
    deployment = next(item for item in planned.objects if item["kind"] == "Deployment")
    assert deployment["spec"]["strategy"]["rollingUpdate"] == {"maxSurge": surge, "maxUnavailable": 1 - surge}


def test_pods_are_restricted_and_hold_no_token():
    planned, _ = settle(service())
    for item in planned.objects:
        if item["kind"] not in ("Deployment", "Job"):
            continue
        pod = item["spec"]["template"]["spec"]
        assert pod["automountServiceAccountToken"] is False
        assert pod["securityContext"]["runAsNonRoot"] is True
        for container in pod["containers"]:
            assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}
            assert container["terminationMessagePath"] == contract.TERMINATION_PATH


def test_the_words_of_a_failing_server_reach_ready():
    planned, before = settle(service())
    told = json.dumps({"reason": "PortInUse", "message": "port 8000 is taken"})
    pods = copy.deepcopy(list(before.pods))
    pods[-1]["status"] = {
        "phase": "Running",
        "containerStatuses": [
            {
                "name": "server",
                "state": {"waiting": {"reason": "CrashLoopBackOff"}},
                "lastState": {"terminated": {"exitCode": 2, "message": told}},
            }
        ],
    }
    failing = plan(Facts(before.service, NOW, SETTINGS, before.owned, pods, before.nodes))
    assert condition(failing, "Ready")["reason"] == "PortInUse"
    assert "port 8000 is taken" in condition(failing, "Ready")["message"]
    assert condition(failing, "Available")["status"] == "False"
    assert any(event.type == "Warning" and event.reason == "PortInUse" for event in failing.events)
    assert planned.events == ()


def test_a_mode_that_reads_replicas_seeds_them_once():
    assert plan(facts(service(scaling={"mode": "External"}))).seed_replicas == 1
    assert plan(facts(service(scaling={"mode": "External"}, replicas=2))).seed_replicas is None
    assert plan(facts(service())).seed_replicas is None


def test_a_malformed_object_is_a_condition():
    planned = plan(facts({**service(), "spec": {"model": {}}}))
    assert condition(planned, "SpecHonoured")["reason"] == "InvalidSpec"
    assert not planned.prune


def test_a_replica_without_a_place_moves_to_the_node_type_that_has_one():
    def gpu_node(name, product, free):
        found = {
            "nvidia.com/gpu.product": product,
            "nvidia.com/gpu.compute.major": "9",
            "nvidia.com/gpu.compute.minor": "0",
        }
        driver = {
            "nvidia.com/cuda.driver-version.full": "580.65.06",
            "nvidia.com/cuda.runtime-version.major": "13",
            "nvidia.com/cuda.runtime-version.minor": "0",
        }
        labels = {**found, **driver, "nvidia.com/gpu.memory": "81559", "nvidia.com/gpu.count": "1"}
        return node(name, labels=labels, cpu="64", **({"nvidia.com/gpu": "1"} if free else {"nvidia.com/gpu": "0"}))

    images = (*SETTINGS.images, CatalogueImage("cu130", "octavo/octavo-server:1-cu130", "13.0", ("9.0",)))
    settings = PlanSettings(images=images)
    body = service(placement={"accelerators": [{"vendor": "NVIDIA"}]})
    nodes = [gpu_node("n1", "NVIDIA-H100", True), gpu_node("n2", "NVIDIA-H200", False)]
    planned, before = settle(body, nodes=nodes, settings=settings)
    [first] = [item for item in planned.objects if item["kind"] == "Deployment"]
    [waiting] = [pod for pod in before.pods if pod["metadata"]["labels"][contract.ROLE_LABEL] == contract.ROLE_SERVER]
    since = (NOW - timedelta(seconds=60)).strftime("%Y-%m-%dT%H:%M:%SZ")
    unschedulable = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "lastTransitionTime": since}
    spec = {key: value for key, value in waiting["spec"].items() if key != "nodeName"}
    waiting = {**waiting, "spec": spec, "status": {"phase": "Pending", "conditions": [unschedulable]}}
    others = [pod for pod in before.pods if pod["metadata"]["name"] != waiting["metadata"]["name"]]
    freed = [gpu_node("n1", "NVIDIA-H100", False), gpu_node("n2", "NVIDIA-H200", True)]
    moved = plan(facts(before.service, owned=before.owned, pods=[*others, waiting], nodes=freed, settings=settings))
    counts = {
        item["metadata"]["name"]: item["spec"]["replicas"] for item in moved.objects if item["kind"] == "Deployment"
    }
    assert counts.pop(first["metadata"]["name"]) == 0
    assert list(counts.values()) == [1]
