"""Where Octavo's GPU-hours and misses come from on the shipped loads: `python benchmarks/scaling_causes.py`.

Hours of replicas, from what the requests need to what was billed, one cause after the other; and when those requests
came that missed the SLO. Prints a table for docs/scaling.md.
"""

from __future__ import annotations

import math
import sys
from bisect import bisect_right
from pathlib import Path

if __package__ in (None, ""):
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from octavo_operator.scaling.policy import PolicySettings
from octavo_operator.scaling.policy.decide import wished
from octavo_operator.scaling.simulator.fleet_run import DECIDE_SECONDS, Outcome, Pool, Run, Scene, View
from octavo_operator.scaling.simulator.loads import Load
from octavo_operator.scaling.simulator.oracle import work_seconds
from octavo_operator.scaling.simulator.profile import Profile
from octavo_operator.scaling.simulator.report import SLO
from octavo_operator.scaling.simulator.scalers import Octavo

from benchmarks.scaling_simulation import MOST, shipped

AFTERMATH_SECONDS = 300.0


class _Noted(Octavo):
    """The policy, and at each decision (replicas by what comes now, replicas with what is kept, the decision)."""

    def __init__(self, settings: PolicySettings) -> None:
        super().__init__(settings)
        self.steps: list[tuple[int, int, int]] = []

    def decide(self, view: View) -> int:
        count = super().decide(view)
        numbers = self.last.numbers if self.last is not None else None
        if numbers is not None and numbers.at_once is not None and numbers.needed is not None:
            self.steps.append((max(1, wished(numbers.at_once, 0.1)), max(1, wished(numbers.needed, 0.1)), count))
        else:
            self.steps.append((count, count, count))
        return count


def causes(load: Load, profile: Profile) -> dict[str, float]:
    """Replica-hours by cause; they add up to what was billed."""
    scaler = _Noted(PolicySettings(1, MOST))
    outcome = Run(load, scaler, Scene((Pool(profile),), 1, MOST, 1)).outcome()
    bins = [0.0] * (math.ceil(load.seconds / DECIDE_SECONDS) + 1)
    for time, prompt, output in load.arrivals:
        bins[int(time / DECIDE_SECONDS)] += work_seconds(profile, prompt, output) / DECIDE_SECONDS
    whole = [max(1, math.ceil(work)) for work in bins]
    hours = DECIDE_SECONDS / 3600
    work, floor = sum(bins) * hours, sum(whole) * hours
    now, kept, asked = (sum(step[at] for step in scaler.steps) * hours for at in range(3))
    billed = outcome.replica_seconds / 3600
    return {
        "work": work,
        "whole replicas": floor - work,
        "room and lag": now - floor,
        "kept for the largest of late": kept - now,
        "waiting to go down": asked - kept,
        "drain and rounding of time": billed - asked,
        "billed": billed,
        **misses(outcome, SLO()),
    }


def misses(outcome: Outcome, slo: SLO) -> dict[str, float]:
    """Shares of all requests, in percent: missed, and when these came."""
    asked, serving = [time for time, _ in outcome.counts], [time for time, _ in outcome.serving]

    def short(time: float) -> bool:
        wanted = outcome.counts[bisect_right(asked, time) - 1][1]
        at = bisect_right(serving, time) - 1
        return at < 0 or outcome.serving[at][1] < wanted

    starting = after = other = 0
    for item in outcome.requests:
        between = (item.end - item.first_token) / max(1, item.output_tokens - 1)
        if (
            item.end >= 0
            and item.first_token - item.arrival <= slo.first_token_seconds
            and between <= slo.token_seconds
        ):
            continue
        if short(item.arrival):
            starting += 1
        elif any(short(item.arrival - back) for back in range(0, int(AFTERMATH_SECONDS), 15)):
            after += 1
        else:
            other += 1
    each = 100 / len(outcome.requests)
    return {"% missed while replicas start": each * starting, "% in 5 min after": each * after, "% else": each * other}


def main() -> None:
    """One line per load."""
    head: list[str] = []
    for load, profile in shipped():
        found = causes(load, profile)
        if not head:
            head = list(found)
            print("| load | " + " | ".join(head) + " |\n|---|" + "---:|" * len(head))
        print(f"| {load.name} | " + " | ".join(f"{found[key]:.2f}" for key in head) + " |", flush=True)


if __name__ == "__main__":
    main()
