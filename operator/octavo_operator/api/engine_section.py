"""spec.engine: the runtime and how it computes."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Literal

from pydantic import ConfigDict, Field

from .base import ATOMIC, Model, Switch, rule, rules

BLOCK_SIZES_TOKENS = (8, 16, 32, 64, 128, 256)

_OWNED_FLAGS = (
    "model|format|served-name|max-length|host|port|dtype|quantization|kv-dtype|block-size|memory-percent|"
    "prefix-caching|tensor-parallel|drain-seconds"
)


class Runtime(StrEnum):
    """The program that serves."""

    OCTAVO = "Octavo"
    VLLM = "VLLM"
    SGLANG = "SGLang"
    MLC = "MLC"


class DType(StrEnum):
    """Number format of weights and activations."""

    AUTO = "Auto"
    FLOAT32 = "Float32"
    BFLOAT16 = "BFloat16"
    FLOAT16 = "Float16"


class Quantization(StrEnum):
    """How weights are stored while they serve."""

    NONE = "None"
    INT8 = "Int8"
    FP8 = "FP8"


class CacheDType(StrEnum):
    """Number format of the KV cache."""

    AUTO = "Auto"
    FLOAT32 = "Float32"
    BFLOAT16 = "BFloat16"
    FLOAT16 = "Float16"
    FP8 = "FP8"


class KVCache(Model):
    """The paged key/value cache."""

    block_size: Literal[0, 8, 16, 32, 64, 128, 256] = 0
    """Tokens per block; 0 = chosen for the type of node (measured where a TuningProfile exists)."""
    dtype: CacheDType = CacheDType.AUTO
    """Number format of the cache; Auto follows engine.dtype."""
    memory_percent: Annotated[int, Field(ge=10, le=98)] = 92
    """Share of an accelerator's memory that weights, graphs and cache may take together."""
    prefix_caching: Switch = Switch.ENABLED
    """Whether requests that begin alike share blocks."""


class Parallelism(Model):
    """How one replica is split."""

    tensor: Annotated[int, Field(ge=1, le=64)] = 1
    """Accelerators per replica."""


class EngineSection(Model):
    """The runtime and how it computes."""

    model_config = ConfigDict(
        json_schema_extra=rules(
            rule(
                "!has(self.extraArgs) || size(self.extraArgs) == 0 || self.extraArgs[0].startsWith('-')",
                "engine.extraArgs must begin with a flag such as --max-sequences; its values follow as further items",
            ),
            rule(
                f"!has(self.extraArgs) || self.extraArgs.all(a, !a.matches('^--?({_OWNED_FLAGS})(=|$)'))",
                "engine.extraArgs must not repeat a flag that a field of this resource sets (--model, --host, --port, "
                "--max-length, --block-size and so on); set the field instead",
            ),
        )
    )

    runtime: Runtime = Runtime.OCTAVO
    """The program that serves."""
    extra_args: Annotated[
        tuple[Annotated[str, Field(min_length=1, max_length=512)], ...], Field(max_length=64, json_schema_extra=ATOMIC)
    ] = ()
    """Further arguments of the program, appended last: a flag first, then flags and values as written."""
    dtype: DType = DType.AUTO
    """Number format of weights and activations; Auto takes what the model was stored in and the device is fast at."""
    quantization: Quantization = Quantization.NONE
    """How weights are stored while they serve; None leaves them as dtype says."""
    kv_cache: KVCache = Field(default_factory=KVCache)
    """The paged key/value cache."""
    parallelism: Parallelism = Field(default_factory=Parallelism)
    """How one replica is split over accelerators."""
