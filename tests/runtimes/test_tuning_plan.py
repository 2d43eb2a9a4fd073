"""Measured block sizes: one calibration per key, off the serving path, kept in a profile, adopted as the spec says."""

from __future__ import annotations

import asyncio
import copy
import json
from dataclasses import replace
from datetime import timedelta

import pytest
from octavo_kernels.launch_table import LaunchRow, load
from octavo_operator.api.tuning_profile import TuningProfile
from octavo_operator.cluster.resources import SERVICES
from octavo_operator.control.indexes import Indexes
from octavo_operator.control.reconcile import Reconciler
from octavo_operator.control.trim import trimmed
from octavo_operator.plan import CatalogueImage, Facts, Plan, PlanSettings, plan
from octavo_operator.plan import server_contract as contract
from octavo_server.calibration.choose import BlockResult
from octavo_server.calibration.command import report

from tests.operator.test_plan_service import NOW, check_pod, condition, live, node, server_pods, service

IMAGES = (CatalogueImage("cpu", "octavo/octavo-server:1-cpu", triton="3.6.0"),)
SETTINGS = PlanSettings(images=IMAGES, calibration="All", calibration_seconds=60)
SHAPE = {"layers": 30, "queryHeads": 9, "kvHeads": 3, "headSize": 64}
FOUND = {"ok": True, "reason": "ModelFound", "message": "fine", "shape": SHAPE}
RESULTS = [BlockResult(16, 106.0, 50.0), BlockResult(32, 90.0, 50.0)]


class Cluster:
    """One service and what its plans made of the cluster so far."""

    def __init__(self, body=None, *, settings=SETTINGS, profiles=(), nodes=None):
        self.body, self.settings, self.now = body or service(), settings, NOW
        self.profiles, self.owned, self.pods = list(profiles), [], []
        self.nodes = nodes or [node(cpu="8")]
        self.last = None

    def step(self):
        given = Facts(self.body, self.now, self.settings, self.owned, self.pods, self.nodes, profiles=self.profiles)
        self.last = plan(given)
        self.owned = live(self.last)
        self.body = {**self.body, "status": self.last.status}
        for profile in self.last.profiles:
            self.profiles = [p for p in self.profiles if p["metadata"]["name"] != profile["metadata"]["name"]]
            self.profiles.append(copy.deepcopy(profile))
        return self.last

    def serve(self):
        """Until a replica serves."""
        self.pods = [check_pod(self.step(), FOUND)]
        self.pods += server_pods(self.step())
        return self.step()

    def jobs(self):
        found = [item for item in self.owned if item["kind"] == "Job"]
        return [job for job in found if job["metadata"]["labels"][contract.ROLE_LABEL] == contract.ROLE_CALIBRATION]

    def end_calibration(self, message, code=0):
        [job] = self.jobs()
        state = {"terminated": {"exitCode": code, "message": message}}
        self.pods.append(
            {
                "metadata": {
                    "name": job["metadata"]["name"] + "-x",
                    "namespace": "team",
                    "labels": job["spec"]["template"]["metadata"]["labels"],
                    "ownerReferences": [{"kind": "Job", "name": job["metadata"]["name"]}],
                },
                "spec": job["spec"]["template"]["spec"],
                "status": {"phase": "Succeeded", "containerStatuses": [{"name": "calibrate", "state": state}]},
            }
        )
        return self.step()

    def template(self):
        [deployment] = [item for item in self.owned if item["kind"] == "Deployment"]
        return deployment["spec"]["template"]

    def block_size(self):
        words = self.template()["spec"]["containers"][0]["args"]
        return words[words.index("--block-size") + 1]


def result():
    return json.dumps(report(RESULTS, seconds=41))


def tuned_result(group_bytes=393216):
    """32 tokens, with launches of their own."""
    row = LaunchRow("attention.cpu", {"page_size": 32, "head_size": 64}, {"group_bytes": group_bytes}, 90.0, 99.0)
    return json.dumps(report([RESULTS[0], BlockResult(32, 90.0, 50.0, (row,), True, 99.0)], seconds=41))


