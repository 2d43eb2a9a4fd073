"""Octavo's scaling policy beside others and beside an oracle, on the shipped loads, in simulated time.

`python benchmarks/scaling_simulation.py`. Nothing is measured of a machine here but the order of things: replicas,
start-up delays and costs are those of a profile. The policy is the operator's own code.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

if __package__ in (None, ""):
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from octavo_operator.scaling.policy import PolicySettings
from octavo_operator.scaling.simulator.compare import Comparison, compare, table
from octavo_operator.scaling.simulator.fleet_run import Pool, Scene
from octavo_operator.scaling.simulator.loads import Load, read_trace, shapes
from octavo_operator.scaling.simulator.profile import PROFILES, Profile
from octavo_operator.scaling.simulator.report import SLO

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
    own, best, name = found.octavo, found.best_attaining, found.load.name
    yield Row(
        f"{name}: requests in SLO",
        "%",
        round(100 * own.in_slo, 2),
        "higher",
        round(100 * best.in_slo, 2),
        best.policy,
        round(100 * best.in_slo, 2),
        "goal: the most attaining other policy",
    )
    rival = found.rivals[0] if found.rivals else None
    beside = rival or best
    yield Row(
        f"{name}: GPU-hours ÷ those of {'the cheapest other that attains as much' if rival else 'the best other'}",
        "×",
        round(own.gpu_hours / beside.gpu_hours, 3),
        "lower",
        SAVING_GOAL,
        beside.policy,
        None,
        f"{own.gpu_hours:.2f} h ({own.in_slo:.1%} in SLO) beside {beside.gpu_hours:.2f} h ({beside.in_slo:.1%})",
    )
    yield Row(
        f"{name}: GPU-hours ÷ the oracle's",
        "×",
        round(own.gpu_hours / found.oracle.gpu_hours, 3),
        "lower",
        ORACLE_GOAL,
        "oracle",
        None,
        f"{found.oracle.gpu_hours:.2f} h, {found.oracle.in_slo:.1%} in SLO",
    )
    yield Row(f"{name}: flaps", "", own.flaps, "lower", 0.0 if name == "constant" else None)


def main() -> None:
    """Run all loads and write the result."""
    result: list[Row] = []
    for load, profile in shipped():
        scene = Scene((Pool(profile),), 1, MOST, 1)
        found = compare(load, scene, SLO(), PolicySettings(1, MOST))
        print(f"{load.name} ({profile.name})\n{table(found)}\n")
        result += rows(found)
    before = next((item["rows"] for item in read_results() if item["topic"] == "scaling-simulation"), [])
    measured = [row for row in before if row["name"].startswith(("scrape:", "cluster"))]
    command = "python benchmarks/scaling_simulation.py, scaling_scrape.py, scaling_cluster.py [--kill-operator]"
    write_result("scaling-simulation", [*result, *measured], command=command)


if __name__ == "__main__":
    main()
