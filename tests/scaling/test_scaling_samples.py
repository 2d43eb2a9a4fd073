"""From the text of /metrics to a Sample, for each runtime; and from Samples to signals, whatever befell the pod."""

from __future__ import annotations

import pytest
from octavo_operator.scaling.exposition import read_series, wanted_lines
from octavo_operator.scaling.runtimes import RUNTIMES
from octavo_operator.scaling.sample import Absent, Partial, Sample
from octavo_operator.scaling.window import Signals, Unknown, Windows
from octavo_server.engine.messages import Ready, Stats
from octavo_server.metrics import Metrics
from prometheus_client import generate_latest

VLLM = """\
# HELP vllm:num_requests_running Number of requests.
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{{model_name="m"{engine}}} 3.0
vllm:num_requests_waiting{{model_name="m"{engine}}} 2.0
vllm:num_requests_waiting_by_reason{{model_name="m"{engine},reason="capacity"}} 9.0
vllm:{usage}{{model_name="m"{engine}}} 0.25
vllm:num_preemptions_total{{model_name="m"{engine}}} 7.0
vllm:request_success_total{{finished_reason="stop",model_name="m"{engine}}} 5.0
vllm:request_success_total{{finished_reason="length",model_name="m"{engine}}} 6.0
vllm:cache_config_info{{block_size="16",num_gpu_blocks="1000"{engine}}} 1.0
"""
SGLANG = """\
sglang:num_used_tokens{model_name="m",tp_rank="0"} 3000.0
sglang:num_used_tokens{model_name="m",tp_rank="1"} 3000.0
sglang:max_total_num_tokens{model_name="m",tp_rank="0"} 4e+05
sglang:num_running_reqs{model_name="m",tp_rank="0"} 4.0
sglang:num_queue_reqs{model_name="m",tp_rank="0"} 1.0
sglang:num_requests_total{model_name="m"} 77.0
"""


def octavo_text(ready: bool = True) -> str:
    metrics = Metrics("m")
    if ready:
        metrics.engine_ready(Ready("m", 100, 4096, 16, 16000, "CPU", "Float32", "None", "torch", []))
        metrics.engine_stats(Stats(3, 2, 250, 100, 650, 4000, 3900, 7, 0, 0, 0, 0, 0, []))
    metrics.received.inc(20)
    metrics.finished["stop"].inc(11)
    metrics.finished["abort"].inc(4)
    return generate_latest(metrics.registry).decode()


def test_octavo_tells_everything():
    assert RUNTIMES["Octavo"].read(octavo_text(), 5.0) == Sample(5.0, 4000, 16000, 3, 2, 15, 20, 7)


def test_a_server_that_still_loads_is_partial_and_not_empty():
    reading = RUNTIMES["Octavo"].read(octavo_text(ready=False), 5.0)
    assert isinstance(reading, Partial)
    assert "capacity_tokens" in reading.missing


@pytest.mark.parametrize("usage", ["kv_cache_usage_perc", "gpu_cache_usage_perc"])
@pytest.mark.parametrize("engine", ["", ',engine="0"'])
def test_vllm_is_read_under_its_old_and_new_names(usage, engine):
    text = VLLM.format(usage=usage, engine=engine)
    assert RUNTIMES["VLLM"].read(text, 1.0) == Sample(1.0, 4000, 16000, 3, 2, 11, None, 7)


def test_two_engines_of_one_vllm_pod_are_summed():
    text = "".join(VLLM.format(usage="kv_cache_usage_perc", engine=f',engine="{n}"') for n in (0, 1))
    assert RUNTIMES["VLLM"].read(text, 1.0) == Sample(1.0, 8000, 32000, 6, 4, 22, None, 14)


def test_vllm_without_its_cache_size_is_partial():
    text = VLLM.format(usage="kv_cache_usage_perc", engine="").replace('num_gpu_blocks="1000"', 'num_gpu_blocks="None"')
    assert RUNTIMES["VLLM"].read(text, 1.0) == Partial(1.0, ("active_tokens", "capacity_tokens"))


def test_sglang_counts_one_rank_of_a_tensor_parallel_group():
    assert RUNTIMES["SGLang"].read(SGLANG, 1.0) == Sample(1.0, 3000, 400000, 4, 1, 77)


