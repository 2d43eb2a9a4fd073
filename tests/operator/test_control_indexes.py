"""The indexes: the newest state wins, whatever the order of lists, watch events and answers to writes."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from octavo_operator.cluster.resources import BY_KIND, NODES, PODS, SERVICES
from octavo_operator.control.indexes import Indexes
from octavo_operator.control.trim import trimmed
from octavo_operator.plan.inventory import usage_of

DEPLOYMENTS = BY_KIND["Deployment"]
SERVICE_LABEL = "serving.octavo.dev/service"
Object = dict[str, Any]


def item(name: str, version: int, *, uid: str = "u", service: str | None = None, **body: Any) -> Object:
    labels = {SERVICE_LABEL: service} if service else {}
    metadata = {"name": name, "namespace": "n", "uid": uid, "resourceVersion": str(version), "labels": labels}
    metadata["ownerReferences"] = [{"uid": f"uid-of-{service}"}]
    return {"metadata": metadata, **body}


EVENTS = st.lists(
    st.tuples(
        st.sampled_from(["d1", "d2", "d3"]),
        st.integers(1, 30),
        st.sampled_from(["a", "b", None]),
        st.sampled_from(["u1", "u2"]),
        st.sampled_from(["store", "store", "store", "remove"]),
    ),
    max_size=40,
)


@given(EVENTS)
def test_look_ups_by_service_equal_a_search_through_all_objects(events):
    indexes = Indexes()
    for name, version, service, uid, what in events:
        changed = item(name, version, uid=uid, service=service)
        if what == "store":
            indexes.store(DEPLOYMENTS, changed)
        else:
            indexes.remove(DEPLOYMENTS, changed)
        for key in ("a", "b"):
            searched = [
                found["metadata"]["name"]
                for found in indexes.all("Deployment")
                if found["metadata"]["labels"].get(SERVICE_LABEL) == key
            ]
            owned = [found["metadata"]["name"] for found in indexes.owned(("n", key), f"uid-of-{key}")]
            assert sorted(owned) == sorted(searched)


@given(st.permutations(list(range(1, 8))))
def test_of_one_object_the_newest_state_is_kept_in_any_order(versions):
    indexes = Indexes()
    for version in versions:
        indexes.store(DEPLOYMENTS, item("d", version, service="a", spec={"at": version}))
    [found] = indexes.all("Deployment")
    assert found["spec"] == {"at": 7}


def test_a_late_event_asks_for_no_reconciliation_and_a_new_one_does():
    indexes = Indexes()
    assert indexes.store(DEPLOYMENTS, item("d", 5, service="a")) == {("n", "a")}
    assert indexes.store(DEPLOYMENTS, item("d", 4, service="a")) == set()
    assert indexes.store(DEPLOYMENTS, item("d", 5, service="a")) == set()
    assert indexes.store(DEPLOYMENTS, item("d", 6, service="a")) == {("n", "a")}


def test_an_object_made_anew_under_its_name_replaces_the_old_one_and_outlives_its_deletion():
    indexes = Indexes()
    indexes.store(DEPLOYMENTS, item("d", 9, uid="old", service="a"))
    indexes.store(DEPLOYMENTS, item("d", 12, uid="new", service="a"))
    assert indexes.remove(DEPLOYMENTS, item("d", 10, uid="old", service="a")) == set()
    assert [found["metadata"]["uid"] for found in indexes.all("Deployment")] == ["new"]


def test_a_label_taken_away_concerns_the_service_that_loses_the_object():
    indexes = Indexes()
    indexes.store(DEPLOYMENTS, item("d", 1, service="a"))
    assert indexes.store(DEPLOYMENTS, item("d", 2)) == {("n", "a")}
    assert indexes.owned(("n", "a"), "uid-of-a") == []


def test_a_complete_list_takes_away_what_is_not_in_it_but_only_in_its_namespace():
    indexes = Indexes()
    elsewhere = item("other", 1, service="a")
    elsewhere["metadata"]["namespace"] = "m"
    indexes.store(DEPLOYMENTS, elsewhere)
    indexes.store(DEPLOYMENTS, item("gone", 1, service="a"))
    indexes.store(DEPLOYMENTS, item("stays", 2, service="b"))
    assert indexes.replace(DEPLOYMENTS, [item("stays", 2, service="b")], "n", 2) == {("n", "a")}
    assert sorted(found["metadata"]["name"] for found in indexes.all("Deployment")) == ["other", "stays"]


def test_an_object_that_came_while_a_list_was_on_its_way_is_not_lost():
    """The list was made at version 5, the watch told of version 6 before the list arrived; no event comes again."""
    indexes = Indexes()
    indexes.store(DEPLOYMENTS, item("old", 3, service="a"))
    indexes.store(DEPLOYMENTS, item("new", 6, uid="v", service="b"))
    assert indexes.replace(DEPLOYMENTS, [item("old", 3, service="a")], None, 5) == set()
    assert sorted(found["metadata"]["name"] for found in indexes.all("Deployment")) == ["new", "old"]
    assert indexes.replace(DEPLOYMENTS, [item("old", 3, service="a")], None, 6) == {("n", "b")}


def test_an_object_that_went_while_a_list_was_on_its_way_does_not_come_back():
    indexes = Indexes()
    indexes.store(DEPLOYMENTS, item("d", 3, service="a"))
    indexes.remove(DEPLOYMENTS, item("d", 6, service="a"))
    assert indexes.replace(DEPLOYMENTS, [item("d", 3, service="a")], None, 5) == set()
    assert indexes.all("Deployment") == []


def test_a_list_that_is_older_than_an_objects_second_life_does_not_bring_back_the_first():
    indexes = Indexes()
    indexes.store(DEPLOYMENTS, item("d", 9, uid="second", service="a"))
    assert indexes.replace(DEPLOYMENTS, [item("d", 3, uid="first", service="a")], None, 5) == set()
    assert [found["metadata"]["uid"] for found in indexes.all("Deployment")] == ["second"]


@given(st.lists(st.tuples(st.sampled_from("abc"), st.booleans()), max_size=12), st.data())
def test_whenever_a_list_was_made_and_arrives_the_end_is_what_the_watch_told(changes, data):
    """Objects come and go at versions 1, 2, …; a list made after any of them arrives after any later one."""
    states: list[dict[str, Object]] = [{}]
    events: list[tuple[str, Object]] = []
    for version, (name, there) in enumerate(changes, start=1):
        now = dict(states[-1])
        uid = now[name]["metadata"]["uid"] if name in now else f"{name}{version}"
        changed = item(name, version, uid=uid, service="s")
        if there:
            now[name] = changed
        else:
            now.pop(name, None)
        events.append(("store" if there else "remove", changed))
        states.append(now)
    made = data.draw(st.integers(0, len(changes)))
    arrives = data.draw(st.integers(made, len(changes)))
    indexes = Indexes()
    for number in range(len(changes) + 1):
        if number == arrives:
            indexes.replace(DEPLOYMENTS, states[made].values(), None, made)
        if number < len(changes):
            verb, changed = events[number]
            (indexes.store if verb == "store" else indexes.remove)(DEPLOYMENTS, changed)
    found = {each["metadata"]["name"]: each["metadata"]["resourceVersion"] for each in indexes.all("Deployment")}
    assert found == {name: each["metadata"]["resourceVersion"] for name, each in states[-1].items()}


def test_a_nodes_heartbeat_wakes_no_service_and_its_new_label_wakes_all():
    indexes = Indexes()
    for name in ("a", "b"):
        indexes.store(SERVICES, item(name, 1))
    node = item("n1", 1, spec={}, status={"allocatable": {"cpu": "4"}, "images": [{"names": ["big"]}]})
    assert indexes.store(NODES, node) == {("n", "a"), ("n", "b")}
    beat = item("n1", 2, spec={}, status={"allocatable": {"cpu": "4"}, "conditions": [{"type": "DiskPressure"}]})
    assert indexes.store(NODES, beat) == set()
    labelled = item("n1", 3, spec={}, status={"allocatable": {"cpu": "4"}})
    labelled["metadata"]["labels"] = {"nvidia.com/gpu.product": "NVIDIA-L4"}
    assert indexes.store(NODES, labelled) == {("n", "a"), ("n", "b")}


def test_what_no_plan_reads_is_not_kept():
    indexes = Indexes()
    spec = {
        "nodeName": "n1",
        "volumes": [{"name": "secret"}],
        "containers": [{"name": "c", "env": [{"name": "A"}], "resources": {"requests": {"cpu": "1"}}}],
    }
    foreign = item("p", 1, spec=spec, status={"phase": "Running", "conditions": [{"type": "Ready"}]})
    foreign["metadata"]["managedFields"] = [{"manager": "kubelet"}]
    foreign["metadata"]["annotations"] = {"long": "x"}
    indexes.store(PODS, trimmed(PODS, foreign))
    [kept] = indexes.all("Pod")
    assert kept["spec"] == {"nodeName": "n1", "containers": [{"name": "c", "resources": {"requests": {"cpu": "1"}}}]}
    assert kept["status"] == {"phase": "Running"}
    assert set(kept["metadata"]) == {"name", "namespace", "uid", "resourceVersion"}
    ours = item("q", 1, service="a", spec=spec, status={"phase": "Running", "conditions": [{"type": "Ready"}]})
    indexes.store(PODS, trimmed(PODS, ours))
    assert indexes.pods(("n", "a"))[0]["status"]["conditions"] == [{"type": "Ready"}]


def pod(name, version, *, node=None, phase="Running", gpus="1", uid="u"):
    containers = [{"name": "c", "resources": {"requests": {"nvidia.com/gpu": gpus, "cpu": "500m"}}}]
    spec = {"containers": containers, **({"nodeName": node} if node else {})}
    return item(name, version, uid=uid, spec=spec, status={"phase": phase})


PODS_OVER_TIME = st.lists(
    st.tuples(
        st.sampled_from(["p1", "p2", "p3"]),
        st.integers(1, 30),
        st.sampled_from(["n1", "n2", None]),
        st.sampled_from(["Running", "Succeeded", "Pending"]),
        st.sampled_from(["1", "2"]),
        st.sampled_from(["store", "store", "remove"]),
    ),
    max_size=30,
)


@given(PODS_OVER_TIME)
def test_what_is_taken_from_nodes_equals_a_sum_over_all_pods(changes):
    indexes = Indexes()
    for name, version, node, phase, gpus, what in changes:
        changed = pod(name, version, node=node, phase=phase, gpus=gpus)
        (indexes.store if what == "store" else indexes.remove)(PODS, changed)
        assert indexes.usage() == usage_of(indexes.all("Pod"))


def gpu_node(name, version, product, **more):
    labels = {
        "nvidia.com/gpu.product": product,
        "nvidia.com/gpu.compute.major": "9",
        "nvidia.com/gpu.compute.minor": "0",
        "nvidia.com/cuda.runtime-version.full": "12.8",
        "nvidia.com/cuda.runtime-version.major": "12",
        "nvidia.com/cuda.runtime-version.minor": "8",
        **more,
    }
    metadata = {"name": name, "uid": name, "resourceVersion": str(version), "labels": labels}
    return {"metadata": metadata, "status": {"allocatable": {"nvidia.com/gpu": "8"}}}


def wants(name, version, *products, **more):
    placement = {"accelerators": [{"products": list(products)}]} if products else more
    body = {"spec": {"model": {"uri": "file:///m"}, "placement": placement}}
    return item(name, version, uid=name, **body)


def test_a_node_concerns_the_services_that_its_states_before_or_after_can_serve():
    indexes = Indexes()
    for service in (
        wants("h100", 1, "NVIDIA-H100"),
        wants("both", 2, "NVIDIA-H100", "NVIDIA-L4"),
        wants("any", 3, cpu="Forbidden"),
        wants("cpu", 4, cpu="Required"),
        item("malformed", 5, uid="malformed", spec={"placement": {"cpu": "Perhaps"}}),
    ):
        indexes.store(SERVICES, service)

    def names(keys):
        return {name for _, name in keys}

    assert names(indexes.store(NODES, gpu_node("g1", 6, "NVIDIA-L4"))) == {"both", "any", "malformed"}
    assert names(indexes.store(NODES, gpu_node("g1", 7, "NVIDIA-H100"))) == {"h100", "both", "any", "malformed"}
    assert indexes.store(NODES, gpu_node("g1", 8, "NVIDIA-H100")) == set(), "a heartbeat concerns nobody"
    odd = gpu_node("g1", 9, "NVIDIA-H100", **{"nvidia.com/gpu.compute.major": ""})
    assert names(indexes.store(NODES, odd)) == {"h100", "both", "any", "malformed"}
    assert names(indexes.remove(NODES, odd)) == {"h100", "both", "any", "malformed"}
    plain = {"metadata": {"name": "c1", "uid": "c1", "resourceVersion": "10"}, "status": {"allocatable": {"cpu": "4"}}}
    concerned = names(indexes.store(NODES, plain))
    assert "cpu" in concerned
    assert "any" not in concerned, "it forbids CPUs"
    indexes.remove(SERVICES, wants("both", 20, "NVIDIA-H100", "NVIDIA-L4"))
    assert "both" not in names(indexes.store(NODES, gpu_node("g2", 21, "NVIDIA-H100")))


def test_a_label_that_no_plan_reads_concerns_nobody_until_a_node_selector_asks_for_it():
    indexes = Indexes()
    indexes.store(SERVICES, wants("h100", 1, "NVIDIA-H100"))
    indexes.store(NODES, gpu_node("g1", 2, "NVIDIA-H100"))
    racked = gpu_node("g1", 3, "NVIDIA-H100", **{"example.com/rack": "7"})
    assert indexes.store(NODES, racked) == set()
    assert indexes.views()[0].node["metadata"]["labels"]["example.com/rack"] == "7", "it is kept for later"
    indexes.store(SERVICES, wants("racked", 4, nodeSelector={"example.com/rack": "8"}))
    moved = gpu_node("g1", 5, "NVIDIA-H100", **{"example.com/rack": "8"})
    assert ("n", "racked") in indexes.store(NODES, moved)
    indexes.remove(SERVICES, wants("racked", 6, nodeSelector={"example.com/rack": "8"}))
    assert indexes.store(NODES, gpu_node("g1", 7, "NVIDIA-H100")) == set()


@pytest.mark.parametrize(
    "change",
    [
        {"spec": {"unschedulable": True}},
        {"spec": {"taints": [{"key": "a", "effect": "NoSchedule"}]}},
        {"status": {"allocatable": {"nvidia.com/gpu": "7"}}},
    ],
)
def test_what_plans_read_of_a_node_beside_its_labels_concerns_those_that_it_could_serve(change):
    indexes = Indexes()
    indexes.store(SERVICES, wants("h100", 1, "NVIDIA-H100"))
    indexes.store(NODES, gpu_node("g1", 2, "NVIDIA-H100"))
    assert indexes.store(NODES, {**gpu_node("g1", 3, "NVIDIA-H100"), **change}) == {("n", "h100")}


def test_a_foreign_object_under_the_name_of_a_service_concerns_it_when_it_comes_and_goes():
    indexes = Indexes()
    indexes.store(SERVICES, wants("chat", 1, cpu="Required"))
    foreign = item("chat", 2, uid="f")
    assert indexes.store(BY_KIND["Service"], foreign) == {("n", "chat")}
    assert indexes.remove(BY_KIND["Service"], foreign) == {("n", "chat")}
    assert indexes.store(BY_KIND["Service"], item("other", 3, uid="o")) == set()
