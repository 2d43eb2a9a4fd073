"""Conditions as series: what holds now, of services that exist, with labels of a bounded number of values."""

from __future__ import annotations

from octavo_operator.control.condition_series import conditions_of, node_types_of
from octavo_operator.control.live_series import LiveSeries
from octavo_operator.control.loop import failing_calibrations
from octavo_operator.status.conditions import ORDER
from octavo_operator.status.reasons import REASONS
from prometheus_client import CollectorRegistry, Gauge

LABELS = ["namespace", "service", "type", "status", "reason"]


def service(name: str, *conditions: tuple[str, str, str]) -> dict[str, object]:
    told = [{"type": kind, "status": status, "reason": reason} for kind, status, reason in conditions]
    return {"metadata": {"namespace": "team", "name": name}, "status": {"conditions": told}}


def shown(gauge: Gauge) -> set[tuple[str, ...]]:
    [family] = gauge.collect()
    assert all(sample.value == 1 for sample in family.samples)
    return {tuple(sample.labels[label] for label in LABELS) for sample in family.samples}


def new_gauge() -> Gauge:
    return Gauge("condition", "Conditions", LABELS, registry=CollectorRegistry())


def test_a_condition_that_changes_replaces_its_series():
    gauge = new_gauge()
    series = LiveSeries(gauge, conditions_of)
    series.show([service("chat", ("Ready", "False", "Starting"))])
    series.show([service("chat", ("Ready", "True", "Ready"))])
    assert shown(gauge) == {("team", "chat", "Ready", "True", "Ready")}


def test_series_go_with_their_service():
    gauge = new_gauge()
    series = LiveSeries(gauge, conditions_of)
    series.show([service("chat", ("Ready", "True", "Ready")), service("code", ("Ready", "True", "Ready"))])
    series.show([service("code", ("Ready", "True", "Ready"))])
    assert {labels[1] for labels in shown(gauge)} == {"code"}
    series.show([])
    assert shown(gauge) == set()


def test_words_of_others_are_one_label_value_and_types_of_others_none():
    gauge = new_gauge()
    odd = [("Ready", "False", f"Word{number}") for number in range(50)]
    LiveSeries(gauge, conditions_of).show([service("chat", *odd, ("Invented", "True", "Ready"))])
    assert shown(gauge) == {("team", "chat", "Ready", "False", "Other")}


def test_a_service_has_at_most_one_series_for_each_type_of_condition():
    gauge = new_gauge()
    every = [service("chat", *((kind, "True", reason) for kind in ORDER)) for reason in REASONS]
    series = LiveSeries(gauge, conditions_of)
    for item in every:
        series.show([item])
        assert len(shown(gauge)) == len(ORDER)


def test_a_service_without_a_status_has_no_series():
    gauge = new_gauge()
    LiveSeries(gauge, conditions_of).show([{"metadata": {"namespace": "team", "name": "new"}}])
    assert shown(gauge) == set()


def test_calibrations_count_as_failing_until_one_succeeds():
    failed = {"status": {"failures": [{"reason": "CalibrationFailed"}]}}
    assert failing_calibrations([failed, {"status": {"blockSize": 32}}, {}]) == 1


def on_types(*types: dict[str, object]) -> dict[str, object]:
    return {"metadata": {"namespace": "team", "name": "chat"}, "status": {"nodeTypes": list(types)}}


def test_a_type_of_node_in_use_has_a_series_with_image_mode_and_block_size():
    names = ["namespace", "service", "node_type", "product", "image", "mode", "block_size"]
    gauge = Gauge("types", "Types", names, registry=CollectorRegistry())
    series = LiveSeries(gauge, node_types_of)
    kind = {"name": "0a1b2c3d", "product": "NVIDIA-L4", "image": "r/server:1-cuda12.8", "imageMode": "Native"}
    series.show([on_types({**kind, "blockSize": 32, "replicas": 2}), service("new")])
    series.show([on_types({**kind, "blockSize": 32, "replicas": 3}, {"name": "ffffffff", "replicas": 1})])
    [family] = gauge.collect()
    values = {tuple(sample.labels[name] for name in names): sample.value for sample in family.samples}
    assert values == {
        ("team", "chat", "0a1b2c3d", "NVIDIA-L4", "r/server:1-cuda12.8", "Native", "32"): 3,
        ("team", "chat", "ffffffff", "", "", "", "0"): 1,
    }
    series.show([])
    assert next(iter(gauge.collect())).samples == []
