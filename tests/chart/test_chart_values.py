"""A wrong value of the chart is refused with its name."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from jsonschema import Draft7Validator

CHART = Path(__file__).resolve().parents[2] / "charts" / "octavo"

WRONG: list[tuple[str, dict[str, Any]]] = [
    ("replicas", {"replicas": "two"}),
    ("replicas", {"replicas": -1}),
    ("image/digest", {"image": {"repository": "r", "digest": "sha256:short"}}),
    ("image/pullPolicy", {"image": {"pullPolicy": "Sometimes"}}),
    ("image/repository", {"image": {"repository": ""}}),
    ("serverImages", {"serverImages": []}),
    ("imageRegistry", {"imageRegistry": "https://registry.example"}),
    ("serverImages/0/cuda", {"serverImages": [{"name": "x", "image": "i", "cuda": "twelve"}]}),
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
    ("serverImages", {"serverImages": None}),
    ("image", {"image": None}),
    # Two values that don't go together.
    ("podMonitor.scrapeTimeout 30s is longer than podMonitor.interval 15s", {"podMonitor": {"scrapeTimeout": "30s"}}),
    ("serviceMonitor.scrapeTimeout", {"serviceMonitor": {"interval": "1m", "scrapeTimeout": "61s"}}),
    ("serverImages[1].name", {"serverImages": [{"name": "x", "image": "i"}, {"name": "x", "image": "j"}]}),
    ("serverImages[0] (x) holds CUDA 12.8", {"serverImages": [{"name": "x", "image": "i", "cuda": "12.8"}]}),
    ("no cuda", {"serverImages": [{"name": "x", "image": "i", "computeCapabilities": ["9.0"]}]}),
    ("no image of runtime Octavo", {"serverImages": [{"name": "x", "image": "i", "runtime": "VLLM"}]}),
    ("podLabels[app.kubernetes.io/name]", {"podLabels": {"app.kubernetes.io/name": "mine"}}),
    ("prometheusRule.labels[helm.sh/chart]", {"prometheusRule": {"labels": {"helm.sh/chart": "mine"}}}),
    ("priorityClasses[1].name a", {"priorityClasses": [{"name": "a", "value": 1}, {"name": "a", "value": 2}]}),
    ("octavo-operator-calibration", {"priorityClasses": [{"name": "octavo-operator-calibration", "value": 1}]}),
    ("names with system-", {"priorityClasses": [{"name": "system-mine", "value": 1}]}),
    ("tolerations[0] has no key", {"tolerations": [{"value": "x"}]}),
    ("extraEnv[0].name POD_IP", {"extraEnv": [{"name": "POD_IP", "value": "::"}]}),
]
AT_ONCE: dict[str, Any] = {
    "networkPolicy": {
        "monitoringNamespace": "Not A Namespace",
        "egress": [
            {"cidr": "10.0.0.0/99", "port": 443},
            {"cidr": "10.0.0.256/32", "port": 443},
            {"cidr": "fd00::/129", "port": 443},
            {"cidr": "10.0.0.0/8", "port": 0},
        ],
    },
    "models": {
        "hubEndpoint": "https://hub.example:70000",
        "proxy": {"address": "http://proxy.example:0"},
        "imagePullSecrets": [{"name": "Not_A_Secret"}],
    },
    "image": {"repository": "octavo/octavo-operator:0.1.0", "tag": "a tag"},
    "nameOverride": "Not A Name",
    "podLabels": {"team": "no spaces"},
    "priorityClassName": "Not_A_Class",
    "dashboards": {"labelValue": "a b", "label": "a b"},
    "podMonitor": {"interval": "0s"},
}
"""Each of its leaves is wrong."""
RIGHT: dict[str, Any] = {
    "networkPolicy": {
        "egress": [
            {"cidr": cidr, "port": 65535}
            for cidr in ("0.0.0.0/0", "10.1.2.3/32", "255.255.255.255/8", "::/0", "fd00::/8", "2001:db8::1/128")
        ]
    },
    "models": {"hubEndpoint": "https://[fd00::1]:8443/mirror", "proxy": {"address": "http://10.0.0.1:65535/"}},
    "image": {"repository": "localhost:5000/a/b", "tag": "0.1.0-rc.1"},
    "podMonitor": {"interval": "1m", "scrapeTimeout": "60s"},
    "podLabels": {"example.com/team": "a_b.C-1", "empty": ""},
    "serverImages": [
        {"name": "own", "image": "i:1"},
        {"name": "other", "image": "j:1", "runtime": "VLLM", "cuda": "12.8", "computeCapabilities": ["9.0"]},
    ],
}


def leaves(value: Any, above: str = "") -> Iterator[str]:
    if isinstance(value, dict | list):
        for name, inner in value.items() if isinstance(value, dict) else enumerate(value):
            yield from leaves(inner, f"{above}/{name}")
    else:
        yield above


@pytest.mark.parametrize(("field", "values"), WRONG, ids=[f"{field}-{n}" for n, (field, _) in enumerate(WRONG)])
def test_a_wrong_value_is_refused_with_the_fields_name(helm, field, values):
    done = helm("template", "octavo", str(CHART), "--values", "-", stdin=yaml.safe_dump(values))
    assert done.returncode != 0
    assert field in done.stderr


def test_every_wrong_value_is_told_at_once(helm):
    done = helm("template", "octavo", str(CHART), "--values", "-", stdin=yaml.safe_dump(AT_ONCE))
    assert done.returncode != 0
    told = set(re.findall(r"at '([^']*)'", done.stderr))
    wrong = {path for path in leaves(AT_ONCE) if not re.search("egress/[012]/port|egress/3/cidr", path)}
    assert wrong <= told
    # Beside them only the folders above, under which helm groups what it tells.
    assert all(any(path.startswith(above + "/") for path in wrong) for above in told - wrong)


def test_what_lies_at_the_edge_of_a_rule_is_taken(helm):
    done = helm("template", "octavo", str(CHART), "--values", "-", stdin=yaml.safe_dump(RIGHT))
    assert done.returncode == 0, done.stderr


def paths(values: dict[str, Any], above: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    for name, value in values.items():
        yield (*above, name), value
        if isinstance(value, dict):
            yield from paths(value, (*above, name))


def test_a_default_that_is_not_empty_cannot_be_taken_away_with_null():
    """Helm takes a value away whose name is given with null. The pod's resources may be: none is a choice there."""
    rules = Draft7Validator(json.loads((CHART / "values.schema.json").read_text()))
    defaults = yaml.safe_load((CHART / "values.yaml").read_text())
    assert rules.is_valid(defaults)
    tried = 0
    for path, value in paths(defaults):
        if path[0] == "resources" or value in ("", [], {}, None):
            continue
        without = json.loads(json.dumps(defaults))
        folder = without
        for name in path[:-1]:
            folder = folder[name]
        del folder[path[-1]]
        assert [error.message for error in rules.iter_errors(without)] == [f"{path[-1]!r} is a required property"], path
        tried += 1
    assert tried >= 50


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
