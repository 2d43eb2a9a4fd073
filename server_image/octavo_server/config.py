"""Settings of the server: one frozen dataclass per component.

Every field is reachable from a flag, from the environment and from a file (see __main__); the names of the flags that
the operator sets are part of the wire contract (docs/reference/wire-contract.md).
"""

from __future__ import annotations

from dataclasses import dataclass, field

BLOCK_SIZES_TOKENS = (8, 16, 32, 64, 128, 256)


@dataclass(frozen=True)
class ModelConfig:
    """Which model, in which form."""

    path: str
    """A folder (safetensors) or a file (GGUF) that this process can read."""
    format: str = "Auto"
    served_name: str = ""
    """Name in the HTTP interface; empty = the last part of the path."""
    max_length_tokens: int = 0
    """Longest prompt + answer; 0 = what the model allows, cut to what the pool holds."""
    dtype: str = "Auto"
    quantization: str = "None"


@dataclass(frozen=True)
class CacheConfig:
    """The paged KV pool."""

    block_size_tokens: int = 16
    dtype: str = "Auto"
    memory_percent: int = 92
    """Share of the accelerator's memory that weights, graphs and pool may take together."""
    pool_bytes: int = 0
    """Size of the pool; 0 = from memory_percent on an accelerator, 1 GiB (or a quarter of what is free) on a CPU."""
    prefix_caching: bool = True


@dataclass(frozen=True)
class SchedulerConfig:
    """Limits of one engine step."""

    max_batched_tokens: int = 8192
    max_sequences: int = 1024


@dataclass(frozen=True)
class EngineConfig:
    """Everything that the engine process needs; sent to it as JSON."""

    model: ModelConfig
    cache: CacheConfig = field(default_factory=CacheConfig)
    scheduler: SchedulerConfig = field(default_factory=SchedulerConfig)
    device: str = "Auto"
    tensor_parallel: int = 1
    cpu_threads: int = 0
    """Threads of torch on a CPU; 0 = one per core this process may use."""
