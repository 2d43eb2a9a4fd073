"""Status from what was planned and what pods show: the word in Ready, and equal status for equal facts."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st
from octavo_operator.status.conditions import ORDER, Verdict, conditions, transitions
from octavo_operator.status.pods import Fault, fault, first_fault, is_ready, refused_pods
from octavo_operator.status.projection import TypeInUse, View, project

NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
GOOD = tuple(
    Verdict(kind, True, "Fine", "") for kind in ("SpecHonoured", "NodeTypesResolved", "ImageResolved", "ModelReady")
)


def pod(name, template="t1", node_type="a", *, ready=True, going=False, node="n1", **status):
    labels = {"template": template, "type": node_type}
    meta = {"name": name, "labels": labels, **({"deletionTimestamp": "now"} if going else {})}
    found = {"conditions": [{"type": "Ready", "status": str(ready)}], **status}
    return {"metadata": meta, "spec": {"nodeName": node} if node else {}, "status": found}


def view(*pods, desired=1, verdicts=GOOD, types=None, before=None, **more):
    used = types if types is not None else (TypeInUse("a", "t1", True, desired, "NVIDIA-L4"),)
    return View(
        "chat", 3, "http://chat", {"b": "2", "a": "1"}, desired, NOW, verdicts, used, pods, before or {},
        "template", "type", **more,
    )  # fmt: skip


def said(status, kind):
    found = next(item for item in status["conditions"] if item["type"] == kind)
    return found["status"], found["reason"]


def test_ready_needs_every_wanted_replica_of_the_present_template_and_no_older_one():
    assert said(project(view(pod("p"))), "Ready") == ("True", "Ready")
    assert said(project(view(pod("p"), desired=2)), "Ready") == ("False", "Starting")
    assert said(project(view(pod("p", "t0"))), "Ready") == ("False", "RollingOut")
    assert said(project(view(pod("p"), pod("q", "t0"))), "Ready") == ("False", "RollingOut")
    assert said(project(view(pod("p"), pod("q", "t0", going=True))), "Ready") == ("True", "Ready")
    assert said(project(view(desired=0)), "Ready") == ("True", "ScaledToZero")


def test_available_asks_only_whether_anything_serves():
    assert said(project(view(pod("p", "t0"))), "Available") == ("True", "Serving")
    assert said(project(view(pod("p", ready=False))), "Available") == ("False", "NoReplica")
    assert said(project(view(pod("p", going=True))), "Available") == ("False", "NoReplica")


@pytest.mark.parametrize("kind", ["SpecHonoured", "NodeTypesResolved", "ImageResolved", "ModelReady"])
def test_what_blocks_a_service_is_the_reason_of_ready_and_progressing(kind):
    verdicts = [Verdict(kind, False, "Blocked", "why") if item.type == kind else item for item in GOOD]
    status = project(view(verdicts=tuple(verdicts)))
    assert said(status, "Ready") == ("False", "Blocked")
    assert said(status, "Progressing") == ("False", "Blocked")


@pytest.mark.parametrize("reason", ["FieldsWithoutEffect", "TypeHeld"])
def test_what_harms_nobody_leaves_a_serving_service_ready(reason):
    kind = "SpecHonoured" if reason == "FieldsWithoutEffect" else "NodeTypesResolved"
    verdicts = [Verdict(kind, False, reason, "") if item.type == kind else item for item in GOOD]
    assert said(project(view(pod("p"), verdicts=tuple(verdicts))), "Ready") == ("True", "Ready")


def test_a_waiting_rollout_and_a_gap_are_said():
    waits = project(view(pod("p", "t0"), pod("q", ready=False, node=None), waiting="waits until noon"))
    assert said(waits, "Progressing") == ("False", "WaitingForAccelerator")
    gap = project(view(pod("q", ready=False), leaves_gap=True))
    assert said(gap, "Progressing") == ("True", "Replacing")
    served = project(view(pod("p", "t0"), leaves_gap=True))
    assert said(served, "Progressing") == ("True", "RollingOut"), "no gap while something serves"


LAST_WORDS = json.dumps({"reason": "PortInUse", "message": "8000"})


def unscheduled(message):
    condition = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": message}
    return pod("p", node=None, conditions=[condition])


def test_a_missing_accelerator_is_told_from_other_wants_and_named():
    status = project(view(unscheduled("0/9 nodes are available: 3 Insufficient nvidia.com/gpu.")))
    assert said(status, "Ready") == ("False", "WaitingForAccelerator")
    ready = next(item for item in status["conditions"] if item["type"] == "Ready")
    assert "NVIDIA-L4" in ready["message"]
    assert "0/9" not in ready["message"], "the scheduler's numbers change without news"
    assert said(project(view(unscheduled("0/9: 9 Insufficient cpu"))), "Ready") == ("False", "Unschedulable")


@pytest.mark.parametrize(
    ("container", "reason"),
    [
        ({"state": {"waiting": {"reason": "CrashLoopBackOff"}}}, "CrashLoopBackOff"),
        ({"state": {"waiting": {"reason": "CreateContainerConfigError", "message": "no secret"}}},
         "CreateContainerConfigError"),
        ({"state": {"waiting": {"reason": "ContainerCreating"}}}, None),
        ({"state": {"terminated": {"exitCode": 137}}}, "ContainerEnded"),
        ({"state": {"running": {}}}, None),
        ({"state": {"running": {}}, "lastState": {"terminated": {"exitCode": 0}}}, None),
        ({"state": {"running": {}}, "ready": True, "lastState": {"terminated": {"exitCode": 1}}}, None),
        ({"state": {"running": {}}, "restartCount": 1, "lastState": {"terminated": {"exitCode": 1}}}, "ContainerEnded"),
        ({"state": {"waiting": {"reason": "CrashLoopBackOff"}},
          "lastState": {"terminated": {"exitCode": 2, "message": LAST_WORDS}}},
         "PortInUse"),
        ({"state": {"terminated": {"exitCode": 2, "message": "[1, 2]"}}}, "ContainerEnded"),
        ({"state": {"terminated": {"exitCode": 2, "message": '{"reason": 7}'}}}, "ContainerEnded"),
    ],
)  # fmt: skip
def test_what_keeps_a_pod_from_serving_is_read_from_its_containers(container, reason):
    found = fault(pod("p", ready=False, containerStatuses=[container]))
    assert (found.reason if found else None) == reason


@pytest.mark.parametrize(("words", "reason"), [(LAST_WORDS, "PortInUse"), ("", "CrashLoopBackOff")])
def test_a_crash_loop_is_told_in_the_same_words_while_it_waits_runs_and_ends(words, reason):
    ended = {"terminated": {"exitCode": 2, "message": words}}
    phases = [
        {
            "state": {"waiting": {"reason": "CrashLoopBackOff", "message": "back-off 40s restarting"}},
            "lastState": ended,
        },
        {"state": {"running": {}}, "lastState": ended},
        {"state": ended, "lastState": ended},
        {
            "state": {"waiting": {"reason": "CrashLoopBackOff", "message": "back-off 80s restarting"}},
            "lastState": ended,
        },
    ]
    told = {fault(pod("p", ready=False, containerStatuses=[{**phase, "restartCount": 3}])) for phase in phases}
    assert {item.reason for item in told if item} == {reason}
    assert len(told) == 1


def deployment(name, **condition):
    return {"metadata": {"name": name}, "status": {"conditions": [condition]}}


def test_pods_that_the_api_server_refuses_are_the_reason_of_ready():
    words = 'pods "b-7f" is forbidden: no PriorityClass with name nosuch was found'
    found = refused_pods(
        [
            deployment("c", type="ReplicaFailure", status="True", message="later by name"),
            deployment("b", type="ReplicaFailure", status="True", message=words),
            deployment("a", type="ReplicaFailure", status="False", message="over"),
        ]
    )
    assert found == Fault("PodRefused", f"the API server refuses its pods: {words}")
    status = project(view(refusal=found))
    assert said(status, "Ready") == ("False", "PodRefused")
    assert said(status, "Progressing") == ("False", "PodRefused")
    assert said(project(view(pod("p"), refusal=found)), "Ready") == ("True", "Ready"), "what serves is enough"
    assert refused_pods([deployment("a", type="Available", status="True")]) is None


def test_a_normal_start_gives_no_warning_and_a_servers_own_word_does():
    def event(reason):
        before = [{"type": "Ready", "status": "True", "reason": "Ready", "message": ""}]
        return transitions(before, [{"type": "Ready", "status": "False", "reason": reason, "message": "m"}])[0][0]

    assert event("Starting") == event("RollingOut") == "Normal"
    assert event("PodRefused") == event("PortInUse") == "Warning"


def test_an_init_container_that_ended_well_keeps_nobody_waiting():
    done = {"state": {"terminated": {"exitCode": 0}}}
    assert fault(pod("p", ready=False, initContainerStatuses=[done])) is None


def test_the_first_pod_by_name_with_a_fault_speaks():
    bad = [{"state": {"waiting": {"reason": "ErrImagePull"}}}]
    pods = [pod("b", ready=False, containerStatuses=bad), pod("a", ready=False, containerStatuses=bad), pod("0")]
    found = first_fault(pods)
    assert found is not None
    assert "pod a" in found.message


PODS = st.lists(
    st.builds(
        pod,
        st.sampled_from("abcdef"),
        st.sampled_from(["t0", "t1"]),
        st.sampled_from(["a", "b"]),
        ready=st.booleans(),
        going=st.booleans(),
    ),
    max_size=5,
    unique_by=lambda item: item["metadata"]["name"],
)


@given(PODS, st.integers(0, 4), st.randoms())
def test_equal_facts_give_equal_status_at_any_later_time_and_in_any_order(pods, desired, random):
    first = project(view(*pods, desired=desired))
    turned = list(pods)
    random.shuffle(turned)
    later = view(*turned, desired=desired, before=first)
    assert project(View(**{**later.__dict__, "now": NOW + timedelta(hours=5)})) == first


@given(PODS, st.integers(0, 4))
def test_the_numbers_are_those_of_the_pods_that_live(pods, desired):
    status = project(view(*pods, desired=desired))
    living = [item for item in pods if not item["metadata"].get("deletionTimestamp")]
    assert status["replicas"] == len(living)
    assert status["readyReplicas"] == sum(map(is_ready, living)) <= status["replicas"]
    assert status["selector"] == "a=1,b=2"
    assert [item["type"] for item in status["conditions"]] == sorted(
        (item["type"] for item in status["conditions"]), key=ORDER.index
    )


def test_a_transition_time_moves_only_with_the_status():
    first = conditions([Verdict("Ready", False, "Starting", "0 of 2")], (), 1, NOW)
    second = conditions([Verdict("Ready", False, "RollingOut", "1 of 2")], first, 2, NOW + timedelta(minutes=1))
    third = conditions([Verdict("Ready", True, "Ready", "2 of 2")], second, 2, NOW + timedelta(minutes=2))
    assert first[0]["lastTransitionTime"] == second[0]["lastTransitionTime"] != third[0]["lastTransitionTime"]
    assert second[0]["observedGeneration"] == 2


def test_slower_kernels_are_a_warning_from_the_first_look_on():
    slow = conditions([Verdict("ImageResolved", True, "KernelFallback", "old driver")], (), 1, NOW)
    assert transitions((), slow) == [("Warning", "KernelFallback", "ImageResolved: old driver")]
    assert transitions(slow, slow) == []


def test_events_tell_changes_and_no_first_look():
    first = conditions(
        [Verdict("Ready", False, "Starting", ""), Verdict("ModelReady", None, "CheckPending", "")], (), 1, NOW
    )
    assert transitions((), first) == []
    bad = conditions([Verdict("ModelReady", False, "ModelNotFound", "gone")], first, 1, NOW)
    assert transitions(first, bad) == [("Warning", "ModelNotFound", "ModelReady: gone")]
    assert transitions(bad, bad) == []
