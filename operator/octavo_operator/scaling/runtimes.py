"""Metric names of the runtimes, mapped to one Sample. Names that changed over versions stand side by side.

A figure that a runtime does not show is missing, never 0: a reading without usage, capacity, running or waiting is
Partial, and the policy holds.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from .exposition import LIMIT_BYTES, Series, read_series
from .sample import Absent, Partial, Reading, Sample

Figures = dict[str, float]
"""Fields of Sample by name, as far as the series give them."""


class _Found:
    """Series by name, with sums that tell "none" from 0."""

    def __init__(self, series: Sequence[Series]) -> None:
        self._by_name: dict[str, list[Series]] = {}
        for item in series:
            if math.isfinite(item.value):
                self._by_name.setdefault(item.name, []).append(item)

    def all(self, *names: str) -> list[Series]:
        """Series under the first of these names that has any."""
        return next((found for name in names if (found := self._by_name.get(name))), [])

    def total(self, *names: str) -> float | None:
        found = self.all(*names)
        return sum(item.value for item in found) if found else None


def _given(**figures: float | None) -> Figures:
    return {name: value for name, value in figures.items() if value is not None}


def _octavo(found: _Found) -> Figures:
    blocks = [item.value for item in found.all("octavo_kv_cache_blocks") if item.labels.get("state") == "active"]
    size = found.total("octavo_kv_cache_block_size_tokens")
    return _given(
        active_tokens=sum(blocks) * size if blocks and size else None,
        capacity_tokens=found.total("octavo_kv_cache_capacity_tokens"),
        running=found.total("octavo_requests_running"),
        waiting=found.total("octavo_requests_waiting"),
        finished_total=found.total("octavo_requests_finished_total"),
        received_total=found.total("octavo_requests_received_total"),
        preemptions_total=found.total("octavo_preemptions_total"),
    )


def _vllm_tokens(labels: Mapping[str, str]) -> float | None:
    """Capacity of one engine as its configuration tells it."""
    try:
        if labels.get("kv_cache_size_tokens", "").isdigit():
            return float(labels["kv_cache_size_tokens"])
        return float(labels["num_gpu_blocks"]) * float(labels["block_size"])
    except (KeyError, ValueError):
        return None


def _vllm(found: _Found) -> Figures:
    # One pod may hold several engines (data parallel), told apart by a label that early versions lack.
    usage = {item.labels.get("engine", ""): item.value for item in found.all(*_VLLM_USAGE)}
    sizes = {item.labels.get("engine", ""): _vllm_tokens(item.labels) for item in found.all("vllm:cache_config_info")}
    alone = next(iter(sizes.values())) if len(sizes) == 1 else None
    tokens = {engine: sizes.get(engine) or alone for engine in usage}
    known = {engine: value for engine, value in tokens.items() if value}
    complete = bool(usage) and len(known) == len(usage)
    return _given(
        active_tokens=sum(usage[engine] * known[engine] for engine in usage) if complete else None,
        capacity_tokens=sum(known.values()) if complete else None,
        running=found.total("vllm:num_requests_running"),
        waiting=found.total("vllm:num_requests_waiting"),
        finished_total=found.total("vllm:request_success_total"),
        preemptions_total=found.total("vllm:num_preemptions_total", "vllm:num_preemptions"),
    )


def _sglang(found: _Found) -> Figures:
    # All tensor-parallel ranks of a group tell the same figures: the first one counts.
    def first_rank(*names: str) -> float | None:
        mine = [item.value for item in found.all(*names) if item.labels.get("tp_rank", "0") == "0"]
        return sum(mine) if mine else None

    return _given(
        active_tokens=first_rank("sglang:num_used_tokens"),
        capacity_tokens=first_rank("sglang:max_total_num_tokens"),
        running=first_rank("sglang:num_running_reqs"),
        waiting=first_rank("sglang:num_queue_reqs"),
        finished_total=found.total("sglang:num_requests_total"),
        preemptions_total=first_rank("sglang:num_retracted_requests_total", "sglang:num_retracted_reqs_total"),
    )


def _mlc(_found: _Found) -> Figures:
    # MLC tells sums of tokens and times alone: neither its cache's use nor its queue.
    return {}


_VLLM_USAGE = ("vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc")
NEEDED = ("active_tokens", "capacity_tokens", "running", "waiting")


@dataclass(frozen=True)
class RuntimeMetrics:
    """How one runtime's metrics are read."""

    names: tuple[str, ...]
    figures: Callable[[_Found], Figures]
    filters: bool = False
    """Whether the server honours `name[]` in the query, and so sends only what is asked for."""

    def read(self, text: str, time: float) -> Reading:
        """The reading that a server's answer is; no exception for any text."""
        if len(text) > LIMIT_BYTES:
            return Absent(time, f"the answer is longer than {LIMIT_BYTES} bytes")
        try:
            figures = self.figures(_Found(read_series(text, self.names)))
        except ValueError as error:
            return Absent(time, str(error))
        missing = tuple(name for name in NEEDED if name not in figures)
        if not missing and figures["capacity_tokens"] <= 0:
            missing = ("capacity_tokens",)
        if missing or any(value < 0 for value in figures.values()):
            return Partial(time, missing or tuple(name for name, value in figures.items() if value < 0))
        return Sample(time=time, **figures)


RUNTIMES: Mapping[str, RuntimeMetrics] = {
    "Octavo": RuntimeMetrics(
        (
            "octavo_kv_cache_blocks",
            "octavo_kv_cache_block_size_tokens",
            "octavo_kv_cache_capacity_tokens",
            "octavo_requests_running",
            "octavo_requests_waiting",
            "octavo_requests_finished_total",
            "octavo_requests_received_total",
            "octavo_preemptions_total",
        ),
        _octavo,
        filters=True,
    ),
    "VLLM": RuntimeMetrics(
        (
            *_VLLM_USAGE,
            "vllm:cache_config_info",
            "vllm:num_requests_running",
            "vllm:num_requests_waiting",
            "vllm:request_success_total",
            "vllm:num_preemptions_total",
            "vllm:num_preemptions",
        ),
        _vllm,
    ),
    "SGLang": RuntimeMetrics(
        (
            "sglang:num_used_tokens",
            "sglang:max_total_num_tokens",
            "sglang:num_running_reqs",
            "sglang:num_queue_reqs",
            "sglang:num_requests_total",
            "sglang:num_retracted_requests_total",
            "sglang:num_retracted_reqs_total",
        ),
        _sglang,
    ),
    "MLC": RuntimeMetrics((), _mlc),
}
"""By the names of `engine.runtime`."""
