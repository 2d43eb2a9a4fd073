"""Describes a model on a Hub without fetching its weights.

The headers of its files are fetched by range and laid into sparse files of the full size; the loaders' own `inspect`
then reads them. So what is proven is what the server will do, and not a second opinion about the format.
"""

from __future__ import annotations

import struct
import tempfile
from dataclasses import replace
from pathlib import Path

from octavo_server.config import FetchConfig
from octavo_server.contract import CheckReason
from octavo_server.fetching.hub import HubModel, find, read_range
from octavo_server.fetching.resolve import describe
from octavo_server.fetching.sources import HubSource
from octavo_server.termination import Refused
from octavo_server.text.gguf_header import GgufError, parse_header
from octavo_server.weights import ModelSpec

_WINDOW_BYTES = 4 * 1024 * 1024
_TENSOR_TABLE_BYTES = 2 * 1024 * 1024
"""More than the list of tensors after a GGUF file's metadata ever takes."""
_MAX_SMALL_FILE_BYTES = 64 * 1024 * 1024
_MAX_SAFETENSORS_HEADER_BYTES = 100 * 1024 * 1024


def describe_remote(place: HubSource, wanted: FetchConfig) -> ModelSpec:
    """The spec of a model on a Hub. Raises Refused with a reason of the wire contract."""
    model = find(place, wanted)
    with tempfile.TemporaryDirectory(prefix="octavo-check-") as folder:
        root = Path(folder) / place.repository.rsplit("/", 1)[-1]
        root.mkdir()
        target = root
        for file, size in model.sizes.items():
            local = root / file.rsplit("/", 1)[-1]
            with local.open("wb") as sparse:
                sparse.truncate(size)
            if file.endswith(".gguf"):
                _copy_gguf_header(place, wanted, model, file, local)
                target = local
            elif file.endswith(".safetensors"):
                _copy_safetensors_header(place, wanted, model, file, local)
            elif size <= _MAX_SMALL_FILE_BYTES and not file.endswith(("tokenizer.json", "vocab.json")):
                local.write_bytes(read_range(place, wanted, model, file, 0, max(size, 1)))
        spec, _ = describe(target, wanted.format)
        return replace(spec, size_bytes=model.size_bytes)


def _copy_gguf_header(place: HubSource, wanted: FetchConfig, model: HubModel, file: str, local: Path) -> None:
    stream = _Window(place, wanted, model, file, local)
    try:
        parse_header(stream, name=file)
    except GgufError as error:
        raise Refused(CheckReason.MODEL_UNREADABLE, f"model {wanted.model}: {error}") from error
    stream.read(_TENSOR_TABLE_BYTES)


def _copy_safetensors_header(place: HubSource, wanted: FetchConfig, model: HubModel, file: str, local: Path) -> None:
    stream = _Window(place, wanted, model, file, local, window=64 * 1024)
    first = stream.read(8)
    length = struct.unpack("<Q", first)[0] if len(first) == 8 else 0
    if not 2 <= length <= min(_MAX_SAFETENSORS_HEADER_BYTES, model.sizes[file]):
        raise Refused(CheckReason.MODEL_UNREADABLE, f"model {wanted.model}: {file} has no safetensors header")
    stream.read(length)


class _Window:
    """Reads a remote file from its front, some MiB at a time, and writes what it saw into the sparse local file."""

    def __init__(
        self,
        place: HubSource,
        wanted: FetchConfig,
        model: HubModel,
        file: str,
        local: Path,
        *,
        window: int = _WINDOW_BYTES,
    ) -> None:
        self._source = (place, wanted, model, file)
        self._local = local
        self._size = model.sizes[file]
        self._window = window
        self._data = b""
        self._position = 0
        self._fetched = 0

    def read(self, size: int, /) -> bytes:
        while len(self._data) - self._position < size and self._fetched < self._size:
            self._fetch(max(self._window, size - (len(self._data) - self._position)))
        piece = self._data[self._position : self._position + size]
        self._position += len(piece)
        return piece

    def _fetch(self, size: int) -> None:
        size = min(size, self._size - self._fetched)
        more = read_range(*self._source, self._fetched, size)
        if not more:
            raise Refused(CheckReason.MODEL_UNREADABLE, f"model {self._source[1].model}: {self._source[3]} is cut off")
        with self._local.open("r+b") as sparse:
            sparse.seek(self._fetched)
            sparse.write(more)
        self._data = self._data[self._position :] + more
        self._position = 0
        self._fetched += len(more)
