"""The metric contract: every name, label and bucket that dashboards, alerts and the autoscaler read.

docs/reference/metrics.md describes them; a test names each. Values of the engine come with its Stats messages; its
counters start anew with each engine process, so the sums of earlier processes are kept here.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import re
from collections.abc import Iterable, Mapping
from pathlib import Path

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from octavo_server.engine.messages import Ready, Stats
from octavo_server.shared import SharedCounter, SharedHistogram, SharedTable
from octavo_server.version import __version__

FINISH_REASONS = ("stop", "length", "abort", "error", "grammar")
_TIME_TO_FIRST = (0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.3, 0.5, 0.75, 1, 1.5, 2, 3, 5, 7.5, 10, 20, 40, 80, 160)
_BETWEEN = (0.001, 0.002, 0.003, 0.005, 0.0075, 0.01, 0.015, 0.02, 0.03, 0.04, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.5,
            1, 2, 5)  # fmt: skip
_DURATION = (0.05, 0.1, 0.25, 0.5, 1, 2, 3, 5, 7.5, 10, 15, 20, 30, 45, 60, 120, 300, 600, 1200)
_LOOP_DELAY = (0.001, 0.002, 0.005, 0.01, 0.02, 0.03, 0.04, 0.05, 0.075, 0.1, 0.2, 0.5, 1)
_QUEUE = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300)


class Metrics:
    """All metrics of a server: what API processes count lies in a table that they share, so that any can answer."""

    def __init__(self, model_name: str, table: SharedTable | None = None) -> None:
        table = table or SharedTable()
        self.registry = CollectorRegistry(auto_describe=False)
        self._model_name = model_name
        self._leads = table.own == 0
        self._ready: Ready | None = None
        self._stats: Stats | None = None
        self._build = build_facts()
        self.received = SharedCounter(table)
        self.finished = {reason: SharedCounter(table) for reason in FINISH_REASONS}
        self.prompt_tokens = SharedCounter(table)
        self.generation_tokens = SharedCounter(table)
        self.queued = SharedCounter(table, gauge=True)
        """Choices without a token yet: a gauge of each process, bounded for all of them together."""
        self.living = SharedCounter(table, gauge=True)
        self.serving = SharedCounter(table, gauge=True)
        self.time_to_first_token = SharedHistogram(
            table, "octavo_time_to_first_token_seconds", "From arrival to the first token.", _TIME_TO_FIRST
        )
        self.inter_token_latency = SharedHistogram(
            table, "octavo_inter_token_latency_seconds", "Between two tokens.", _BETWEEN
        )
        self.duration = SharedHistogram(table, "octavo_request_duration_seconds", "From arrival to the end.", _DURATION)
        self.queue = SharedHistogram(
            table, "octavo_queue_seconds", "From arrival in the engine to the first step.", _QUEUE
        )
        self.loop_delay = SharedHistogram(
            table, "octavo_event_loop_delay_seconds", "How late the event loop came to a timer.", _LOOP_DELAY
        )
        self.loop_work = SharedHistogram(
            table,
            "octavo_event_loop_work_seconds",
            "How much of that delay was the loop's own work, at most.",
            _LOOP_DELAY,
        )
        self._engine_base = dict.fromkeys(_ENGINE_COUNTERS, 0.0)
        self._engine_totals = {name: SharedCounter(table) for name in _ENGINE_COUNTERS}
        self.registry.register(_EngineCollector(self))

    def engine_ready(self, ready: Ready) -> None:
        """A new engine process: its counters start at 0."""
        self._keep_counters()
        self._ready = ready

    def engine_stats(self, stats: Stats) -> None:
        """The engine's newest numbers. Every process hears them; the first counts them."""
        self._stats = stats
        if self._leads:
            for seconds in stats.queue_seconds:
                self.queue.observe(seconds)
            for name, total in self._engine_totals.items():
                total.set(self._engine_base[name] + getattr(stats, name))

    def engine_lost(self) -> None:
        """No engine: nothing runs, and what lives waits."""
        self._keep_counters()

    def _keep_counters(self) -> None:
        self._engine_base = {name: total.of_leader for name, total in self._engine_totals.items()}
        self._stats = None

    def families(self) -> Iterable[Metric]:
        """All metrics; those of the engine only once it was ready, so that "unknown" is never read as 0."""
        yield CounterMetricFamily("octavo_requests_received", "Choices that were accepted.", self.received.total)
        finished = CounterMetricFamily("octavo_requests_finished", "Choices that ended.", labels=["reason"])
        for reason, counter in self.finished.items():
            finished.add_metric([reason], counter.total)
        yield finished
        yield CounterMetricFamily(
            "octavo_prompt_tokens", "Prompt tokens of started requests.", self.prompt_tokens.total
        )
        yield CounterMetricFamily(
            "octavo_generation_tokens", "Tokens that were generated.", self.generation_tokens.total
        )
        yield GaugeMetricFamily("octavo_api_processes", "API processes that serve.", self.serving.total)
        for histogram in (
            self.time_to_first_token, self.inter_token_latency, self.duration, self.queue,
            self.loop_delay, self.loop_work,
        ):  # fmt: skip
            yield histogram.family()
        yield self.time_to_first_token.family("vllm:time_to_first_token_seconds", [("model_name", self._model_name)])
        ready = self._ready
        if ready is None:
            return
        stats = self._stats or _idle(ready, int(self.living.total))
        total = stats.active_blocks + stats.cached_blocks + stats.free_blocks
        usage = stats.active_blocks / total if total else 0.0
        blocks = GaugeMetricFamily("octavo_kv_cache_blocks", "Blocks of the pool by state.", labels=["state"])
        for state in ("active", "cached", "free"):
            blocks.add_metric([state], getattr(stats, f"{state}_blocks"))
        yield blocks
        unused = stats.allocated_slots - stats.used_slots
        gauges = {
            "octavo_kv_cache_usage_ratio": ("Active blocks / all blocks.", usage),
            "octavo_kv_cache_capacity_tokens": ("Tokens that the pool can hold.", ready.capacity_tokens),
            "octavo_kv_cache_block_size_tokens": ("Tokens of a block.", ready.block_size_tokens),
            "octavo_kv_cache_fragmentation_ratio": (
                "Slots of active blocks that hold no token / slots of active blocks.",
                unused / stats.allocated_slots if stats.allocated_slots else 0.0,
            ),
            "octavo_requests_running": ("Requests in the batch.", stats.running),
            "octavo_requests_waiting": ("Requests that wait for a place in the batch.", stats.waiting),
        }
        for name, (text, value) in gauges.items():
            yield GaugeMetricFamily(name, text, value)
        totals = {name: counter.of_leader for name, counter in self._engine_totals.items()}
        for field, value in totals.items():
            yield CounterMetricFamily(*_ENGINE_COUNTERS[field], value)
        missed = totals["prefix_queried_tokens_total"] - totals["prefix_hit_tokens_total"]
        yield CounterMetricFamily(
            "octavo_prefix_cache_missed_tokens", "Prompt tokens looked up and not found in the prefix cache.", missed
        )
        facts = {**self._build, "attention_backend": ready.attention_backend}
        yield _labelled("octavo_build_info", "Versions and the attention kernels in use.", facts)
        fallback = GaugeMetricFamily("octavo_kernel_fallback", "1 per reason for slower kernels.", labels=["reason"])
        for reason in ready.fallback_reasons:
            fallback.add_metric([reason], 1)
        yield fallback
        launches = {"source": ready.launch_source}
        yield _labelled("octavo_launch_info", "Where the launch configurations of the kernels come from.", launches)
        yield from self._vllm(stats, ready, usage, totals["preemptions_total"], total)

    def _vllm(self, stats: Stats, ready: Ready, usage: float, preemptions: float, blocks: int) -> Iterable[Metric]:
        """The names that existing dashboards and endpoint pickers read."""
        gauges = {
            "vllm:kv_cache_usage_perc": usage,
            "vllm:gpu_cache_usage_perc": usage,
            "vllm:num_requests_running": stats.running,
            "vllm:num_requests_waiting": stats.waiting,
        }
        for name, value in gauges.items():
            yield _labelled(name, "Octavo's value under vLLM's name.", {"model_name": self._model_name}, value)
        counter = CounterMetricFamily(
            "vllm:num_preemptions", "Octavo's value under vLLM's name.", labels=["model_name"]
        )
        counter.add_metric([self._model_name], preemptions)
        yield counter
        facts = {"block_size": str(ready.block_size_tokens), "num_gpu_blocks": str(blocks), "cache_dtype": ready.dtype}
        yield _labelled("vllm:cache_config_info", "Shape of the cache.", facts)


