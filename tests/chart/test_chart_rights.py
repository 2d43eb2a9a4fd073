"""The chart grants exactly the rights that the operator asks for."""

from __future__ import annotations

from typing import Any

import pytest
from octavo_operator.cluster.permissions import NODE_RIGHTS, OWN_NAMESPACE, WATCHED, Permission

Rights = set[tuple[str, str, str]]


def named(permissions: tuple[Permission, ...]) -> Rights:
    return {(item.group, item.resource, item.verb) for item in permissions}


def granted(objects: list[dict[str, Any]], kind: str, namespace: str | None = None) -> Rights:
    """What the roles that are bound to the operator's account allow."""
    bindings = [
        item for item in objects if item["kind"] == f"{kind}Binding" and item["metadata"].get("namespace") == namespace
    ]
    bound = {item["roleRef"]["name"] for item in bindings}
    return {
        (group, resource, verb)
        for item in objects
        if item["kind"] == kind and item["metadata"].get("namespace") == namespace and item["metadata"]["name"] in bound
        for rule in item["rules"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }


def test_the_cluster_role_grants_what_the_operator_asks_for_and_nothing_else(render):
    objects = render()
    assert granted(objects, "ClusterRole") == named((*WATCHED, *NODE_RIGHTS))
    assert granted(objects, "Role", "octavo-system") == named(OWN_NAMESPACE)


def test_in_namespaced_mode_the_cluster_role_reads_nodes_alone(render):
    objects = render({"watchNamespaces": ["team-a", "team-b"]})
    assert granted(objects, "ClusterRole") == named(NODE_RIGHTS)
    for namespace in ("team-a", "team-b"):
        assert granted(objects, "Role", namespace) == named(WATCHED)


def test_without_access_to_nodes_no_right_reaches_beyond_the_named_namespaces(render):
    objects = render({"watchNamespaces": ["team-a"], "nodes": {"access": False}})
    assert granted(objects, "ClusterRole") == set()


@pytest.mark.parametrize("verb", ["*", "deletecollection", "impersonate", "bind", "escalate"])
def test_no_sweeping_verb_is_granted(render, verb):
    objects = render()
    everything = granted(objects, "ClusterRole") | granted(objects, "Role", "octavo-system")
    assert everything
    assert not [right for right in everything if verb in right or right[1] == "secrets"]
