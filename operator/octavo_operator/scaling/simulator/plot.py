"""Runs drawn over time: what came in, and how many replicas served under Octavo, the best other and the oracle."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from octavo_operator.settings import SettingsError

from .compare import Comparison, rates

FORMATS = (".png", ".svg")
_COLOURS = ("#1b6ca8", "#c7641a", "#7a7a7a")


def draw(found: Sequence[Comparison], path: Path) -> None:
    """One panel per load. Raises SettingsError without matplotlib or for another format."""
    if path.suffix not in FORMATS:
        raise SettingsError(f"--plot {path}: the name must end in {' or '.join(FORMATS)}")
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError as error:
        raise SettingsError("--plot needs matplotlib; install octavo-operator[plot]") from error
    figure = Figure(figsize=(10.0, 2.6 * len(found)), layout="constrained")
    FigureCanvasAgg(figure)
    for axes, one in zip(figure.subplots(len(found), 1, squeeze=False)[:, 0], found, strict=True):
        _panel(axes, one)
    figure.savefig(path, dpi=110)


def _panel(axes, found: Comparison) -> None:  # type: ignore[no-untyped-def]
    minutes = found.load.seconds / 60
    shown = [(found.octavo, 2.2), (found.best, 1.3), (found.oracle, 1.3)]
    width = 120
    arrivals = axes.twinx()
    arrivals.fill_between(
        [(at + 0.5) * minutes / width for at in range(width)], rates(found.load, width), color="#d9e6d0", linewidth=0
    )
    arrivals.set_ylabel("requests/s")
    arrivals.set_ylim(bottom=0)
    for (figures, thick), colour in zip(shown, _COLOURS, strict=True):
        changes = found.serving[figures.policy]
        label = f"{figures.policy}: {figures.gpu_hours:.2f} GPU-h, {figures.in_slo:.1%} in SLO"
        times = [time / 60 for time, _ in changes] + [minutes]
        counts = [count for _, count in changes] + [changes[-1][1]]
        axes.step(times, counts, where="post", color=colour, linewidth=thick, label=label)
    axes.set_zorder(arrivals.get_zorder() + 1)
    axes.patch.set_visible(False)
    axes.set_xlim(0, minutes)
    axes.set_ylim(bottom=0)
    axes.set_ylabel("replicas that serve")
    axes.set_xlabel("minutes")
    axes.set_title(found.load.name, loc="left", fontsize=10)
    axes.legend(fontsize=8, loc="upper left", framealpha=0.9)
