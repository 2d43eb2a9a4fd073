"""The sweep over block sizes and launch configurations, within a budget of time.

First every block size with the launches that would serve without a measurement; then, size by size from the most
promising one on, the kernels' tuner searches faster launches; then all of it again. Sizes take turns at every point, so
that a slow moment of the machine hits all of them, and of all turns the fastest counts.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

import torch
from octavo_kernels import tune
from octavo_kernels.launch_table import LaunchTable, capability_of, compact, name_of

from octavo_server.calibration.choose import BlockResult, ranked
from octavo_server.calibration.timing import Bench, Point, Shape
from octavo_server.config import BLOCK_SIZES_TOKENS

_LOG = logging.getLogger("octavo.calibrate")
DECODE_POINTS = tuple(Point(*numbers) for numbers in ((1, 512), (1, 4096), (8, 1024), (32, 512), (32, 2048)))
"""Alone and in batches, short and long."""
CUDA_DECODE_POINTS = (*DECODE_POINTS, Point(128, 1024), Point(128, 4096))
PREFILL = Point(1, 512, 512)
ROUNDS = 6
"""So often each point is measured at most, before the search and after it."""
DEFAULTS_SHARE = 0.4
"""Of the budget, for block sizes with default launches; then faster launches are searched."""
SEARCH_SHARE = 0.75
"""When the search ends; what is left measures all again."""
LEAST_GAIN = 0.01
"""Of launches over the default, to be taken: less is noise, and a template that is changed for nothing."""
LEAST_SEARCH_SECONDS = 2.0
"""Less than this does not get past the default."""
Plain = tuple[int, bool]
"""A block size, and whether it is measured with the launches that were found for it."""


@dataclass
class _Sweep:
    """All times so far, by block size and launches, and by point."""

    bench: Bench
    points: tuple[Point, ...]
    clock: Callable[[], float]
    ends: float
    times: dict[Plain, dict[Point, list[float]]] = field(default_factory=dict)
    tables: dict[int, LaunchTable] = field(default_factory=dict)
    broken: set[int] = field(default_factory=set)
    fault: Exception | None = None

    def round(self, entries: Iterable[Plain], until: float) -> None:
        """One time more for every entry at every point; a point that was begun is measured for all of them."""
        for point in (*self.points, PREFILL):
            if self.clock() > until:
                return
            for size, tuned in entries:
                if size not in self.broken:
                    self._time(size, tuned, point)

    def _time(self, size: int, tuned: bool, point: Point) -> None:
        try:
            seconds = self.bench.time(size, point, self.tables[size] if tuned else None)
        except (RuntimeError, ValueError) as error:
            # One size that a backend does not have, or that does not fit, says nothing about the others.
            _LOG.warning("block size %d can't be measured: %s", size, error)
            self.fault = error
            self.broken.add(size)
            return
        self.times.setdefault((size, tuned), {}).setdefault(point, []).append(seconds)

    @property
    def sizes(self) -> list[int]:
        """Block sizes that can be measured."""
        return sorted(size for size, tuned in self.times if not tuned and size not in self.broken)

    def results(self) -> list[BlockResult]:
        """One per size, with the launches that were found where they are faster over all decode points."""
        return [self._result(size) for size in self.sizes]

    def _result(self, size: int) -> BlockResult:
        layers = 1e6 * self.bench.shape.layers
        plain, tuned = self.times[size, False], self.times.get((size, True))
        default, noise = _decode(plain)
        if tuned is not None:
            seconds, noise_of_tuned = _decode(tuned)
            if seconds * (1 + LEAST_GAIN) <= default:
                rows = tuple(self.tables[size].rows)
                fast = _fastest(tuned, PREFILL) or _fastest(plain, PREFILL)
                return BlockResult(size, layers * seconds, layers * fast, rows, True, layers * default, noise_of_tuned)
        prefill = layers * _fastest(plain, PREFILL)
        return BlockResult(size, layers * default, prefill, searched=tuned is not None, noise=noise)


def _fastest(times: dict[Point, list[float]], point: Point) -> float:
    return min(times.get(point) or [0.0])


def _decode(times: dict[Point, list[float]]) -> tuple[float, float]:
    """Geometric mean of the fastest times over the decode points; by how much the second fastest ones are slower."""
    found = [sorted(values) for point, values in times.items() if point.is_decode]
    mean = math.exp(sum(math.log(values[0]) for values in found) / len(found))
    pairs = [values[1] / values[0] for values in found if len(values) > 1]
    return mean, math.exp(sum(map(math.log, pairs)) / len(pairs)) - 1 if pairs else 0.0


def measure(
    shape: Shape,
    dtype: torch.dtype,
    kv_dtype: torch.dtype,
    device: torch.device,
    budget_seconds: float,
    clock: Callable[[], float] = time.monotonic,
) -> list[BlockResult]:
    """One result per block size that could be measured. A first round is always whole, and no measurement begins after
    the budget. Raises RuntimeError or ValueError of the kernels when no block size runs."""
    begin = clock()
    bench = Bench(shape, dtype, kv_dtype, device)
    points = affordable(bench, DEFAULTS_SHARE * budget_seconds, clock)
    sweep = _Sweep(bench, points, clock, begin + budget_seconds)
    entries: list[Plain] = [(size, False) for size in BLOCK_SIZES_TOKENS]
    sweep.round(entries, math.inf)
    if not sweep.sizes:
        raise sweep.fault or RuntimeError("nothing was measured")
    _rounds(sweep, entries, begin + DEFAULTS_SHARE * budget_seconds)
    _search(sweep, begin + SEARCH_SHARE * budget_seconds)
    _rounds(sweep, [*entries, *((size, True) for size in sweep.tables)], sweep.ends)
    results = sweep.results()
    for item in results:
        words = f"decode {item.decode_microseconds:.0f} µs ± {100 * item.noise:.0f} %"
        _LOG.info("block size %d: %s, prefill %.0f µs", item.block_size_tokens, words, item.prefill_microseconds)
    return results


def _rounds(sweep: _Sweep, entries: Sequence[Plain], until: float) -> None:
    for _ in range(ROUNDS):
        if sweep.clock() < until:
            sweep.round(entries, until)


def _search(sweep: _Sweep, ends: float) -> None:
    """Faster launches for as many sizes as there is time for, the most promising first."""
    order = [item.block_size_tokens for item in ranked(sweep.results())]
    device = sweep.bench.device
    for done, size in enumerate(order):
        left = ends - sweep.clock()
        if left < LEAST_SEARCH_SECONDS:
            _LOG.info("no time is left to search launches for block sizes %s", order[done:])
            return
        share = max(left / (len(order) - done), LEAST_SEARCH_SECONDS)
        try:
            found = tune([sweep.bench.attention(size)], device=device, seconds=share, progress=_LOG.info)
        except (RuntimeError, ValueError) as error:
            _LOG.warning("launches for block size %d can't be searched: %s", size, error)
            continue
        # What comes with the kernels is there anyway; only what was measured here is handed on.
        rows = tuple(row for row in found.rows if row.shape.get("page_size") == size)
        table = LaunchTable(name_of(device), capability_of(device), rows, found.versions)
        _LOG.info("launch table for block size %d: %s", size, compact(table))
        sweep.tables[size] = table
        # At once, beside the default: a search that takes the rest of the time has shown what its launches are worth.
        sweep.round([(size, False), (size, True)], math.inf)


def affordable(bench: Bench, budget_seconds: float, clock: Callable[[], float]) -> tuple[Point, ...]:
    """The decode points of which a whole round fits into the budget: all of them, or the smaller ones."""
    points = CUDA_DECODE_POINTS if bench.device.type == "cuda" else DECODE_POINTS
    kept: list[Point] = []
    begin = clock()
    for point in sorted(points, key=lambda point: point.sequences * point.length):
        try:
            bench.time(16, point)
        except (RuntimeError, ValueError):
            # Whether any block size runs is told by the measurement itself.
            if not kept:
                kept.append(point)
            break
        if kept and (clock() - begin) * (len(BLOCK_SIZES_TOKENS) + 1) > budget_seconds:
            break
        kept.append(point)
    if len(kept) < len(points):
        _LOG.info("within %.0f s only these points are measured: %s", budget_seconds, ", ".join(map(str, kept)))
    return tuple(kept)
