"""Models from a Hub: against a local server that answers huggingface_hub as the real one does."""

from __future__ import annotations

import hashlib
import json
import struct
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

COMMIT = "0123456789abcdef0123456789abcdef01234567"
CONFIG = {
    "architectures": ["LlamaForCausalLM"], "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 100, "max_position_embeddings": 512,
    "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "hidden_act": "silu", "torch_dtype": "float32",
    "tie_word_embeddings": True,
}  # fmt: skip


class Hub(ThreadingHTTPServer):
    """Repositories by name, each a map of file to content; private ones want a token."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.repositories: dict[str, dict[str, bytes]] = {}
        self.private: set[str] = set()
        self.served_bytes = 0
        self.failing = False

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"


class Handler(BaseHTTPRequestHandler):
    """The three routes that matter: model information, file metadata (redirecting) and file content."""

    server: Hub
    protocol_version = "HTTP/1.1"

    def log_message(self, *_: Any) -> None:
        """Quiet."""

    def do_HEAD(self) -> None:
        self.answer(with_body=False)

    def do_GET(self) -> None:
        self.answer(with_body=True)

    def answer(self, *, with_body: bool) -> None:
        if self.server.failing:
            self.reply(500, b"", with_body)
            return
        path = self.path.partition("?")[0].strip("/")
        if path.startswith("cdn/"):
            _, owner, name, file = path.split("/", 3)
            self.content(self.server.repositories[f"{owner}/{name}"][file], with_body)
            return
        parts = path.removeprefix("api/models/").split("/")
        repository = "/".join(parts[:2])
        authorised = self.headers.get("authorization") == "Bearer hf_right"
        if repository in self.server.private and not authorised:
            self.reply(401, b"", with_body, {"X-Error-Code": "RepoNotFound", "X-Error-Message": "Invalid username"})
        elif repository not in self.server.repositories:
            self.reply(404, b"", with_body, {"X-Error-Code": "RepoNotFound"})
        elif path.startswith("api/models/"):
            if parts[2:3] == ["revision"] and parts[3] not in ("main", COMMIT):
                self.reply(404, b"", with_body, {"X-Error-Code": "RevisionNotFound"})
                return
            siblings = [{"rfilename": file, "size": len(data)} for file, data in self.files(repository).items()]
            body = json.dumps({"id": repository, "modelId": repository, "sha": COMMIT, "siblings": siblings})
            self.reply(200, body.encode(), with_body, {"Content-Type": "application/json"})
        else:
            self.resolve(repository, "/".join(parts[4:]), with_body)

    def files(self, repository: str) -> dict[str, bytes]:
        return self.server.repositories[repository]

    def resolve(self, repository: str, file: str, with_body: bool) -> None:
        data = self.files(repository).get(file)
        if data is None:
            self.reply(404, b"", with_body, {"X-Error-Code": "EntryNotFound"})
            return
        digest = hashlib.sha256(data).hexdigest()
        headers = {"X-Repo-Commit": COMMIT, "ETag": f'"{digest}"'}
        if file.endswith((".gguf", ".safetensors")):
            linked = {"X-Linked-Size": str(len(data)), "X-Linked-ETag": f'"{digest}"'}
            # Another host, as on the real Hub: redirects to the same one are followed before the metadata is read.
            place = {"Location": f"http://localhost:{self.server.server_port}/cdn/{repository}/{file}"}
            self.reply(302, b"", with_body, {**headers, **linked, **place})
        else:
            self.content(data, with_body, headers)

    def content(self, data: bytes, with_body: bool, headers: dict[str, str] | None = None) -> None:
        ranged = self.headers.get("range")
        if ranged:
            first, _, last = ranged.removeprefix("bytes=").partition("-")
            end = min(int(last) if last else len(data) - 1, len(data) - 1)
            extra = {"Content-Range": f"bytes {first}-{end}/{len(data)}"}
            self.reply(206, data[int(first) : end + 1], with_body, {**(headers or {}), **extra})
        else:
            self.reply(200, data, with_body, {"ETag": f'"{hashlib.sha256(data).hexdigest()}"', **(headers or {})})

    def reply(self, status: int, body: bytes, with_body: bool, headers: dict[str, str] | None = None) -> None:
        self.send_response(status)
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if with_body:
            self.server.served_bytes += len(body)
            self.wfile.write(body)


def safetensors(config: dict[str, Any]) -> bytes:
    """A file whose header names a model's tensors; its content is zeros."""
    hidden, rows = config["hidden_size"], config["vocab_size"]
    tensors, offset = {}, 0
    names = {"model.embed_tokens.weight": [rows, hidden], "model.norm.weight": [hidden]}
    for name, shape in names.items():
        size = 4 * shape[0] * (shape[1] if len(shape) > 1 else 1)
        tensors[name] = {"dtype": "F32", "shape": shape, "data_offsets": [offset, offset + size]}
        offset += size
    header = json.dumps(tensors).encode()
    return struct.pack("<Q", len(header)) + header + bytes(offset)


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
    }
    hub.private = {"org/private"}
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
        (["--model", "s3://bucket/model"], "SchemeUnsupported", "s3://"),
        (["--model", "/nowhere"], "ModelNotFound", "/nowhere"),
    ],
)
def test_what_stands_in_the_way_is_told_by_the_contracts_reason(
    cli: Any, hub: Hub, tmp_path: Path, arguments: list[str], reason: str, said: str
) -> None:
    found = check(cli, hub, tmp_path, *arguments)
    assert (found["ok"], found["reason"]) == (False, reason), found["message"]
    assert said in found["message"]


def test_a_token_opens_a_private_model_and_a_wrong_one_is_told_apart(cli: Any, hub: Hub, tmp_path: Path) -> None:
    assert check(cli, hub, tmp_path, "--model", "hf://org/private", HF_TOKEN="hf_right")["ok"]
    found = check(cli, hub, tmp_path, "--model", "hf://org/private", HF_TOKEN="hf_wrong")
    assert found["reason"] == "AccessDenied"
    assert "is refused" in found["message"]


def test_a_hub_that_is_not_there_or_fails_is_unreachable(cli: Any, hub: Hub, tmp_path: Path) -> None:
    found = check(cli, hub, tmp_path, "--model", "hf://org/tensors", HF_ENDPOINT="http://127.0.0.1:9")
    assert found["reason"] == "SourceUnreachable"
    assert "127.0.0.1:9" in found["message"]


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
