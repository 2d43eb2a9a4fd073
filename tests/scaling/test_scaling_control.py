"""From objects of the cluster to a count in the plan and the reasons in status."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from octavo_operator.cluster.resources import PODS, SERVICES
from octavo_operator.control.indexes import Indexes
from octavo_operator.plan import CatalogueImage, Facts, PlanSettings
from octavo_operator.scaling.autoscaler import DECISIONS, DESIRED, Autoscaler
from octavo_operator.scaling.observe import observe, target
from octavo_operator.scaling.overlay import count_in_force
from octavo_operator.scaling.policy import Wake
from octavo_operator.scaling.sample import Sample
from octavo_operator.scaling.scraper import Target
from octavo_operator.scaling.wake import WAKE_ANNOTATION, AnnotationWake
from octavo_operator.scaling.window import Unknown

Object = dict[str, Any]
BEGIN = datetime(2026, 5, 1, 12, tzinfo=UTC)
KEY = ("team", "chat")


def service(
    version: int = 1, status: Object | None = None, annotations: Object | None = None, **sections: Any
) -> Object:
    return {
        "metadata": {
            "name": "chat",
            "namespace": "team",
            "uid": "u",
            "generation": 1,
            "resourceVersion": str(version),
            "annotations": annotations or {},
        },
        "spec": {"model": {"uri": "file:///models/m"}, "placement": {"cpu": "Required"}, **sections},
        "status": status or {},
    }


def pod(number: int, *, ready: bool = True, **more: Any) -> Object:
    conditions = [{"type": "Ready", "status": str(ready), "lastTransitionTime": "2026-05-01T11:00:00Z"}]
    return {
        "metadata": {
            "name": f"chat-{number}",
            "namespace": "team",
            "uid": f"pod-{number}",
            "resourceVersion": "1",
            "labels": {
                "serving.octavo.dev/service": "chat",
                "serving.octavo.dev/role": "server",
                "serving.octavo.dev/node-type": "aaaaaaaa",
                "serving.octavo.dev/template": "bbbbbbbbbb",
            },
            **more.pop("metadata", {}),
        },
        "spec": {"nodeName": "n", **more.pop("spec", {})},
        "status": {"phase": "Running", "podIP": f"127.0.0.{number + 1}", "conditions": conditions, **more},
    }


class Scaled:
    """An autoscaler over indexes, with a clock of its own."""

    def __init__(self, item: Object, *pods: Object) -> None:
        self.indexes, self.now, self.asked = Indexes(), BEGIN, 0
        self.indexes.store(SERVICES, item)
        for one in pods:
            self.indexes.store(PODS, one)
        self.scaler = Autoscaler(self.indexes, self._ask, clock=lambda: self.now.timestamp())

    def _ask(self, _key: object) -> None:
        self.asked += 1

    def plan(self):
        nodes = [
            {
                "metadata": {"name": "n", "labels": {}},
                "spec": {},
                "status": {
                    "allocatable": {"cpu": "8", "memory": "32Gi", "pods": "110"},
                    "conditions": [{"type": "Ready", "status": "True"}],
                },
            }
        ]
        settings = PlanSettings(images=(CatalogueImage("cpu", "octavo-server:1", None),))
        item = self.indexes.service(KEY)
        return self.scaler.plan(Facts(item, self.now, settings, pods=self.indexes.pods(KEY), nodes=nodes))

    def live(self, seconds: int, active: float, waiting: float = 0.0) -> None:
        """Readings each 5 s and a decision each 15 s; every pod shows the same."""
        for step in range(1, seconds // 5 + 1):
            self.now += timedelta(seconds=5)
            for one in self.scaler.targets():
                self.scaler.heard(one, Sample(self.now.timestamp(), active, 10_000, active / 500, waiting))
            if step % 3 == 0:
                self.scaler.decide_all()


RANGE = {"minReplicas": 1, "maxReplicas": 6}


def told(plan, kind: str = "ScalingActive") -> Object:
    return next(item for item in plan.status["conditions"] if item["type"] == kind)


def test_load_sets_the_count_and_status_says_why():
    scaled = Scaled(service(scaling=RANGE), pod(0))
    scaled.live(30, active=9_000)
    plan = scaled.plan()
    assert plan.status["scaling"]["desired"] == 2
    [change] = plan.status["scaling"]["changes"]
    assert (change["from"], change["to"], change["reason"]) == (1, 2, "DemandGrew")
    assert "tokens asked for" in change["message"]
    assert [event.reason for event in plan.events if event.reason.startswith("Scaled")] == ["ScaledUp"]
    assert (told(plan)["status"], told(plan)["reason"]) == ("True", "ScaledByLoad")
    assert told(plan, "SpecHonoured")["status"] == "True"
    assert scaled.asked >= 1
    assert DESIRED.labels(*KEY)._value.get() == 2
    assert sum(item._value.get() for labels, item in DECISIONS._metrics.items() if labels[:2] == KEY) >= 1


def test_a_steady_service_is_told_the_same_each_time_and_no_event_comes_again():
    scaled = Scaled(service(scaling=RANGE), pod(0))
    scaled.live(30, active=9_000)
    first = scaled.plan()
    scaled.indexes.store(SERVICES, service(2, first.status, scaling=RANGE))
    scaled.live(120, active=6_000)
    again = scaled.plan()
    assert again.status == first.status
    assert not [event for event in again.events if event.reason.startswith("Scaled")]


def test_a_restarted_operator_goes_on_with_the_count_and_the_capacity_of_status():
    status = {
        "scaling": {
            "desired": 4,
            "capacities": [{"nodeType": "aaaaaaaa", "template": "bbbbbbbbbb", "tokens": 3000}],
            "changes": [{"time": "2026-05-01T11:00:00Z", "from": 3, "to": 4, "reason": "DemandGrew", "message": ""}],
        }
    }
    scaled = Scaled(service(status=status, scaling=RANGE), *(pod(number) for number in range(4)))
    assert scaled.plan().status["scaling"] == status["scaling"]
    scaled.live(60, active=10)
    assert scaled.plan().status["scaling"] == status["scaling"]


def test_pods_without_metrics_hold_the_count_and_say_so():
    scaled = Scaled(service(status={"scaling": {"desired": 3}}, scaling=RANGE), pod(0), pod(1), pod(2))
    scaled.scaler.decide_all()
    plan = scaled.plan()
    assert plan.status["scaling"]["desired"] == 3
    assert (told(plan)["status"], told(plan)["reason"]) == ("False", "MetricsMissing")


@pytest.mark.parametrize("sections", [{"scaling": {"mode": "Fixed"}, "replicas": 3}, {"scaling": {"minReplicas": 3}}])
def test_a_service_without_a_range_is_left_to_the_planner(sections):
    scaled = Scaled(service(**sections), pod(0))
    assert list(scaled.scaler.targets()) == []
    scaled.scaler.decide_all()
    assert scaled.plan().status["scaling"] == {"desired": 3}


def test_external_mode_publishes_a_recommendation_and_leaves_the_count_alone():
    scaled = Scaled(service(scaling={"mode": "External"}, replicas=2), pod(0), pod(1))
    scaled.live(30, active=14_000)
    assert DESIRED.labels(*KEY)._value.get() == 5
    plan = scaled.plan()
    assert plan.status["scaling"] == {"desired": 2}
    assert told(plan)["reason"] == "External"
    assert scaled.asked == 0


def test_external_mode_keeps_what_was_learned_in_status():
    scaled = Scaled(service(scaling={"mode": "External"}, replicas=1), pod(0))
    scaled.live(90, active=2_000, waiting=5)
    assert scaled.plan().status["scaling"] == {
        "desired": 1,
        "capacities": [{"nodeType": "aaaaaaaa", "template": "bbbbbbbbbb", "tokens": 2000}],
    }
    assert scaled.asked == 1


def test_a_change_of_mode_moves_no_count():
    fixed = Scaled(service(scaling={"mode": "Fixed"}, replicas=5))
    status = fixed.plan().status
    assert status["scaling"]["desired"] == 5
    assert Scaled(service(2, status, scaling=RANGE)).plan().status["scaling"]["desired"] == 5


@pytest.mark.parametrize(
    ("status", "running", "count"), [({}, 0, 2), ({}, 3, 3), ({"scaling": {"desired": 9}}, 3, 6), ({}, 9, 6)]
)
def test_the_first_count_is_what_is_within_the_bounds(status, running, count):
    assert count_in_force(status, running, 2, 6) == count


def test_a_sleeping_service_sleeps_on_over_a_restart():
    assert count_in_force({"scaling": {"desired": 0}}, 0, 0, 6) == 0


def test_ending_failed_and_foreign_pods_count_as_nothing():
    pods = [
        pod(0),
        pod(1, metadata={"deletionTimestamp": "2026-05-01T12:00:00Z"}),
        pod(2, phase="Failed"),
        {**pod(3), "metadata": {**pod(3)["metadata"], "labels": {"serving.octavo.dev/role": "check"}}},
    ]
    fleet = observe(1, pods, lambda _uid: Unknown("-"), None)
    assert [item.name for item in fleet.pods] == ["chat-0"]


def test_a_pod_without_a_node_is_unschedulable_since_the_scheduler_said_so():
    waiting = pod(0, ready=False, spec={"nodeName": ""})
    waiting["status"]["conditions"].append(
        {
            "type": "PodScheduled",
            "status": "False",
            "reason": "Unschedulable",
            "lastTransitionTime": "2026-05-01T11:30:00Z",
        }
    )
    [found] = observe(1, [waiting], lambda _uid: Unknown("-"), None).pods
    assert found.ready_since is None
    assert found.unschedulable_since == (BEGIN - timedelta(minutes=30)).timestamp()


def test_two_templates_at_once_are_a_rollout():
    other = pod(1)
    other["metadata"]["labels"]["serving.octavo.dev/template"] = "cccccccccc"
    assert observe(2, [pod(0), other], lambda _uid: Unknown("-"), None).rolling
    assert not observe(2, [pod(0), pod(1)], lambda _uid: Unknown("-"), None).rolling


@pytest.mark.parametrize(
    ("address", "url"),
    [
        ("10.0.0.7", "http://10.0.0.7:8000/metrics"),
        ("fd00::7", "http://[fd00::7]:8000/metrics"),
        ("", None),
        ("evil.example/x", None),
    ],
)
def test_metrics_are_read_from_addresses_alone(address, url):
    found = target(pod(0, podIP=address), "Octavo")
    assert found == (Target("pod-0", url, "Octavo") if url else None)


@pytest.mark.parametrize(
    ("annotations", "wake"),
    [
        ({}, None),
        ({WAKE_ANNOTATION: ""}, Wake()),
        ({WAKE_ANNOTATION: "soon"}, Wake()),
        ({WAKE_ANNOTATION: "2026-05-01T12:00:00"}, Wake()),
        ({WAKE_ANNOTATION: "2026-05-01T12:00:00Z"}, Wake(BEGIN.timestamp())),
    ],
)
def test_the_wake_annotation_tells_of_a_source_and_of_its_last_request(annotations, wake):
    assert AnnotationWake().wake(service(annotations=annotations)) == wake


def test_a_service_with_a_wake_source_sleeps_and_wakes():
    asleep = service(annotations={WAKE_ANNOTATION: ""}, scaling={"minReplicas": 0, "idleSeconds": 60})
    scaled = Scaled(asleep, pod(0))
    scaled.live(120, active=0)
    assert scaled.plan().status["scaling"]["desired"] == 0
    scaled.indexes.remove(PODS, pod(0))
    wanted = service(2, annotations={WAKE_ANNOTATION: scaled.now.isoformat()}, scaling=asleep["spec"]["scaling"])
    scaled.indexes.store(SERVICES, wanted)
    scaled.now += timedelta(seconds=15)
    scaled.scaler.decide_all()
    assert scaled.plan().status["scaling"]["desired"] == 1


def test_a_service_that_went_leaves_no_series():
    scaled = Scaled(service(scaling=RANGE), pod(0))
    scaled.live(30, active=9_000)
    scaled.indexes.remove(SERVICES, service(scaling=RANGE))
    scaled.scaler.decide_all()
    assert KEY not in DESIRED._metrics
    assert [labels for labels in DECISIONS._metrics if labels[:2] == KEY] == []


def test_learned_capacity_reaches_status_when_it_moved():
    scaled = Scaled(service(scaling=RANGE), pod(0))
    scaled.live(90, active=2_000, waiting=5)
    [found] = scaled.plan().status["scaling"]["capacities"]
    assert found == {"nodeType": "aaaaaaaa", "template": "bbbbbbbbbb", "tokens": 2000}


def test_start_up_time_is_read_from_pods_whose_container_never_started_again():
    metadata = {**pod(0)["metadata"], "creationTimestamp": "2026-05-01T10:58:30Z"}
    plain, again = pod(0, metadata=metadata), pod(1, metadata=metadata, containerStatuses=[{"restartCount": 1}])
    found = observe(2, [plain, again], lambda _uid: Unknown("-"), None).pods
    assert [item.startup_seconds for item in found] == [90.0, None]


def test_room_is_counted_while_a_replica_lacks_a_node():
    homeless = pod(1, ready=False, spec={"nodeName": ""})
    homeless["status"]["conditions"].append(
        {
            "type": "PodScheduled",
            "status": "False",
            "reason": "Unschedulable",
            "lastTransitionTime": "2026-05-01T11:30:00Z",
        }
    )
    scaled = Scaled(service(status={"scaling": {"desired": 2}}, scaling=RANGE), pod(0), homeless)
    asked = []
    scaled.scaler.facts = lambda key: asked.append(key)
    scaled.live(15, active=1_000)
    assert asked == [KEY]
    assert told(scaled.plan())["reason"] == "WaitingForAccelerator"
    assert scaled.plan().status["scaling"]["desired"] == 1


def test_a_service_taken_over_from_another_scaler_begins_with_the_count_in_force():
    external = service(scaling={"mode": "External", **RANGE}, replicas=4)
    scaled = Scaled(external, *(pod(number) for number in range(4)))
    scaled.live(30, active=10)
    status = scaled.plan().status
    assert status["scaling"]["desired"] == 4
    scaled.indexes.store(SERVICES, service(2, status, scaling=RANGE))
    assert scaled.plan().status["scaling"]["desired"] == 4
    scaled.live(30, active=10)
    assert scaled.plan().status["scaling"]["desired"] == 4
