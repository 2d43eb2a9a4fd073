"""The examples for HPA and KEDA ask for the number that the operator publishes, and for that very count."""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
METRIC = "octavo_desired_replicas"


def documents(name: str) -> list[dict[str, Any]]:
    return list(yaml.safe_load_all((EXAMPLES / name).read_text(encoding="utf-8")))


def desired(value: float, average: float, present: int, tolerance: float = 0.1) -> int:
    """An HPA's count for an external metric with an average value, as Kubernetes documents it."""
    ratio = value / (average * present)
    return present if abs(ratio - 1.0) <= tolerance else math.ceil(value / average)


def targets() -> list[float]:
    _, hpa = documents("scaled-by-hpa.yaml")
    _, keda = documents("scaled-by-keda.yaml")
    [metric], [trigger] = hpa["spec"]["metrics"], keda["spec"]["triggers"]
    return [float(metric["external"]["target"]["averageValue"]), float(trigger["metadata"]["threshold"])]


@pytest.mark.parametrize("present", range(1, 10))
@pytest.mark.parametrize("wanted", range(1, 10))
def test_up_to_nine_replicas_the_count_is_the_recommended_one(present, wanted):
    assert [desired(wanted, average, present) for average in targets()] == [wanted, wanted]


def test_above_ten_replicas_a_step_of_one_is_within_the_tolerance():
    assert [desired(12, average, 11) for average in targets()] == [11, 11]
    assert [desired(13, average, 11) for average in targets()] == [13, 13]


@pytest.mark.parametrize("name", ["scaled-by-hpa.yaml", "scaled-by-keda.yaml"])
def test_an_example_leaves_the_count_to_the_scaler_within_the_same_bounds(name):
    service, scaler = documents(name)
    scaling, spec = service["spec"]["scaling"], scaler["spec"]
    assert scaling["mode"] == "External"
    assert "replicas" not in service["spec"]
    assert spec["scaleTargetRef"] == {key: service[key] for key in ("apiVersion", "kind")} | service["metadata"]
    bounds = [
        spec.get("minReplicas", spec.get("minReplicaCount")),
        spec.get("maxReplicas", spec.get("maxReplicaCount")),
    ]
    assert bounds == [scaling["minReplicas"], scaling["maxReplicas"]]


def test_every_example_asks_for_the_metric_that_the_operator_publishes():
    # The page is generated from the operator's registry.
    page = (EXAMPLES.parent / "docs" / "reference" / "operator-metrics.md").read_text(encoding="utf-8")
    assert f"`{METRIC}`" in page
    [rule] = documents("prometheus-adapter-values.yaml")[0]["rules"]["external"]
    _, hpa = documents("scaled-by-hpa.yaml")
    _, keda = documents("scaled-by-keda.yaml")
    query = keda["spec"]["triggers"][0]["metadata"]["query"]
    assert rule["name"]["as"] == hpa["spec"]["metrics"][0]["external"]["metric"]["name"] == METRIC
    asked = {
        word for text in (rule["seriesQuery"], rule["metricsQuery"], query) for word in re.findall(r"octavo_\w+", text)
    }
    assert asked == {METRIC}
