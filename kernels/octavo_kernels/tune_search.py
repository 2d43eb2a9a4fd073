"""Which launch to try next: a descent along one number at a time, from the safe default, until the time is up. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

Launch = Mapping[str, int]
# A launch must be this much faster than the best one before it: less is the noise of a measurement.
LEAST_GAIN = 0.02

SHORT: dict[str, tuple[int, ...]] = {
    "programs": (1, 2, 3, 4, 6, 8),
    "warps": (1, 2, 4),
    "block_n": (16, 32, 64, 128),
    "stages": (1, 2, 3, 4, 5),
}
STEPS: dict[str, dict[str, tuple[int, ...]]] = {
    # The kernels for Hopper GPUs have fixed rows and warps.
    "attention.short.hopper": {
        "stages": (2, 3, 4, 6),
        "programs": (1, 2),
        "block_n": (32, 64, 128),
        "least_blocks": (1, 2),
    },
    "attention.long.hopper": {"stages": (2, 3, 4), "block_n": (64, 128), "ping_pong": (0, 1)},
    "attention.short": SHORT,
    "attention.long": {"warps": (4, 8), "block_n": (32, 64, 128), "stages": (1, 2, 3, 4), "block_m": (64, 128)},
    "attention.cpu": {"group_bytes": tuple(kib * 1024 for kib in (96, 192, 384, 768, 1536, 3072, 6144))},
}
"""The values that each kernel's launch may take, in order: a step goes to a neighbour."""


@dataclass(frozen=True)
class Found:
    """The end of a search: the fastest launch, its time, the first one's, and how many were measured and refused.

    complete: whether no neighbour was left to try.
    """

    launch: Launch
    seconds: float
    first_seconds: float
    tried: int
    refused: int
    complete: bool


def neighbours(kernel: str, launch: Launch) -> Iterator[Launch]:
    """Launches that differ from this one in one number by one step."""
    for name, values in STEPS[kernel].items():
        here = launch[name]
        nearest = min(range(len(values)), key=lambda place: abs(values[place] - here))
        for place in (nearest + 1, nearest - 1):
            if 0 <= place < len(values) and values[place] != here:
                yield {**launch, name: values[place]}


def descend(
    kernel: str,
    first: Launch,
    measure: Callable[[Launch], float | None],
    has_time: Callable[[], bool],
) -> Found:
    """From `first` to the next faster neighbour, again and again; `measure` gives seconds, or None for a refusal.

    `first` is always measured. Raises ValueError where it is refused: then nothing can be compared.
    """
    begin = measure(first)
    if begin is None:
        raise ValueError(f"{kernel}: the safe default {dict(first)} gave a wrong result or could not be launched")
    best, best_seconds = first, begin
    seen: list[Launch] = [first]
    refused = 0
    moved = True
    while moved:
        moved = False
        for candidate in neighbours(kernel, best):
            if candidate in seen:
                continue
            if not has_time():
                return Found(best, best_seconds, begin, len(seen), refused, False)
            seen.append(candidate)
            took = measure(candidate)
            if took is None:
                refused += 1
            elif took < best_seconds * (1 - LEAST_GAIN):
                best, best_seconds, moved = candidate, took, True
                break
    return Found(best, best_seconds, begin, len(seen), refused, True)


def combined(times: Sequence[float], first: Sequence[float]) -> float:
    """One figure for several workloads: the geometric mean of their times relative to the first launch's."""
    product = 1.0
    for took, before in zip(times, first, strict=True):
        product *= took / before
    return float(product ** (1 / len(times)))
