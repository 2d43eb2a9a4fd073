"""Models from a Hub: against a local server that answers huggingface_hub as the real one does."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.server.hub_server import CONFIG, Hub, safetensors


@pytest.fixture(scope="module")
def hub(model_path: Path) -> Iterator[Hub]:
    hub = Hub()
    thread = threading.Thread(target=hub.serve_forever)
    thread.start()
    files = {"config.json": json.dumps(CONFIG).encode(), "model.safetensors": safetensors(CONFIG), "README.md": b"x"}
    hub.repositories = {
        "org/tensors": files,
        "org/private": files,
        "org/one-gguf": {"smol.gguf": model_path.read_bytes(), "README.md": b"x"},
        "org/two-gguf": {"a.gguf": b"GGUF", "b.gguf": b"GGUF"},
        "org/pickle": {"pytorch_model.bin": b"x"},
        "org/odd": {**files, "config.json": json.dumps({**CONFIG, "architectures": ["MambaForCausalLM"]}).encode()},
        "org/broken": {**files, "model.safetensors": b"\xff" * 100},
        "org/damaged": {**files, "config.json": b'{"architectures": ["Llama'},
        "org/many": {f"fp16/{name}": content for name, content in files.items()}
        | {"fp16/config.json": json.dumps({**CONFIG, "num_attention_heads": 0}).encode()},
    }
    hub.private, hub.gated = {"org/private"}, {"org/gated"}
    yield hub
    hub.shutdown()
    thread.join()
    hub.server_close()


def check(cli: Any, hub: Hub, tmp_path: Path, *arguments: str, **variables: str) -> dict[str, Any]:
    """Runs `fetch --check`; its finding, the same on standard output and in the termination message."""
    message = tmp_path / "termination"
    defaults = {"HF_ENDPOINT": hub.url, "HF_HOME": str(tmp_path / "hf"), "OCTAVO_TERMINATION_LOG": str(message)}
    finished = cli("fetch", "--check", *arguments, **{**defaults, **variables})
    found: dict[str, Any] = json.loads(finished.stdout)
    assert json.loads(message.read_text()) == found
    assert finished.returncode == (0 if found["ok"] else 2)
    assert "\n" not in found["message"]
    return found


def test_a_gguf_model_is_described_by_its_header_alone(cli: Any, hub: Hub, tmp_path: Path) -> None:
    before = hub.served_bytes
    found = check(cli, hub, tmp_path, "--model", "hf://org/one-gguf")
    assert (found["reason"], found["format"], found["maxLength"]) == ("ModelFound", "GGUF", 8192)
    assert found["shape"] == {"layers": 30, "queryHeads": 9, "kvHeads": 3, "headSize": 64}
    assert found["sizeBytes"] == len(hub.repositories["org/one-gguf"]["smol.gguf"])
    assert hub.served_bytes - before < 20_000_000


def test_a_safetensors_model_is_described_by_configuration_and_headers(cli: Any, hub: Hub, tmp_path: Path) -> None:
    found = check(cli, hub, tmp_path, "--model", "hf://org/tensors", "--revision", "main")
    assert (found["ok"], found["format"], found["maxLength"]) == (True, "Safetensors", 512)
    assert found["shape"] == {"layers": 2, "queryHeads": 4, "kvHeads": 2, "headSize": 16}


@pytest.mark.parametrize(
    ("arguments", "reason", "said"),
    [
        (["--model", "hf://org/nothing"], "ModelNotFound", "org/nothing"),
        (["--model", "hf://org/tensors", "--revision", "v9"], "ModelNotFound", "v9"),
        (["--model", "hf://org/private"], "AccessDenied", "HF_TOKEN is not set"),
        (["--model", "hf://org/two-gguf"], "FormatUnsupported", "a.gguf"),
        (["--model", "hf://org/pickle"], "FormatUnsupported", "bin"),
        (["--model", "hf://org/odd"], "ArchitectureUnsupported", "Mamba"),
        (["--model", "hf://org/broken"], "ModelUnreadable", "model.safetensors"),
        (["--model", "hf://org/tensors", "--max-length", "513"], "MaxLengthTooLong", "512"),
        (["--model", "hf://org/tensors", "--format", "GGUF"], "FormatUnsupported", ".gguf"),
        (["--model", "hf://a/b/../../c"], "ModelNotFound", "hf://organisation/name"),
        (["--model", "hf://a b/c"], "ModelNotFound", "'a b/c' is no repository"),
        (["--model", "pvc://"], "ModelNotFound", "the claim's name is missing; write pvc://claim/path"),
        (["--model", "pvc://claim/../x"], "ModelNotFound", "leaves the claim; write pvc://claim/path"),
        (["--model", "gs://bucket/model"], "SchemeUnsupported", "gs://"),
        (["--model", "/nowhere"], "ModelNotFound", "/nowhere"),
    ],
)
def test_what_stands_in_the_way_is_told_by_the_contracts_reason(
    cli: Any, hub: Hub, tmp_path: Path, arguments: list[str], reason: str, said: str
) -> None:
    found = check(cli, hub, tmp_path, *arguments)
    assert (found["ok"], found["reason"]) == (False, reason), found["message"]
    assert said in found["message"]


@pytest.mark.parametrize(
    ("model", "said"),
    [
        ("hf://org/damaged", "hf://org/damaged/config.json: damaged, no JSON"),
        ("hf://org/many/fp16", "hf://org/many/fp16/config.json: num_attention_heads is 0"),
    ],
)
def test_a_damaged_configuration_is_told_by_the_models_file_and_not_by_a_copy_of_it(
    cli: Any, hub: Hub, tmp_path: Path, model: str, said: str
) -> None:
    found = check(cli, hub, tmp_path, "--model", model)
    assert (found["ok"], found["reason"]) == (False, "ModelUnreadable"), found
    assert said in found["message"]
    assert "octavo-check-" not in found["message"]


def test_a_token_opens_a_private_model_and_a_wrong_one_is_told_apart(cli: Any, hub: Hub, tmp_path: Path) -> None:
    assert check(cli, hub, tmp_path, "--model", "hf://org/private", HF_TOKEN="hf_right")["ok"]
    found = check(cli, hub, tmp_path, "--model", "hf://org/private", HF_TOKEN="hf_wrong")
    assert found["reason"] == "AccessDenied"
    assert "is refused" in found["message"]


def test_a_hub_that_is_not_there_or_fails_is_unreachable(cli: Any, hub: Hub, tmp_path: Path) -> None:
    found = check(cli, hub, tmp_path, "--model", "hf://org/tensors", HF_ENDPOINT="http://127.0.0.1:9")
    assert found["reason"] == "SourceUnreachable"
    assert "127.0.0.1:9" in found["message"]


@pytest.mark.parametrize("token", ["", "hf_right"])
def test_a_gated_model_says_that_access_must_be_asked_for(cli: Any, hub: Hub, tmp_path: Path, token: str) -> None:
    found = check(cli, hub, tmp_path, "--model", "hf://org/gated", HF_TOKEN=token)
    assert found["reason"] == "AccessDenied"
    assert "access must be asked for on the Hub" in found["message"]


def test_a_hub_that_limits_its_askers_is_waited_for_as_it_asks(cli: Any, hub: Hub, tmp_path: Path) -> None:
    hub.busy, hub.busy_content = ["2"], ["1"]
    begin = time.monotonic()
    assert check(cli, hub, tmp_path, "--model", "hf://org/one-gguf")["ok"]
    assert time.monotonic() - begin > 3, "it was asked again sooner than it wished"
    assert (hub.busy, hub.busy_content) == ([], [])


def test_a_hub_that_asks_for_more_patience_than_a_check_has_is_told_with_the_way_out(
    cli: Any, hub: Hub, tmp_path: Path
) -> None:
    hub.busy = ["300"]
    found = check(cli, hub, tmp_path, "--model", "hf://org/tensors")
    assert found["reason"] == "SourceUnreachable"
    assert "HTTP 429, too many requests; it asks to wait 300 s; with a token" in found["message"]
    assert hub.busy == []


def test_fetch_brings_the_files_into_the_folder_and_does_it_once(cli: Any, hub: Hub, tmp_path: Path) -> None:
    target = tmp_path / "model"
    variables = {"HF_ENDPOINT": hub.url, "HF_HOME": str(tmp_path / "hf")}
    first = cli("fetch", "--model", "hf://org/one-gguf", "--to", str(target), **variables)
    assert first.returncode == 0, first.stderr
    assert "fetched smol.gguf (1 of 1 files" in first.stderr
    assert json.loads(first.stdout)["path"] == str(target / "smol.gguf")
    assert (target / "smol.gguf").read_bytes() == hub.repositories["org/one-gguf"]["smol.gguf"]
    before = hub.served_bytes
    assert cli("fetch", "--model", "hf://org/one-gguf", "--to", str(target), **variables).returncode == 0
    assert hub.served_bytes - before < 100_000
    tensors = tmp_path / "tensors"
    assert cli("fetch", "--model", "hf://org/tensors", "--to", str(tensors), **variables).returncode == 0
    assert sorted(path.name for path in tensors.iterdir() if path.is_file()) == ["config.json", "model.safetensors"]


def test_a_local_model_is_described_in_place(cli: Any, hub: Hub, model_path: Path, tmp_path: Path) -> None:
    for location in (str(model_path), f"file://{model_path}", str(model_path.parent)):
        assert check(cli, hub, tmp_path, "--model", location)["sizeBytes"] > 90_000_000
