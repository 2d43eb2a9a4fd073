"""The boards as files: complete, valid, and of metrics that exist."""

from __future__ import annotations

import enum
import json
import re
import types
import typing
from pathlib import Path
from typing import Any

import pytest
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models import dashboard as schema
from grafana_foundation_sdk.models import prometheus, stat, timeseries

from dashboards.alerts import ALERTS, RECORDINGS
from dashboards.boards import BOARDS
from dashboards.panels import every_panel

ROOT = Path(__file__).resolve().parents[2]
NAME = re.compile(r"\b(octavo_[a-z_]+|octavo:[a-z_]+:[a-z0-9_]+)\b")
SUFFIX = re.compile(r"_(bucket|count|sum)$")
PAGES = ("metrics.md", "operator-metrics.md")
UIDS = {"octavo-service", "octavo-kv-cache", "octavo-scaling", "octavo-node-types", "octavo-operator"}
"""Parts of links that people have kept: they never change."""
UNITS = {"s", "ops", "reqps", "percentunit", "short"}
OPTIONS = {"timeseries": timeseries.Options, "stat": stat.Options}


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


def faults(value: Any, hint: Any, where: str) -> list[str]:
    """What in a value of Grafana's SDK is not of the type that Grafana's schema gives it."""
    if isinstance(hint, str):
        hint = getattr(schema, hint, Any)
    origin, inner = typing.get_origin(hint), typing.get_args(hint)
    if hint in (Any, object) or isinstance(hint, typing.TypeVar):
        return []
    if origin in (typing.Union, types.UnionType):
        if value is None and type(None) in inner:
            return []
        found = [faults(value, each, where) for each in inner if each is not type(None)]
        # A fault within tells more than another outside: the deepest place is told.
        return (
            [] if any(not each for each in found) else max(found, key=lambda texts: texts[0].split(":")[0].count("."))
        )
    if origin is typing.Literal:
        return [] if value in inner else [f"{where}: {value!r} is none of {inner}"]
    if origin is list:
        if not isinstance(value, list):
            return [f"{where}: {value!r} is no list"]
        return [text for number, each in enumerate(value) for text in faults(each, inner[0], f"{where}[{number}]")]
    if origin is dict:
        if not isinstance(value, dict):
            return [f"{where}: {value!r} is no map"]
        return [text for key, each in value.items() for text in faults(each, inner[1], f"{where}.{key}")]
    if isinstance(hint, type) and issubclass(hint, enum.Enum):
        known = [item.value for item in hint]
        return [] if (value.value if isinstance(value, enum.Enum) else value) in known else [f"{where}: {value!r}"]
    if hint is float:
        hint = (int, float)
    if isinstance(value, dict) and hasattr(hint, "from_json"):
        # Some parts are left as they were read.
        value = hint.from_json(value)
    if not isinstance(value, hint) or (isinstance(value, bool) and hint is not bool):
        return [f"{where}: {str(value)[:40]!r} is not of type {hint}"]
    if type(value).__module__.startswith("grafana_foundation_sdk"):
        hints = typing.get_type_hints(type(value), vars(schema))
        return [text for name, each in hints.items() for text in faults(getattr(value, name), each, f"{where}.{name}")]
    return []


def loaded(document: dict[str, Any]) -> schema.Dashboard:
    """As Grafana's own types read it."""
    return schema.Dashboard.from_json(json.loads(json.dumps(document)))


@pytest.mark.parametrize("board", BOARDS, ids=lambda board: board.uid)
def test_a_board_is_what_grafanas_schema_describes_in_every_field(board):
    document = json.loads((ROOT / "dashboards" / "grafana" / f"{board.uid}.json").read_text())
    read = loaded(document)
    # Nothing is lost on the way through the schema's types: there is no field that it does not know.
    assert json.loads(JSONEncoder(sort_keys=True).encode(read)) == document
    assert faults(read, schema.Dashboard, "board") == []
    for panel in document["panels"]:
        if panel["type"] == "row":
            continue
        known = OPTIONS[panel["type"]]
        assert json.loads(JSONEncoder().encode(known.from_json(panel["options"]))) == panel["options"]
        for target in panel["targets"]:
            assert json.loads(JSONEncoder().encode(prometheus.Dataquery.from_json(target))) == target


@pytest.mark.parametrize(("change", "words"), [
    (lambda panel: panel.update(title=7), "title: '7' is not of type"),
    (lambda panel: panel["gridPos"].update(w="8"), "w: '8' is not of type"),
    (lambda panel: panel["fieldConfig"]["defaults"].update(min="0"), "min_val: '0' is not of type"),
])  # fmt: skip
def test_a_field_of_another_type_would_be_seen(change, words):
    document = json.loads((ROOT / "dashboards" / "grafana" / "octavo-service.json").read_text())
    change(document["panels"][1])
    assert words in " ".join(faults(loaded(document), schema.Dashboard, "board"))


def test_addresses_and_units_of_boards_are_known_ones():
    assert {board.uid for board in BOARDS} == UIDS
    assert {path.stem for path in (ROOT / "dashboards" / "grafana").glob("*.json")} == UIDS
    assert {panel.unit for panel in every_panel(BOARDS)} <= UNITS


def test_every_board_and_every_alarming_panel_links_to_runbooks():
    for board in BOARDS:
        document = json.loads((ROOT / "dashboards" / "grafana" / f"{board.uid}.json").read_text())
        assert [link["title"] for link in document["links"]] == ["Runbooks"]
        links = [link["url"] for panel in document["panels"] for link in panel.get("links") or ()]
        assert len(links) >= 2
        assert all(re.fullmatch(r"docs/runbooks/Octavo\w+/", link) for link in links)
