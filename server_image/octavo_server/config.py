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
    load_format: str = "Auto"
    """Dummy = random weights of the shape that config.json names, made on the device: for measurements."""


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
    max_step_milliseconds: float = 0.0
    """Predicted time of a step while requests generate, which bounds how much prompt it takes along; 0 = 25 on an
    accelerator, 200 on a CPU."""


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
    kernel_cache: str = ""
    """Folder of compiled kernels; empty = Triton's own (TRITON_CACHE_DIR)."""
    compile_processes: int = 0
    """Processes that compile kernels at start; 0 = one per core this process may use, 1 = each at its first launch."""
    launch_table: str = ""
    """File with the kernels' measured launch configurations; empty = those that come with the kernels."""


@dataclass(frozen=True)
class LimitsConfig:
    """What one HTTP request may ask for; what is above is refused with a 4xx that names the field."""

    max_body_bytes: int = 16 * 1024 * 1024
    max_choices: int = 64
    """Prompts of the request × n."""
    max_stop_strings: int = 16
    max_stop_characters: int = 512
    """Length of each stop string."""
    max_logit_bias: int = 1024
    max_logprobs: int = 20
    max_messages: int = 4096
    max_bad_words: int = 128
    max_tools: int = 128
    max_grammar_bytes: int = 64 * 1024
    """A schema, regular expression or grammar, as JSON."""


@dataclass(frozen=True)
class ApiConfig:
    """The HTTP side."""

    host: str = "0.0.0.0"
    port: int = 8000
    api_key: str = field(default="", repr=False)
    """Empty = no key is asked for."""
    api_key_file: str = ""
    """A file with further keys, one per line; read again when it changes."""
    chat_template: str = ""
    """A file that replaces the model's own template."""
    tool_parser: str = "Auto"
    """How the model writes calls of functions; Auto = as its chat template tells."""
    reasoning_parser: str = "Auto"
    """Auto = think tags where the chat template has them."""
    drain_notice_seconds: float = 5.0
    """After SIGTERM, time in which new requests are still served while the endpoint is taken out of Services."""
    drain_seconds: float = 30.0
    """Time that running requests get after the listener has closed."""
    engine_silence_seconds: float = 120.0
    """A ready engine reports every second; one that is silent for so long hangs and is started again."""
    max_queued: int = 8192
    """Choices that may wait for their first token; more are refused with 429. 0 = no limit."""
    request_timeout_seconds: float = 0.0
    """A request that takes longer ends with 504, or with an error event in its stream. 0 = no limit."""
    max_unread_bytes: int = 1024 * 1024
    """What of a stream may pile up for a client that reads slowly; then it ends with an error. 0 = no limit."""
    api_processes: int = 1
    """Processes that serve HTTP, all on one port and with one engine."""
    allowed_origins: tuple[str, ...] = ()
    """Origins of web pages that may use the server (CORS); empty = none, * = all."""
    log_level: str = "info"
    log_format: str = "Text"
    access_log: bool = False
    limits: LimitsConfig = field(default_factory=LimitsConfig)


@dataclass(frozen=True)
class FetchConfig:
    """Where model files come from and go to."""

    model: str
    """A path, file://, pvc://, hf:// or s3:// location."""
    format: str = "Auto"
    revision: str = ""
    to: str = ""
    """Folder in which the model appears; empty = one inside of the cache."""
    cache: str = ""
    """Folder of files by content, shared by models, pods and revisions; empty = inside of `to`, or the user's cache."""
    connections: int = 4
    """Pieces that are fetched at once."""
    progress_address: str = ""
    """HOST:PORT where GET /progress is answered during the fetch; empty = nowhere."""
    runtime: str = "Octavo"
    """Program that will serve the model; another than Octavo decides itself whether it can."""
    check: bool = False
    max_length_tokens: int = 0


@dataclass(frozen=True)
class ServeConfig:
    """All of `octavo-server serve`."""

    engine: EngineConfig
    api: ApiConfig = field(default_factory=ApiConfig)
    source: FetchConfig = field(default_factory=lambda: FetchConfig(model=""))
