"""docs/reference/metrics.md: every metric of the server, from the collector that serves them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from octavo_server.engine.messages import Ready
from octavo_server.metrics import Metrics
from prometheus_client.core import Metric

PAGE = Path(__file__).resolve().parent.parent / "docs" / "reference" / "metrics.md"
HEAD = """\
# Metrics of the server

<!-- Generated from octavo_server/metrics.py by `make generate`. -->

`GET /metrics` on the HTTP port, without a key, as Prometheus text or OpenMetrics. The names are a contract: a test
names every one, so a renamed metric breaks a test and not your dashboard. Metrics of the cache and the batch appear
once the engine was ready for the first time: a server that is still loading has no usage, not a usage of 0. With
`--api-processes`, any process answers for all of them. The operator's are in
[Metrics of the operator](operator-metrics.md).

"""
VLLM = """
Under the names that existing dashboards and endpoint pickers read:

"""
FOOT = "\nCounters go on across a restart of the engine process.\n"
MEANINGS = {
    "octavo_kv_cache_usage_ratio": "active blocks ÷ all blocks, 0 … 1; cached blocks without a request count as free",
    "octavo_kv_cache_blocks": "blocks of the pool; a block shared by several requests counts once",
    "octavo_requests_waiting": "requests that wait for a place; while the engine restarts, all living ones",
    "octavo_requests_received_total": "choices that were accepted (prompts × n)",
    "octavo_prompt_tokens_total": "prompt tokens of choices that got a first token",
    "octavo_inter_token_latency_seconds": "between two steps of a choice, per token",
    "octavo_event_loop_delay_seconds": "how late the event loop of an API process came to a timer, 100 looks a second; "
    "above 50 ms, streams stutter",
    "octavo_event_loop_work_seconds": "how much of that delay the loop's own work can be to blame for (no more than "
    "the processor time that it used since the last look); small beside a large delay, the machine is crowded",
    "octavo_build_info": "always 1; its labels tell what runs here",
    "octavo_kernel_fallback": "1 per reason for slower kernels; no series when the fast ones are in use",
    "octavo_launch_info": "always 1; where the kernels' launch configurations come from: `--launch-table` "
    "(LaunchTable), the package (Shipped) or neither (SafeDefaults); the log at start says why",
    "vllm:kv_cache_usage_perc": "`octavo_kv_cache_usage_ratio`",
    "vllm:gpu_cache_usage_perc": "`octavo_kv_cache_usage_ratio`",
    "vllm:num_requests_running": "`octavo_requests_running`",
    "vllm:num_requests_waiting": "`octavo_requests_waiting`",
    "vllm:num_preemptions_total": "`octavo_preemptions_total`",
    "vllm:time_to_first_token_seconds": "`octavo_time_to_first_token_seconds`",
    "vllm:cache_config_info": "1, with block size and number of blocks as labels",
}
"""Where more is to say than the metric's own line of help."""


def families() -> Iterator[Metric]:
    """All metrics of a server whose engine is ready."""
    metrics = Metrics("model")
    metrics.engine_ready(Ready("model", 1, 16, 16, 16, "CPU", "Float32", "None", "CPU", ["reason"]))
    yield from metrics.families()


def row(family: Metric) -> str:
    """A line of the table."""
    name = family.name + "_total" if family.type == "counter" else family.name
    labels: dict[str, list[str]] = {}
    for sample in family.samples:
        for label, value in sample.labels.items():
            if label != "le" and value not in labels.setdefault(label, []):
                labels[label].append(value)
    told = [f"`{label}`: {', '.join(found)}" if len(found) > 1 else f"`{label}`" for label, found in labels.items()]
    text = family.documentation.rstrip(".")
    meaning = MEANINGS.get(name, text if text[1:2].isupper() else text[:1].lower() + text[1:])
    return f"| `{name}` | {family.type} | {', '.join(told)} | {meaning} |\n"


def generate() -> dict[Path, str]:
    """Wanted text by path."""
    rows = [row(family) for family in families()]
    own = [line for line in rows if not line.startswith("| `vllm:")]
    others = [line for line in rows if line.startswith("| `vllm:")]
    head = "| name | type | labels | {} |\n|---|---|---|---|\n"
    text = HEAD + head.format("meaning") + "".join(own) + VLLM + head.format("equals") + "".join(others) + FOOT
    return {PAGE: text}
