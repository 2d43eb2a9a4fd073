"""Loads: shapes with a seed, and traces of the Azure and BurstGPT formats, scaled in rate."""

from __future__ import annotations

import csv
import math
import random
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from .replica import Request

Rate = Callable[[float], float]
"""Requests per second at a time."""


class TraceError(ValueError):
    """A trace that can't be read; the text names file, line and what is expected."""


@dataclass(frozen=True)
class Sizes:
    """Log-normal lengths: medians in tokens, and how far they spread."""

    prompt_median: float = 450.0
    prompt_sigma: float = 0.8
    output_median: float = 160.0
    output_sigma: float = 0.7
    most: int = 4096


@dataclass(frozen=True)
class Load:
    """Arrivals in the order of time."""

    name: str
    seconds: float
    arrivals: tuple[tuple[float, int, int], ...]
    """(time, prompt tokens, output tokens)."""

    def requests(self) -> list[Request]:
        """Fresh requests for one run."""
        return [Request(*item) for item in self.arrivals]


def _poisson(rate: Rate, most: float, seconds: float, draw: random.Random) -> Iterator[float]:
    """Arrivals of a varying rate, by thinning."""
    time = 0.0
    while True:
        time += draw.expovariate(most)
        if time >= seconds:
            return
        if draw.random() * most <= rate(time):
            yield time


def shaped(name: str, rate: Rate, most: float, seconds: float, seed: int, sizes: Sizes | None = None) -> Load:
    """A load whose rate follows a function that never exceeds `most`."""
    sizes, draw = sizes or Sizes(), random.Random(seed)
    arrivals = tuple(
        (
            time,
            max(1, min(sizes.most, round(draw.lognormvariate(math.log(sizes.prompt_median), sizes.prompt_sigma)))),
            max(1, min(sizes.most, round(draw.lognormvariate(math.log(sizes.output_median), sizes.output_sigma)))),
        )
        for time in _poisson(rate, most, seconds, draw)
    )
    return Load(name, seconds, arrivals)


def shapes(scale: float = 1.0, seed: int = 1, hours: float = 1.0) -> dict[str, Callable[[], Load]]:
    """The built-in shapes; `scale` multiplies every rate, `hours` is the length of each."""
    seconds = hours * 3600.0

    def steps(time: float) -> float:
        return scale * (1.0, 4.0, 8.0, 3.0, 1.0, 6.0)[min(5, int(6 * time / seconds))]

    def sine(time: float) -> float:
        return scale * (4.0 - 3.0 * math.cos(2 * math.pi * 2 * time / seconds))

    def bursts(time: float) -> float:
        return scale * (9.0 if time % (seconds / 4) > seconds / 5 else 1.5)

    def diurnal(time: float) -> float:
        # A day in the length of the run: night, morning rise, noon dip, evening peak.
        day = time / seconds * 24
        return scale * (0.8 + 5.0 * _bell(day, 10.5, 2.5) + 6.5 * _bell(day, 19.0, 2.2))

    def constant(_time: float) -> float:
        return scale * 4.0

    rates: dict[str, tuple[Rate, float]] = {
        "constant": (constant, 4.0),
        "steps": (steps, 8.0),
        "sine": (sine, 7.0),
        "bursts": (bursts, 9.0),
        "diurnal": (diurnal, 12.3),
    }

    def make(name: str, rate: Rate, most: float) -> Callable[[], Load]:
        return lambda: shaped(name, rate, most * scale, seconds, seed)

    return {name: make(name, rate, most) for name, (rate, most) in rates.items()}


def _bell(at: float, middle: float, width: float) -> float:
    return math.exp(-(((at - middle) / width) ** 2) / 2)


_AZURE = ("TIMESTAMP", "ContextTokens", "GeneratedTokens")
_BURST = ("Timestamp", "Request tokens", "Response tokens")


def read_trace(path: Path, rate: float = 1.0, seconds: float | None = None, seed: int = 1) -> Load:
    """An Azure or BurstGPT trace. `rate` 2 sends each request twice on average, 0.5 every other one.

    Copies are shifted by up to 10 s, so that a scaled trace keeps its shape and is not in lockstep.
    """
    if rate <= 0:
        raise TraceError(f"rate {rate}: must be above 0")
    try:
        with path.open(encoding="utf-8", newline="") as file:
            rows = list(_rows(path, csv.DictReader(file)))
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise TraceError(f"{path}: can't be read ({error})") from error
    if not rows:
        raise TraceError(f"{path}: holds no request that generated anything")
    draw, start = random.Random(seed), min(row[0] for row in rows)
    last = max(row[0] for row in rows) - start
    end = last if seconds is None else min(seconds, last)
    scaled = [
        (time - start + (draw.uniform(0.0, 10.0) if copy else 0.0), prompt, output)
        for time, prompt, output in rows
        for copy in range(math.floor(rate) + (draw.random() < rate % 1))
    ]
    return Load(path.stem, end, tuple(sorted(item for item in scaled if item[0] <= end)))


def _rows(path: Path, reader: csv.DictReader[str]) -> Iterable[tuple[float, int, int]]:
    names = tuple(reader.fieldnames or ())
    columns = next((known for known in (_AZURE, _BURST) if set(known) <= set(names)), None)
    if columns is None:
        raise TraceError(f"{path}: columns {', '.join(names)}; expected {', '.join(_AZURE)} or {', '.join(_BURST)}")
    for number, row in enumerate(reader, 2):
        try:
            yield _parsed(row, columns)
        except (ValueError, TypeError, OverflowError) as error:
            raise TraceError(f"{path}, line {number}: {error}") from error


def _parsed(row: Mapping[str, str], columns: tuple[str, str, str]) -> tuple[float, int, int]:
    stamp, prompt, output = (row[name] for name in columns)
    if columns is _AZURE:
        # Seven digits of a second are more than a datetime holds.
        whole, _, fraction = stamp.partition("+")[0].partition(".")
        time = datetime.fromisoformat(whole).replace(tzinfo=UTC).timestamp() + float(f"0.{fraction or 0}")
    else:
        time = float(stamp)
    # A failed request of BurstGPT generated nothing: its prompt was computed all the same.
    return time, max(1, int(float(prompt))), max(1, int(float(output)))