_ENGINE_COUNTERS = {
    "preemptions_total": ("octavo_preemptions", "Requests that lost their blocks and were computed again."),
    "prefix_queried_tokens_total": (
        "octavo_prefix_cache_queried_tokens",
        "Prompt tokens looked up in the prefix cache.",
    ),
    "prefix_hit_tokens_total": ("octavo_prefix_cache_hit_tokens", "Prompt tokens found in the prefix cache."),
    "prefix_evicted_blocks_total": (
        "octavo_prefix_cache_evicted_blocks",
        "Cached blocks that were given to other tokens.",
    ),
    "shared_read_tokens_total": (
        "octavo_prefix_cache_shared_read_tokens",
        "Reads of cached tokens that were saved, because requests of a step share them; 0 where kernels do not (CPU).",
    ),
}
"""Field of Stats → name of the metric (without _total) and its description."""


class _EngineCollector(Collector):
    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics

    def collect(self) -> Iterable[Metric]:
        return self._metrics.families()


def build_facts() -> Mapping[str, str]:
    """Versions for octavo_build_info, found without importing torch."""
    return {
        "version": __version__,
        "cuda": _torch_cuda(),
        "driver": _driver(),
        "triton": _version("triton"),
        "torch": _version("torch"),
    }


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "none"


def _torch_cuda() -> str:
    spec = importlib.util.find_spec("torch")
    if spec is None or spec.origin is None:
        return "none"
    file = Path(spec.origin).parent / "version.py"
    found = re.search(r"^cuda[^=]*=\s*'([^']+)'", file.read_text(encoding="utf-8"), re.M) if file.is_file() else None
    return found.group(1) if found else "none"


def _driver() -> str:
    file = Path("/proc/driver/nvidia/version")
    found = re.search(r"Module\D*(\d+\.\d+(?:\.\d+)?)", file.read_text(encoding="utf-8")) if file.is_file() else None
    return found.group(1) if found else "none"


def _idle(ready: Ready, waiting: int) -> Stats:
    blocks = ready.capacity_tokens // ready.block_size_tokens
    return Stats(0, waiting, 0, 0, blocks, 0, 0, 0, 0, 0, 0, 0, 0, [])


def _labelled(name: str, text: str, labels: Mapping[str, str], value: float = 1) -> Metric:
    family = GaugeMetricFamily(name, text, labels=list(labels))
    family.add_metric(list(labels.values()), value)
    return family