def test_nothing_is_measured_before_a_replica_serves_and_then_once():
    cluster = Cluster()
    cluster.step()
    assert cluster.jobs() == []
    cluster.serve()
    [job] = cluster.jobs()
    [container] = job["spec"]["template"]["spec"]["containers"]
    assert container["image"] == "octavo/octavo-server:1-cpu"
    assert container["args"][:5] == ["calibrate", "--shape", "30,9,3,64", "--device", "CPU"]
    [profile] = cluster.profiles
    assert TuningProfile.model_validate(profile).spec.shape.query_heads == 9
    assert "ownerReferences" not in profile["metadata"]
    assert condition(cluster.last, "Tuned")["reason"] == "Calibrating"
    assert "16, the default" in condition(cluster.last, "Tuned")["message"]
    again = cluster.step()
    assert again.profiles == ()
    assert len(cluster.jobs()) == 1


def test_the_result_is_kept_in_the_profile_and_taken_up_at_the_next_rollout():
    cluster = Cluster()
    cluster.serve()
    told = cluster.end_calibration(result())
    [profile] = cluster.profiles
    status = TuningProfile.model_validate(profile).status
    assert (status.block_size, status.duration_seconds, status.image) == (32, 41, "octavo/octavo-server:1-cpu")
    assert [item.block_size for item in status.results] == [16, 32]
    assert cluster.jobs() == [], "the Job goes once its result is kept"
    assert contract.CALIBRATING not in profile["metadata"]["annotations"]
    told = cluster.step()
    assert cluster.block_size() == "16", "replicas that serve are left alone"
    assert condition(told, "Tuned")["reason"] == "UpdateAvailable"
    message = condition(told, "Tuned")["message"]
    assert "blockSize 32 – measured 2026-01-02 on CPU: decode 1.00 vs 0.85 (16), prefix hits −" in message
    cluster.body["spec"]["model"] = {**cluster.body["spec"]["model"], "servedName": "other"}
    told = cluster.step()
    assert cluster.block_size() == "32"


def test_adopted_at_once_where_the_spec_says_so_and_status_explains_the_number():
    cluster = Cluster(service(rollout={"adopt": "Immediately"}))
    cluster.serve()
    cluster.end_calibration(result())
    told = cluster.step()
    assert cluster.block_size() == "32"
    [shown] = told.status["nodeTypes"]
    assert shown["blockSize"] == 32
    assert shown["blockSizeReason"].startswith("measured 2026-01-02 on CPU: decode 1.00 vs 0.85 (16), prefix hits −")
    assert condition(told, "Tuned")["message"].startswith("blockSize: 32 – measured 2026-01-02 on CPU: decode 1.00")
    assert condition(told, "Tuned")["reason"] == "Measured"
    assert cluster.step().profiles == ()


def test_a_second_service_with_the_same_key_uses_the_profile_and_measures_nothing():
    first = Cluster()
    first.serve()
    other = Cluster(service(), profiles=first.profiles)
    other.body["metadata"] = {**other.body["metadata"], "name": "other", "uid": "u-2"}
    other.serve()
    assert other.jobs() == []
    assert "for the service chat" in condition(other.last, "Tuned")["message"]
    first.end_calibration(result())
    third = Cluster(service(), profiles=first.profiles)
    third.serve()
    assert third.jobs() == []
    assert third.block_size() == "32"
    assert condition(third.last, "Tuned")["reason"] == "Measured"


def test_a_service_that_went_while_it_measured_holds_nobody_up_for_ever():
    first = Cluster()
    first.serve()
    other = Cluster(service(), profiles=first.profiles)
    other.body["metadata"] = {**other.body["metadata"], "name": "other", "uid": "u-2"}
    other.now = NOW + timedelta(hours=1)
    other.serve()
    assert len(other.jobs()) == 1
    assert other.profiles[0]["metadata"]["annotations"][contract.CALIBRATING] == "other"


