"""What is made of boards and rules: files in dashboards/, and the copies that the chart carries."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from .alerts import ALERTS, RECORDINGS
from .boards import BOARDS
from .panels import RUNBOOKS, render

ROOT = Path(__file__).resolve().parent.parent
HERE = ROOT / "dashboards"
CHART = ROOT / "charts" / "octavo" / "files"
RULES = "octavo.rules.yaml"


def rule_groups() -> dict[str, Any]:
    """The rules as Prometheus reads them."""
    recordings = [{"record": item.record, "expr": item.expression} for item in RECORDINGS]
    alerts = [
        {
            "alert": item.name,
            "expr": item.expression,
            "for": item.wait,
            "labels": {"severity": item.severity},
            "annotations": {
                "summary": item.summary,
                "description": item.description,
                "runbook_url": f"{RUNBOOKS}/{item.name}/",
            },
        }
        for item in ALERTS
    ]
    return {"groups": [{"name": "octavo.records", "rules": recordings}, {"name": "octavo.alerts", "rules": alerts}]}


def rules_text() -> str:
    """YAML with a line that says where it comes from."""
    body = yaml.safe_dump(rule_groups(), sort_keys=False, width=1000, allow_unicode=True)
    return "# Generated from dashboards/alerts.py by `make generate`.\n" + body


def generate() -> dict[Path, str]:
    """Wanted text by path."""
    boards = {f"{board.uid}.json": render(board) for board in BOARDS}
    rules = rules_text()
    return {
        **{HERE / "grafana" / name: text for name, text in boards.items()},
        **{CHART / "dashboards" / name: text for name, text in boards.items()},
        HERE / "rules" / RULES: rules,
        CHART / RULES: rules,
    }
