"""The header of a GGUF file: metadata and tensor places, read through a memory map.

The `gguf` package's reader builds a Python object per token of the vocabulary (seconds for a large one); a server
needs a dozen numbers, so arrays are skipped here and read on demand. Layout after the GGUF specification, version 3
(ggml repository, docs/gguf.md); the block formats themselves come from the `gguf` package.
"""

from __future__ import annotations

import mmap
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from octavo_server.weights.spec import ModelError

_SCALARS = {0: "<B", 1: "<b", 2: "<H", 3: "<h", 4: "<I", 5: "<i", 6: "<f", 7: "<?", 10: "<Q", 11: "<q", 12: "<d"}
_STRING, _ARRAY = 8, 9
_DEFAULT_ALIGNMENT = 32


@dataclass(frozen=True)
class TensorPlace:
    """Where a tensor lies: shape in rows-first order, block format by its ggml number, offset from the file's start."""

    shape: tuple[int, ...]
    kind: int
    offset: int
    size_bytes: int


class GGUFFile:
    """Metadata (arrays left out) and tensor places of one file. Raises ModelError for a file that is damaged."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            with path.open("rb") as file:
                self._map = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        except (OSError, ValueError) as error:
            raise ModelError("ModelUnreadable", f"model file {path}: {error}") from error
        self._at = 0
        self.metadata: dict[str, Any] = {}
        self.tensors: dict[str, TensorPlace] = {}
        try:
            self._read_header()
        except (struct.error, ValueError, TypeError, KeyError, ArithmeticError, MemoryError, RecursionError) as error:
            words = f"model file {path}: damaged or cut off GGUF header ({error}); fetch the file again"
            raise ModelError("ModelUnreadable", words) from error

    def data(self, place: TensorPlace) -> npt.NDArray[np.uint8]:
        """The bytes of a tensor, uint8 `[rows…, bytes per row]`, a view of the map."""
        flat = np.frombuffer(self._map, dtype=np.uint8, count=place.size_bytes, offset=place.offset)
        return flat.reshape(*place.shape[:-1], -1)

    def _read_header(self) -> None:
        if self._map[:4] != b"GGUF":
            raise ModelError(
                "FormatUnsupported", f"model file {self.path}: no GGUF file (its first bytes say otherwise)"
            )
        self._at = 4
        version = self._scalar(4)
        if version not in (2, 3):
            raise ModelError(
                "FormatUnsupported", f"model file {self.path}: GGUF version {version}; versions 2 and 3 work"
            )
        tensor_count, entry_count = self._scalar(10), self._scalar(10)
        for _ in range(entry_count):
            key = self._string()
            value = self._value(self._scalar(4))
            if value is not None:
                self.metadata[key] = value
        infos = []
        for _ in range(tensor_count):
            name = self._string()
            shape = tuple(self._scalar(10) for _ in range(self._scalar(4)))
            infos.append((name, shape[::-1], self._scalar(4), self._scalar(10)))
        alignment = int(self.metadata.get("general.alignment", _DEFAULT_ALIGNMENT))
        start = -(-self._at // alignment) * alignment
        for name, dims, kind, offset in infos:
            self.tensors[name] = self._place(name, dims, kind, start + offset)

    def _place(self, name: str, shape: tuple[int, ...], kind: int, offset: int) -> TensorPlace:
        from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType

        try:
            block, block_bytes = GGML_QUANT_SIZES[GGMLQuantizationType(kind)]
        except (KeyError, ValueError):
            raise ModelError(
                "FormatUnsupported", f"model file {self.path}: tensor {name} has unknown type {kind}"
            ) from None
        elements = 1
        for size in shape:
            elements *= size
        size_bytes = elements // block * block_bytes
        if offset + size_bytes > len(self._map):
            raise ModelError(
                "ModelUnreadable",
                f"model file {self.path}: tensor {name} ends at byte {offset + size_bytes}, the file at "
                f"{len(self._map)}; fetch the file again",
            )
        return TensorPlace(shape, kind, offset, size_bytes)

    def _scalar(self, kind: int) -> Any:
        code = _SCALARS[kind]
        (value,) = struct.unpack_from(code, self._map, self._at)
        self._at += struct.calcsize(code)
        return value

    def _string(self) -> str:
        length = self._scalar(10)
        self._at += length
        return self._map[self._at - length : self._at].decode()

    def _value(self, kind: int) -> Any:
        """One metadata value; None for an array, which is passed over."""
        if kind == _STRING:
            return self._string()
        if kind != _ARRAY:
            return self._scalar(kind)
        item_kind, count = self._scalar(4), self._scalar(10)
        if item_kind == _STRING:
            view, unpack, at, end = self._map, struct.Struct("<Q").unpack_from, self._at, len(self._map)
            for _ in range(count):
                at += 8 + unpack(view, at)[0]
                if at > end:
                    raise struct.error("array beyond the end of the file")
            self._at = at
        elif item_kind == _ARRAY:
            for _ in range(count):
                self._value(_ARRAY)
        else:
            self._at += struct.calcsize(_SCALARS[item_kind]) * count
        return None