def test_a_failed_calibration_is_kept_with_its_reason_and_tried_again_later_and_later():
    cluster = Cluster()
    cluster.serve()
    waits = []
    for _ in range(3):
        cluster.end_calibration(json.dumps({"reason": "CalibrationFailed", "message": "no kernel"}), 2)
        [profile] = cluster.profiles
        retry = profile["status"]["retryAfter"]
        told = cluster.step()
        assert cluster.jobs() == []
        assert "no kernel" in condition(told, "Tuned")["message"]
        waits.append(told.requeue_seconds)
        cluster.now += timedelta(seconds=told.requeue_seconds + 1)
        cluster.pods = [pod for pod in cluster.pods if "tuned" not in pod["metadata"]["name"]]
        cluster.step()
        assert len(cluster.jobs()) == 1, retry
    assert waits == sorted(waits)
    assert waits[0] < waits[-1]
    assert len(cluster.profiles[0]["status"]["failures"]) == 3


@pytest.mark.parametrize("message", ["", "not JSON", "[]", '{"ok": true, "blockSize": 17}', '{"ok": true}'])
def test_a_result_that_can_not_be_read_is_a_failure_and_no_exception(message):
    cluster = Cluster()
    cluster.serve()
    cluster.end_calibration(message)
    assert cluster.profiles[0]["status"]["failures"]
    assert "blockSize" not in cluster.profiles[0]["status"]


def test_a_calibration_waits_for_a_free_place_and_gives_way():
    cluster = Cluster(nodes=[node(cpu="1")])
    cluster.pods = [check_pod(cluster.step(), FOUND)]
    pods = server_pods(cluster.step())
    for pod in pods:
        pod["spec"]["containers"][0]["resources"]["requests"]["cpu"] = "1"
    cluster.pods += pods
    told = cluster.step()
    assert cluster.jobs() == []
    assert "once a CPU is free" in condition(told, "Tuned")["message"]
    assert condition(told, "Ready")["status"] == "True"


def test_a_near_profile_gives_an_estimate_until_the_own_one_is_measured():
    first = Cluster()
    first.serve()
    first.end_calibration(result())
    near = copy.deepcopy(first.profiles[0])
    near["metadata"]["name"], near["spec"]["shape"]["layers"] = "tuned-near", 12
    other = Cluster(service(), profiles=[near])
    other.serve()
    assert other.block_size() == "32"
    assert len(other.jobs()) == 1
    [shown] = other.last.status["nodeTypes"]
    assert shown["blockSizeReason"].startswith("estimated from tuned-near, measured 2026-01-02 on CPU")


@pytest.mark.parametrize(
    ("settings", "spec"),
    [
        (PlanSettings(images=IMAGES), {}),
        (PlanSettings(images=IMAGES, calibration="Accelerators"), {}),
        (SETTINGS, {"engine": {"kvCache": {"blockSize": 32}}}),
    ],
)
def test_nothing_is_measured_where_it_is_off_or_the_spec_decides(settings, spec):
    cluster = Cluster(service(**spec), settings=settings)
    cluster.serve()
    assert (cluster.jobs(), cluster.profiles) == ([], [])


def test_another_version_of_triton_is_another_key():
    first = Cluster()
    first.serve()
    image = CatalogueImage("cpu", "octavo/octavo-server:2-cpu", triton="3.9.0")
    newer = PlanSettings(images=(image,), calibration="All")
    second = Cluster(settings=newer)
    second.serve()
    assert first.profiles[0]["metadata"]["name"] != second.profiles[0]["metadata"]["name"]


def test_a_block_larger_than_what_prompts_share_is_warned_of():
    cluster = Cluster(service(engine={"kvCache": {"blockSize": 128}}))
    told = cluster.serve()
    assert condition(told, "Tuned")["reason"] == "BlocksLargerThanPrefixes"
    assert "fewer than 128 tokens" in condition(told, "Tuned")["message"]
    without = Cluster(service(engine={"kvCache": {"blockSize": 128, "prefixCaching": "Disabled"}}))
    assert condition(without.serve(), "Tuned")["reason"] == "Explicit"


