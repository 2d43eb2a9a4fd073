"""A model in a folder with config.json and safetensors files (one file, or several with an index)."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from octavo_server.weights.four_bit import FourBitWeight
from octavo_server.weights.spec import ModelError, ModelSpec, RopeSpec, unsupported

if TYPE_CHECKING:
    import torch

    from octavo_server.weights.device_reader import DeviceReader, Reading

_NAMES = {"embed": "model.embed_tokens.weight", "final_norm": "model.norm.weight", "head": "lm_head.weight"}
_LAYER_NAMES = {
    "attention_norm": "input_layernorm",
    "q": "self_attn.q_proj",
    "k": "self_attn.k_proj",
    "v": "self_attn.v_proj",
    "o": "self_attn.o_proj",
    "mlp_norm": "post_attention_layernorm",
    "gate": "mlp.gate_proj",
    "up": "mlp.up_proj",
    "down": "mlp.down_proj",
}
_ARCHITECTURES = ("LlamaForCausalLM", "MistralForCausalLM", "Qwen2ForCausalLM")
_DTYPES = {"float32": "Float32", "bfloat16": "BFloat16", "float16": "Float16"}
_STORED = {"F64": "float64", "F32": "float32", "BF16": "bfloat16", "F16": "float16"}
"""A file's name of a float dtype → torch's."""
_AHEAD_BYTES = 1 << 30
"""What is read of later tensors while one is put in place."""


class SafetensorsModel:
    """Reads tensors one at a time in their stored dtype: from memory-mapped files, or straight into a device's memory.

    After `read_into` tensors are on that device, and those that follow in a model's order are read ahead.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._files = _tensor_files(folder)
        self.spec = _spec(folder, set(self._files), sum(path.stat().st_size for path in set(self._files.values())))
        self._open: dict[Path, Any] = {}
        self._reader: DeviceReader | None = None
        self._ahead: dict[str, Reading] = {}
        self._entries: dict[Path, tuple[int, dict[str, Any]]] = {}
        layers = range(self.spec.layers)
        order = [f"layers.{layer}.{part}" for layer in layers for part in _LAYER_NAMES] + ["embed", "head"]
        self._order = [name for name in order if self.has(name)]
        self._next = 0

    def read_into(self, reader: DeviceReader) -> None:
        """From now on tensors come through `reader`, which the caller closes."""
        self._reader = reader

    def has(self, name: str) -> bool:
        return _file_name(name) in self._files

    def four_bit(self, name: str) -> FourBitWeight | None:
        """None: matrices are read as floats."""
        return None

    def tensor(self, name: str) -> torch.Tensor:
        """A tensor `[out, in]`, or `[size]` for norms and biases; raises ModelError when it is missing or damaged."""
        from safetensors import SafetensorError, safe_open

        path = self._files.get(_file_name(name))
        if path is None:
            raise ModelError("ModelUnreadable", f"model {self.folder}: tensor {_file_name(name)} is missing")
        if self._reader is not None:
            return self._through_reader(name, path)
        try:
            if path not in self._open:
                self._open[path] = safe_open(path, framework="pt", device="cpu")
            result: torch.Tensor = self._open[path].get_tensor(_file_name(name))
        except (OSError, SafetensorError) as error:
            raise ModelError("ModelUnreadable", f"model file {path}: {error}; fetch the file again") from error
        if not result.dtype.is_floating_point:
            raise ModelError("FormatUnsupported", f"model file {path}: {name} has dtype {result.dtype}, not a float")
        return result

    def _through_reader(self, name: str, path: Path) -> torch.Tensor:
        import torch

        if name not in self._ahead:
            self._ahead[name] = self._begin(name)
        self._read_ahead(name)
        try:
            data = self._ahead.pop(name).wait()
        except OSError as error:
            raise ModelError("ModelUnreadable", f"model file {path}: {error}; fetch the file again") from error
        entry = self._entry(path, _file_name(name))
        stored = _STORED.get(str(entry["dtype"]))
        if stored is None:
            raise ModelError("FormatUnsupported", f"model file {path}: {name} has dtype {entry['dtype']}, not a float")
        return data.view(getattr(torch, stored)).view([int(size) for size in entry["shape"]])

    def _begin(self, name: str) -> Reading:
        assert self._reader is not None
        path = self._files[_file_name(name)]
        begin, end = map(int, self._entry(path, _file_name(name))["data_offsets"])
        try:
            return self._reader.start(path, self._entries[path][0] + begin, end - begin)
        except OSError as error:
            raise ModelError("ModelUnreadable", f"model file {path}: {error}") from error

    def _read_ahead(self, name: str) -> None:
        """Begins to read what a model asks for after this tensor."""
        if name in self._order:
            self._next = max(self._next, self._order.index(name) + 1)
        waiting = sum(reading.tensor.nbytes for reading in self._ahead.values())
        while self._next < len(self._order) and waiting < _AHEAD_BYTES:
            following = self._order[self._next]
            self._next += 1
            self._ahead[following] = self._begin(following)
            waiting += self._ahead[following].tensor.nbytes

    def _entry(self, path: Path, name: str) -> dict[str, Any]:
        """dtype, shape and data_offsets of a tensor, which count from the end of the file's header."""
        if path not in self._entries:
            with path.open("rb") as file:
                length = int.from_bytes(file.read(8), "little")
                self._entries[path] = 8 + length, json.loads(file.read(length))
        entry: dict[str, Any] = self._entries[path][1][name]
        return entry


