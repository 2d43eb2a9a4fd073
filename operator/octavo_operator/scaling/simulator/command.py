"""`octavo-operator simulate`: what each policy would have spent and attained on a load."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from octavo_operator.scaling.policy import PolicySettings
from octavo_operator.settings import SettingsError

from .compare import Comparison, compare, drawing, table
from .fleet_run import Pool, Scene
from .loads import Load, TraceError, read_trace, shapes
from .plot import draw
from .profile import PROFILES, Profile, ProfileError, read_profile
from .report import SLO
from .scalers import DOCUMENTED, TUNED

SIMULATE = "Runs the operator's own policy and others on simulated replicas; reads and writes no cluster."
SHAPES = ("constant", "steps", "sine", "bursts", "diurnal")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The flags of the command."""
    what = f"shapes ({', '.join(SHAPES)}; all: every shape), or trace files (Azure LLM inference or BurstGPT, CSV)"
    parser.add_argument("loads", nargs="*", default=["all"], metavar="LOAD", help=f"{what}; default: all")
    parser.add_argument("--rate", type=float, default=1.0, help="factor on every load's rate (default: %(default)s)")
    parser.add_argument("--hours", type=float, default=1.0, help="length of a shape (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=1, help="of arrivals and lengths (default: %(default)s)")
    named = ", ".join(PROFILES)
    parser.add_argument("--profile", default="l4-8b", help=f"{named}, or a JSON file (default: %(default)s)")
    parser.add_argument("--startup-seconds", type=float, help="from asked for to ready (default: the profile's)")
    parser.add_argument("--accelerators", type=int, default=1000, help="replicas that have room (default: %(default)s)")
    parser.add_argument("--min-replicas", type=int, default=1, help="(default: %(default)s)")
    parser.add_argument("--max-replicas", type=int, default=40, help="(default: %(default)s)")
    parser.add_argument("--target-percent", type=float, default=80, help="target utilization (default: %(default)s)")
    parser.add_argument("--scale-down-seconds", type=float, help="(default: by the time that a replica takes to start)")
    parser.add_argument("--fail-at", type=float, action="append", default=[], help="a replica fails then (seconds)")
    parser.add_argument("--slo-first-token", type=float, default=3.0, help="seconds (default: %(default)s)")
    parser.add_argument("--slo-token", type=float, default=0.2, help="seconds between tokens (default: %(default)s)")
    parser.add_argument(
        "--tune-others", action="store_true", help="run the other policies with many settings, not the documented ones"
    )
    parser.add_argument("--plot", type=Path, metavar="FILE", help="also draw it: .png or .svg; needs the extra 'plot'")
    parser.add_argument("--json", action="store_true", help="print figures as JSON instead of tables")


def add_simulate(commands: argparse._SubParsersAction[Any]) -> None:
    """The command among the operator's."""
    add_arguments(commands.add_parser("simulate", help="compare scaling policies on a load", description=SIMULATE))


def profile_of(name: str) -> Profile:
    """A built-in profile by name, or one from a file."""
    return PROFILES[name] if name in PROFILES else read_profile(Path(name))


def loads_of(names: list[str], rate: float, hours: float, seed: int) -> Iterator[Load]:
    """The loads by shape or file."""
    known = shapes(rate, seed, hours)
    for name in names:
        if name == "all":
            yield from (make() for make in known.values())
        elif name in known:
            yield known[name]()
        else:
            yield read_trace(Path(name), rate, seed=seed)


def simulate(flags: argparse.Namespace) -> None:
    """Print a table and a drawing per load; raises SettingsError."""
    try:
        if not (flags.rate > 0 and flags.hours > 0):
            raise SettingsError(f"--rate {flags.rate}, --hours {flags.hours}: both must be above 0")
        profile = profile_of(flags.profile)
        if flags.startup_seconds is not None:
            profile = replace(profile, startup_seconds=flags.startup_seconds)
        settings = PolicySettings(
            flags.min_replicas,
            flags.max_replicas,
            flags.target_percent / 100,
            flags.scale_down_seconds,
        )
        scene = Scene(
            (Pool(profile, flags.accelerators),),
            flags.min_replicas,
            flags.max_replicas,
            max(1, flags.min_replicas),
            failures=tuple(flags.fail_at),
        )
        slo = SLO(flags.slo_first_token, flags.slo_token)
        every: list[Comparison] = []
        for load in loads_of(flags.loads, flags.rate, flags.hours, flags.seed):
            found = compare(load, scene, slo, settings, TUNED if flags.tune_others else DOCUMENTED)
            print(_json(found) if flags.json else _text(found))
            every.append(found)
        if flags.plot is not None:
            draw(every, flags.plot)
    except (TraceError, ProfileError, ValueError) as error:
        raise SettingsError(str(error)) from error


def _json(found: Comparison) -> str:
    lines = [found.octavo, found.oracle, *found.others]
    return json.dumps({"load": found.load.name, "policies": [asdict(item) for item in lines]})


def _text(found: Comparison) -> str:
    head = f"{found.load.name}: {len(found.load.arrivals)} requests in {found.load.seconds / 60:.0f} min"
    return "\n".join([head, drawing(found), table(found), verdict(found), ""])


def verdict(found: Comparison) -> str:
    """In one sentence, how Octavo compares."""
    own, best = found.octavo, found.best
    to_oracle = own.gpu_hours / found.oracle.gpu_hours
    parts = [f"Octavo uses {to_oracle:.2f} × the oracle's GPU-hours ({found.oracle.in_slo:.1%} in SLO)"]
    if found.rivals:
        rival = found.rivals[0]
        ratio = own.gpu_hours / rival.gpu_hours
        parts.append(f"{ratio:.2f} × those of the cheapest other that attains as much ({rival.policy})")
    else:
        parts.append("no other policy attains as much")
    parts.append(f"the best other is {best.policy}: {best.in_slo:.1%} for {best.gpu_hours:.2f} GPU-hours")
    return "; ".join(parts)