def test_the_warning_of_large_blocks_tells_what_a_calibration_of_the_namespace_measured():
    found = [BlockResult(size, 100.0, 50.0) for size in (16, 128)]
    first = Cluster()
    first.serve()
    first.end_calibration(json.dumps(report(found, seconds=41)))
    other = Cluster(service(engine={"kvCache": {"blockSize": 128}}), profiles=first.profiles)
    told = condition(other.serve(), "Tuned")
    assert told["reason"] == "BlocksLargerThanPrefixes"
    assert told["message"].endswith("; prefix hits 69 % against 97 % (16), measured 2026-01-02 on CPU")
    fitting = Cluster(service(engine={"kvCache": {"blockSize": 256}}), profiles=first.profiles)
    assert "prefix hits" not in condition(fitting.serve(), "Tuned")["message"]


def test_measured_launches_reach_the_server_as_a_file_and_status_says_what_they_gain(tmp_path):
    cluster = Cluster(service(rollout={"adopt": "Immediately"}))
    cluster.serve()
    assert "--launch-table" not in cluster.template()["spec"]["containers"][0]["args"]
    cluster.end_calibration(tuned_result())
    told = cluster.step()
    template = cluster.template()
    [container] = template["spec"]["containers"]
    path = container["args"][container["args"].index("--launch-table") + 1]
    [mount] = [item for item in container["volumeMounts"] if path.startswith(item["mountPath"] + "/")]
    [volume] = [item for item in template["spec"]["volumes"] if item["name"] == mount["name"]]
    [item] = volume["downwardAPI"]["items"]
    assert path == f"{mount['mountPath']}/{item['path']}"
    name = item["fieldRef"]["fieldPath"].removeprefix("metadata.annotations['").removesuffix("']")
    (tmp_path / "table.json").write_text(template["metadata"]["annotations"][name])
    table = load(tmp_path / "table.json")
    assert (table.capability, table.rows[0].launch) == ("cpu", {"group_bytes": 393216})
    assert condition(told, "Tuned")["message"].endswith("; launches 1.10 × the default")


def test_other_launches_of_the_same_block_size_are_an_update_that_waits_for_a_rollout():
    cluster = Cluster(service(rollout={"adopt": "Immediately"}))
    cluster.serve()
    cluster.end_calibration(tuned_result())
    cluster.step()
    before = cluster.template()
    cluster.body["spec"]["rollout"] = {"adopt": "NextRollout"}
    [profile] = cluster.profiles
    profile["status"]["launchTable"] = json.loads(tuned_result(98304))["launchTable"]
    told = cluster.step()
    assert cluster.template() == before, "a profile that changes restarts nothing"
    assert condition(told, "Tuned")["reason"] == "UpdateAvailable"
    assert "launch configurations for blockSize 32" in condition(told, "Tuned")["message"]
    cluster.body["spec"]["model"] = {**cluster.body["spec"]["model"], "servedName": "other"}
    cluster.step()
    assert "98304" in str(cluster.template()["metadata"]["annotations"])


@pytest.mark.parametrize("text", ["no JSON", "[]", "3"])
def test_a_profile_whose_launches_are_no_table_starts_no_server_that_would_refuse_it(text):
    first = Cluster()
    first.serve()
    first.end_calibration(result())
    first.profiles[0]["status"]["launchTable"] = text
    other = Cluster(service(), profiles=first.profiles)
    other.serve()
    assert other.block_size() == "32"
    assert "--launch-table" not in other.template()["spec"]["containers"][0]["args"]


def test_a_calibration_has_the_priority_that_gives_way_to_replicas():
    cluster = Cluster(settings=replace(SETTINGS, calibration_priority_class="octavo-calibration"))
    cluster.serve()
    [job] = cluster.jobs()
    assert job["spec"]["template"]["spec"]["priorityClassName"] == "octavo-calibration"
    assert "priorityClassName" not in cluster.template()["spec"]
    assert job["spec"]["backoffLimit"] == 0
    words = job["spec"]["template"]["spec"]["containers"][0]["args"]
    assert words[words.index("--budget-seconds") + 1] == "60"
    assert "activeDeadlineSeconds" not in job["spec"], "it would run while the pod waits for a node"


