"""All policies on one load, side by side: a table and a drawing for the terminal."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from octavo_operator.scaling.policy import PolicySettings

from .fleet_run import Outcome, Run, Scene
from .loads import Load
from .oracle import oracle
from .report import SLO, Figures, figures
from .scalers import Octavo, others

_BARS = " ▁▂▃▄▅▆▇█"


@dataclass(frozen=True)
class Comparison:
    """What one load gave."""

    load: Load
    octavo: Figures
    others: tuple[Figures, ...]
    oracle: Figures
    """The cheapest that knows the future and attains as much as Octavo."""
    outcome: Outcome
    """Octavo's run."""

    @property
    def rivals(self) -> list[Figures]:
        """Other policies that attain at least as much, cheapest first."""
        enough = [item for item in self.others if item.in_slo >= self.octavo.in_slo]
        return sorted(enough, key=lambda item: item.gpu_hours)

    @property
    def best_attaining(self) -> Figures:
        """The other policy with the largest share in the SLO; the cheaper one of equals."""
        return max(self.others, key=lambda item: (item.in_slo, -item.gpu_hours))


def compare(load: Load, scene: Scene, slo: SLO, settings: PolicySettings) -> Comparison:
    """Run every policy on the load."""
    outcome = Run(load, Octavo(settings), scene).outcome()
    own = figures(outcome, slo)
    rest = tuple(figures(Run(load, make(), scene).outcome(), slo) for make in others(scene.least, scene.most))
    return Comparison(load, own, rest, oracle(load, scene, slo, own.in_slo), outcome)


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


def drawing(load: Load, outcome: Outcome, width: int = 96) -> str:
    """Two lines of bars over time: arrivals, and replicas that serve."""
    size = load.seconds / width
    arrivals = [0.0] * width
    for time, _, _ in load.arrivals:
        arrivals[min(width - 1, int(time / size))] += 1 / size
    serving, at, present = [0.0] * width, 0, 0
    events = sorted(outcome.serving)
    for column in range(width):
        while at < len(events) and events[at][0] <= (column + 1) * size:
            present = events[at][1]
            at += 1
        serving[column] = float(present)
    return f"req/s, up to {max(arrivals):<8.1f} {_bars(arrivals)}\nserving, up to {max(serving):<6.0f} {_bars(serving)}"


def _bars(values: Sequence[float]) -> str:
    most = max(values) or 1.0
    return "".join(_BARS[round(value / most * (len(_BARS) - 1))] for value in values)
