"""Describes a model at its source without fetching its weights.

The headers of its files are fetched by range and laid into sparse files of the full size; the loaders' own `inspect`
then reads them. So what is proven is what the server will do, and not a second opinion about the format.
"""

from __future__ import annotations

import struct
import tempfile
import time
from dataclasses import replace
from pathlib import Path

from octavo_server.contract import CheckReason
from octavo_server.fetching.origin import Interrupted, Origin, RemoteFile, size_bytes
from octavo_server.fetching.resolve import describe
from octavo_server.termination import Refused
from octavo_server.text.gguf_header import GgufError, parse_header
from octavo_server.weights import ModelSpec

_WINDOW_BYTES = 4 * 1024 * 1024
_TENSOR_TABLE_BYTES = 2 * 1024 * 1024
"""More than the list of tensors after a GGUF file's metadata ever takes."""
_TRIES = 4
_LONGEST_WAIT_SECONDS = 5.0
"""That a source which limits its askers is waited for between two tries."""
_MAX_SMALL_FILE_BYTES = 64 * 1024 * 1024
_MAX_SAFETENSORS_HEADER_BYTES = 100 * 1024 * 1024


def describe_remote(origin: Origin, format: str) -> ModelSpec:
    """The spec of a model at its source. Raises Refused with a reason of the wire contract."""
    with tempfile.TemporaryDirectory(prefix="octavo-check-") as folder:
        root = Path(folder) / origin.name.rsplit("/", 1)[-1]
        root.mkdir()
        target = root
        for file in origin.files:
            local = root / file.name
            with local.open("wb") as sparse:
                sparse.truncate(file.size_bytes)
            if file.name.endswith(".gguf"):
                _copy_gguf_header(origin, file, local)
                target = local
            elif file.name.endswith(".safetensors"):
                _copy_safetensors_header(origin, file, local)
            elif file.size_bytes <= _MAX_SMALL_FILE_BYTES and not file.name.endswith(("tokenizer.json", "vocab.json")):
                local.write_bytes(read_range(origin, file, 0, file.size_bytes))
        try:
            spec, _ = describe(target, format)
        except Refused as refused:
            raise Refused(refused.reason, _at_the_source(refused.message, target, root, origin.location)) from None
        return replace(spec, size_bytes=size_bytes(origin.files))


def _at_the_source(message: str, target: Path, root: Path, location: str) -> str:
    """A finding about the copy here, told of the file that it was made of."""
    if location.endswith(f"/{target.name}"):
        message = message.replace(str(target), location)
    return message.replace(str(root), location.rstrip("/"))


def read_range(origin: Origin, file: RemoteFile, start: int, size: int) -> bytes:
    """Bytes of a remote file; fewer where it ends. Raises Refused."""
    data, fruitless, asked = b"", 0, 0.0
    while len(data) < min(size, file.size_bytes - start):
        before, asked = len(data), 0.0
        try:
            with origin.open(file, start + len(data), min(size, file.size_bytes - start) - len(data)) as pieces:
                for piece in pieces:
                    data += piece
                    if len(data) >= size:
                        break
        except Interrupted as error:
            why, asked = str(error), error.wait_seconds
        else:
            why = "the connection ended early"
        fruitless = 0 if len(data) > before else fruitless + 1
        if fruitless >= _TRIES:
            message = f"model {origin.location}: {file.name} can't be read ({why})"
            raise Refused(CheckReason.SOURCE_UNREACHABLE, message)
        if fruitless:
            time.sleep(max(0.2 * fruitless, min(asked, _LONGEST_WAIT_SECONDS)))
    return data[:size]


def _copy_gguf_header(origin: Origin, file: RemoteFile, local: Path) -> None:
    stream = _Window(origin, file, local)
    try:
        parse_header(stream, name=file.name)
    except GgufError as error:
        raise Refused(CheckReason.MODEL_UNREADABLE, f"model {origin.location}: {error}") from error
    stream.read(_TENSOR_TABLE_BYTES)


def _copy_safetensors_header(origin: Origin, file: RemoteFile, local: Path) -> None:
    stream = _Window(origin, file, local, window=64 * 1024)
    first = stream.read(8)
    length = struct.unpack("<Q", first)[0] if len(first) == 8 else 0
    if not 2 <= length <= min(_MAX_SAFETENSORS_HEADER_BYTES, file.size_bytes):
        message = f"model {origin.location}: {file.name} has no safetensors header"
        raise Refused(CheckReason.MODEL_UNREADABLE, message)
    stream.read(length)


class _Window:
    """Reads a remote file from its front, some MiB at a time, and writes what it saw into the sparse local file."""

    def __init__(self, origin: Origin, file: RemoteFile, local: Path, *, window: int = _WINDOW_BYTES) -> None:
        self._origin, self._file, self._local, self._window = origin, file, local, window
        self._data = b""
        self._position = 0
        self._fetched = 0

    def read(self, size: int, /) -> bytes:
        while len(self._data) - self._position < size and self._fetched < self._file.size_bytes:
            self._fetch(max(self._window, size - (len(self._data) - self._position)))
        piece = self._data[self._position : self._position + size]
        self._position += len(piece)
        return piece

    def _fetch(self, size: int) -> None:
        more = read_range(self._origin, self._file, self._fetched, min(size, self._file.size_bytes - self._fetched))
        with self._local.open("r+b") as sparse:
            sparse.seek(self._fetched)
            sparse.write(more)
        self._data = self._data[self._position :] + more
        self._position = 0
        self._fetched += len(more)
