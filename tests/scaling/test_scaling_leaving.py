"""The idlest pod goes: its deletion cost is set right before its Deployment shrinks, and never otherwise."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest
from octavo_operator.cluster.client import ApiError
from octavo_operator.plan import Facts, Plan
from octavo_operator.scaling.leaving import DELETION_COST, DeletionCosts, leaving, shrinking

Object = dict[str, Any]
TYPE = "serving.octavo.dev/node-type"


def pod(number: int, kind: str = "aaaaaaaa", *, ready: bool = True, marked: bool = False) -> Object:
    return {
        "metadata": {
            "name": f"chat-{number}",
            "namespace": "team",
            "uid": f"u{number}",
            "creationTimestamp": f"2026-05-01T12:00:{number:02}Z",
            "labels": {TYPE: kind, "serving.octavo.dev/role": "server"},
            "annotations": {DELETION_COST: "-1000"} if marked else {},
        },
        "status": {"conditions": [{"type": "Ready", "status": str(ready)}]},
    }


def deployment(count: int, kind: str = "aaaaaaaa") -> Object:
    return {
        "kind": "Deployment",
        "metadata": {"name": f"chat-{kind}", "namespace": "team", "labels": {TYPE: kind}},
        "spec": {"replicas": count},
    }


def facts(pods: list[Object], *live: Object) -> Facts:
    service = {"metadata": {"name": "chat", "namespace": "team", "uid": "s"}, "spec": {}}
    return Facts(service, datetime(2026, 5, 1, tzinfo=UTC), owned=live, pods=pods)


class Recorder:
    """Stands for the API server: keeps what was annotated."""

    def __init__(self, error: ApiError | None = None) -> None:
        self.written: list[tuple[str, str | None]] = []
        self._error = error

    async def annotate(self, _resource: object, live: Object, annotations: Object) -> Object:
        if self._error is not None:
            raise self._error
        self.written.append((live["metadata"]["name"], annotations[DELETION_COST]))
        return live


LOADS = {"u1": 3.0, "u2": 0.0, "u3": 7.0, "u4": 0.0}


def test_the_idlest_goes_and_of_equals_the_youngest():
    pods = [pod(number) for number in (1, 2, 3, 4)]
    assert [item["metadata"]["name"] for item in leaving(pods, {"aaaaaaaa": 2}, LOADS.get)] == ["chat-4", "chat-2"]


def test_a_pod_of_unknown_load_goes_last_and_one_that_does_not_serve_first():
    pods = [pod(1), pod(5), pod(6, ready=False)]
    assert [item["metadata"]["name"] for item in leaving(pods, {"aaaaaaaa": 2}, LOADS.get)] == ["chat-6", "chat-1"]


def test_only_pods_of_the_node_type_that_shrinks_are_marked():
    pods = [pod(2, "bbbbbbbb"), pod(3), pod(1)]
    assert [item["metadata"]["name"] for item in leaving(pods, {"aaaaaaaa": 1}, LOADS.get)] == ["chat-1"]


def test_a_deployment_that_ends_or_grows_is_not_shrinking():
    live = facts([], deployment(3), deployment(2, "bbbbbbbb"), deployment(2, "cccccccc"))
    wanted = Plan((deployment(2), deployment(0, "bbbbbbbb"), deployment(4, "cccccccc")), {})
    assert shrinking(live, wanted) == {"aaaaaaaa": 1}


async def test_the_mark_is_set_before_the_scale_down_and_old_marks_are_taken_back():
    api = Recorder()
    pods = [pod(1), pod(2), pod(3, marked=True)]
    costs = DeletionCosts(api, lambda _key, uid: LOADS.get(uid))
    await costs.prepare(facts(pods, deployment(3)), Plan((deployment(3),), {}))
    assert api.written == []
    await costs.prepare(facts(pods, deployment(3)), Plan((deployment(2),), {}))
    assert api.written == [("chat-2", "-1000"), ("chat-3", None)]


@pytest.mark.parametrize("code", [403, 404, 0])
async def test_a_refused_mark_delays_no_scale_down(code):
    costs = DeletionCosts(Recorder(ApiError(code, "No", "no")), lambda _key, uid: LOADS.get(uid))
    await costs.prepare(facts([pod(1), pod(2)], deployment(2)), Plan((deployment(1),), {}))
