"""vLLM, SGLang and MLC under the same resource: arguments their own parsers take, probes, keys, ends, and signals."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import aiohttp
import pytest
from octavo_operator.api.engine_section import CacheDType, DType, Quantization, Runtime
from octavo_operator.plan import CatalogueImage, PlanSettings, plan
from octavo_operator.plan.runtimes import PROGRAMS
from octavo_operator.scaling.sample import Partial, Sample
from octavo_operator.scaling.scraper import Scraper, ScrapeSettings, Target

from tests.operator.test_plan_service import check_pod, condition, facts, live, node, service
from tests.runtimes import stand_in

RECORDED = stand_in.RECORDED
IMAGES = (
    CatalogueImage("cpu", "octavo/octavo-server:1-cpu"),
    CatalogueImage("vllm-cpu", "vllm/vllm-openai:v0.34.0", runtime="VLLM"),
    CatalogueImage("sglang-cpu", "lmsysorg/sglang:v0.5.23", runtime="SGLang"),
    CatalogueImage("mlc-cpu", "mlcai/mlc:1", runtime="MLC"),
)
SETTINGS = PlanSettings(images=IMAGES, argument_prefixes=("*",), image_prefixes=("vllm/vllm-openai",))
OTHERS = [Runtime.VLLM, Runtime.SGLANG, Runtime.MLC]
FULL = {
    "dtype": "BFloat16",
    "quantization": "FP8",
    "kvCache": {"blockSize": 32, "dtype": "FP8", "memoryPercent": 85, "prefixCaching": "Disabled"},
    "parallelism": {"tensor": 2},
}


def served(body, settings=SETTINGS):
    """(plan, pod's spec) of a service whose model is proven."""
    first = plan(facts(body, settings=settings))
    if not any(item["kind"] == "Job" for item in first.objects):
        return first, None
    ok = check_pod(first, {"ok": True, "reason": "ModelFound", "message": "fine"})
    planned = plan(facts(body, owned=live(first), pods=[ok], settings=settings))
    found = [item["spec"]["template"]["spec"] for item in planned.objects if item["kind"] == "Deployment"]
    return planned, found[0] if found else None


def command(runtime, **spec):
    engine = {"runtime": runtime.value, **spec.pop("engine", {})}
    _, pod = served(service(engine=engine, **spec))
    return pod["containers"][0]


def valued(words):
    return {word: after for word, after in zip(words, [*words[1:], ""], strict=True) if word.startswith("--")}


@pytest.mark.parametrize("runtime", OTHERS)
def test_every_flag_is_one_of_the_programs_own_parser(runtime):
    known = RECORDED[runtime.value]["flags"]
    positive = [flag for flag in PROGRAMS[runtime].flags if not flag.startswith("--no-")]
    assert [flag for flag in positive if flag not in known] == []
    negative = [flag for flag in PROGRAMS[runtime].flags if flag.startswith("--no-")]
    assert all(flag.replace("--no-", "--") in known for flag in negative)


@pytest.mark.parametrize("runtime", [Runtime.VLLM, Runtime.SGLANG])
@pytest.mark.parametrize("engine", [{}, FULL])
@pytest.mark.parametrize("length", [0, 4096])
def test_a_parser_with_the_programs_flags_and_choices_takes_the_arguments(runtime, engine, length):
    model = {"uri": "pvc://models/a", "maxLength": length}
    container = command(runtime, engine=engine, model=model, rollout={"drainSeconds": 60})
    words = [word.replace("$(POD_IP)", "127.0.0.1") for word in container["args"]]
    flags = stand_in.parse(runtime.value, [*container["command"][1:2], *words] if runtime == Runtime.VLLM else words)
    assert (flags.host, flags.port, flags.served_model_name) == ("127.0.0.1", "8000", "chat")
    assert set(valued(words)) <= set(PROGRAMS[runtime].flags), "extraArgs could repeat a flag unnoticed"


@pytest.mark.parametrize("length", [0, 4096])
@pytest.mark.parametrize("caching", ["Enabled", "Disabled"])
def test_a_parser_with_mlcs_flags_choices_and_overrides_takes_its_arguments(length, caching):
    engine = {"kvCache": {"memoryPercent": 85, "prefixCaching": caching}, "parallelism": {"tensor": 2}}
    container = command(Runtime.MLC, engine=engine, model={"uri": "pvc://models/a", "maxLength": length})
    assert container["command"] == ["mlc_llm", "serve"]
    flags = stand_in.parse("MLC", [word.replace("$(POD_IP)", "127.0.0.1") for word in container["args"]])
    assert (flags.model, flags.host, flags.port, flags.mode) == ("/models/models/a", "127.0.0.1", "8000", "server")
    wanted = {"gpu_memory_utilization": 0.85, "tensor_parallel_shards": 2.0}
    assert flags.overrides == (wanted | {"context_window_size": 4096.0} if length else wanted)
    assert flags.prefix_cache_mode == ("radix" if caching == "Enabled" else "disable")
    assert set(valued(container["args"])) <= set(PROGRAMS[Runtime.MLC].flags)


def test_vllm_is_told_what_the_fields_say():
    container = command(Runtime.VLLM, engine=FULL, model={"uri": "pvc://models/a", "maxLength": 4096})
    assert container["command"] == ["vllm", "serve"]
    assert container["args"][0] == "/models/models/a"
    told = valued(container["args"])
    assert told["--max-model-len"] == "4096"
    assert (told["--block-size"], told["--gpu-memory-utilization"]) == ("32", "0.85")
    assert (told["--kv-cache-dtype"], told["--quantization"], told["--tensor-parallel-size"]) == ("fp8", "fp8", "2")
    assert "--no-enable-prefix-caching" in told
    assert told["--shutdown-timeout"] == "30"


def test_sglang_is_told_what_the_fields_say():
    container = command(Runtime.SGLANG, engine=FULL, model={"uri": "pvc://models/a", "maxLength": 4096})
    assert container["command"] == ["python3", "-m", "sglang.launch_server"]
    told = valued(container["args"])
    assert (told["--model-path"], told["--context-length"], told["--page-size"]) == ("/models/models/a", "4096", "32")
    assert {"--enable-metrics", "--disable-radix-cache"} <= set(told)
    assert told["--kv-cache-dtype"] == "fp8_e4m3"


def test_mlc_is_told_what_it_can_be_told_and_refuses_the_rest():
    container = command(Runtime.MLC, model={"uri": "pvc://models/a", "maxLength": 4096})
    told = valued(container["args"])
    assert told["--overrides"] == "gpu_memory_utilization=0.92;context_window_size=4096"
    assert container["readinessProbe"]["httpGet"]["path"] == "/v1/models"
    planned, pod = served(
        service(engine={"runtime": "MLC", "dtype": "BFloat16"}, access={"apiKeySecretRef": {"name": "k"}})
    )
    assert pod is None
    said = condition(planned, "SpecHonoured")["message"]
    assert "engine.dtype (BFloat16, with runtime MLC)" in said
    assert "access.apiKeySecretRef" in said


@pytest.mark.parametrize("runtime", OTHERS)
def test_another_runtimes_pod_has_a_name_for_its_user_probes_it_answers_and_time_to_leave(runtime):
    container = command(runtime)
    told = {entry["name"]: entry.get("value") for entry in container["env"]}
    assert (told["USER"], told["HF_HUB_OFFLINE"]) == ("octavo", "1")
    assert container["lifecycle"]["preStop"]["sleep"]["seconds"] == 5
    paths = {container[name]["httpGet"]["path"] for name in ("startupProbe", "livenessProbe", "readinessProbe")}
    assert paths == {"/v1/models" if runtime == Runtime.MLC else "/health"}
    assert container["ports"] == [{"name": "http", "containerPort": 8000, "protocol": "TCP"}]


def test_keys_reach_each_program_the_way_it_reads_them():
    access = {"apiKeySecretRef": {"name": "keys", "key": "api"}}
    for runtime, variable in ((Runtime.OCTAVO, "OCTAVO_API_KEY"), (Runtime.VLLM, "VLLM_API_KEY")):
        entries = {entry["name"]: entry for entry in command(runtime, access=access)["env"]}
        assert entries[variable]["valueFrom"]["secretKeyRef"] == {"name": "keys", "key": "api"}
    container = command(Runtime.SGLANG, access=access)
    assert valued(container["args"])["--api-key"] == "$(OCTAVO_API_KEY)"


@pytest.mark.parametrize(
    ("engine", "said"),
    [
        ({"runtime": "VLLM", "quantization": "Int8"}, "engine.quantization (Int8, with runtime VLLM)"),
        ({"runtime": "SGLang", "kvCache": {"dtype": "Float16"}}, "engine.kvCache.dtype (Float16, with runtime SGLang)"),
        ({"runtime": "VLLM", "extraArgs": ["--max-model-len=9"]}, "--max-model-len=9, which a field"),
        ({"runtime": "SGLang", "extraArgs": ["--tp-size", "2"]}, "--tp-size, which a field"),
    ],
)
def test_what_a_runtime_can_not_honour_is_said_and_not_dropped(engine, said):
    planned, pod = served(service(engine=engine))
    assert condition(planned, "SpecHonoured")["reason"] == "UnsupportedFields"
    assert said in condition(planned, "SpecHonoured")["message"]
    assert pod is None


def test_one_field_moves_a_service_and_the_check_stays_with_octavos_image():
    images = {}
    for runtime in Runtime:
        body = service(model={"uri": "hf://org/name"}, engine={"runtime": runtime.value})
        first = plan(facts(body, settings=SETTINGS))
        check = next(item for item in first.objects if item["kind"] == "Job")["spec"]["template"]["spec"]["containers"][
            0
        ]
        assert check["image"] == "octavo/octavo-server:1-cpu"
        assert ("--runtime" in check["args"]) == (runtime != Runtime.OCTAVO)
        planned, pod = served(body)
        images[runtime] = pod["containers"][0]["image"]
        assert pod["initContainers"][0]["image"] == "octavo/octavo-server:1-cpu"
        assert condition(planned, "SpecHonoured")["status"] == "True"
    assert len(set(images.values())) == 4


def test_a_runtime_without_an_image_names_the_way_out():
    body = service(engine={"runtime": "VLLM"})
    planned = plan(facts(body, settings=PlanSettings(images=IMAGES[:1])))
    told = condition(planned, "ImageResolved")
    assert (told["status"], told["reason"]) == ("False", "NoRuntimeImage")
    assert "serverImages" in told["message"]
    nodes = condition(planned, "NodeTypesResolved")
    assert nodes["message"] == f"nodes fit, but no image does: {told['message']}"
    assert "engine.runtime VLLM" in nodes["message"]
    assert "CPU" not in nodes["message"], "an image for CPUs of Octavo's own would not help"
    pinned = {**body["spec"], "image": {"policy": "Pinned", "reference": "vllm/vllm-openai:v0.34.0"}}
    _, pod = served({**body, "spec": pinned})
    assert pod["containers"][0]["image"] == "vllm/vllm-openai:v0.34.0"


@pytest.mark.parametrize(
    ("cuda", "placement", "said"),
    [
        ("12.8", {"cpu": "Required"}, "no CPU image for engine.runtime VLLM (the catalogue holds: vllm for CUDA 12.8)"),
        (None, {}, "no image for engine.runtime VLLM (the catalogue holds: vllm for CPU) has code for"),
    ],
)
def test_a_runtime_whose_images_are_for_other_nodes_says_which_there_are(cuda, placement, said):
    image = CatalogueImage("vllm", "vllm/vllm-openai:v0.34.0", cuda, ("9.0",) if cuda else (), runtime="VLLM")
    labels = {
        "nvidia.com/gpu.product": "NVIDIA-H100", "nvidia.com/gpu.compute.major": "9",
        "nvidia.com/gpu.compute.minor": "0", "nvidia.com/cuda.driver.major": "570",
        "nvidia.com/cuda.runtime.major": "12", "nvidia.com/cuda.runtime.minor": "8",
    }  # fmt: skip
    nodes = [node(), node("gpu", labels=labels, **{"nvidia.com/gpu": "1"})]
    body = service(engine={"runtime": "VLLM"}, placement=placement)
    planned = plan(facts(body, settings=PlanSettings(images=(IMAGES[0], image)), nodes=nodes))
    assert condition(planned, "ImageResolved")["status"] == "False"
    for kind in ("NodeTypesResolved", "ImageResolved"):
        assert said in condition(planned, kind)["message"]
    assert "serverImages" in condition(planned, "ImageResolved")["message"] or not cuda


def test_an_image_of_another_runtime_never_serves_for_octavo():
    settings = PlanSettings(images=(IMAGES[1], IMAGES[0]))
    _, pod = served(service(), settings)
    assert pod["containers"][0]["image"] == "octavo/octavo-server:1-cpu"


def test_a_catalogue_entry_with_an_unknown_runtime_is_refused_in_words():
    with pytest.raises(ValueError, match="none of Octavo, VLLM, SGLang, MLC"):
        CatalogueImage.parse({"name": "a", "image": "b", "runtime": "vllm"})


@pytest.mark.parametrize(("runtime", "finished"), [("VLLM", 40), ("SGLang", 40)])
async def test_a_process_with_the_recorded_metric_names_gives_the_right_signals(runtime, finished, free_port):
    load = {"running": 3, "waiting": 2, "used": 4000, "capacity": 16000, "finished": finished, "preemptions": 1}
    port = free_port()
    words = ["serve", "model"] if runtime == "VLLM" else ["--model-path", "model"]
    words += ["--served-model-name", "m", "--host", "127.0.0.1", "--port", str(port)]
    environment = {**os.environ, "STAND_IN_LOAD": json.dumps(load)}
    process = subprocess.Popen([sys.executable, str(Path(stand_in.__file__)), runtime, *words], env=environment)
    try:
        url = f"http://127.0.0.1:{port}"
        wait_until(lambda: answers(f"{url}/health"))
        async with aiohttp.ClientSession() as session:
            scraper = Scraper(session, lambda: (), lambda *_: None, lambda: 1.0, ScrapeSettings())
            reading = await scraper.read(Target("pod", f"{url}/metrics", runtime))
            assert isinstance(reading, Sample), reading
            assert (reading.active_tokens, reading.capacity_tokens) == (4000, 16000)
            assert (reading.running, reading.waiting, reading.finished_total) == (3, 2, finished)
            # Read as another runtime's, its answer is unknown and not empty.
            for other in {"Octavo", "VLLM", "SGLang", "MLC"} - {runtime}:
                assert isinstance(await scraper.read(Target("pod", f"{url}/metrics", other)), Partial)
    finally:
        process.terminate()
        process.wait(10)


async def test_mlc_tells_no_load_and_is_read_as_unknown_and_not_as_empty(free_port):
    port = free_port()
    container = command(Runtime.MLC)
    words = [word.replace("$(POD_IP)", "127.0.0.1") for word in container["args"]]
    words[words.index("--port") + 1] = str(port)
    process = subprocess.Popen([sys.executable, str(Path(stand_in.__file__)), "MLC", *words])
    try:
        url = f"http://127.0.0.1:{port}"
        wait_until(lambda: answers(f"{url}{container['readinessProbe']['httpGet']['path']}"))
        async with aiohttp.ClientSession() as session:
            scraper = Scraper(session, lambda: (), lambda *_: None, lambda: 1.0, ScrapeSettings())
            reading = await scraper.read(Target("pod", f"{url}/metrics", "MLC"))
        assert isinstance(reading, Partial), "the count is held, since nobody knows the load"
        assert set(reading.missing) == {"active_tokens", "capacity_tokens", "running", "waiting"}
    finally:
        process.terminate()
        process.wait(10)


@pytest.mark.parametrize("runtime", ["VLLM", "SGLang"])
def test_the_names_that_scaling_reads_are_in_the_programs_sources(runtime):
    from octavo_operator.scaling.runtimes import RUNTIMES

    known = set(RECORDED[runtime]["metrics"])
    read = {name.removesuffix("_total") for name in RUNTIMES[runtime].names} | set(RUNTIMES[runtime].names)
    needed = {
        "VLLM": {"vllm:kv_cache_usage_perc", "vllm:num_requests_running", "vllm:num_requests_waiting",
                 "vllm:cache_config_info", "vllm:request_success", "vllm:num_preemptions"},
        "SGLang": {"sglang:num_used_tokens", "sglang:max_total_num_tokens", "sglang:num_running_reqs",
                   "sglang:num_queue_reqs", "sglang:num_requests_total"},
    }[runtime]  # fmt: skip
    assert needed <= known
    assert needed <= read


def test_every_value_of_an_enum_is_mapped_or_refused():
    for runtime in (Runtime.VLLM, Runtime.SGLANG):
        for field, values in (("dtype", DType), ("quantization", Quantization)):
            for value in values:
                planned, pod = served(service(engine={"runtime": runtime.value, field: value.value}))
                assert (pod is None) == (condition(planned, "SpecHonoured")["status"] == "False")
        for value in CacheDType:
            planned, pod = served(service(engine={"runtime": runtime.value, "kvCache": {"dtype": value.value}}))
            assert (pod is None) == (condition(planned, "SpecHonoured")["status"] == "False")


@pytest.fixture
def free_port():
    import socket

    def find():
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            return probe.getsockname()[1]

    return find


def answers(url):
    try:
        return urllib.request.urlopen(url, timeout=2).status == 200
    except OSError:
        return False


def wait_until(condition_holds, seconds=30.0):
    deadline = time.monotonic() + seconds
    while not condition_holds():
        assert time.monotonic() < deadline, "not in time"
        time.sleep(0.05)
