"""All policies on one load, side by side: a table and a drawing for the terminal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from octavo_operator.scaling.policy import PolicySettings

from .fleet_run import Run, Scene
from .loads import Load
from .oracle import oracle
from .report import SLO, Figures, figures
from .scalers import DOCUMENTED, Grid, Octavo, others

NEAR = 0.01
"""Shares in the SLO that differ by less count as alike when the best other policy is chosen."""
_BARS = " ▁▂▃▄▅▆▇█"


@dataclass(frozen=True)
class Comparison:
    """What one load gave."""

    load: Load
    octavo: Figures
    others: tuple[Figures, ...]
    oracle: Figures
    """The cheapest that knows the future and attains as much as Octavo."""
    serving: Mapping[str, Sequence[tuple[float, int]]]
    """By policy, (time, replicas that serve) at each change."""

    @property
    def rivals(self) -> list[Figures]:
        """Other policies that attain at least as much, cheapest first."""
        enough = [item for item in self.others if item.in_slo >= self.octavo.in_slo]
        return sorted(enough, key=lambda item: item.gpu_hours)

    @property
    def best(self) -> Figures:
        """The best other policy: the cheapest of those that come within a point of the most that any of them attains.

        Whatever the price, the most is the measure; the last point may cost as many replicas as there are.
        """
        most = max(item.in_slo for item in self.others)
        near = [item for item in self.others if item.in_slo >= most - NEAR]
        return min(near, key=lambda item: (item.gpu_hours, -item.in_slo))


def compare(load: Load, scene: Scene, slo: SLO, settings: PolicySettings, grid: Grid = DOCUMENTED) -> Comparison:
    """Run every policy on the load; the others with every setting of the grid."""
    outcome = Run(load, Octavo(settings), scene).outcome()
    own, serving, rest = figures(outcome, slo), {outcome.policy: sorted(outcome.serving)}, []
    for make in others(scene.least, scene.most, grid):
        outcome = Run(load, make(), scene).outcome()
        rest.append(figures(outcome, slo))
        serving[outcome.policy] = sorted(outcome.serving)
    least, outcome = oracle(load, scene, slo, own.in_slo)
    serving[least.policy] = sorted(outcome.serving)
    for item in rest:
        # Who knows the future knows as well what another would do.
        if item.in_slo >= own.in_slo and item.gpu_hours < least.gpu_hours:
            least, serving[least.policy] = replace(item, policy=least.policy), serving[item.policy]
    return Comparison(load, own, tuple(rest), least, serving)


HEADER = ("policy", "GPU-h", "cost", "in SLO", "TTFT p50", "p95", "p99", "peak", "changes", "flaps", "preempted")


def table(found: Comparison) -> str:
    """Text table: Octavo, the oracle, then the others from the most to the least attaining."""
    ordered = sorted(found.others, key=lambda item: (-item.in_slo, item.gpu_hours))
    rows = [HEADER, *(_row(item) for item in (found.octavo, found.oracle, *ordered))]
    widths = [max(len(row[at]) for row in rows) for at in range(len(HEADER))]
    return "\n".join(
        "  ".join(
            [row[0].ljust(widths[0]), *(cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True))]
        )
        for row in rows
    )


def _row(item: Figures) -> tuple[str, ...]:
    return (
        item.policy,
        f"{item.gpu_hours:.2f}",
        f"{item.cost:.2f}",
        f"{item.in_slo:.1%}",
        f"{item.ttft_p50:.2f} s",
        f"{item.ttft_p95:.2f} s",
        f"{item.ttft_p99:.2f} s",
        str(item.peak),
        str(item.changes),
        str(item.flaps),
        str(item.preemptions),
    )


def rates(load: Load, width: int) -> list[float]:
    """Requests per second in each of so many equal parts of the load."""
    size = load.seconds / width
    found = [0.0] * width
    for time, _, _ in load.arrivals:
        found[min(width - 1, int(time / size))] += 1 / size
    return found


def drawing(found: Comparison, width: int = 96) -> str:
    """Two lines of bars over time: arrivals, and Octavo's replicas that serve."""
    size, arrivals = found.load.seconds / width, rates(found.load, width)
    serving, at, present = [0.0] * width, 0, 0
    events = found.serving[found.octavo.policy]
    for column in range(width):
        while at < len(events) and events[at][0] <= (column + 1) * size:
            present = events[at][1]
            at += 1
        serving[column] = float(present)
    return f"req/s, up to {max(arrivals):<8.1f} {_bars(arrivals)}\nserving, up to {max(serving):<6.0f} {_bars(serving)}"


def _bars(values: Sequence[float]) -> str:
    most = max(values) or 1.0
    return "".join(_BARS[round(value / most * (len(_BARS) - 1))] for value in values)
