"""Every metric by name, type and labels, and the values they take with a real engine."""

from __future__ import annotations

import re
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
from prometheus_client.parser import text_string_to_metric_families

CONTRACT: dict[str, tuple[str, set[str]]] = {
    "octavo_kv_cache_usage_ratio": ("gauge", set()),
    "octavo_kv_cache_blocks": ("gauge", {"state"}),
    "octavo_kv_cache_capacity_tokens": ("gauge", set()),
    "octavo_kv_cache_block_size_tokens": ("gauge", set()),
    "octavo_kv_cache_fragmentation_ratio": ("gauge", set()),
    "octavo_requests_running": ("gauge", set()),
    "octavo_requests_waiting": ("gauge", set()),
    "octavo_requests_received_total": ("counter", set()),
    "octavo_requests_finished_total": ("counter", {"reason"}),
    "octavo_preemptions_total": ("counter", set()),
    "octavo_prompt_tokens_total": ("counter", set()),
    "octavo_generation_tokens_total": ("counter", set()),
    "octavo_prefix_cache_queried_tokens_total": ("counter", set()),
    "octavo_prefix_cache_hit_tokens_total": ("counter", set()),
    "octavo_prefix_cache_missed_tokens_total": ("counter", set()),
    "octavo_prefix_cache_evicted_blocks_total": ("counter", set()),
    "octavo_prefix_cache_shared_read_tokens_total": ("counter", set()),
    "octavo_time_to_first_token_seconds": ("histogram", {"le"}),
    "octavo_inter_token_latency_seconds": ("histogram", {"le"}),
    "octavo_request_duration_seconds": ("histogram", {"le"}),
    "octavo_queue_seconds": ("histogram", {"le"}),
    "octavo_api_processes": ("gauge", set()),
    "octavo_event_loop_delay_seconds": ("histogram", {"le"}),
    "octavo_event_loop_work_seconds": ("histogram", {"le"}),
    "octavo_build_info": ("gauge", {"version", "attention_backend", "cuda", "driver", "triton", "torch"}),
    "octavo_kernel_fallback": ("gauge", {"reason"}),
    "octavo_launch_info": ("gauge", {"source"}),
    "vllm:kv_cache_usage_perc": ("gauge", {"model_name"}),
    "vllm:gpu_cache_usage_perc": ("gauge", {"model_name"}),
    "vllm:num_requests_running": ("gauge", {"model_name"}),
    "vllm:num_requests_waiting": ("gauge", {"model_name"}),
    "vllm:num_preemptions_total": ("counter", {"model_name"}),
    "vllm:time_to_first_token_seconds": ("histogram", {"model_name", "le"}),
    "vllm:cache_config_info": ("gauge", {"block_size", "num_gpu_blocks", "cache_dtype"}),
}


def test_every_metric_of_the_contract_is_served_and_nothing_else(server: Any) -> None:
    found: dict[str, tuple[str, set[str]]] = {}
    for family in text_string_to_metric_families(httpx.get(f"{server.url}/metrics").text):
        name = family.name + "_total" if family.type == "counter" else family.name
        found[name] = (family.type, set().union(*(sample.labels for sample in family.samples)))
    expected = dict(CONTRACT)
    if not found["octavo_kernel_fallback"][1]:
        expected["octavo_kernel_fallback"] = ("gauge", set())
    assert found == expected


def test_the_documentation_names_every_metric() -> None:
    text = (Path(__file__).parents[2] / "docs/reference/metrics.md").read_text()
    assert set(re.findall(r"`((?:octavo_|vllm:)\w+)`", text)) == set(CONTRACT)


