"""Times attention over a paged pool, block size by block size, within a budget of time."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import torch
from octavo_kernels import AttentionShape, AttentionVariant, PagedAttention

from octavo_server.calibration.choose import BlockResult
from octavo_server.config import BLOCK_SIZES_TOKENS

_LOG = logging.getLogger("octavo.calibrate")
DECODE_POINTS = ((1, 512), (1, 4096), (8, 1024), (32, 512), (32, 2048))
"""(sequences, tokens each): alone and in batches, short and long."""
CUDA_DECODE_POINTS = (*DECODE_POINTS, (128, 1024), (128, 4096))
PREFILL_TOKENS = 512
ROUNDS = 3
"""Each block is measured so often, all blocks in turn, so that a slow moment of the machine hits all of them."""


@dataclass(frozen=True)
class Shape:
    """What the kernels see of a model."""

    layers: int
    query_heads: int
    kv_heads: int
    head_size: int


def measure(
    shape: Shape, dtype: torch.dtype, kv_dtype: torch.dtype, device: torch.device, budget_seconds: float
) -> list[BlockResult]:
    """One result per block size that could be measured in time. Inputs are the same in each run.

    Raises RuntimeError or ValueError of the kernels when no block size runs.
    """
    ends = time.monotonic() + budget_seconds
    points = _affordable(shape, dtype, kv_dtype, device, budget_seconds)
    best: dict[int, dict[str, float]] = {}
    fault: Exception | None = None
    sizes = list(BLOCK_SIZES_TOKENS)
    for round_number in range(ROUNDS):
        for size in list(sizes):
            # The first round is always whole: what was measured for some sizes alone can't be compared.
            if round_number and time.monotonic() > ends:
                break
            try:
                seconds = _measure_block(shape, size, dtype, kv_dtype, device, points)
            except (RuntimeError, ValueError) as error:
                # One size that a backend does not have, or that does not fit, says nothing about the others.
                _LOG.warning("block size %d can't be measured: %s", size, error)
                sizes.remove(size)
                fault = error
                continue
            known = best.setdefault(size, seconds)
            best[size] = {name: min(known[name], value) for name, value in seconds.items()}
            _LOG.info("round %d, block size %d: %s", round_number + 1, size, _told(seconds))
    if not best:
        raise fault or RuntimeError("nothing was measured")
    return [_result(shape, size, seconds) for size, seconds in sorted(best.items())]


def _affordable(
    shape: Shape, dtype: torch.dtype, kv_dtype: torch.dtype, device: torch.device, budget_seconds: float
) -> list[tuple[int, int]]:
    """The decode points of which a whole round fits into the budget: all of them, or the smaller ones."""
    points = CUDA_DECODE_POINTS if device.type == "cuda" else DECODE_POINTS
    kept: list[tuple[int, int]] = []
    begin = time.monotonic()
    for count, length in sorted(points, key=lambda point: point[0] * point[1]):
        try:
            _time(shape, 16, dtype, kv_dtype, device, count, length, 1)
        except (RuntimeError, ValueError):
            # Whether any block size runs is told by the measurement itself.
            if not kept:
                kept.append((count, length))
            break
        if kept and (time.monotonic() - begin) * (len(BLOCK_SIZES_TOKENS) + 1) > budget_seconds:
            break
        kept.append((count, length))
    if len(kept) < len(points):
        _LOG.info("within %.0f s only these decode points are measured: %s", budget_seconds, kept)
    return kept


def _told(seconds: dict[str, float]) -> str:
    return ", ".join(f"{name} {1e6 * value:.0f} µs" for name, value in seconds.items())


def _result(shape: Shape, size: int, seconds: dict[str, float]) -> BlockResult:
    decode = [value for name, value in seconds.items() if name != "prefill"]
    mean = math.exp(sum(map(math.log, decode)) / len(decode))
    return BlockResult(size, 1e6 * mean * shape.layers, 1e6 * seconds["prefill"] * shape.layers)


def _measure_block(
    shape: Shape,
    size: int,
    dtype: torch.dtype,
    kv_dtype: torch.dtype,
    device: torch.device,
    points: Iterable[tuple[int, int]],
) -> dict[str, float]:
    """Seconds of one layer's attention by point."""
    found = {f"decode {count}×{length}": _time(shape, size, dtype, kv_dtype, device, count, length, 1)
             for count, length in points}  # fmt: skip
    found["prefill"] = _time(shape, size, dtype, kv_dtype, device, 1, PREFILL_TOKENS, PREFILL_TOKENS)
    return found


def _time(
    shape: Shape,
    size: int,
    dtype: torch.dtype,
    kv_dtype: torch.dtype,
    device: torch.device,
    count: int,
    length: int,
    new: int,
) -> float:
    per_sequence = -(-length // size)
    pages = 1 + count * per_sequence
    attention = PagedAttention(
        AttentionShape(shape.query_heads, shape.kv_heads, shape.head_size, size, dtype, kv_dtype),
        AttentionVariant(),
        device=device,
        max_tokens=count * new,
        max_sequences=count,
    )
    generator = torch.Generator(device="cpu").manual_seed(0)
    # Pages of a sequence lie scattered, as in a pool that has been in use.
    order = 1 + torch.randperm(pages - 1, generator=generator).to(torch.int32)
    table = order.reshape(count, per_sequence).to(device)
    starts = torch.arange(0, count * new + 1, new, dtype=torch.int32, device=device)
    lengths = torch.full((count,), length, dtype=torch.int32, device=device)
    q = torch.randn(count * new, shape.query_heads, shape.head_size, generator=generator).to(device, dtype)
    pool = (pages, 2, shape.kv_heads, size, shape.head_size)
    kv = torch.randn(pool, generator=generator).to(device, kv_dtype)
    out = torch.empty_like(q)
    attention.plan(starts, lengths, table, tokens=count * new)
    return _timed(lambda: attention.run(q, kv, out), device)


def _timed(run: Callable[[], object], device: torch.device) -> float:
    """The fastest of some runs: what disturbs a measurement only ever makes it longer."""

    def wait() -> None:
        if device.type == "cuda":
            torch.cuda.synchronize()

    run()
    wait()
    best = math.inf
    for _ in range(5):
        begin = time.perf_counter()
        run()
        wait()
        best = min(best, time.perf_counter() - begin)
    return best
