"""Rules under promtool: valid, and each alert fires when it should and is quiet when it nearly should."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from dashboards.alerts import ALERTS, Alert
from tests.dashboards.rule_series import CASES, Case

ROOT = Path(__file__).resolve().parents[2]
RULES = ROOT / "dashboards" / "rules" / "octavo.rules.yaml"
RUNBOOKS = ROOT / "docs" / "runbooks"
WATCHED = {
    "the KV cache is full and requests queue": "OctavoKVCacheFull",
    "requests are preempted": "OctavoPreemptions",
    "first tokens miss their target, fast": "OctavoTimeToFirstTokenBurnFast",
    "first tokens miss their target, slowly": "OctavoTimeToFirstTokenBurnSlow",
    "no replica is ready": "OctavoNoReadyReplica",
    "a rollout is stuck": "OctavoRolloutStuck",
    "no image runs on the nodes": "OctavoImageUnresolved",
    "no node fits": "OctavoNodeTypesUnresolved",
    "slower kernels are in use": "OctavoKernelFallback",
    "a model can't be fetched": "OctavoFetchFailing",
    "a calibration fails": "OctavoCalibrationFailing",
    "an accelerator is waited for": "OctavoWaitingForAccelerator",
    "scaling is held": "OctavoScalingHeld",
    "reconciliations fail": "OctavoReconcileErrors",
    "the operator's queue is old": "OctavoQueueOld",
    "a service's metrics are absent": "OctavoServiceSilent",
    "the operator's metrics are absent": "OctavoOperatorAbsent",
}
"""What an operator of the system must hear of, and by which alert."""


def unit_test(alert: Alert, case: Case, folder: Path) -> Path:
    """A file for `promtool test rules`. Annotations are part of what must come; they are learned from the alert."""
    expected: list[dict[str, Any]] = []
    if case.labels is not None:
        expected = [{"exp_labels": {"severity": alert.severity, **case.labels}}]
    document = {
        "rule_files": [str(folder / "bare.rules.yaml")],
        "evaluation_interval": "1m",
        "tests": [
            {
                "interval": "1m",
                "input_series": [{"series": name, "values": values} for name, values in case.series.items()],
                "alert_rule_test": [{"eval_time": f"{case.minutes}m", "alertname": alert.name, "exp_alerts": expected}],
            }
        ],
    }
    path = folder / "test.yaml"
    path.write_text(yaml.safe_dump(document))
    return path


def bare_rules(folder: Path) -> None:
    """The rules as committed without annotations, which promtool would compare word by word."""
    document = yaml.safe_load(RULES.read_text())
    for group in document["groups"]:
        for rule in group["rules"]:
            rule.pop("annotations", None)
    (folder / "bare.rules.yaml").write_text(yaml.safe_dump(document))


def test_promtool_finds_nothing_wrong_with_the_rules(prometheus_programs):
    done = subprocess.run([prometheus_programs["promtool"], "check", "rules", "--lint-fatal", str(RULES)],
                          capture_output=True, text=True, check=False)  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("alert", ALERTS, ids=lambda alert: alert.name)
def test_the_alert_fires_when_it_should_and_is_quiet_when_it_nearly_should(alert, prometheus_programs, tmp_path):
    cases = CASES[alert.name]
    assert {case.labels is None for case in cases} == {True, False}
    bare_rules(tmp_path)
    for number, case in enumerate(cases):
        command = [prometheus_programs["promtool"], "test", "rules", str(unit_test(alert, case, tmp_path))]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, f"case {number}: {done.stdout}{done.stderr}"


def test_whatever_must_be_heard_of_has_an_alert_with_series_that_fire_it_and_near_misses():
    assert set(WATCHED.values()) <= {alert.name for alert in ALERTS}
    assert set(CASES) == {alert.name for alert in ALERTS}
    for name, cases in CASES.items():
        assert any(case.labels is not None for case in cases), f"nothing fires {name}"
        assert any(case.labels is None for case in cases), f"nothing nearly fires {name}"


@pytest.mark.parametrize("name", [alert.name for alert in ALERTS if "Burn" in alert.name or "Errors" in alert.name])
def test_a_budget_is_watched_over_two_windows(name):
    expression = next(alert.expression for alert in ALERTS if alert.name == name)
    if "ratio_rate" in expression:
        assert len(set(re.findall(r"ratio_rate(\w+)", expression))) == 2
        assert len([case for case in CASES[name] if case.labels is None]) >= 3, (
            "one near miss for each window, one for the level"
        )


def test_every_alert_has_a_runbook_and_every_runbook_an_alert():
    pages = {path.stem for path in RUNBOOKS.glob("*.md")} - {"index"}
    assert pages == {alert.name for alert in ALERTS}
    for alert in ALERTS:
        text = (RUNBOOKS / f"{alert.name}.md").read_text()
        for heading in ("## What it means", "## Look", "## Mend"):
            assert heading in text, f"{alert.name} has no part {heading}"
        assert re.search(r"```(bash|promql)\n", text), f"{alert.name} shows no command"


def test_every_alert_tells_who_is_concerned_and_where_to_read_on():
    for group in yaml.safe_load(RULES.read_text())["groups"]:
        for rule in group["rules"]:
            if "alert" in rule:
                notes = rule["annotations"]
                assert notes["runbook_url"].endswith(f"/runbooks/{rule['alert']}/")
                assert notes["summary"]
                assert notes["description"]
                if "by (namespace, service" in rule["expr"] or "octavo:" in rule["expr"]:
                    assert "$labels.service" in notes["summary"]
