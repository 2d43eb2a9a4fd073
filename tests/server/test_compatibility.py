"""The server asks again what the operator asked of labels: whether the fast kernels are promised here."""

from __future__ import annotations

import json

import pytest
from octavo_server.check import gpu_problems
from octavo_server.compatibility import Fallback, fallbacks, fallbacks_here, has_machine_code, unusable_accelerator
from octavo_server.contract import ExitCode

WHEEL_128 = ["sm_75", "sm_80", "sm_86", "sm_90", "sm_100", "sm_120"]
WHEEL_130 = [*WHEEL_128, "compute_120"]


@pytest.mark.parametrize(
    ("capability", "held"),
    [("9.0", True), ("8.9", True), ("8.7", True), ("7.5", True), ("10.3", True), ("12.1", True), ("7.0", False),
     ("11.0", False), ("15.0", False)],
)  # fmt: skip
def test_machine_code_of_the_same_major_and_a_lower_minor_runs(capability, held):
    assert has_machine_code(capability, WHEEL_128) == held
    assert has_machine_code(capability, WHEEL_130) == held, "code to compile is no machine code"


def test_architecture_specific_code_is_read():
    assert has_machine_code("9.0", ["sm_90a"])


@pytest.mark.parametrize(
    ("capability", "driver", "torch", "reasons"),
    [
        ("9.0", "12.8", "12.8", []),
        ("9.0", "12.6", "12.6", []),
        ("9.0", "12.5", "12.8", ["DriverBelowFastKernels"]),
        ("9.0", "12.8", "12.4", ["ImageBelowFastKernels"]),
        ("15.0", "13.0", "13.0", ["NoMachineCode"]),
        ("7.5", "12.8", "12.8", ["NoTensorCores"]),
        ("7.0", "12.2", "12.4", ["DriverBelowFastKernels", "ImageBelowFastKernels", "NoTensorCores", "NoMachineCode"]),
        ("9.0", "", "12.8", ["DriverBelowFastKernels"]),
    ],
)
def test_every_cause_of_slower_kernels_is_named_with_the_way_out(capability, driver, torch, reasons):
    found = fallbacks(capability, WHEEL_130, driver, torch)
    assert [item.reason for item in found] == reasons
    ways_out = ("use an image", "install one", "choose a newer")
    assert all(any(words in item.message for words in ways_out) for item in found)


def test_a_gpu_that_only_a_compiler_can_serve_is_a_fallback_and_one_that_nothing_serves_a_problem():
    assert gpu_problems("15.0", WHEEL_130, "13.0", "13.0") == []
    [problem] = gpu_problems("15.0", WHEEL_128, "13.0", "12.8")
    assert "sm_150" in problem


def test_check_tells_fallbacks_beside_problems(capsys):
    from octavo_server.check import check

    assert check(as_json=True) in (ExitCode.ENDED, ExitCode.REFUSED)
    told = json.loads(capsys.readouterr().out)
    assert told["fallbacks"] == [f"{item.reason}: {item.message}" for item in fallbacks_here()]


def test_a_gpu_that_cannot_be_used_is_refused_with_the_way_out_and_never_replaced_by_the_cpu(tmp_path, monkeypatch):
    from octavo_server.engine import startup
    from octavo_server.engine.sizes import Refusal

    assert unusable_accelerator(tmp_path) == ""
    (tmp_path / "nvidiactl").touch()
    assert unusable_accelerator(tmp_path) == "", "a driver without a device is none that was given"
    (tmp_path / "nvidia0").touch()
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    fault = unusable_accelerator(tmp_path)
    assert "nvidia0" in fault
    assert "--device CPU" in fault
    monkeypatch.setattr(startup, "unusable_accelerator", lambda: fault)
    with pytest.raises(Refusal, match="nvidia0"):
        startup.choose_device("Auto")
    assert startup.choose_device("CPU").type == "cpu"
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    assert unusable_accelerator(tmp_path) == ""


def test_the_engine_exports_what_makes_its_kernels_slower_and_nothing_on_a_cpu(tiny_model, monkeypatch):
    from octavo_server.config import CacheConfig, EngineConfig, ModelConfig
    from octavo_server.engine import startup
    from octavo_server.metrics import Metrics

    cache = CacheConfig(block_size_tokens=8, pool_bytes=2 * 2 * 16 * 4 * 8 * 65)
    config = EngineConfig(ModelConfig(str(tiny_model)), cache, device="CPU", cpu_threads=1)
    _, ready = startup.start(config, lambda _progress: None)
    assert ready.fallback_reasons == []
    asked: list[str] = []

    def slow(device: str) -> list[Fallback]:
        asked.append(device)
        return [Fallback("NoTensorCores", "an old accelerator")]

    monkeypatch.setattr(startup, "fallbacks_here", slow)
    _, ready = startup.start(config, lambda _progress: None)
    assert asked == ["cpu"]
    assert ready.fallback_reasons == ["NoTensorCores"]
    metrics = Metrics("m")
    metrics.engine_ready(ready)
    assert metrics.registry.get_sample_value("octavo_kernel_fallback", {"reason": "NoTensorCores"}) == 1
