"""The boards as files: complete, valid, and of metrics that exist."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from dashboards.alerts import ALERTS, RECORDINGS
from dashboards.boards import BOARDS
from dashboards.panels import every_panel

ROOT = Path(__file__).resolve().parents[2]
NAME = re.compile(r"\b(octavo_[a-z_]+|octavo:[a-z_]+:[a-z0-9_]+)\b")
SUFFIX = re.compile(r"_(bucket|count|sum)$")
PAGES = ("metrics.md", "operator-metrics.md")


def documented() -> set[str]:
    """Names in the reference; tests of their own compare these pages with the programs."""
    text = "".join((ROOT / "docs" / "reference" / page).read_text() for page in PAGES)
    return set(re.findall(r"^\| `(octavo_\w+)`", text, re.MULTILINE))


def metrics_of(expression: str) -> set[str]:
    return {SUFFIX.sub("", name) if name not in documented() else name for name in NAME.findall(expression)}


def test_every_query_of_panels_and_rules_names_only_metrics_that_exist():
    known = documented() | {item.record for item in RECORDINGS}
    queries = [query for panel in every_panel(BOARDS) for query, _ in panel.queries]
    queries += [item.expression for item in (*RECORDINGS, *ALERTS)]
    assert {name for query in queries for name in metrics_of(query)} - known == set()


def test_every_metric_of_the_server_and_the_operator_is_on_a_board():
    shown = {name for panel in every_panel(BOARDS) for query, _ in panel.queries for name in metrics_of(query)}
    assert documented() - shown == set()


@pytest.mark.parametrize("board", BOARDS, ids=lambda board: board.uid)
def test_every_panel_of_a_board_has_title_description_unit_and_lower_end(board):
    document = json.loads((ROOT / "dashboards" / "grafana" / f"{board.uid}.json").read_text())
    assert document["uid"] == board.uid
    variables = [item["name"] for item in document["templating"]["list"]]
    assert variables == (["datasource", "namespace", "service"] if board.per_service else ["datasource"])
    panels = [panel for panel in document["panels"] if panel["type"] != "row"]
    assert len(panels) >= 7
    for panel in panels:
        defaults = panel["fieldConfig"]["defaults"]
        assert panel["title"]
        assert panel["description"].endswith(".")
        assert defaults["unit"]
        assert defaults["min"] == 0
        assert defaults.get("max") == (1 if defaults["unit"] == "percentunit" else None)
        assert all(target["datasource"]["uid"] == "${datasource}" for target in panel["targets"])
        assert panel["gridPos"]["x"] + panel["gridPos"]["w"] <= 24


def test_every_runbook_that_a_panel_links_to_exists():
    linked = {panel.runbook for panel in every_panel(BOARDS) if panel.runbook}
    assert linked <= {alert.name for alert in ALERTS}
    assert len(linked) >= 10
