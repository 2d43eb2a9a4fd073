"""Model files: what lies in them, and their tensors one by one.

`inspect` describes a model without reading a tensor and without torch; `open_model` gives a source of tensors under
the names that models/decoder.py asks for: `embed`, `final_norm`, `head`, `rope_factors`, and for each layer i
`layers.i.` + `attention_norm`, `q`, `k`, `v`, `o`, `mlp_norm`, `gate`, `up`, `down`, each matrix also with `_bias`.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from octavo_server.weights.four_bit import FourBitWeight
from octavo_server.weights.gguf_model import GGUFModel
from octavo_server.weights.safetensors_model import SafetensorsModel
from octavo_server.weights.spec import ModelError, ModelSpec, RopeSpec

if TYPE_CHECKING:
    import torch

__all__ = ["FourBitWeight", "ModelError", "ModelSource", "ModelSpec", "RopeSpec", "find_model", "inspect", "open_model"]


class ModelSource(Protocol):
    """Tensors of one model, read when asked for and not kept."""

    spec: ModelSpec

    def has(self, name: str) -> bool:
        """Whether the files hold this tensor."""

    def tensor(self, name: str) -> torch.Tensor:
        """The tensor in a float dtype, matrices as `[out, in]`; ModelError when missing or damaged."""

    def four_bit(self, name: str) -> FourBitWeight | None:
        """The matrix as a 4-bit file holds it, or None."""


def inspect(path: str, format: str = "Auto") -> ModelSpec:
    """The spec of the model at `path`, from headers alone. Raises ModelError (reason of the wire contract, message)."""
    return open_model(path, format).spec


def open_model(path: str, format: str = "Auto") -> ModelSource:
    """Opens a GGUF file or a safetensors folder; `format` (Auto, Safetensors, GGUF) forbids the other one."""
    found, kind = find_model(path, format)
    return GGUFModel(found) if kind == "GGUF" else SafetensorsModel(found)


def find_model(path: str, format: str = "Auto") -> tuple[Path, str]:
    """The file or folder to read and its format, `GGUF` or `Safetensors`; a folder may hold its one GGUF file."""
    place, wanted = Path(path), format.lower()
    if wanted not in ("auto", "gguf", "safetensors"):
        raise ModelError("FormatUnsupported", f"format {format}: not one of Auto, Safetensors, GGUF")
    if not place.exists():
        raise ModelError("ModelNotFound", f"model {path}: no such file or folder")
    if place.is_file():
        if wanted == "safetensors":
            raise ModelError("FormatUnsupported", f"model {path}: a file, but format Safetensors needs a folder")
        return place, "GGUF"
    try:
        tensors, ggufs = sorted(place.glob("*.safetensors")), sorted(place.glob("*.gguf"))
    except OSError as error:
        raise ModelError("ModelUnreadable", f"model {path}: {error}") from error
    if tensors and wanted != "gguf" and (place / "config.json").exists():
        return place, "Safetensors"
    if ggufs and wanted != "safetensors":
        if len(ggufs) > 1:
            names = ", ".join(file.name for file in ggufs)
            raise ModelError("FormatUnsupported", f"model {path}: holds several GGUF files ({names}); name one of them")
        return ggufs[0], "GGUF"
    needed = {"gguf": "a .gguf file", "safetensors": "config.json and .safetensors files"}
    needs = needed.get(wanted, " or ".join(needed.values()))
    raise ModelError("ModelNotFound", f"model {path}: the folder lacks {needs}")
