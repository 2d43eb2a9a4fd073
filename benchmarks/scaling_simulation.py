"""Octavo's scaling policy beside others and beside an oracle, on the shipped loads, in simulated time.

`python benchmarks/scaling_simulation.py`. Nothing is measured of a machine here but the order of things: replicas,
start-up delays and costs are those of a profile. The policy is the operator's own code. Each figure is a mean over
several seeds of arrivals, lengths and start-up times: the best of many settings on one seed is partly luck.
"""

from __future__ import annotations

import argparse
import multiprocessing
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import fmean
from typing import Any

if __package__ in (None, ""):
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from octavo_operator.scaling.policy import PolicySettings
from octavo_operator.scaling.simulator.compare import Comparison, compare, table
from octavo_operator.scaling.simulator.fleet_run import Pool, Scene
from octavo_operator.scaling.simulator.loads import Load, read_trace, shapes
from octavo_operator.scaling.simulator.profile import PROFILES, Profile
from octavo_operator.scaling.simulator.report import SLO, Figures
from octavo_operator.scaling.simulator.scalers import DOCUMENTED, TUNED, others

from benchmarks import scaling_frontier
from benchmarks.common import Row, read_results, write_result

TRACE = Path(__file__).parent / "scaling_traces" / "azure-llm-2023-code.csv"
MOST = 40
SEEDS = (1, 2, 3)
SAVING_GOAL = 0.85
ORACLE_GOAL = 1.25


def shipped(seed: int = 1) -> Iterator[tuple[Load, Profile]]:
    """Each load with the replicas that it runs on."""
    for make in shapes(seed=seed).values():
        yield make(), PROFILES["l4-8b"]
    yield read_trace(TRACE, rate=4.0, seed=seed), PROFILES["h100-8b"]


def measured(job: tuple[int, int]) -> tuple[Comparison, scaling_frontier.Frontier]:
    """One load (its number) with one seed: every policy with every setting."""
    number, seed = job
    load, profile = list(shipped(seed))[number]
    scene = Scene((Pool(profile),), 1, MOST, 1, seed=6 + seed)
    found = compare(load, scene, SLO(), PolicySettings(1, MOST), TUNED)
    return found, scaling_frontier.frontier(found, scene, SLO())


def mean(each: Sequence[Figures]) -> Figures:
    """Means over the seeds; the most flaps and the highest peak of any."""

    def of(name: str) -> float:
        return fmean(getattr(one, name) for one in each)

    return Figures(
        each[0].load, each[0].policy, of("gpu_hours"), of("cost"), of("in_slo"), of("ttft_p50"), of("ttft_p95"),
        of("ttft_p99"), max(one.flaps for one in each), round(of("changes")), max(one.peak for one in each),
        round(of("preemptions")),
    )  # fmt: skip


def over_seeds(each: Sequence[Comparison]) -> Comparison:
    """One comparison of means."""
    rest = [mean(same) for same in zip(*(item.others for item in each), strict=True)]
    own, least = mean([item.octavo for item in each]), mean([item.oracle for item in each])
    return replace(each[0], octavo=own, others=tuple(rest), oracle=least)


def rows(found: Comparison) -> Iterator[Row]:
    """What the goals speak of, for one load."""
    own, best, name = found.octavo, found.best, found.load.name
    yield Row(
        f"{name}: requests in SLO", "%", round(100 * own.in_slo, 2), "higher", round(100 * best.in_slo, 2), best.policy,
        round(100 * best.in_slo, 2), f"the most that any other attains: {max(o.in_slo for o in found.others):.1%}",
    )  # fmt: skip
    yield _hours(f"{name}: GPU-hours ÷ those of the best other", own, best)
    if found.rivals:
        yield _hours(f"{name}: GPU-hours ÷ those of the cheapest other that attains as much", own, found.rivals[0])
    guides = {make().name for make in others(1, MOST, DOCUMENTED)}
    documented = [item for item in found.rivals if item.policy in guides]
    if documented:
        beside = "the cheapest other that attains as much, as guides set them"
        yield _hours(f"{name}: GPU-hours ÷ those of {beside}", own, documented[0])
    yield _hours(f"{name}: GPU-hours ÷ the oracle's", own, found.oracle, ORACLE_GOAL)
    yield Row(f"{name}: flaps", "", own.flaps, "lower", 0.0 if name == "constant" else None)


