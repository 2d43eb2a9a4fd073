"""A wrong value of the chart is refused with its name."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

CHART = Path(__file__).resolve().parents[2] / "charts" / "octavo"

WRONG: list[tuple[str, dict[str, Any]]] = [
    ("replicas", {"replicas": "two"}),
    ("replicas", {"replicas": -1}),
    ("image/digest", {"image": {"repository": "r", "digest": "sha256:short"}}),
    ("image/pullPolicy", {"image": {"pullPolicy": "Sometimes"}}),
    ("image/repository", {"image": {"repository": ""}}),
    ("serverImages", {"serverImages": []}),
    ("imageRegistry", {"imageRegistry": "https://registry.example"}),
    ("serverImages/0/cuda", {"serverImages": [{"name": "x", "image": "y", "cuda": "twelve"}]}),
    ("serverImages/0", {"serverImages": [{"name": "x"}]}),
    ("watchNamespaces/0", {"watchNamespaces": ["Not_A_Namespace"]}),
    ("watchNamespaces", {"watchNamespaces": ["a", "a"]}),
    ("nodes/access", {"nodes": {"access": "yes"}}),
    ("crds/keep", {"crds": {"keep": "true"}}),
    ("service/port", {"service": {"port": 70000}}),
    ("logLevel", {"logLevel": "loud"}),
    ("podLabels/team", {"podLabels": {"team": 1}}),
    ("extraEnv/0/name", {"extraEnv": [{"name": "NOT VALID"}]}),
    ("calibration/priorityClass/value", {"calibration": {"priorityClass": {"value": 5}}}),
    ("policy/filePrefixes/0", {"policy": {"filePrefixes": ["models"]}}),
    ("models/hubEndpoint", {"models": {"hubEndpoint": "hub.example"}}),
    ("models/cacheClaim", {"models": {"cacheClaim": "Not_A_Claim"}}),
    ("replicaCount", {"replicaCount": 2}),
    ("colour", {"image": {"colour": "blue"}}),
]


@pytest.mark.parametrize(("field", "values"), WRONG, ids=[f"{field}-{n}" for n, (field, _) in enumerate(WRONG)])
def test_a_wrong_value_is_refused_with_the_fields_name(helm, field, values):
    done = helm("template", "octavo", str(CHART), "--values", "-", stdin=yaml.safe_dump(values))
    assert done.returncode != 0
    assert field in done.stderr


def test_a_missing_service_account_name_is_asked_for(helm):
    done = helm("template", "octavo", str(CHART), "--set", "serviceAccount.create=false")
    assert done.returncode != 0
    assert "serviceAccount.name must be set" in done.stderr


def test_every_value_has_a_rule_and_every_rule_of_the_first_level_has_a_value():
    values = yaml.safe_load((CHART / "values.yaml").read_text())
    rules = json.loads((CHART / "values.schema.json").read_text())["properties"]
    assert set(values) == set(rules) - {"global", "nameOverride", "fullnameOverride"}
    for name, value in values.items():
        if isinstance(value, dict) and "properties" in rules[name]:
            assert set(value) <= set(rules[name]["properties"]), name


def test_every_value_is_explained_or_read_by_name():
    lines = (CHART / "values.yaml").read_text().splitlines()
    templates = "".join(path.read_text() for path in (CHART / "templates").rglob("*") if path.is_file())
    for name in (line.split(":")[0] for line in lines if line and line[0].isalpha()):
        assert f".Values.{name}" in templates, f"{name} is set in values.yaml and used nowhere"