def _file_name(name: str) -> str:
    if name in _NAMES:
        return _NAMES[name]
    if name.count(".") != 2:
        return name
    _, layer, part = name.split(".")
    if part.endswith("_bias"):
        return f"model.layers.{layer}.{_LAYER_NAMES[part.removesuffix('_bias')]}.bias"
    return f"model.layers.{layer}.{_LAYER_NAMES[part]}.weight"


def spec_of_folder(folder: Path) -> ModelSpec:
    """The spec that a folder's config.json gives; weights need not be there."""
    tied = bool(read_json(folder / "config.json").get("tie_word_embeddings", False))
    return _spec(folder, set() if tied else {"lm_head.weight"}, 0)


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object from a file; ModelError says which file and why when it is none."""
    try:
        value = json.loads(path.read_text())
    except OSError as error:
        raise ModelError("ModelUnreadable", f"model file {path}: {error.strerror or error}") from error
    except (ValueError, RecursionError) as error:
        words = f"model file {path}: damaged, no JSON ({error}); fetch the file again, or name another revision"
        raise ModelError("ModelUnreadable", words) from error
    if not isinstance(value, dict):
        raise ModelError("ModelUnreadable", f"model file {path}: holds no JSON object")
    return value


def _tensor_files(folder: Path) -> dict[str, Path]:
    """The file of each tensor: from the index where one exists, else from the files' own headers."""
    index = folder / "model.safetensors.index.json"
    if index.exists():
        places = {name: folder / str(file) for name, file in read_json(index).get("weight_map", {}).items()}
        missing = sorted({path.name for path in places.values() if not path.exists()})
        if missing:
            raise ModelError("ModelUnreadable", f"model {folder}: {index.name} names {missing[0]}, which is missing")
        return places
    return {name: path for path in sorted(folder.glob("*.safetensors")) for name in _header(path)}


def _header(path: Path) -> list[str]:
    """Names of a file's tensors, checked against its size: 8 bytes of length, then JSON with offsets."""
    size = path.stat().st_size
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        if not 2 <= length <= size - 8:
            raise ModelError("ModelUnreadable", f"model file {path}: damaged safetensors header; fetch the file again")
        try:
            header = json.loads(file.read(length))
            ends = [int(entry["data_offsets"][1]) for name, entry in header.items() if name != "__metadata__"]
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise ModelError("ModelUnreadable", f"model file {path}: damaged safetensors header ({error})") from error
    if max(ends, default=0) + 8 + length > size:
        raise ModelError("ModelUnreadable", f"model file {path}: cut off at {size} bytes; fetch the file again")
    return [name for name in header if name != "__metadata__"]


