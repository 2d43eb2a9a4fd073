"""Policies that know the future: the least that any policy could spend.

The oracle knows each request before it comes. It starts replicas as early as their start-up takes and ends them at
once when the load is gone. Its plan is the computing time that the requests need, in bins, divided by the share of a
replica's time that it may plan with, cut at a largest count; the cheapest plan whose run attains the wanted part of the
SLO is taken.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace

from .fleet_run import DECIDE_SECONDS, Outcome, Run, Scene
from .loads import Load
from .profile import Profile
from .report import SLO, Figures, figures
from .scalers import Planned

SHARES = (2.5, 2.0, 1.75, 1.5, 1.4, 1.3, 1.2, 1.1, 1.0, 0.95, 0.9, 0.85, 0.8, 0.75, 0.7, 0.65, 0.6, 0.55, 0.5, 0.4, 0.3)


def work_seconds(profile: Profile, prompt_tokens: int, output_tokens: int) -> float:
    """Time of a replica that a request takes when the cache is half full of requests like it."""
    held = prompt_tokens + output_tokens / 2
    batch = max(1.0, min(profile.max_sequences, profile.capacity_tokens / 2 / held))
    step = profile.step_seconds + batch * (profile.sequence_seconds + held * profile.cached_token_seconds)
    return prompt_tokens * profile.prompt_token_seconds + output_tokens * step / batch


def plan(load: Load, scene: Scene, share: float, most: int | None = None, beside: int = 1) -> Callable[[float], int]:
    """The count over time: for the work of each bin and of so many beside it, a start-up ahead; at most `most`."""
    profile = scene.pools[0].profile
    size = 2 * DECIDE_SECONDS
    bins = [0.0] * (math.ceil(load.seconds / size) + 2)
    for time, prompt, output in load.arrivals:
        bins[int(time / size)] += work_seconds(profile, prompt, output)
    around = (max(bins[max(0, at - beside) : at + beside + 1]) for at in range(len(bins)))
    counts = [max(scene.least, min(math.ceil(work / size / share), most or scene.most)) for work in around]
    ahead = profile.startup_seconds * (1 + scene.startup_jitter)

    def count(now: float) -> int:
        first, last = int(now / size), int((now + ahead + DECIDE_SECONDS) / size)
        # What is needed until a replica asked for later would serve.
        return max(counts[min(first, len(counts) - 1) : last + 1], default=scene.least)

    return count


def oracle(load: Load, scene: Scene, slo: SLO, attain: float) -> tuple[Figures, Outcome]:
    """The cheapest planned run whose share of requests in the SLO is at least `attain`, or the best there is.

    First the largest share of a replica's time that attains so much; then plans near it that follow the load more
    closely or leave its heights out, as long as these still do.
    """

    def run(share: float, most: int | None, beside: int) -> tuple[Figures, Outcome]:
        count = plan(load, scene, share, most, beside)
        # It knew the load before it began.
        ready = replace(scene, begin=count(0.0))
        outcome = Run(load, Planned("oracle", count), ready).outcome()
        return figures(outcome, slo), outcome

    tried: list[tuple[Figures, Outcome]] = []
    for beside in (1, 0):
        for share in SHARES:
            tried.append(run(share, None, beside))
            if tried[-1][0].in_slo >= attain:
                for most in range(tried[-1][0].peak - 1, scene.least - 1, -1):
                    tried.append(run(share, most, beside))
                    if tried[-1][0].in_slo < attain:
                        break
                break
    return _best(tried, attain)


def _best(tried: Sequence[tuple[Figures, Outcome]], attain: float) -> tuple[Figures, Outcome]:
    enough = [item for item in tried if item[0].in_slo >= attain]
    if enough:
        return min(enough, key=lambda item: item[0].gpu_hours)
    return max(tried, key=lambda item: item[0].in_slo)