def test_values_follow_the_load_and_return_to_0(server: Any, until_sync: Any) -> None:
    def total(name: str) -> float:
        return float(server.metric(name))

    states = [f'octavo_kv_cache_blocks{{state="{state}"}}' for state in ("active", "cached", "free")]
    until_sync(lambda: total("octavo_requests_running") == 0, "the server is idle")
    before = {name: total(name) for name in ("octavo_generation_tokens_total", "octavo_prompt_tokens_total")}
    finished = total('octavo_requests_finished_total{reason="length"}')
    first_tokens = total("octavo_time_to_first_token_seconds_count")
    body = {"prompt": "The quick brown fox jumps over the lazy dog. " * 4, "max_tokens": 16, "ignore_eos": True}
    with ThreadPoolExecutor(4) as pool:
        answers = [pool.submit(httpx.post, f"{server.url}/v1/completions", json=body, timeout=120) for _ in range(4)]
        until_sync(lambda: total("octavo_kv_cache_usage_ratio") > 0, "the cache is in use")
        until_sync(lambda: total("octavo_requests_running") >= 1 or all(a.done() for a in answers), "requests run")
        usages = [answer.result().json()["usage"] for answer in answers]
    generated = sum(usage["completion_tokens"] for usage in usages)
    assert generated == 4 * 16
    assert total("octavo_generation_tokens_total") - before["octavo_generation_tokens_total"] == generated
    prompts = sum(usage["prompt_tokens"] for usage in usages)
    assert total("octavo_prompt_tokens_total") - before["octavo_prompt_tokens_total"] == prompts
    assert total('octavo_requests_finished_total{reason="length"}') - finished == 4
    assert total("octavo_time_to_first_token_seconds_count") - first_tokens == 4
    until_sync(lambda: total(states[0]) == 0, "no block is active")
    assert total("octavo_kv_cache_usage_ratio") == 0
    assert total(states[1]) > 0, "the prompt stays cached"
    block_size = total("octavo_kv_cache_block_size_tokens")
    assert sum(map(total, states)) * block_size == total("octavo_kv_cache_capacity_tokens")
    again = httpx.post(f"{server.url}/v1/completions", json=body, timeout=120).json()["usage"]
    assert again["prompt_tokens_details"]["cached_tokens"] > 0


def test_counters_go_on_and_living_requests_wait_while_the_engine_restarts() -> None:
    from octavo_server.engine.messages import Ready, Stats
    from octavo_server.metrics import Metrics

    metrics = Metrics("m")

    def value(name: str) -> float | None:
        return metrics.registry.get_sample_value(name)

    assert value("octavo_kv_cache_usage_ratio") is None, "unknown before the engine was ready"
    ready = Ready("m", 10, 100, 16, 160, "CPU", "Float32", "None", "CPU", ["NoCompiledKernel"])
    metrics.engine_ready(ready)
    assert value("octavo_kv_cache_usage_ratio") == 0
    assert metrics.registry.get_sample_value("octavo_kernel_fallback", {"reason": "NoCompiledKernel"}) == 1
    metrics.engine_stats(Stats(3, 1, 5, 2, 3, 80, 60, 7, 70, 30, 0, 0, 0, [0.5], 4, 300))
    assert value("octavo_kv_cache_usage_ratio") == 0.5
    assert value("octavo_kv_cache_fragmentation_ratio") == 0.25
    assert value("octavo_queue_seconds_sum") == 0.5
    metrics.living.set(4)
    metrics.engine_lost()
    assert (value("octavo_requests_running"), value("octavo_requests_waiting")) == (0, 4)
    metrics.engine_ready(ready)
    metrics.engine_stats(Stats(10, 0, 10, 0, 0, 160, 160, 2, 100, 64, 0, 0, 0, [], 5, 1000))
    assert value("octavo_preemptions_total") == 9
    assert value("octavo_prefix_cache_missed_tokens_total") == 70 - 30 + 100 - 64
    assert value("octavo_prefix_cache_evicted_blocks_total") == 4 + 5
    assert value("octavo_prefix_cache_shared_read_tokens_total") == 300 + 1000
    assert value("octavo_kv_cache_usage_ratio") == 1


def test_a_reader_that_names_samples_gets_these_alone(server: Any) -> None:
    names = ["octavo_kv_cache_blocks", "octavo_requests_finished_total", "octavo_requests_waiting", "nothing_like_it"]
    text = httpx.get(f"{server.url}/metrics", params=[("name[]", name) for name in names]).text
    samples = {sample.name for family in text_string_to_metric_families(text) for sample in family.samples}
    assert samples == set(names[:3])
