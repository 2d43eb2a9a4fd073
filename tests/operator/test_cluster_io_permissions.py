"""What the operator asks for at its start is what the chart grants, no less and no more."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml
from octavo_operator.cluster.gate import wanted_rights
from octavo_operator.cluster.permissions import NODE_RIGHTS, OWN_NAMESPACE, WATCHED
from octavo_operator.settings import LeaseSettings, Settings

RBAC = Path(__file__).resolve().parents[2] / "charts" / "octavo" / "templates" / "rbac.yaml"


def granted(text: str) -> set[tuple[str, str, str]]:
    return {
        (group, resource, verb)
        for rule in yaml.safe_load(text)
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }


def block(name: str) -> str:
    found = re.search(rf'define "{name}" }}}}\n(.*?){{{{- end }}}}', RBAC.read_text(), re.DOTALL)
    assert found is not None, f"{RBAC.name} defines no {name}"
    return found[1]


@pytest.mark.parametrize(("name", "rights"), [("octavo.watchedRules", WATCHED), ("octavo.nodeRules", NODE_RIGHTS)])
def test_the_charts_roles_hold_exactly_the_operators_rights(name, rights):
    assert granted(block(name)) == {(right.group, right.resource, right.verb) for right in rights}


def test_the_charts_role_in_its_own_namespace_is_for_leases_alone():
    own = RBAC.read_text().split("-own\n")[1].split("rules:\n")[1].split("---")[0]
    assert granted(own) == {(right.group, right.resource, right.verb) for right in OWN_NAMESPACE}


def test_the_operator_never_asks_for_secrets_or_for_every_verb():
    rights = [*WATCHED, *NODE_RIGHTS, *OWN_NAMESPACE]
    assert not [right for right in rights if right.resource.startswith("secrets") or "*" in (right.verb, right.group)]


def test_in_namespaced_mode_rights_are_asked_for_in_each_namespace_and_nodes_only_with_access():
    lease = LeaseSettings(namespace="ops")
    asked = wanted_rights(Settings(lease=lease, namespaces=("a", "b"), nodes_access=False))
    assert {space for space, _ in asked} == {"a", "b", "ops"}
    assert not [right for _, right in asked if right.resource == "nodes"]
    everywhere = wanted_rights(Settings(lease=lease))
    assert {space for space, right in everywhere if right.resource == "nodes"} == {None}