def _spec(folder: Path, tensors: set[str], size_bytes: int) -> ModelSpec:
    config = read_json(folder / "config.json")
    names = config.get("architectures") or ["unknown"]
    architecture = str(names[0]) if isinstance(names, list) else str(names)
    if architecture not in _ARCHITECTURES:
        raise unsupported(folder.name, architecture)
    if config.get("quantization_config"):
        told = config["quantization_config"]
        method = told.get("quant_method", "unknown") if isinstance(told, dict) else str(told)[:40]
        raise ModelError(
            "FormatUnsupported",
            f"model {folder.name}: quantization_config {method} is not supported; use unquantized weights or GGUF",
        )
    if config.get("hidden_act", "silu") != "silu":
        raise unsupported(folder.name, architecture, f"hidden_act {config['hidden_act']}")
    try:
        heads, hidden = _whole(config, "num_attention_heads"), _whole(config, "hidden_size")
        tied = bool(config.get("tie_word_embeddings", False)) or "lm_head.weight" not in tensors
        return ModelSpec(
            name=folder.name,
            format="Safetensors",
            architecture=architecture,
            layers=_whole(config, "num_hidden_layers"),
            hidden_size=hidden,
            intermediate_size=_whole(config, "intermediate_size"),
            query_heads=heads,
            kv_heads=_whole(config, "num_key_value_heads", heads),
            head_size=_whole(config, "head_dim", hidden // heads),
            vocabulary_size=_whole(config, "vocab_size"),
            max_length=_max_length(config),
            rms_epsilon=_epsilon(config),
            rope=_rope(folder.name, architecture, config),
            tied_embeddings=tied,
            size_bytes=size_bytes,
            stored_dtype=_DTYPES.get(str(config.get("dtype") or config.get("torch_dtype")), "Float32"),
        )
    except KeyError as error:
        raise ModelError(
            "ModelUnreadable", f"model file {folder / 'config.json'}: {error.args[0]} is missing"
        ) from error
    except (TypeError, ValueError, ArithmeticError, AttributeError) as error:
        raise ModelError("ModelUnreadable", f"model file {folder / 'config.json'}: {error}") from error


_MOST = {
    "num_hidden_layers": 10_000,
    "num_attention_heads": 65_536,
    "num_key_value_heads": 65_536,
    "head_dim": 65_536,
    "hidden_size": 2**20,
    "intermediate_size": 2**24,
    "vocab_size": 2**26,
    "max_position_embeddings": 2**31 - 1,
}
"""Far above every model: what is larger is damage, and would fill memory before weights are looked for."""


def _whole(config: Mapping[str, Any], name: str, otherwise: int | None = None) -> int:
    """A size from config.json; `otherwise` where it is absent or null. Raises KeyError or ValueError in words."""
    value = config[name] if otherwise is None else config.get(name)
    if value is None and otherwise is not None:
        return otherwise
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= _MOST[name]:
        raise ValueError(f"{name} is {str(value)[:40]}, and must be a whole number from 1 to {_MOST[name]}")
    return value


def _epsilon(config: Mapping[str, Any]) -> float:
    """What keeps a norm from dividing by zero."""
    value = float(config["rms_norm_eps"])
    if not 0 <= value <= 1:
        raise ValueError(f"rms_norm_eps is {value}, and must be from 0 to 1")
    return value


def _max_length(config: Mapping[str, Any]) -> int:
    """Position limit; a sliding window narrows it, because inside the window full attention is the same."""
    length = _whole(config, "max_position_embeddings")
    parameters = _rope_parameters(config)
    kind, factor = _rope_kind(parameters), float(parameters.get("factor") or 1.0)
    if kind == "yarn":
        # Such files give the length before or after the scaling; the original one, where given, tells which.
        length = max(length, int(factor * int(parameters.get("original_max_position_embeddings") or length / factor)))
    elif kind == "dynamic":
        length = int(length * factor)
    window = config.get("sliding_window")
    if window and config.get("use_sliding_window", True):
        return min(length, int(window))
    return length


def _rope_parameters(config: Mapping[str, Any]) -> dict[str, Any]:
    return {**(config.get("rope_scaling") or {}), **(config.get("rope_parameters") or {})}


def _rope_kind(parameters: Mapping[str, Any]) -> str:
    return str(parameters.get("rope_type") or parameters.get("type") or "default")


def _rope(name: str, architecture: str, config: Mapping[str, Any]) -> RopeSpec:
    parameters = _rope_parameters(config)
    theta = float(parameters.get("rope_theta") or config.get("rope_theta") or 10000.0)
    kind = _rope_kind(parameters)
    if float(config.get("partial_rotary_factor", 1.0)) != 1.0:
        raise unsupported(name, architecture, "partial rotary embedding")
    if kind == "default":
        return RopeSpec(theta)
    return RopeSpec(theta, _rope_scaling(name, architecture, config, parameters, kind))


def _rope_scaling(
    name: str, architecture: str, config: Mapping[str, Any], parameters: Mapping[str, Any], kind: str
) -> dict[str, Any]:
    """Fields of RotaryScaling. Raises KeyError, TypeError or ValueError where a number is missing or none."""
    positions = int(config["max_position_embeddings"])
    original = int(
        parameters.get("original_max_position_embeddings")
        or config.get("original_max_position_embeddings")
        or positions
    )
    attention = parameters.get("attention_factor")
    attention_factor = None if attention is None else float(attention)
    match kind:
        case "linear":
            return {"kind": "Linear", "factor": float(parameters["factor"])}
        case "dynamic":
            return {"kind": "Dynamic", "factor": float(parameters["factor"]), "original_length": positions}
        case "yarn":
            return {
                "kind": "Yarn",
                "factor": float(parameters["factor"]),
                "original_length": original,
                "attention_factor": attention_factor,
                "beta_fast": float(parameters.get("beta_fast") or 32.0),
                "beta_slow": float(parameters.get("beta_slow") or 1.0),
                "truncate": bool(parameters.get("truncate", True)),
                "mscale": float(parameters.get("mscale") or 0.0),
                "mscale_all_dim": float(parameters.get("mscale_all_dim") or 0.0),
            }
        case "longrope" | "su":
            return {
                "kind": "LongRope",
                "factor": max(1.0, float(parameters.get("factor") or positions / original)),
                "original_length": original,
                "attention_factor": attention_factor,
                "short_factors": tuple(map(float, parameters["short_factor"])),
                "long_factors": tuple(map(float, parameters["long_factor"])),
            }
        case "llama3":
            return {
                "kind": "Llama3",
                "factor": float(parameters["factor"]),
                "original_length": int(parameters["original_max_position_embeddings"]),
                "low_frequency_factor": float(parameters["low_freq_factor"]),
                "high_frequency_factor": float(parameters["high_freq_factor"]),
            }
    raise unsupported(name, architecture, f"rope scaling {kind}")
