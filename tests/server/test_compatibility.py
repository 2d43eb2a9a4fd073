"""The server asks again what the operator asked of labels: whether the fast kernels are promised here."""

from __future__ import annotations

import json

import pytest
from octavo_server.check import gpu_problems
from octavo_server.compatibility import fallbacks, fallbacks_here, has_machine_code
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
        ("7.0", "12.2", "12.4", ["DriverBelowFastKernels", "ImageBelowFastKernels", "NoMachineCode"]),
        ("9.0", "", "12.8", ["DriverBelowFastKernels"]),
    ],
)
def test_every_cause_of_slower_kernels_is_named_with_the_way_out(capability, driver, torch, reasons):
    found = fallbacks(capability, WHEEL_130, driver, torch)
    assert [item.reason for item in found] == reasons
    assert all("use an image" in item.message or "install one" in item.message for item in found)


def test_a_gpu_that_only_a_compiler_can_serve_is_a_fallback_and_one_that_nothing_serves_a_problem():
    assert gpu_problems("15.0", WHEEL_130, "13.0", "13.0") == []
    [problem] = gpu_problems("15.0", WHEEL_128, "13.0", "12.8")
    assert "sm_150" in problem


def test_check_tells_fallbacks_beside_problems(capsys):
    from octavo_server.check import check

    assert check(as_json=True) in (ExitCode.ENDED, ExitCode.REFUSED)
    told = json.loads(capsys.readouterr().out)
    assert told["fallbacks"] == [f"{item.reason}: {item.message}" for item in fallbacks_here()]
