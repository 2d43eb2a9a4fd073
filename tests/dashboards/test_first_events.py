"""What happens for the first time is seen: series of open labels are born with their first value, not with 0."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest
import yaml
from octavo_operator import metrics
from octavo_operator.scaling import autoscaler
from prometheus_client import Counter

from dashboards.alerts import ALERTS, RECORDINGS
from dashboards.boards import BOARDS
from dashboards.panels import every_panel

OPEN = {
    f"{item._name}_total"
    for module in (metrics, autoscaler)
    for item in vars(module).values()
    if isinstance(item, Counter) and item._labelnames
}
"""Counters whose label values come with what happens. Those of the server are there from its start, with 0."""
QUERIES = {f"{panel.title}: {query}": query for panel in every_panel(BOARDS) for query, _ in panel.queries}
QUERIES |= {item.record: item.expression for item in RECORDINGS}
QUERIES |= {item.name: item.expression for item in ALERTS}


def named(query: str) -> set[str]:
    return {name for name in OPEN if re.search(rf"\b{name}\b", query)}


def value(query: str, series: dict[str, str], minute: int, expected: float, promtool: str, folder: Path) -> str:
    """Empty when the query's one sample has this value; else promtool's words."""
    filled = query.replace("$__rate_interval", "5m").replace("$namespace", ".*").replace("$service", ".*")
    [(name, values)] = series.items()
    labels = re.search(r"sum by \(([^)]*)\)", filled)
    assert labels is not None, filled
    kept = [label for label in re.findall(r'(\w+="[^"]*")', name) if label.split("=")[0] in labels[1]]
    case = {
        "interval": "1m",
        "input_series": [{"series": name, "values": values}],
        "promql_expr_test": [
            {
                "expr": filled,
                "eval_time": f"{minute}m",
                "exp_samples": [{"labels": "{" + ",".join(kept) + "}", "value": expected}],
            }
        ],
    }
    path = folder / "first.yaml"
    path.write_text(yaml.safe_dump({"evaluation_interval": "1m", "tests": [case]}))
    done = subprocess.run([promtool, "test", "rules", str(path)], capture_output=True, text=True, check=False)
    return "" if done.returncode == 0 else done.stdout + done.stderr


SERIES = {
    "octavo_operator_reconcile_errors_total": 'reason="Forbidden",pod="a"',
    "octavo_operator_api_writes_total": 'kind="Deployment",verb="apply",pod="a"',
    "octavo_scaling_decisions_total": 'namespace="team",service="chat",reason="Preempted",pod="a"',
}
PANELS = [query for title, query in QUERIES.items() if ": " in title and named(query)]


def test_the_counters_of_open_labels_are_known_and_each_is_on_a_board():
    assert set(SERIES) == OPEN
    assert {name for query in PANELS for name in named(query)} == OPEN


@pytest.mark.parametrize("query", PANELS)
def test_a_first_event_is_one_and_so_is_the_next(query, prometheus_programs, tmp_path):
    [name] = named(query)
    series = f"{name}{{{SERIES[name]}}}"
    promtool = prometheus_programs["promtool"]
    # Born with 1 in minute 10, and never again; it is seen while the window covers it, and over then.
    assert value(query, {series: "_x10 1x30"}, 12, 1, promtool, tmp_path) == ""
    assert value(query, {series: "_x10 1x30"}, 30, 0, promtool, tmp_path) == ""
    # An old series that grows by one in a minute: five in five.
    assert value(query, {series: "7+1x30"}, 20, 5, promtool, tmp_path) == ""


def test_a_bare_rate_would_miss_it(prometheus_programs, tmp_path):
    name = "octavo_operator_reconcile_errors_total"
    bare = f"sum by (reason) (increase({name}[5m]))"
    series = {f"{name}{{{SERIES[name]}}}": "_x10 1x30"}
    assert "Forbidden" in value(bare, series, 12, 1, prometheus_programs["promtool"], tmp_path)


@pytest.mark.parametrize("title", [title for title, query in QUERIES.items() if named(query)])
def test_growth_of_such_a_counter_is_never_asked_for_without_its_birth(title):
    query = QUERIES[title]
    for name in named(query):
        assert re.search(rf"\b{name}(\{{[^}}]*\}})? unless {name}(\{{[^}}]*\}})? offset ", query), query