def started(cluster, **status):
    """A pod of the calibration in a state, and what a plan makes of it after `after` seconds."""
    [job] = cluster.jobs()
    meta = {"name": job["metadata"]["name"] + "-x", "namespace": "team"}
    labels = job["spec"]["template"]["metadata"]["labels"]
    owners = [{"kind": "Job", "name": job["metadata"]["name"]}]
    pod = {"metadata": {**meta, "labels": labels, "ownerReferences": owners}, "spec": {"nodeName": "n"}}
    cluster.pods.append({**pod, "status": {"phase": "Running", **status}})


RUNNING = {"containerStatuses": [{"name": "calibrate", "state": {"running": {"startedAt": "2026-01-02T03:04:05Z"}}}]}
NO_IMAGE = {"containerStatuses": [{"name": "calibrate", "state": {"waiting": {"reason": "ImagePullBackOff"}}}]}
TAKEN = {"conditions": [{"type": "DisruptionTarget", "status": "True", "message": "preempted by a replica"}]}


@pytest.mark.parametrize(
    ("status", "minutes", "reason", "said"),
    [
        (RUNNING, 12, "TookTooLong", "660 s"),
        (NO_IMAGE, 0, "ImagePullBackOff", "can't start"),
        (TAKEN, 0, "GaveWay", "preempted by a replica"),
    ],
)
def test_a_calibration_that_hangs_or_gives_way_is_ended_and_told(status, minutes, reason, said):
    cluster = Cluster()
    cluster.serve()
    started(cluster, **status)
    cluster.now += timedelta(minutes=minutes)
    cluster.step()
    assert cluster.jobs() == []
    [failure] = cluster.profiles[0]["status"]["failures"]
    assert failure["reason"] == reason
    assert said in failure["message"]
    assert said in condition(cluster.step(), "Tuned")["message"]


def test_a_calibration_within_its_time_is_left_alone():
    cluster = Cluster()
    cluster.serve()
    started(cluster, **RUNNING)
    cluster.now += timedelta(minutes=5)
    cluster.step()
    assert len(cluster.jobs()) == 1
    assert "failures" not in cluster.profiles[0]["status"]


def test_a_job_that_may_have_no_pod_is_told_with_where_to_look():
    cluster = Cluster()
    cluster.serve()
    [job] = cluster.jobs()
    job["metadata"]["creationTimestamp"] = "2026-01-02T03:04:05Z"
    cluster.now += timedelta(minutes=2)
    cluster.step()
    [failure] = cluster.profiles[0]["status"]["failures"]
    assert failure["reason"] == "PodRefused"
    # The Job itself goes with the failure; its events stay for an hour.
    assert f"involvedObject.name={job['metadata']['name']}" in failure["message"]


async def test_services_that_are_reconciled_at_the_same_moment_make_one_calibration():
    gate, plans = asyncio.Event(), []

    class SlowClient:
        async def apply(self, _resource, manifest):
            await gate.wait()
            return {**manifest, "metadata": {**manifest["metadata"], "uid": "u-p", "resourceVersion": "9"}}

        async def apply_status(self, _resource, item, status):
            return {**item, "status": status}

    indexes = Indexes()
    for name in ("one", "two"):
        meta = {"name": name, "namespace": "team", "uid": f"u-{name}", "resourceVersion": "1"}
        indexes.store(SERVICES, trimmed(SERVICES, {"metadata": meta, "spec": {}}))

    def planned(given):
        plans.append([item["metadata"]["annotations"] for item in given.profiles])
        name = given.service["metadata"]["name"]
        meta = {"name": "tuned-x", "namespace": "team", "annotations": {contract.CALIBRATING: name}}
        profile = {"metadata": meta, "kind": "TuningProfile", "spec": {}, "status": {}}
        return Plan((), {}, prune=False, profiles=() if given.profiles else (profile,))

    reconciler = Reconciler(SlowClient(), indexes, PlanSettings(), lambda: NOW, planned=planned)
    both = [asyncio.create_task(reconciler.reconcile(("team", name))) for name in ("one", "two")]
    await asyncio.sleep(0)
    gate.set()
    await asyncio.gather(*both)
    assert plans == [[], [{contract.CALIBRATING: "one"}]]
    assert [item["metadata"]["name"] for item in reconciler.facts(("team", "two")).profiles] == ["tuned-x"]
