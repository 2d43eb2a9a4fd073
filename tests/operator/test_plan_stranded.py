"""Replicas that the scheduler can't place go to a node type with room, and nothing that runs is moved for it."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from hypothesis import given
from hypothesis import strategies as st
from octavo_operator.plan import server_contract as contract
from octavo_operator.plan.stranded import PATIENCE, movable, stranded

NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)


def pod(label="a", *, unschedulable_seconds=None, node=None, going=False):
    metadata = {"name": "p", "labels": {contract.NODE_TYPE_LABEL: label}}
    if going:
        metadata["deletionTimestamp"] = "2026-01-02T03:04:00Z"
    conditions = []
    if unschedulable_seconds is not None:
        since = (NOW - timedelta(seconds=unschedulable_seconds)).strftime("%Y-%m-%dT%H:%M:%SZ")
        conditions = [
            {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "lastTransitionTime": since}
        ]
    return {"metadata": metadata, "spec": {"nodeName": node} if node else {}, "status": {"conditions": conditions}}


def test_a_pod_counts_as_stranded_only_after_a_while():
    young, old = pod(unschedulable_seconds=5), pod(unschedulable_seconds=PATIENCE.total_seconds())
    assert stranded({"a": 2}, [young, old], NOW) == ({"a": 1}, PATIENCE.total_seconds() - 5)


def test_a_pod_that_the_scheduler_has_not_seen_yet_is_not_stranded():
    assert stranded({"a": 1}, [pod()], NOW) == ({}, None)


def test_the_surging_pod_of_a_rollout_never_takes_the_running_replica_away():
    running, surging = pod(node="n1"), pod(unschedulable_seconds=600)
    assert stranded({"a": 1}, [running, surging], NOW) == ({}, None)


def test_a_pod_on_its_way_out_is_neither_placed_nor_stranded():
    assert stranded({"a": 1}, [pod(node="n1", going=True), pod(unschedulable_seconds=600)], NOW)[0] == {"a": 1}
    assert stranded({"a": 1}, [pod(unschedulable_seconds=600, going=True)], NOW)[0] == {}


def test_stranded_replicas_move_as_far_as_other_types_have_room():
    assert movable({"a": 3}, {"a": 2}, {"a": 5, "b": 1}) == {"a": 2}
    assert movable({"a": 3}, {"a": 2}, {"a": 5}) == {"a": 3}


labels = st.sampled_from("abc")


@given(*(st.dictionaries(labels, st.integers(0, 5)) for _ in range(3)))
def test_no_more_replicas_leave_a_type_than_are_stranded_there(running, waiting, spare):
    kept = movable(running, waiting, spare)
    for label, count in running.items():
        assert count - min(waiting.get(label, 0), count) <= kept[label] <= count
