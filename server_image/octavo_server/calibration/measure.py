"""The sweep over block sizes and launch configurations, within a budget of time.

First every block size with the launches that would serve without a measurement; then, size by size from the most
promising one on, the kernels' tuner searches faster launches, and what it found is timed beside the rest.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from octavo_kernels import tune
from octavo_kernels.launch_table import LaunchTable, capability_of, compact, name_of

from octavo_server.calibration.choose import BlockResult, ranked
from octavo_server.calibration.timing import Bench, Points, Shape, decode_mean
from octavo_server.config import BLOCK_SIZES_TOKENS

_LOG = logging.getLogger("octavo.calibrate")
DECODE_POINTS: Points = ((1, 512), (1, 4096), (8, 1024), (32, 512), (32, 2048))
"""Alone and in batches, short and long."""
CUDA_DECODE_POINTS: Points = (*DECODE_POINTS, (128, 1024), (128, 4096))
ROUNDS = 3
"""Each block is measured so often, all blocks in turn, so that a slow moment of the machine hits all of them."""
DEFAULTS_SHARE = 0.4
"""Of the budget, for block sizes with default launches; the rest is the search for faster ones."""
SEARCH_SHARE = 0.9
"""When the search ends; what it found is timed once more after it."""
LEAST_GAIN = 0.01
"""Of launches over the default, to be taken: less is noise, and a template that is changed for nothing."""
LEAST_SEARCH_SECONDS = 2.0
"""Less than this does not get past the default."""


@dataclass
class _Sweep:
    """Fastest times by block size, as far as they are measured."""

    bench: Bench
    points: Points
    clock: Callable[[], float]
    plain: dict[int, dict[str, float]] = field(default_factory=dict)
    """With the launches that serve without a table."""
    tuned: dict[int, dict[str, float]] = field(default_factory=dict)
    tables: dict[int, LaunchTable] = field(default_factory=dict)
    fault: Exception | None = None

    def time_plain(self, size: int) -> None:
        """Times a size with default launches; one that can't be measured is left out."""
        self._time(size, self.plain, None)

    def time_tuned(self, size: int) -> None:
        """Times a size with the launches that were found for it."""
        self._time(size, self.tuned, self.tables[size])

    def _time(self, size: int, kept: dict[int, dict[str, float]], table: LaunchTable | None) -> None:
        try:
            seconds = self.bench.block(size, self.points, table)
        except (RuntimeError, ValueError) as error:
            # One size that a backend does not have, or that does not fit, says nothing about the others.
            _LOG.warning("block size %d can't be measured: %s", size, error)
            self.fault = error
            kept.pop(size, None)
            return
        known = kept.get(size, seconds)
        kept[size] = {name: min(known[name], value) for name, value in seconds.items()}
        words = ", ".join(f"{name} {1e6 * value:.0f} µs" for name, value in seconds.items())
        _LOG.info("block size %d%s: %s", size, "" if table is None else ", tuned", words)

    def results(self) -> list[BlockResult]:
        """One per size, with the launches that were found where they are faster over all decode points."""
        return [self._result(size) for size in sorted(self.plain)]

    def _result(self, size: int) -> BlockResult:
        layers = 1e6 * self.bench.shape.layers
        seconds, plain = self.plain[size], layers * decode_mean(self.plain[size])
        tuned = self.tuned.get(size)
        if tuned is None or decode_mean(seconds) < (1 + LEAST_GAIN) * decode_mean(tuned):
            return BlockResult(size, plain, layers * seconds["prefill"], searched=tuned is not None)
        rows = tuple(self.tables[size].rows)
        return BlockResult(size, layers * decode_mean(tuned), layers * tuned["prefill"], rows, True, plain)


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
    sweep = _Sweep(bench, affordable(bench, DEFAULTS_SHARE * budget_seconds, clock), clock)
    sizes = list(BLOCK_SIZES_TOKENS)
    for number in range(ROUNDS):
        for size in list(sizes):
            # What was measured for some sizes alone can't be compared.
            if number and clock() - begin > DEFAULTS_SHARE * budget_seconds:
                break
            sweep.time_plain(size)
            if size not in sweep.plain:
                sizes.remove(size)
    if not sweep.plain:
        raise sweep.fault or RuntimeError("nothing was measured")
    _search(sweep, begin, budget_seconds)
    for _ in range(ROUNDS):
        for size in list(sweep.tables):
            if clock() - begin < budget_seconds:
                sweep.time_tuned(size)
                sweep.time_plain(size)
    return sweep.results()


def _search(sweep: _Sweep, begin: float, budget_seconds: float) -> None:
    """Faster launches for as many sizes as there is time for, the most promising first."""
    ends = begin + SEARCH_SHARE * budget_seconds
    order = [item.block_size_tokens for item in ranked(sweep.results())]
    for done, size in enumerate(order):
        left = ends - sweep.clock()
        share = max(left / (len(order) - done), LEAST_SEARCH_SECONDS)
        if left < LEAST_SEARCH_SECONDS:
            _LOG.info("no time is left to search launches for block sizes %s", order[done:])
            return
        try:
            found = tune([sweep.bench.attention(size)], device=sweep.bench.device, seconds=share, progress=_LOG.info)
        except (RuntimeError, ValueError) as error:
            _LOG.warning("launches for block size %d can't be searched: %s", size, error)
            continue
        device = sweep.bench.device
        # What comes with the kernels is there anyway; only what was measured here is handed on.
        rows = tuple(row for row in found.rows if row.shape.get("page_size") == size)
        table = LaunchTable(name_of(device), capability_of(device), rows, found.versions)
        _LOG.info("launch table for block size %d: %s", size, compact(table))
        sweep.tables[size] = table
        # At once, so that a search that takes the rest of the time has shown what its launches are worth.
        sweep.time_tuned(size)


def affordable(bench: Bench, budget_seconds: float, clock: Callable[[], float]) -> Points:
    """The decode points of which a whole round fits into the budget: all of them, or the smaller ones."""
    points = CUDA_DECODE_POINTS if bench.device.type == "cuda" else DECODE_POINTS
    kept: list[tuple[int, int]] = []
    begin = clock()
    for count, length in sorted(points, key=lambda point: point[0] * point[1]):
        try:
            bench.point(16, count, length, 1)
        except (RuntimeError, ValueError):
            # Whether any block size runs is told by the measurement itself.
            if not kept:
                kept.append((count, length))
            break
        if kept and (clock() - begin) * (len(BLOCK_SIZES_TOKENS) + 1) > budget_seconds:
            break
        kept.append((count, length))
    if len(kept) < len(points):
        _LOG.info("within %.0f s only these decode points are measured: %s", budget_seconds, kept)
    return tuple(kept)
