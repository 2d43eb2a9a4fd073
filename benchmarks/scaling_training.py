"""Loads to choose the policy's constants on: random shapes, sizes, start-up times, cards; no shipped load.

`python benchmarks/scaling_training.py [setting=value …]` prints what the policy spends and attains on them, with the
constants as they stand or as given. How far the shipped loads (scaling_simulation.py) had a part in the choice is told
in docs/decisions/scaling-comparison.md.
"""

from __future__ import annotations

import argparse
import math
import random
import sys
from bisect import bisect_right
from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields, replace
from itertools import accumulate
from pathlib import Path

if __package__ in (None, ""):
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from octavo_operator.scaling.policy import PolicySettings
from octavo_operator.scaling.simulator.fleet_run import Pool, Run, Scene
from octavo_operator.scaling.simulator.loads import Load, Rate, Sizes, shaped
from octavo_operator.scaling.simulator.oracle import oracle, work_seconds
from octavo_operator.scaling.simulator.profile import PROFILES
from octavo_operator.scaling.simulator.report import SLO, Figures, figures
from octavo_operator.scaling.simulator.scalers import Octavo

SECONDS = 2700.0
MOST = 40
MISS_COST = 4.0
"""A per cent of requests outside the SLO weighs as much as so many per cent of the oracle's GPU-hours."""
SIZES = (Sizes(), Sizes(1500.0, 0.9, 30.0, 1.0), Sizes(200.0, 0.7, 400.0, 0.6))
"""Chat, completion of code, long answers."""


@dataclass(frozen=True)
class Lesson:
    """One load and what it runs on."""

    load: Load
    scene: Scene


def _levels(draw: random.Random, times: Callable[[], float], values: Callable[[], float]) -> Rate:
    """A constant value for each of a row of times."""
    begins, heights = [0.0], [values()]
    while begins[-1] < SECONDS:
        begins.append(begins[-1] + times())
        heights.append(values())
    return lambda time: heights[bisect_right(begins, time) - 1]


def _constant(draw: random.Random) -> Rate:
    level = draw.uniform(0.2, 1.0)
    return lambda _time: level


def _steps(draw: random.Random) -> Rate:
    return _levels(draw, lambda: draw.uniform(240, 900), lambda: draw.uniform(0.08, 1.0))


def _sine(draw: random.Random) -> Rate:
    period, phase, depth = draw.uniform(900, 3600), draw.uniform(0, 6.28), draw.uniform(0.4, 0.9)
    return lambda time: (1 + depth * math.sin(2 * math.pi * time / period + phase)) / (1 + depth)


def _bursts(draw: random.Random) -> Rate:
    period, part, low = draw.uniform(300, 1500), draw.uniform(0.1, 0.4), draw.uniform(0.1, 0.4)
    return lambda time: 1.0 if time % period > (1 - part) * period else low


def _switching(draw: random.Random) -> Rate:
    low, state = draw.uniform(0.1, 0.5), [False]

    def value() -> float:
        state[0] = not state[0]
        return low if state[0] else draw.uniform(0.6, 1.0)

    return _levels(draw, lambda: 30 + draw.expovariate(1 / 240), value)


def _wandering(draw: random.Random) -> Rate:
    keep, sigma = draw.uniform(0.9, 0.99), draw.uniform(0.3, 0.6)
    steps = [draw.gauss(0, sigma * math.sqrt(1 - keep * keep)) for _ in range(int(SECONDS / 15) + 2)]
    path = list(accumulate(steps, lambda at, step: keep * at + step))
    return lambda time: min(1.0, 0.4 * math.exp(path[int(time / 15)]))


def _humps(draw: random.Random) -> Rate:
    humps = [(draw.uniform(0, SECONDS), draw.uniform(150, 500), draw.uniform(0.3, 0.8)) for _ in range(4)]
    return lambda time: min(1.0, 0.1 + sum(h * math.exp(-(((time - m) / w) ** 2) / 2) for m, w, h in humps))


FAMILIES = (_constant, _steps, _sine, _bursts, _switching, _wandering, _humps)


def lessons(count: int, seed: int) -> Iterator[Lesson]:
    """The families in turn, each with random sizes, card, start-up time and height."""
    for number in range(count):
        draw = random.Random(1000 * seed + number)
        family, sizes = FAMILIES[number % len(FAMILIES)], draw.choice(SIZES)
        card = replace(PROFILES[draw.choice(("l4-8b", "l4-8b", "h100-8b"))], startup_seconds=draw.uniform(40, 180))
        mean = [
            median * math.exp(sigma * sigma / 2)
            for median, sigma in ((sizes.prompt_median, sizes.prompt_sigma), (sizes.output_median, sizes.output_sigma))
        ]
        # At its height the load keeps two to seven replicas busy.
        height = draw.uniform(2.0, 7.0) / work_seconds(card, round(mean[0]), round(mean[1]))
        rate = family(draw)
        load = shaped(f"{family.__name__[1:]}-{number}", _scaled(rate, height), height, SECONDS, number, sizes)
        yield Lesson(load, Scene((Pool(card),), 1, MOST, 1, seed=number))


def _scaled(rate: Rate, height: float) -> Rate:
    return lambda time: height * rate(time)


def octavo(lesson: Lesson, settings: PolicySettings) -> Figures:
    """The policy's run on one lesson."""
    return figures(Run(lesson.load, Octavo(settings), lesson.scene).outcome(), SLO())


def price(own: Figures, best: Figures) -> float:
    """What is to be made small: hours in the oracle's hours, and what is missed of the SLO."""
    return own.gpu_hours / best.gpu_hours + MISS_COST * max(0.0, best.in_slo - own.in_slo)


def parsed(words: list[str]) -> PolicySettings:
    """The constants, some of them as given."""
    known = {item.name: item for item in fields(PolicySettings)}
    given = dict(word.split("=", 1) for word in words)
    return replace(PolicySettings(1, MOST), **{name: float(value) for name, value in given.items() if name in known})


def main() -> None:
    """One line per lesson, and the mean."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("settings", nargs="*", metavar="setting=value", help="constants of PolicySettings")
    parser.add_argument("--count", type=int, default=21, help="lessons (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=1, help="(default: %(default)s)")
    flags = parser.parse_args()
    settings, total = parsed(flags.settings), 0.0
    for lesson in lessons(flags.count, flags.seed):
        own, best = octavo(lesson, settings), oracle(lesson.load, lesson.scene, SLO(), 0.99)[0]
        total += price(own, best)
        print(
            f"{lesson.load.name:14} {own.gpu_hours:6.2f} h {own.in_slo:6.1%} oracle {best.gpu_hours:6.2f} h"
            f" {best.in_slo:6.1%} price {price(own, best):.3f} flaps {own.flaps} peak {own.peak}"
        )
    print(f"mean price {total / flags.count:.4f}")


if __name__ == "__main__":
    main()
