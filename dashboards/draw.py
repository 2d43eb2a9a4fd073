"""`make dashboard-pictures`: each board as a PNG for the docs, from its own queries on a real Prometheus.

The committed JSON is what is drawn: its grid, titles, units, bounds, queries and legends. The load rises and falls for
some minutes on a pool that is kept small, so that queue, cache and scaling have something to show.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MaxNLocator
from PIL import Image

from benchmarks.operator_process import wait_until

from .prometheus import PrometheusMissing, programs
from .scene import ROOT, Scene, running

PICTURES = ROOT / "docs" / "images" / "dashboards"
ENGINE = {"quantization": "Int8", "extraArgs": ["--pool-bytes=100000000"]}
LOAD = ((30, 1), (75, 12), (45, 3), (45, 1))
"""(seconds, clients at once), one after another."""
STEP_SECONDS, RATE = 2, "20s"
WIDTH_INCHES, ROW_INCHES, DOTS, COLOURS = 15.0, 0.34, 80, 64
SHORT = {"s": " s", "reqps": " req/s", "ops": " ops/s"}
Series = list[dict[str, Any]]


def formatted(unit: str) -> Callable[[float, Any], str]:
    """Numbers as Grafana writes them in this unit."""

    def text(value: float, _: Any = None) -> str:
        if not math.isfinite(value):
            return "–"
        if unit == "percentunit":
            return f"{value * 100:.3g}%"
        if unit == "s" and 0 < abs(value) < 1:
            return f"{value * 1000:.3g} ms"
        size = 0 if abs(value) < 1000 else min(2, int(math.log10(abs(value)) // 3))
        return f"{value / 1000**size:.3g}{('', ' K', ' M')[size]}{SHORT.get(unit, '')}"

    return text


def legend(template: str, labels: dict[str, str]) -> str:
    """`{{label}}` replaced by the series' own."""
    for name, value in labels.items():
        template = template.replace(f"{{{{{name}}}}}", value)
    return template


def asked(scene: Scene, expression: str, begin: float, end: float) -> Series:
    """A query over the whole time."""
    filled = expression.replace("$__rate_interval", RATE).replace("$namespace", ".*").replace("$service", ".*")
    result: Series = scene.ask("query_range", query=filled, start=begin, end=end, step=STEP_SECONDS)["result"]
    return result


def draw_panel(axes: Axes, panel: dict[str, Any], lines: Sequence[tuple[str, Series]], begin: float) -> None:
    """One panel: lines, areas on each other, or a number; times count from `begin`."""
    about = panel["fieldConfig"]["defaults"]
    write = formatted(about["unit"])
    axes.set_title(panel["title"], fontsize=9, loc="left", fontweight="bold")
    points: list[tuple[str, list[float], list[float]]] = [
        (
            legend(template, item["metric"]),
            [float(at) - begin for at, _ in item["values"]],
            [float(value) for _, value in item["values"]],
        )
        for template, series in lines
        for item in series
    ]
    if panel["type"] == "stat":
        axes.axis("off")
        last = points[-1][2][-1] if points else math.nan
        axes.text(0.5, 0.4, write(last, None), ha="center", va="center", fontsize=22, color="#3d71d9")
        return
    custom = about.get("custom", {})
    stacked = custom.get("stacking", {}).get("mode") == "normal"
    base: dict[float, float] = {}
    top = 0.0
    for name, times, values in points:
        if stacked:
            low = [base.get(at, 0.0) for at in times]
            values = [one + below for one, below in zip(values, low, strict=True)]
            axes.fill_between(times, low, values, alpha=0.4, linewidth=0)
            base |= dict(zip(times, values, strict=True))
        axes.plot(times, values, linewidth=1.1, label=name, clip_on=False)
        top = max([top, *(value for value in values if math.isfinite(value))])
    if points:
        axes.legend(fontsize=6, loc="upper left", frameon=True, framealpha=0.7, ncols=1 if len(points) < 4 else 2)
    axes.set_ylim(about.get("min", 0), about.get("max") or (top * 1.35 if top > 0 else 1.0))
    axes.yaxis.set_major_formatter(FuncFormatter(write))
    axes.yaxis.set_major_locator(MaxNLocator(4))
    axes.xaxis.set_major_locator(MaxNLocator(4))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda at, _: f"{at:.0f} s"))
    axes.tick_params(labelsize=7)
    axes.grid(alpha=0.25)


def draw_board(scene: Scene, board: dict[str, Any], begin: float, end: float, target: Path) -> None:
    """The whole board into one file."""
    bottom = max(panel["gridPos"]["y"] + panel["gridPos"]["h"] for panel in board["panels"])
    height = (bottom + 2) * ROW_INCHES
    figure = Figure(figsize=(WIDTH_INCHES, height), dpi=DOTS, facecolor="white")
    figure.text(0.01, 1 - 0.8 * ROW_INCHES / height, board["title"], fontsize=13, fontweight="bold")
    for panel in board["panels"]:
        place = panel["gridPos"]
        top = 1 - (place["y"] + 1.6) * ROW_INCHES / height
        if panel["type"] == "row":
            figure.text(0.01, top - 0.7 * ROW_INCHES / height, panel["title"], fontsize=10, color="#555555")
            continue
        box = (
            place["x"] / 24 + 0.045,
            top - (place["h"] - 1.1) * ROW_INCHES / height,
            place["w"] / 24 - 0.058,
            (place["h"] - 2.3) * ROW_INCHES / height,
        )
        axes = figure.add_axes(box)
        queries = [(item["legendFormat"], asked(scene, item["expr"], begin, end)) for item in panel["targets"]]
        draw_panel(axes, panel, queries, begin)
    FigureCanvasAgg(figure)
    figure.savefig(target)
    # A few colours do, and make the file a third.
    Image.open(target).convert("RGB").quantize(COLOURS, dither=Image.Dither.NONE).save(target, optimize=True)


def live(scene: Scene, load: Sequence[tuple[int, int]], say: Callable[[str], object]) -> None:
    """The load, step by step; new pods become targets as they come."""
    for number, (seconds, clients) in enumerate(load):
        say(f"{clients} clients for {seconds} s")
        scene.send(clients, tokens=160)
        if number == len(load) - 1:
            scene.refuse_one(lambda: scene.ask("query", query="octavo_operator_reconcile_errors_total")["result"])
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            scene.write_targets()
            time.sleep(3)


def draw(folder: Path, load: Sequence[tuple[int, int]], say: Callable[[str], object]) -> list[Path]:
    """All boards, drawn from one run. Raises PrometheusMissing."""
    prometheus = programs()["prometheus"]
    folder.mkdir(parents=True, exist_ok=True)
    made = []
    with (
        tempfile.TemporaryDirectory(prefix="octavo-boards-") as place,
        running(Path(place), prometheus, spec={"engine": ENGINE}) as scene,
    ):
        wait_until(lambda: scene.targets_up() >= 3, "Prometheus scraped everything")
        begin = time.time()
        live(scene, load, say)
        for path in sorted((ROOT / "dashboards" / "grafana").glob("*.json")):
            target = folder / f"{path.stem}.png"
            draw_board(scene, json.loads(path.read_text()), begin, time.time(), target)
            say(f"{target.name}: {target.stat().st_size / 1024:.0f} KiB")
            made.append(target)
    return made


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--output", type=Path, default=PICTURES, help="folder (default: docs/images/dashboards)")
    flags = parser.parse_args()
    try:
        draw(flags.output, LOAD, lambda text: print(f"pictures: {text}", flush=True))
    except PrometheusMissing as error:
        print(f"pictures: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
