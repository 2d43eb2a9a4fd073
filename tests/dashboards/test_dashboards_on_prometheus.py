"""Every panel and every rule on a real Prometheus that scrapes the real operator and server under load.

Prometheus finds its targets through the API server and relabels them as the chart's PodMonitors say.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest

from benchmarks.operator_process import wait_until
from dashboards.alerts import RECORDINGS
from dashboards.boards import BOARDS
from dashboards.panels import every_panel
from dashboards.scene import Scene, running

pytestmark = pytest.mark.cluster
until = partial(wait_until, seconds=120)
Series = list[dict[str, Any]]


def query(scene: Scene, expression: str) -> Series:
    filled = expression.replace("$__rate_interval", "30s").replace("$namespace", ".*").replace("$service", ".*")
    result: Series = scene.ask("query", query=filled)["result"]
    return result


def answers(scene: Scene, expression: str) -> Series:
    """What a query returns once there is something to return."""
    found: Series = []

    def asked() -> bool:
        found[:] = [item for item in query(scene, expression) if item["value"][1] != "NaN"]
        if not found:
            # The operator has work only when something changes.
            scene.kubectl("annotate", "ois", "smollm2", f"octavo.test/asked={time.monotonic()}", "--overwrite")
        return bool(found)

    until(asked, f"data for {expression}", seconds=90)
    return found


@pytest.fixture(scope="module")
def scraped(tmp_path_factory: pytest.TempPathFactory, prometheus_programs: dict[str, str]) -> Iterator[Scene]:
    """The scene once Prometheus has seen both programs, a scaling decision, and the one write that was refused."""
    with running(tmp_path_factory.mktemp("scene"), prometheus_programs["prometheus"]) as scene:
        scene.send(1)

        def up() -> bool:
            return scene.targets_up() == 3 and bool(query(scene, "octavo_desired_replicas"))

        until(up, "Prometheus scrapes the operator, the model's pod and the one with an old driver")
        scene.refuse_one(lambda: query(scene, "octavo_operator_reconcile_errors_total > 0"))
        yield scene


@pytest.mark.parametrize("panel", every_panel(BOARDS), ids=lambda panel: panel.title.replace(" ", "-"))
def test_every_query_of_the_panel_returns_data(scraped, panel):
    for expression, legend in panel.queries:
        series = answers(scraped, expression)
        for label in re.findall(r"{{(\w+)}}", legend):
            assert all(label in item["metric"] for item in series), f"{expression} has no label {label} for its legend"
        if panel.high is not None:
            assert all(0 <= float(item["value"][1]) <= panel.high for item in series), series


def test_series_of_models_carry_the_names_by_which_boards_and_rules_group(scraped):
    [series] = answers(scraped, "octavo_kv_cache_capacity_tokens")
    labels = series["metric"]
    assert (labels["namespace"], labels["service"]) == ("default", "smollm2")
    assert labels["pod"].startswith("smollm2-")
    assert labels["node_type"]
    [wanted] = answers(scraped, "octavo_desired_replicas")
    assert (wanted["metric"]["namespace"], wanted["metric"]["service"]) == ("default", "smollm2")
    [kind] = answers(scraped, "octavo_node_type_replicas")
    assert (kind["metric"]["mode"], kind["metric"]["node_type"]) == ("CPU", labels["node_type"])
    assert "octavo-server" in kind["metric"]["image"]


@pytest.mark.parametrize("recording", [item for item in RECORDINGS if not item.record.endswith(("1h", "6h"))],
                         ids=lambda item: item.record)  # fmt: skip
def test_the_recording_rule_has_a_value(scraped, recording):
    answers(scraped, recording.record)


def test_no_alert_is_raised_while_all_is_well_and_no_rule_fails(scraped):
    groups = scraped.ask("rules")["groups"]
    rules = [rule for group in groups for rule in group["rules"]]
    assert [rule["name"] for rule in rules if rule["health"] == "err"] == []
    firing = {rule["name"] for rule in rules if rule.get("state") == "firing"}
    assert firing == set(), json.dumps(groups)
