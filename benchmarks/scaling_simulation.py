"""Octavo's scaling policy beside others and beside an oracle, on the shipped loads, in simulated time.

`python benchmarks/scaling_simulation.py`. Nothing is measured of a machine here but the order of things: replicas,
start-up delays and costs are those of a profile. The policy is the operator's own code.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

if __package__ in (None, ""):
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from octavo_operator.scaling.policy import PolicySettings
from octavo_operator.scaling.simulator.compare import Comparison, compare, table
from octavo_operator.scaling.simulator.fleet_run import Pool, Scene
from octavo_operator.scaling.simulator.loads import Load, read_trace, shapes
from octavo_operator.scaling.simulator.profile import PROFILES, Profile
from octavo_operator.scaling.simulator.report import SLO, Figures
from octavo_operator.scaling.simulator.scalers import TUNED

from benchmarks import scaling_frontier
from benchmarks.common import Row, read_results, write_result

TRACE = Path(__file__).parent / "scaling_traces" / "azure-llm-2023-code.csv"
MOST = 40
SAVING_GOAL = 0.85
ORACLE_GOAL = 1.25


def shipped() -> Iterator[tuple[Load, Profile]]:
    """Each load with the replicas that it runs on."""
    for make in shapes().values():
        yield make(), PROFILES["l4-8b"]
    yield read_trace(TRACE, rate=4.0), PROFILES["h100-8b"]


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
    for load, profile in shipped():
        scene = Scene((Pool(profile),), 1, MOST, 1)
        found = compare(load, scene, SLO(), PolicySettings(1, MOST), TUNED)
        print(f"{load.name} ({profile.name})\n{table(found)}\n", flush=True)
        result += rows(found)
        frontiers.append(scaling_frontier.frontier(found, scene, SLO()))
        result += scaling_frontier.rows(frontiers[-1])
        every.append(found)
    result += over_all(every)
    for row in result:
        print(row)
    if flags.plot is not None:
        scaling_frontier.draw(frontiers, flags.plot)
    if flags.dry_run:
        return
    before = next((item["rows"] for item in read_results() if item["topic"] == "scaling-simulation"), [])
    measured = [row for row in before if row["name"].startswith(("scrape:", "cluster"))]
    command = "python benchmarks/scaling_simulation.py, scaling_scrape.py, scaling_cluster.py SCENE"
    write_result("scaling-simulation", [*result, *measured], command=command)


if __name__ == "__main__":
    main()
