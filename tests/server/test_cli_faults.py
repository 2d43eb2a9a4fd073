"""Every wrong start ends with one clear line, exit code 2 and a termination message."""

from __future__ import annotations

import json
import socket
from pathlib import Path
from typing import Any

import pytest
from octavo_server import options
from octavo_server.__main__ import build_parser
from octavo_server.bench import options as bench_options
from octavo_server.contract import OPERATOR_FLAGS
from octavo_server.flags import resolve
from octavo_server.termination import Refused, fit


def one_line(finished: Any, *parts: str) -> None:
    assert finished.returncode == 2, finished.stderr
    lines = finished.stderr.strip().splitlines()
    assert len(lines) == 1, finished.stderr
    for part in parts:
        assert part in lines[0]


@pytest.mark.parametrize(
    ("arguments", "parts"),
    [
        ([], ["a command is missing"]),
        (["bake"], ["bake"]),
        (["serve"], ["--model", "OCTAVO_MODEL"]),
        (["serve", "--model", "/nowhere"], ["/nowhere", "no such file or folder"]),
        (["serve", "--model", "ftp://x/y"], ["ftp://", "hf://"]),
        (["serve", "--model", "file://relative"], ["file:///"]),
        (["serve", "--model", "x", "--modell", "y"], ["--modell", "serve --help"]),
        (["serve", "--model", "x", "--block-size", "7"], ["--block-size", "7", "8, 16, 32"]),
        (["serve", "--model", "x", "--dtype", "float12"], ["--dtype", "float12", "BFloat16"]),
        (["serve", "--model", "x", "--port", "70000"], ["--port", "70000", "65535"]),
        (["serve", "--model", "x", "--port", "http"], ["--port", "http", "whole number"]),
        (["serve", "--model", "x", "--memory-percent", "0"], ["--memory-percent", "1 to 100"]),
        (["serve", "--model", "x", "--config", "/nowhere.yaml"], ["/nowhere.yaml"]),
        (["serve", "--model", "x", "--chat-template", "/nowhere.jinja"], ["--chat-template", "/nowhere.jinja"]),
        (["fetch", "--model", "/nowhere"], ["/nowhere"]),
    ],
)
def test_a_wrong_start_ends_with_one_line_that_names_the_fault(
    cli: Any, arguments: list[str], parts: list[str]
) -> None:
    one_line(cli(*arguments), *parts)


def test_a_mistyped_file_name_is_told_with_what_lies_beside_it(cli: Any, tmp_path: Path) -> None:
    (tmp_path / "model-q4.gguf").touch()
    asked = tmp_path / "model-q5.gguf"
    one_line(
        cli("serve", "--model", str(asked)), f"model {asked}: no such file or folder; beside it lie: model-q4.gguf"
    )


def test_a_wrong_variable_is_named_and_a_flag_wins_over_it(cli: Any) -> None:
    one_line(cli("serve", "--model", "/nowhere", OCTAVO_BLOCK_SIZE="9"), "OCTAVO_BLOCK_SIZE", "9")
    one_line(cli("serve", "--model", "/nowhere", "--block-size", "8", OCTAVO_BLOCK_SIZE="9"), "/nowhere")


def test_too_long_a_length_an_occupied_port_and_a_broken_file_are_refused_with_a_termination_message(
    cli: Any, model_path: Path, tmp_path: Path
) -> None:
    message = tmp_path / "termination"
    variables = {"OCTAVO_TERMINATION_LOG": str(message)}
    model = ("serve", "--model", str(model_path), "--host", "127.0.0.1")
    one_line(cli(*model, "--max-length", "8193", "--port", "1024", **variables), "8193", "8192")
    assert json.loads(message.read_text())["reason"] == "MaxLengthTooLong"
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        one_line(cli(*model, "--port", port, **variables), port, "already in use", "--port")
    assert json.loads(message.read_text())["reason"] == "AddressUnavailable"
    one_line(cli("serve", "--model", str(model_path), "--host", "no.such.host.invalid"), "--host", "no.such.host")
    broken = tmp_path / "broken.gguf"
    broken.write_bytes(model_path.read_bytes()[:100_000])
    one_line(cli("serve", "--model", str(broken), "--host", "127.0.0.1", **variables), "broken.gguf")
    assert json.loads(message.read_text())["reason"] == "ModelUnreadable"