def _hours(name: str, own: Figures, beside: Figures, goal: float = SAVING_GOAL) -> Row:
    ratio = round(own.gpu_hours / beside.gpu_hours, 3)
    note = f"{own.gpu_hours:.2f} h ({own.in_slo:.1%} in SLO) beside {beside.gpu_hours:.2f} h ({beside.in_slo:.1%})"
    return Row(name, "×", ratio, "lower", goal, beside.policy, None, note)


def over_all(found: list[Comparison]) -> Iterator[Row]:
    """One setting for every load, as it must be chosen where the load is not known: nobody tunes with hindsight."""
    names = [item.policy for item in found[0].others]
    by_name = {name: [next(o for o in item.others if o.policy == name) for item in found] for name in names}
    own = [item.octavo for item in found]
    hours = sum(item.gpu_hours for item in own)
    as_much = {
        name: sum(item.gpu_hours for item in each)
        for name, each in by_name.items()
        if all(other.in_slo >= mine.in_slo for other, mine in zip(each, own, strict=True))
    }
    if as_much:
        name, spent = min(as_much.items(), key=lambda item: item[1])
        yield Row(
            "all loads, one setting: GPU-hours ÷ those of the cheapest other that attains as much on each", "×",
            round(hours / spent, 3), "lower", SAVING_GOAL, name, None, f"{hours:.1f} h beside {spent:.1f} h",
        )  # fmt: skip
    share = _pooled(own, found)
    cheaper = [
        (spent, name, _pooled(each, found))
        for name, each in by_name.items()
        if (spent := sum(item.gpu_hours for item in each)) <= hours / SAVING_GOAL
    ]
    if cheaper:
        spent, name, most = max(cheaper, key=lambda item: item[2])
        yield Row(
            "all loads, one setting: requests in SLO", "%", round(100 * share, 2), "higher", round(100 * most, 2), name,
            round(100 * most, 2),
            f"beside the most attaining other for up to {1 / SAVING_GOAL:.2f} × the hours: {hours:.1f}, {spent:.1f} h",
        )  # fmt: skip


def _pooled(each: Sequence[Figures], found: Sequence[Comparison]) -> float:
    counts = [len(item.load.arrivals) for item in found]
    return sum(item.in_slo * count for item, count in zip(each, counts, strict=True)) / sum(counts)


def main() -> None:
    """Run all loads and write the result."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--dry-run", action="store_true", help="print the tables and write no result")
    parser.add_argument("--plot", type=Path, metavar="FILE", help="draw shares in the SLO by GPU-hours: .svg or .png")
    flags = parser.parse_args()
    result: list[Row] = []
    frontiers: list[scaling_frontier.Frontier] = []
    every: list[Comparison] = []
    numbers = range(len(list(shipped())))
    with multiprocessing.Pool(2) as pool:
        runs = pool.imap(measured, [(number, seed) for number in numbers for seed in SEEDS], chunksize=1)
        for _ in numbers:
            each = [next(runs) for _ in SEEDS]
            found = over_seeds([one for one, _ in each])
            shares = ", ".join(f"{one.octavo.in_slo:.1%}" for one, _ in each)
            print(f"{found.load.name}: Octavo by seed {shares} in SLO\n{table(found)}\n", flush=True)
            result += rows(found)
            frontiers.append(scaling_frontier.over_seeds([points for _, points in each]))
            result += scaling_frontier.rows(frontiers[-1])
            every.append(found)
    result += over_all(every)
    for row in result:
        print(row)
    if flags.plot is not None:
        scaling_frontier.draw(frontiers, flags.plot)
    if flags.dry_run:
        return
    before: list[Any] = next((item["rows"] for item in read_results() if item["topic"] == "scaling-simulation"), [])
    kept = [row for row in before if row["name"].startswith(("scrape:", "cluster"))]
    command = "python benchmarks/scaling_simulation.py, scaling_scrape.py, scaling_cluster.py SCENE"
    write_result("scaling-simulation", [*result, *kept], command=command)


if __name__ == "__main__":
    main()
