"""Drift: defaults of the API server are none, every changed field and every foreign container is one."""

from __future__ import annotations

import copy

import pytest
from hypothesis import given
from hypothesis import strategies as st
from octavo_operator.plan.drift import difference, stamped

scalars = st.one_of(st.text(min_size=1, max_size=6), st.integers(1, 99), st.just(True))
trees = st.recursive(
    scalars, lambda inner: st.dictionaries(st.text("abc", min_size=1, max_size=3), inner, max_size=3), max_leaves=8
)


def manifest(spec):
    return stamped({"kind": "Thing", "metadata": {"name": "x"}, "spec": spec})


def deployment():
    container = {"name": "server", "image": "i", "resources": {"requests": {"cpu": "1", "memory": "1Gi"}}}
    return manifest(
        {"replicas": 1, "template": {"spec": {"containers": [container], "volumes": [{"name": "tmp", "emptyDir": {}}]}}}
    )


@given(trees)
def test_an_object_equals_itself(spec):
    assert difference(manifest(spec), copy.deepcopy(manifest(spec))) is None


@given(st.dictionaries(st.text("abc", min_size=1, max_size=3), trees, min_size=1))
def test_fields_that_the_api_server_adds_are_no_drift(spec):
    live = copy.deepcopy(manifest(spec))
    live["spec"]["zz-default"] = {"a": 1}
    live["status"] = {"ready": True}
    assert difference(manifest(spec), live) is None


@given(st.dictionaries(st.text("abc", min_size=1, max_size=3), scalars, min_size=1), st.data())
def test_any_changed_field_is_drift_though_the_hash_is_the_same(spec, data):
    live = copy.deepcopy(manifest(spec))
    key = data.draw(st.sampled_from(sorted(spec)))
    live["spec"][key] = "something else"
    assert key in (difference(manifest(spec), live) or "")


def test_a_missing_object_and_a_changed_manifest_differ():
    assert difference(manifest({"a": 1}), None) == "it does not exist"
    assert difference(manifest({"a": 1}), manifest({"a": 2})) == "its manifest changed"


def test_quantities_are_compared_by_value():
    live = deployment()
    live["spec"]["template"]["spec"]["containers"][0]["resources"]["requests"] = {"cpu": "1000m", "memory": "1024Mi"}
    assert difference(deployment(), live) is None


@pytest.mark.parametrize("part", ["containers", "volumes", "initContainers"])
def test_a_foreign_container_or_volume_is_drift(part):
    live = deployment()
    live["spec"]["template"]["spec"].setdefault(part, []).append({"name": "foreign"})
    assert "foreign" in (difference(deployment(), live) or "")


def test_the_order_of_named_items_is_no_drift():
    wanted = manifest({"env": [{"name": "A", "value": "1"}, {"name": "B", "value": "2"}]})
    live = copy.deepcopy(wanted)
    live["spec"]["env"].reverse()
    assert difference(wanted, live) is None