def test_mlc_shows_no_cache_and_is_always_partial():
    reading = RUNTIMES["MLC"].read("prompt_tokens_sum\t1234\ncompletion_tokens_sum\t99\n", 1.0)
    assert reading == Partial(1.0, ("active_tokens", "capacity_tokens", "running", "waiting"))


@pytest.mark.parametrize("runtime", RUNTIMES)
@pytest.mark.parametrize("text", ["", "<html>busy</html>", "octavo_requests_running", "\x00" * 50, "a{" * 1000])
def test_no_text_is_ever_read_as_an_idle_pod(runtime, text):
    assert not isinstance(RUNTIMES[runtime].read(text, 1.0), Sample)


@pytest.mark.parametrize("line", ["octavo_requests_running 3x", 'octavo_kv_cache_blocks{state="active} 3'])
def test_a_broken_line_makes_the_reading_absent(line):
    assert isinstance(RUNTIMES["Octavo"].read(octavo_text() + line + "\n", 1.0), Absent)


def test_not_a_number_is_missing():
    text = octavo_text().replace("octavo_requests_waiting 2.0", "octavo_requests_waiting NaN")
    assert RUNTIMES["Octavo"].read(text, 1.0) == Partial(1.0, ("waiting",))


def test_only_lines_of_wanted_names_are_parsed():
    text = '# TYPE a gauge\na 1\nab 2\na{x="a 5"} 3\nb 4'
    assert wanted_lines(text, ["a", "b"]) == 'a 1\na{x="a 5"} 3\nb 4\n'
    assert [item.value for item in read_series(text, ["a"])] == [1, 3]


def filled(*samples: Sample, uid: str = "pod") -> Windows:
    windows = Windows()
    for sample in samples:
        windows.add(uid, sample)
    return windows


def at(time: float, finished: float = 0, received: float | None = 0, **more: float) -> Sample:
    figures = {"active_tokens": 100.0, "capacity_tokens": 1000.0, "running": 1.0, "waiting": 0.0, **more}
    return Sample(time=time, finished_total=finished, received_total=received, **figures)


def test_rates_go_on_over_a_restart_of_the_counters():
    seen = filled(at(0, 100, 100), at(10, 110, 120), at(20, 5, 5), at(30, 9, 10)).seen("pod", 30)
    assert isinstance(seen, Signals)
    assert seen.completions == 10 + 5 + 4
    assert seen.arrivals == 20 + 5 + 5


def test_arrivals_without_a_counter_follow_from_what_went_and_what_is_there():
    seen = filled(at(0, 0, None, waiting=1), at(10, 5, None, waiting=9)).seen("pod", 10)
    assert isinstance(seen, Signals)
    assert seen.arrivals == 5 + 8


def test_rates_of_a_runtime_without_counters_are_unknown_and_not_zero():
    bare = [Sample(float(time), 100, 1000, 1, 0) for time in (0, 5, 10)]
    seen = filled(*bare).seen("pod", 10)
    assert isinstance(seen, Signals)
    assert seen.arrivals is None
    assert seen.completions is None


def test_one_reading_gives_uses_but_no_rates():
    seen = filled(at(0, 500, 600)).seen("pod", 1)
    assert isinstance(seen, Signals)
    assert (seen.active_tokens, seen.arrivals, seen.queued) == (100, None, False)


def test_a_stale_pod_is_unknown():
    assert filled(at(0)).seen("pod", 16) == Unknown("its last reading is 16 s old")


def test_a_pod_that_stops_answering_stays_known_for_a_moment_and_then_tells_why():
    windows = filled(at(0))
    windows.add("pod", Absent(5, "it did not answer within 2 s"))
    assert isinstance(windows.seen("pod", 10), Signals)
    assert windows.seen("pod", 16) == Unknown("it did not answer within 2 s")


def test_a_pod_with_partial_metrics_is_unknown_and_says_what_is_missing():
    windows = Windows()
    windows.add("pod", Partial(0, ("waiting",)))
    assert windows.seen("pod", 1) == Unknown("its metrics lack waiting")


def test_a_deleted_pods_series_never_count_again():
    windows = filled(at(0), at(5))
    windows.keep(["other"])
    assert windows.seen("pod", 6) == Unknown("it was not read yet")


def test_queued_means_waiting_at_every_recent_reading():
    assert filled(at(0, waiting=0), at(20, waiting=1), at(25, waiting=2)).seen("pod", 25).queued
    assert not filled(at(15, waiting=0), at(20, waiting=1), at(25, waiting=2)).seen("pod", 25).queued
