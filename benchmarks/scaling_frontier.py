"""What a share of requests in the SLO costs on a load: every policy with every setting, and three that no one can have.

`present` sees how much work comes in at this moment, exactly, and acts at once, but does not know the future; `fixed`
is a count chosen with hindsight; `oracle` knows the future. scaling_simulation.py runs them and draws `--plot FILE`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean

from octavo_operator.scaling.policy import PolicySettings
from octavo_operator.scaling.simulator.compare import Comparison
from octavo_operator.scaling.simulator.fleet_run import DECIDE_SECONDS, Run, Scaler, Scene
from octavo_operator.scaling.simulator.loads import Load
from octavo_operator.scaling.simulator.oracle import SHARES, plan, work_seconds
from octavo_operator.scaling.simulator.report import SLO, figures
from octavo_operator.scaling.simulator.scalers import Octavo, Planned

from benchmarks.common import Row

Point = tuple[float, float]
"""(GPU-hours, share of requests in the SLO)."""
TARGETS = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0)
LEVELS = (0.90, 0.95, 0.99)
SAVING_GOAL = 0.85
PRESENT_SHARES = (0.5, 0.6, 0.7, 0.8, 0.9, 1.0)
PRESENT_STARTUPS = (1, 2, 10)
"""For how many start-up times `present` keeps what is no longer needed."""
FIXED = range(1, 21)


@dataclass(frozen=True)
class Frontier:
    """All points of one load."""

    load: str
    own: Point
    """Octavo as it comes."""
    octavo: tuple[Point, ...]
    """By target."""
    others: tuple[Point, ...]
    present: tuple[Point, ...]
    fixed: tuple[Point, ...]
    oracle: tuple[Point, ...]


def least_hours(points: Iterable[Point], share: float) -> float | None:
    """The fewest GPU-hours of those that attain so much; None where none does."""
    return min((hours for hours, attained in points if attained >= share), default=None)


def frontier(found: Comparison, scene: Scene, slo: SLO) -> Frontier:
    """Run what the comparison has not run yet."""
    load = found.load

    def point(scaler: Scaler, begin: int = scene.begin) -> Point:
        one = figures(Run(load, scaler, replace(scene, begin=begin)).outcome(), slo)
        return one.gpu_hours, one.in_slo

    plans = [plan(load, scene, share) for share in SHARES]
    return Frontier(
        load.name,
        (found.octavo.gpu_hours, found.octavo.in_slo),
        tuple(point(Octavo(PolicySettings(scene.least, scene.most, target))) for target in TARGETS),
        tuple((item.gpu_hours, item.in_slo) for item in found.others),
        tuple(
            point(_present(load, scene, share, kept)) for share in PRESENT_SHARES for kept in PRESENT_STARTUPS
        ),
        tuple(point(_fixed(count), count) for count in FIXED),
        tuple(point(Planned("oracle", one), one(0.0)) for one in plans),
    )  # fmt: skip


def over_seeds(each: Sequence[Frontier]) -> Frontier:
    """Means of each point over runs with several seeds."""

    def mean(points: Iterable[Point]) -> Point:
        hours, shares = zip(*points, strict=True)
        return fmean(hours), fmean(shares)

    def line(name: str) -> tuple[Point, ...]:
        return tuple(mean(same) for same in zip(*(getattr(one, name) for one in each), strict=True))

    own = mean([one.own for one in each])
    return Frontier(
        each[0].load, own, line("octavo"), line("others"), line("present"), line("fixed"), line("oracle")
    )  # fmt: skip


def _fixed(count: int) -> Planned:
    return Planned(f"fixed {count}", lambda _now: count)


def _present(load: Load, scene: Scene, share: float, kept_startups: int) -> Planned:
    """The count for the work of this and the last decision's length; what is not needed goes after a while."""
    profile = scene.pools[0].profile
    bins = [0.0] * (math.ceil(load.seconds / DECIDE_SECONDS) + 2)
    for time, prompt, output in load.arrivals:
        bins[int(time / DECIDE_SECONDS)] += work_seconds(profile, prompt, output)
    counts = [
        max(scene.least, math.ceil((bins[at] + bins[max(0, at - 1)]) / (2 * DECIDE_SECONDS * share) - 0.1))
        for at in range(len(bins))
    ]
    kept = int(kept_startups * profile.startup_seconds / DECIDE_SECONDS)

    def count(now: float) -> int:
        at = min(len(counts) - 1, int(now / DECIDE_SECONDS))
        return max(counts[max(0, at - kept) : at + 1])

    return Planned(f"present {share:.0%}", count)


def rows(one: Frontier) -> Iterator[Row]:
    """What the points say, for one load."""
    hours, share = one.own
    for points, whose in (
        (one.present, "one that sees the present exactly, at as much in SLO"),
        (one.fixed, "the best fixed count, at as much in SLO"),
    ):
        beside = least_hours(points, share)
        if beside is not None:
            yield Row(
                f"{one.load}: GPU-hours ÷ those of {whose}", "×", round(hours / beside, 3), "lower",
                peer=whose.partition(",")[0], note=f"{hours:.2f} h ({share:.1%} in SLO) beside {beside:.2f} h",
            )  # fmt: skip
    missed = 0
    for level in LEVELS:
        other, own, knows = (least_hours(points, level) for points in (one.others, one.octavo, one.oracle))
        if other is None:
            continue
        if own is None:
            missed += 1
            continue
        known = f"; the oracle's {knows:.2f} h are {knows / other:.2f} × the other's" if knows is not None else ""
        yield Row(
            f"{one.load}: GPU-hours ÷ the least of any other, {level:.0%} in SLO, all tuned with hindsight", "×",
            round(own / other, 3), "lower", SAVING_GOAL, "the best other at this share", None,
            f"{own:.2f} h beside {other:.2f} h{known}",
        )  # fmt: skip
    yield Row(f"{one.load}: of 90, 95 and 99 % in SLO, attained by another alone", "", missed, "lower", 0.0)


def draw(found: Sequence[Frontier], path: Path) -> None:
    """One panel per load: share of requests missed, by GPU-hours. Needs matplotlib."""
    import matplotlib

    matplotlib.use("agg")
    matplotlib.rcParams["svg.hashsalt"] = "octavo"
    from matplotlib import pyplot

    figure, panels = pyplot.subplots(math.ceil(len(found) / 2), 2, figsize=(11, 3.4 * math.ceil(len(found) / 2)))
    for axes, one in zip(panels.flat, found, strict=False):
        kinds = (
            ("others", one.others, "x", "#c7641a"), ("fixed count", one.fixed, "s", "#bbbbbb"),
            ("sees the present exactly", one.present, "^", "#6a4c93"), ("oracle", one.oracle, "D", "#7a7a7a"),
            ("Octavo by target", one.octavo, "o", "#1b6ca8"),
        )  # fmt: skip
        for label, points, mark, colour in kinds:
            axes.scatter([h for h, _ in points], [100 * s for _, s in points], marker=mark, c=colour, s=22, label=label)
        axes.scatter([one.own[0]], [100 * one.own[1]], marker="*", c="#1b6ca8", s=140, label="Octavo as it comes")
        axes.set_title(one.load, loc="left", fontsize=10)
        axes.set_xscale("log")
        axes.set_ylim(max(0.0, 100 * one.own[1] - 20), 101)
        axes.set_xlabel("GPU-hours")
        axes.set_ylabel("% in SLO")
    panels.flat[0].legend(fontsize=7, loc="lower right")
    figure.tight_layout()
    figure.savefig(path, metadata={"Date": None} if path.suffix == ".svg" else None)
