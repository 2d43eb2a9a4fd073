"""charts/octavo/README.md: what the chart does, and a table of all values made of the comments in values.yaml."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).resolve().parent.parent
CHART = ROOT / "charts" / "octavo"
SHOWN = 60
"""Longer defaults are named and not shown."""
_KEY = re.compile(r"^(?P<indent>(?:  )*)(?P<name>[A-Za-z]\w*):(?P<rest>.*)$")
HEAD = """# The chart `octavo`

Installs Octavo's operator, its CRDs and, if asked, what Prometheus and Grafana need of it.

```bash
helm upgrade --install octavo charts/octavo --namespace octavo-system --create-namespace
helm test octavo --namespace octavo-system
```

- **Upgrade**: the same command. The CRDs are part of the chart's objects and are upgraded with it; running models are
  not restarted. `helm rollback octavo` goes back.
- **Uninstall**: `helm uninstall octavo -n octavo-system` ends the operator and leaves the CRDs, all InferenceServices
  and what serves them. With `crds.keep=false` at the last upgrade the CRDs go, too: delete the InferenceServices before
  you uninstall, since Kubernetes can leave their pods behind once their kind is gone. Also left: the pod of
  a `helm test` that failed, and a Lease that an operator made before the chart did.
- **Scraping**: `podMonitor.enabled=true` (or `serviceMonitor.enabled=true`, never both), `prometheusRule.enabled=true`,
  `dashboards.enabled=true`, and `networkPolicy.monitoringNamespace` = the namespace of Prometheus.
- **Private registry**: `imageRegistry` goes in front of every image; `imagePullSecrets` pull the operator's.

Wrong values are refused with their name: `values.schema.json` knows all of them.

## Values

Generated from the comments of `values.yaml`. An empty last column means: as the name says.

| value | default | meaning |
|---|---|---|
"""


@dataclass
class _Row:
    path: tuple[str, ...]
    comment: str
    children: list[str] = field(default_factory=list)


def rows(text: str) -> Iterator[_Row]:
    """Keys of the first two levels in order, each with the comment right above it."""
    comment: list[str] = []
    path: list[str] = []
    for line in text.splitlines():
        bare = line.strip()
        if bare.startswith("# "):
            comment.append(bare[2:])
        elif (found := _KEY.match(line)) and len(found["indent"]) <= 2:
            path = [*path[: len(found["indent"]) // 2], found["name"]]
            yield _Row(tuple(path), " ".join(comment))
            comment = []
        else:
            comment = []


def table(text: str) -> str:
    """One line per value; a section gets a line of its own when it has something to say."""
    values: dict[str, Any] = yaml.safe_load(text)
    lines = []
    for row in rows(text):
        default: Any = values
        for part in row.path:
            default = default[part] if isinstance(default, dict) else None
        within = len(row.path) == 2
        if within and row.path[0] == "resources":
            continue
        is_section = isinstance(default, dict) and default and not within and row.path[0] != "resources"
        shown = "" if is_section else json.dumps(default, ensure_ascii=False)
        shown = shown if len(shown) <= SHOWN else "see values.yaml"
        cell = f"`{shown}`" if shown and shown != "see values.yaml" else shown
        if is_section and not row.comment:
            continue
        meaning = row.comment.replace("|", "\\|")
        if row.path[0] == "serverImages":
            meaning = meaning.replace(" Generated from server_image/variants.yaml by `make generate`.", "")
        lines.append(f"| `{'.'.join(row.path)}` | {cell} | {meaning} |")
    return "\n".join(lines) + "\n"


def generate() -> dict[Path, str]:
    """Wanted text by path: the chart's README, and the same table as a page of the docs."""
    values = (CHART / "values.yaml").read_text(encoding="utf-8")
    page = "# Values of the chart\n\nGenerated from the comments of `charts/octavo/values.yaml`.\n\n"
    page += "| value | default | meaning |\n|---|---|---|\n"
    return {
        CHART / "README.md": HEAD + table(values),
        ROOT / "docs" / "reference" / "chart-values.md": page + table(values),
    }