@pytest.mark.parametrize(
    ("flags", "parts"),
    [
        (["--quantization", "FP8"], ["--quantization FP8", "cpu", "None or Int8"]),
        (["--kv-dtype", "FP8"], ["--kv-dtype FP8", "cpu", "Float32"]),
        (["--tensor-parallel", "2"], ["2"]),
    ],
)
def test_what_only_the_engine_can_refuse_is_told_once_as_the_last_line(
    cli: Any, model_path: Path, tmp_path: Path, flags: list[str], parts: list[str]
) -> None:
    message = tmp_path / "termination"
    finished = cli(
        "serve",
        *("--model", str(model_path), "--host", "127.0.0.1", "--device", "CPU", *flags),
        OCTAVO_TERMINATION_LOG=str(message),
    )
    assert finished.returncode == 2, finished.stderr
    told = [line for line in finished.stderr.splitlines() if " INFO " not in line]
    assert len(told) == 1, finished.stderr
    assert finished.stderr.strip().endswith(told[0])
    for part in parts:
        assert part in told[0]
    assert json.loads(message.read_text())["message"] in told[0]


def test_settings_come_from_flag_then_environment_then_file_then_default(tmp_path: Path) -> None:
    file = tmp_path / "settings.yaml"
    file.write_text("model: from-file\nmax-length: 100\nblock_size: 32\ndevice: cpu\n")

    def values(flags: dict[str, str], **environment: str) -> dict[str, Any]:
        return resolve(options.SERVE, flags, environment, str(file))

    found = values({"max_length": "300"}, OCTAVO_MAX_LENGTH="200", OCTAVO_BLOCK_SIZE="64", OCTAVO_API_KEY="k")
    assert (found["max_length"], found["block_size"], found["model"]) == (300, 64, "from-file")
    assert (found["device"], found["api_key"], found["port"]) == ("CPU", "k", 8000)
    config = options.serve_config(found)
    assert (config.engine.cache.block_size_tokens, config.engine.device) == (64, "CPU")
    assert "k" not in repr(config.api).replace("api_key", "").split("chat_template")[0]
    file.write_text("modell: x\n")
    with pytest.raises(Refused, match="'modell'"):
        values({})
    file.write_text("- x\n")
    with pytest.raises(Refused, match="one mapping"):
        values({})


def test_help_shows_every_setting_with_its_default_and_the_operators_flags_are_all_there(cli: Any) -> None:
    shown = cli("serve", "--help")
    assert shown.returncode == 0
    for option in options.SERVE:
        assert option.secret or f"--{option.name}" in shown.stdout
        assert option.secret or option.help.split()[0] in shown.stdout
    for flag in OPERATOR_FLAGS:
        assert flag in shown.stdout
    assert "OCTAVO_API_KEY" in shown.stdout
    assert cli("--version").stdout.startswith("octavo-server ")


def test_the_documentation_of_the_flags_is_what_the_parser_says() -> None:
    text = (Path(__file__).parents[2] / "docs/reference/server-flags.md").read_text()
    for command in (options.SERVE, options.FETCH, options.CALIBRATE, *bench_options.TABLES.values()):
        for option in command:
            row = options.documentation_row(option)
            assert row in text, f"missing or outdated; the row should be: {row}"
    assert build_parser().prog in text


def test_a_long_reason_still_fits_the_kubelets_limit() -> None:
    for text in ("x" * 10_000, "世界" * 5_000, '"\\' * 4_000):
        written = fit({"reason": "R", "message": text})
        assert len(written.encode()) <= 4096
        assert json.loads(written)["message"][:20] == text[:20]


def test_check_tells_the_machine_as_text_and_as_json(cli: Any) -> None:
    found = json.loads(cli("check", "--json").stdout)
    assert found["kernels"] in ("CPU", "Triton")
    assert found["problems"] == []
    assert set(found) >= {"device", "driver", "torch", "triton", "cpu_features"}
    assert "kernels" in cli("check").stdout


def test_a_gpu_that_is_older_or_newer_than_the_image_is_named_with_the_remedy() -> None:
    from octavo_server.check import gpu_problems

    assert gpu_problems("9.0", ["sm_80", "sm_90"], "13.0", "12.8") == []
    assert gpu_problems("8.6", ["sm_80", "sm_90"], "12.4", "12.8") == []
    (problem,) = gpu_problems("7.0", ["sm_80", "sm_90"], "13.0", "12.8")
    assert "sm_70" in problem
    assert "image" in problem
    (problem,) = gpu_problems("9.0", ["sm_90"], "12.4", "13.0")
    assert "12.4" in problem
    assert "13.0" in problem
