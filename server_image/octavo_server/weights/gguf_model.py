"""A model in one GGUF file: its spec from the metadata, its tensors under our names."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from octavo_server.weights.four_bit import Q4_0, Q4_1, FourBitWeight, unpack
from octavo_server.weights.gguf_file import GGUFFile
from octavo_server.weights.spec import ModelError, ModelSpec, RopeSpec, unsupported

if TYPE_CHECKING:
    import torch

_NAMES = {
    "embed": "token_embd.weight",
    "final_norm": "output_norm.weight",
    "head": "output.weight",
    "rope_factors": "rope_freqs.weight",
}
_LAYER_NAMES = {
    "attention_norm": "attn_norm",
    "q": "attn_q",
    "k": "attn_k",
    "v": "attn_v",
    "o": "attn_output",
    "mlp_norm": "ffn_norm",
    "gate": "ffn_gate",
    "up": "ffn_up",
    "down": "ffn_down",
}
_ARCHITECTURES = ("llama", "qwen2")
_FLOAT_TYPES = {0: "Float32", 1: "Float16", 30: "BFloat16"}


class GGUFModel:
    """Reads tensors one at a time; block formats are decoded to float32 by the `gguf` package."""

    def __init__(self, path: Path) -> None:
        self._file = GGUFFile(path)
        self.spec = _spec(path, self._file)

    def has(self, name: str) -> bool:
        return _file_name(name) in self._file.tensors

    def tensor(self, name: str) -> torch.Tensor:
        """A float32 tensor `[out, in]`, or `[size]` for norms and biases; raises ModelError when it is missing."""
        import numpy as np
        import torch
        from gguf.constants import GGMLQuantizationType
        from gguf.quants import dequantize

        place = self._file.tensors.get(_file_name(name))
        if place is None:
            raise ModelError("ModelUnreadable", f"model file {self._file.path}: tensor {_file_name(name)} is missing")
        kind = GGMLQuantizationType(place.kind)
        data = self._file.data(place)
        try:
            values = data.view(np.float32).copy() if place.kind == 0 else dequantize(data, kind)
        except NotImplementedError as error:
            raise ModelError(
                "FormatUnsupported", f"model file {self._file.path}: tensor {name} has type {kind.name}, not supported"
            ) from error
        return self._in_our_order(name, torch.from_numpy(values.reshape(place.shape)))

    def four_bit(self, name: str) -> FourBitWeight | None:
        """The matrix as the file holds it, where that is a 4-bit format of blocks of 32."""
        place = self._file.tensors.get(_file_name(name))
        if place is None or place.kind not in (Q4_0, Q4_1):
            return None
        weight = unpack(self._file.data(place), place.shape, place.kind)
        return FourBitWeight(
            self._in_our_order(name, weight.values),
            self._in_our_order(name, weight.scale),
            self._in_our_order(name, weight.middle),
        )

    def _in_our_order(self, name: str, values: torch.Tensor) -> torch.Tensor:
        part = name.rsplit(".", 1)[-1].removesuffix("_bias")
        if self.spec.architecture != "llama" or part not in ("q", "k"):
            return values
        return _rotate_by_halves(values, self.spec.query_heads if part == "q" else self.spec.kv_heads)


def _rotate_by_halves(weight: torch.Tensor, heads: int) -> torch.Tensor:
    """Undoes GGUF's row order: it stores rotary pairs side by side, our rope pairs row i with row i + head_size / 2."""
    pairs = weight.reshape(heads, weight.shape[0] // heads // 2, 2, *weight.shape[1:])
    return pairs.transpose(1, 2).reshape(weight.shape).contiguous()


def _file_name(name: str) -> str:
    if name in _NAMES:
        return _NAMES[name]
    _, layer, part = name.split(".")
    if part.endswith("_bias"):
        return f"blk.{layer}.{_LAYER_NAMES[part.removesuffix('_bias')]}.bias"
    return f"blk.{layer}.{_LAYER_NAMES[part]}.weight"


def _spec(path: Path, file: GGUFFile) -> ModelSpec:
    data = file.metadata
    architecture = str(data.get("general.architecture", "unknown"))
    if architecture not in _ARCHITECTURES:
        raise unsupported(path.name, f"{architecture} (GGUF)")
    if int(data.get("split.count", 1)) > 1:
        raise ModelError(
            "FormatUnsupported",
            f"model file {path}: one of {data['split.count']} parts; join them with `llama-gguf-split --merge` first",
        )
    if int(data.get(f"{architecture}.expert_count", 0)) > 0:
        raise unsupported(path.name, f"{architecture} (GGUF)", "mixture of experts")
    try:
        return _read_spec(path, file, architecture, data)
    except KeyError as error:
        raise ModelError("ModelUnreadable", f"model file {path}: metadata {error.args[0]} is missing") from error
    except (TypeError, ValueError, ArithmeticError) as error:
        raise ModelError("ModelUnreadable", f"model file {path}: metadata that means nothing: {error}") from error


def _whole(data: Mapping[str, Any], name: str, otherwise: int | None = None) -> int:
    """A size of the metadata, at least 1. Raises KeyError or ValueError in words."""
    value = data[name] if otherwise is None else data.get(name, otherwise)
    if isinstance(value, str) or not 1 <= value < 2**31:
        raise ValueError(f"{name} is {str(value)[:40]}, and must be a whole number from 1 to {2**31 - 1}")
    return int(value)


def _read_spec(path: Path, file: GGUFFile, architecture: str, data: Mapping[str, Any]) -> ModelSpec:
    heads = _whole(data, f"{architecture}.attention.head_count")
    hidden = _whole(data, f"{architecture}.embedding_length")
    head_size = int(data.get(f"{architecture}.attention.key_length", hidden // heads))
    rope_size = int(data.get(f"{architecture}.rope.dimension_count", head_size))
    if rope_size != head_size:
        raise unsupported(path.name, f"{architecture} (GGUF)", f"rotary size {rope_size}, head size {head_size}")
    if "token_embd.weight" not in file.tensors:
        raise ModelError("ModelUnreadable", f"model file {path}: tensor token_embd.weight is missing")
    length = _whole(data, f"{architecture}.context_length")
    window = int(data.get(f"{architecture}.attention.sliding_window", 0))
    return ModelSpec(
        name=path.stem,
        format="GGUF",
        architecture=architecture,
        layers=_layers(data, architecture, len(file.tensors)),
        hidden_size=hidden,
        intermediate_size=_whole(data, f"{architecture}.feed_forward_length"),
        query_heads=heads,
        kv_heads=_whole(data, f"{architecture}.attention.head_count_kv", heads),
        head_size=head_size,
        vocabulary_size=file.tensors["token_embd.weight"].shape[0],
        max_length=min(length, window) if window else length,
        rms_epsilon=float(data[f"{architecture}.attention.layer_norm_rms_epsilon"]),
        rope=_rope(path, file, architecture, data),
        tied_embeddings="output.weight" not in file.tensors,
        size_bytes=sum(place.size_bytes for place in file.tensors.values()),
        four_bit_parameters=sum(
            math.prod(place.shape) for place in file.tensors.values() if place.kind in (Q4_0, Q4_1)
        ),
        stored_dtype=_FLOAT_TYPES.get(file.tensors["token_embd.weight"].kind, "BFloat16"),
    )


def _layers(data: Mapping[str, Any], architecture: str, tensors: int) -> int:
    name = f"{architecture}.block_count"
    layers = _whole(data, name)
    if layers > tensors:
        raise ValueError(f"{name} is {layers}, and the file holds {tensors} tensors in all")
    return layers


def _rope(path: Path, file: GGUFFile, architecture: str, data: Mapping[str, Any]) -> RopeSpec:
    theta = float(data.get(f"{architecture}.rope.freq_base", 10000.0))
    if "rope_freqs.weight" in file.tensors:
        return RopeSpec(theta, {"kind": "Divided"})
    scaling = str(data.get(f"{architecture}.rope.scaling.type", "none"))
    factor = float(data.get(f"{architecture}.rope.scaling.factor", data.get(f"{architecture}.rope.scale_linear", 1.0)))
    if scaling == "linear" or (scaling == "none" and factor not in (0.0, 1.0)):
        return RopeSpec(theta, {"kind": "Linear", "factor": factor})
    if scaling == "yarn":
        original = int(data[f"{architecture}.rope.scaling.original_context_length"])
        grown = float(data.get(f"{architecture}.rope.scaling.attn_factor", 1.0)) * (0.1 * math.log(factor) + 1.0)
        yarn = {"kind": "Yarn", "factor": factor, "original_length": original, "attention_factor": grown}
        return RopeSpec(theta, yarn)
    if scaling != "none":
        raise unsupported(path.name, f"{architecture} (GGUF)", f"rope scaling {scaling}")
    return RopeSpec(theta)
