"""All measured figures as tables: those short of their goal first, then every topic. Writes docs/performance.md.

The page holds nothing that is not in benchmarks/results, so that it can be made again anywhere and compared.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

if __package__ in (None, ""):
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks import step_time
from benchmarks.common import ROOT, read_results

PAGE = ROOT / "docs" / "performance.md"
Result = Mapping[str, Any]
TITLES = {
    "serving-cpu": "Serving on a CPU, beside llama.cpp",
    "operator-scale": "The operator with many services",
    "attention-h200": "Attention on an H200",
    "fused-h200": "Fused kernels on an H200",
    "engine-h200": "The engine on an H200",
    "engine-host": "The engine's host process, on a device that computes nothing",
    "http": "The HTTP interface",
    "scaling-simulation": "Scaling policies on simulated load",
    "demo": "The demo",
}


def render(results: Sequence[Result]) -> str:
    """The whole page."""
    parts = [
        "# Measured figures\n",
        "<!-- Written by `make bench-report` from benchmarks/results; change a figure by measuring it again. -->\n",
    ]
    if not results:
        parts.append("Nothing has been measured yet: `make bench` does.\n")
    short = [(result, row) for result in results for row in result["rows"] if row["met"] is False]
    if short:
        parts.append("## Short of their goal\n")
        parts.append(table([(row, str(result["topic"])) for result, row in short]))
    for result in results:
        parts.append(topic(result))
        if result["topic"] == "engine-h200" and (found := step_time.section(result)):
            parts.append(found)
    return "\n".join(parts)


def topic(result: Result) -> str:
    """One topic: where, when and with what it was measured, then its rows."""
    machine = result["machine"]
    gpus = f"; {', '.join(machine['gpus'])}" if machine["gpus"] else ""
    versions = ", ".join(f"{name} {version}" for name, version in result["versions"].items())
    lines = [
        f"## {TITLES.get(result['topic'], result['topic'])}\n",
        f"`{result['command']}` on {machine['cpu']}, {machine['cores']} cores, {machine['memory_gib']} GiB{gpus}; "
        f"{result['date'][:10]}, commit {result['commit']}; {versions}.\n",
        table([(row, "") for row in result["rows"]]),
    ]
    return "\n".join(lines)


def table(rows: Sequence[tuple[Mapping[str, Any], str]]) -> str:
    """Rows as a Markdown table; a column that no row fills is left out."""
    columns: dict[str, list[str]] = {
        "topic": [name for _, name in rows],
        "figure": [str(row["name"]) for row, _ in rows],
        "measured": [f"{number(row['value'])} {row['unit']}".strip() for row, _ in rows],
        "goal": [goal(row) for row, _ in rows],
        "met": [{True: "yes", False: "no", None: ""}[row["met"]] for row, _ in rows],
        "peer": [peer(row) for row, _ in rows],
        "note": [str(row.get("note") or "") for row, _ in rows],
    }
    filled = {head: [escape(cell) for cell in cells] for head, cells in columns.items() if any(cells)}
    lines = ["| " + " | ".join(filled) + " |", "|" + "---|" * len(filled)]
    lines += ["| " + " | ".join(cells) + " |" for cells in zip(*filled.values(), strict=True)]
    return "\n".join(lines) + "\n"


def goal(row: Mapping[str, Any]) -> str:
    if row.get("goal") is None:
        return ""
    return f"{'≥' if row['better'] == 'higher' else '≤'} {number(row['goal'])} {row['unit']}".strip()


def peer(row: Mapping[str, Any]) -> str:
    if row.get("peer_value") is None:
        return str(row.get("peer") or "")
    return f"{row['peer']}: {number(row['peer_value'])} {row['unit']}".strip()


def number(value: float) -> str:
    """Three significant digits for small figures, whole numbers with separators for large ones."""
    if value == int(value) or abs(value) >= 1000:
        return f"{value:,.0f}".replace(",", " ")
    return f"{value:.3g}"


def escape(cell: str) -> str:
    return cell.replace("|", "\\|").replace("\n", " ")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--page", type=Path, default=PAGE, help="where to write the page")
    page = parser.parse_args().page
    text = render(read_results())
    page.parent.mkdir(parents=True, exist_ok=True)
    page.write_text(text, encoding="utf-8")
    print(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
