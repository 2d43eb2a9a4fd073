"""What a model is, in the terms of our decoder, and why one is refused.

`ModelSpec` is the one description that the loaders make and the rest of the server reads. Nothing here needs torch, so
`fetch --check` can describe a model in milliseconds.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

SUPPORTED_ARCHITECTURES = ("LlamaForCausalLM", "MistralForCausalLM", "Qwen2ForCausalLM", "llama (GGUF)", "qwen2 (GGUF)")


class ModelError(Exception):
    """A model that can't be served. `reason` is one of the wire contract's, the text is one line with the way out."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason
        self.message = message


@dataclass(frozen=True)
class RopeSpec:
    """Rotary position embedding: `inverse frequency i = theta^(-2i / head_size)`, then scaled."""

    theta: float
    scaling: Mapping[str, Any] = field(default_factory=dict)
    """Fields of `octavo_kernels.RotaryScaling`. Kind `Divided` without factors: they are the file's `rope_factors`."""


@dataclass(frozen=True)
class ModelSpec:
    """Shape and numbers of a Llama-shaped decoder; sizes in elements, lengths in tokens."""

    name: str
    format: str
    """`GGUF` or `Safetensors`."""
    architecture: str
    layers: int
    hidden_size: int
    intermediate_size: int
    query_heads: int
    kv_heads: int
    head_size: int
    vocabulary_size: int
    max_length: int
    rms_epsilon: float
    rope: RopeSpec
    tied_embeddings: bool
    size_bytes: int
    stored_dtype: str = "Float32"
    """What `--dtype Auto` means on an accelerator: Float32, BFloat16 or Float16."""
    four_bit_parameters: int = 0
    """Weights that the file holds in 4-bit blocks."""

    def __post_init__(self) -> None:
        for name in (
            "layers",
            "hidden_size",
            "intermediate_size",
            "query_heads",
            "kv_heads",
            "head_size",
            "max_length",
        ):
            if getattr(self, name) < 1:
                raise ModelError("ModelUnreadable", f"model {self.name}: {name} is {getattr(self, name)}, not positive")
        if self.query_heads % self.kv_heads:
            raise ModelError(
                "ArchitectureUnsupported",
                f"model {self.name}: {self.query_heads} query heads are no multiple of {self.kv_heads} KV heads",
            )
        if self.head_size % 2:
            raise ModelError("ArchitectureUnsupported", f"model {self.name}: odd head size {self.head_size}")

    @property
    def parameters(self) -> int:
        """Number of weights in matrices, tied embeddings counted once."""
        attention = self.hidden_size * self.head_size * (2 * self.query_heads + 2 * self.kv_heads)
        mlp = 3 * self.hidden_size * self.intermediate_size
        embeddings = self.vocabulary_size * self.hidden_size * (1 if self.tied_embeddings else 2)
        return self.layers * (attention + mlp) + embeddings


def unsupported(name: str, architecture: str, why: str = "") -> ModelError:
    """The refusal of an architecture, with the list of those that work."""
    detail = f" ({why})" if why else ""
    return ModelError(
        "ArchitectureUnsupported",
        f"model {name}: architecture {architecture}{detail} is not supported; supported: "
        + ", ".join(SUPPORTED_ARCHITECTURES),
    )
