"""Conditions as series: what holds now, of services that exist, with labels of a bounded number of values."""

from __future__ import annotations

from octavo_operator.control.condition_series import ConditionSeries
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
    series = ConditionSeries(gauge)
    series.show([service("chat", ("Ready", "False", "Starting"))])
    series.show([service("chat", ("Ready", "True", "Ready"))])
    assert shown(gauge) == {("team", "chat", "Ready", "True", "Ready")}


def test_series_go_with_their_service():
    gauge = new_gauge()
    series = ConditionSeries(gauge)
    series.show([service("chat", ("Ready", "True", "Ready")), service("code", ("Ready", "True", "Ready"))])
    series.show([service("code", ("Ready", "True", "Ready"))])
    assert {labels[1] for labels in shown(gauge)} == {"code"}
    series.show([])
    assert shown(gauge) == set()


def test_words_of_others_are_one_label_value_and_types_of_others_none():
    gauge = new_gauge()
    odd = [("Ready", "False", f"Word{number}") for number in range(50)]
    ConditionSeries(gauge).show([service("chat", *odd, ("Invented", "True", "Ready"))])
    assert shown(gauge) == {("team", "chat", "Ready", "False", "Other")}


def test_a_service_has_at_most_one_series_for_each_type_of_condition():
    gauge = new_gauge()
    every = [service("chat", *((kind, "True", reason) for kind in ORDER)) for reason in REASONS]
    series = ConditionSeries(gauge)
    for item in every:
        series.show([item])
        assert len(shown(gauge)) == len(ORDER)


def test_a_service_without_a_status_has_no_series():
    gauge = new_gauge()
    ConditionSeries(gauge).show([{"metadata": {"namespace": "team", "name": "new"}}])
    assert shown(gauge) == set()


def test_calibrations_count_as_failing_until_one_succeeds():
    failed = {"status": {"failures": [{"reason": "CalibrationFailed"}]}}
    assert failing_calibrations([failed, {"status": {"blockSize": 32}}, {}]) == 1
