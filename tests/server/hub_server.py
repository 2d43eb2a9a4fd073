"""A server that answers huggingface_hub as the real Hub does: redirects, ranges, tokens, and what goes wrong."""

from __future__ import annotations

import hashlib
import json
import socket
import struct
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

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
        self.gated: set[str] = set()
        """These want a token of somebody who was let in; nobody here was."""
        self.busy: list[str] = []
        """So many answers are 429, each with this Retry-After."""
        self.busy_content: list[str] = []
        """The same for answers of the content server alone."""
        self.served_bytes = 0
        self.failing = False
        self.breaks_after: list[int] = []
        """Each number ends one answer of the content server after so many bytes."""
        self.corrupts = 0
        """So many answers of the content server have one wrong byte."""
        self.knows_ranges = True
        self.slow_seconds = 0.0
        """Between two pieces of 64 KiB."""
        self.requests: list[tuple[str, str, str]] = []
        """(path, authorization, range) of each request for content."""
        self.lock = threading.Lock()
        self.stopping = threading.Event()

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
        with self.server.lock:
            busy = self.server.busy or (self.server.busy_content if path.startswith("cdn/") else [])
            wait = busy.pop(0) if busy else ""
        if wait:
            self.reply(429, b"", with_body, {"Retry-After": wait})
            return
        if path.startswith("cdn/"):
            _, owner, name, file = path.split("/", 3)
            told = (path, self.headers.get("authorization", ""), self.headers.get("range", ""))
            with self.server.lock:
                self.server.requests.append(told)
            self.content(self.server.repositories[f"{owner}/{name}"][file], with_body)
            return
        parts = path.removeprefix("api/models/").split("/")
        repository = "/".join(parts[:2])
        authorised = self.headers.get("authorization") == "Bearer hf_right"
        if repository in self.server.gated:
            told = {"X-Error-Code": "GatedRepo", "X-Error-Message": "Access to this model is restricted"}
            self.reply(403 if self.headers.get("authorization") else 401, b"", with_body, told)
        elif repository in self.server.private and not authorised:
            self.reply(401, b"", with_body, {"X-Error-Code": "RepoNotFound", "X-Error-Message": "Invalid username"})
        elif repository not in self.server.repositories:
            self.reply(404, b"", with_body, {"X-Error-Code": "RepoNotFound"})
        elif path.startswith("api/models/"):
            if parts[2:3] == ["revision"] and parts[3] not in ("main", COMMIT):
                self.reply(404, b"", with_body, {"X-Error-Code": "RevisionNotFound"})
                return
            siblings = [_sibling(file, data) for file, data in self.files(repository).items()]
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
        if ranged and self.server.knows_ranges:
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
            self.send(status, body)

    def send(self, status: int, body: bytes) -> None:
        with self.server.lock:
            is_content = self.path.startswith("/cdn/")
            cut = self.server.breaks_after.pop(0) if is_content and self.server.breaks_after else len(body)
            if is_content and self.server.corrupts and len(body) > 100:
                self.server.corrupts -= 1
                body = body[:50] + bytes([body[50] ^ 1]) + body[51:]
        for start in range(0, min(cut, len(body)), 65536):
            piece = body[start : min(start + 65536, cut)]
            self.wfile.write(piece)
            with self.server.lock:
                self.server.served_bytes += len(piece)
            if self.server.slow_seconds:
                self.server.stopping.wait(self.server.slow_seconds)
        if cut < len(body):
            self.wfile.flush()
            self.connection.shutdown(socket.SHUT_RDWR)
            self.close_connection = True


def _sibling(file: str, data: bytes) -> dict[str, Any]:
    """As the Hub tells a file: large ones by SHA-256, the others by git's name."""
    name = hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()
    told: dict[str, Any] = {"rfilename": file, "size": len(data), "blobId": name}
    if file.endswith((".gguf", ".safetensors")):
        digest = hashlib.sha256(data).hexdigest()
        told["lfs"] = {"sha256": digest, "size": len(data), "pointerSize": 134}
    return told


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
