"""What a model's own files say: layers, heads, length, bytes of weights. From config.json or a GGUF header."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .errors import ModelError
from .families import OWN_ARCHITECTURES, architecture, text_part, why_not_own, why_unsized


@dataclass(frozen=True)
class ModelFacts:
    """What memory depends on."""

    uri: str
    """Value of `model.uri`."""
    architecture: str
    layers: int
    query_heads: int
    cache_values_per_token: int
    """Numbers that one token leaves in the caches of all layers."""
    kv_heads: int
    max_length: int
    """Tokens that the model was made for."""
    weight_bytes: int
    """While it serves on an accelerator."""
    weights_are_estimated: bool = False
    not_own: str = ""
    """Why runtime Octavo can't serve it; empty when it does."""

    @property
    def cache_bytes_per_token(self) -> int:
        """In 16 bits."""
        return 2 * self.cache_values_per_token

    @property
    def is_own(self) -> bool:
        """Whether runtime Octavo serves it."""
        return not self.not_own


def parse_object(text: str, where: str) -> dict[str, Any]:
    """A JSON object; `where` says in errors which. Raises ModelError."""
    try:
        found = json.loads(text)
    except json.JSONDecodeError as error:
        raise ModelError(f"{where}: no JSON: {error}") from error
    if not isinstance(found, dict):
        raise ModelError(f"{where}: an object is expected")
    return found


def from_path(path: Path) -> ModelFacts:
    """A .gguf file, a folder with config.json, or such a file. Raises ModelError."""
    if path.suffix == ".gguf":
        return from_gguf(path)
    file = path / "config.json" if path.is_dir() else path
    if not file.is_file():
        raise ModelError(f"{path}: no such model; give a folder with config.json, a .gguf file, or hf://org/name")
    size = sum(item.stat().st_size for item in file.parent.glob("*.safetensors"))
    config = parse_object(file.read_text(encoding="utf-8"), str(file))
    return from_config(config, f"pvc://models/{file.resolve().parent.name}", size)


def from_config(config: Mapping[str, Any], uri: str, weight_bytes: int = 0) -> ModelFacts:
    """`weight_bytes` 0 = estimated from the shape, 16 bits for each parameter. Raises ModelError."""
    if why := why_unsized(config):
        raise ModelError(f"{uri}: {why}; octavo init can't size it, and asks for no accelerator on a guess")
    text = text_part(config)

    def number(*names: str, default: int | None = None) -> int:
        for key in names:
            value = text.get(key)
            if isinstance(value, int) and not isinstance(value, bool) and value > 0:
                return value
        if default is None:
            raise ModelError(f"{uri}: config.json has no {' or '.join(names)}; octavo init can't size this model")
        return default

    hidden, heads = number("hidden_size", "n_embd"), number("num_attention_heads", "n_head")
    layers, kv_heads = number("num_hidden_layers", "n_layer"), number("num_key_value_heads", default=heads)
    head_size = number("head_dim", default=hidden // heads)
    per_layer = 2 * kv_heads * head_size
    if latent := text.get("kv_lora_rank"):
        # Multi-head latent attention keeps one compressed vector and the rotary part of the key.
        per_layer = int(latent) + number("qk_rope_head_dim")
    estimated = not weight_bytes
    if estimated:
        inner = number("moe_intermediate_size", "intermediate_size", "n_inner", default=4 * hidden)
        experts = number("num_experts", "num_local_experts", "n_routed_experts", default=1)
        attention = hidden * head_size * (2 * heads + 2 * kv_heads)
        embeddings = number("vocab_size") * hidden * (1 if text.get("tie_word_embeddings") else 2)
        weight_bytes = 2 * (embeddings + layers * (attention + 3 * hidden * inner * experts))
    return ModelFacts(
        uri=uri,
        architecture=architecture(config),
        layers=layers,
        query_heads=heads,
        cache_values_per_token=layers * per_layer,
        kv_heads=kv_heads,
        max_length=number("max_position_embeddings", "n_positions", default=4096),
        weight_bytes=weight_bytes,
        weights_are_estimated=estimated,
        not_own=why_not_own(config),
    )


def from_gguf(path: Path) -> ModelFacts:
    """Reads the header alone; on accelerators the weights serve in 16 bits whatever it says. Raises ModelError."""
    from gguf import GGUFReader

    try:
        reader = GGUFReader(path)
    except (OSError, ValueError, IndexError) as error:
        raise ModelError(f"{path}: not a readable GGUF file: {error}") from error

    def value(key: str, default: int | None = None) -> Any:
        field = reader.get_field(key)
        if field is None and default is None:
            raise ModelError(f"{path}: the header has no {key}")
        return default if field is None else field.contents()

    kind = str(value("general.architecture"))
    heads, hidden = int(value(f"{kind}.attention.head_count")), int(value(f"{kind}.embedding_length"))
    layers, kv_heads = int(value(f"{kind}.block_count")), int(value(f"{kind}.attention.head_count_kv", heads))
    head_size = int(value(f"{kind}.attention.key_length", hidden // heads))
    return ModelFacts(
        uri=f"pvc://models/{path.name}",
        architecture=f"{kind} (GGUF)",
        layers=layers,
        query_heads=heads,
        cache_values_per_token=2 * layers * kv_heads * head_size,
        kv_heads=kv_heads,
        max_length=int(value(f"{kind}.context_length")),
        weight_bytes=2 * sum(int(tensor.n_elements) for tensor in reader.tensors),
        not_own="" if f"{kind} (GGUF)" in OWN_ARCHITECTURES else f"{kind} (GGUF) is not one of its architectures",
    )
