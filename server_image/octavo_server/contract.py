"""The server's side of docs/reference/wire-contract.md, as constants; tests/contract holds both sides together."""

from __future__ import annotations

from enum import IntEnum, StrEnum

PROGRAM = "octavo-server"
HTTP_PORT = 8000
ENVIRONMENT_PREFIX = "OCTAVO_"
API_KEY_VARIABLE = "OCTAVO_API_KEY"
HUB_TOKEN_VARIABLE = "HF_TOKEN"
TERMINATION_LOG_VARIABLE = "OCTAVO_TERMINATION_LOG"
TERMINATION_LOG_LIMIT_BYTES = 4096
CALIBRATION_LIMIT_BYTES = 3500
"""Of a calibration's result, so that it goes through a termination message and into a TuningProfile."""

HEALTH_PATH = "/health"
READY_PATH = "/ready"
METRICS_PATH = "/metrics"
VERSION_PATH = "/version"
PROGRESS_PATH = "/progress"
"""Of `fetch`, while it runs."""

FORMATS = ("Auto", "Safetensors", "GGUF")
DEVICES = ("Auto", "CPU", "CUDA")
DTYPES = ("Auto", "Float32", "BFloat16", "Float16")
KV_DTYPES = ("Auto", "Float32", "BFloat16", "Float16", "FP8")
QUANTIZATIONS = ("None", "Int8", "FP8")
SWITCH = ("Enabled", "Disabled")
TOOL_PARSERS = ("Auto", "Hermes", "Llama3", "Mistral", "Gemma", "GptOss", "DeepSeek")
REASONING_PARSERS = ("Auto", "None", "ThinkTags")
RUNTIMES = ("Octavo", "VLLM", "SGLang", "MLC")
"""Programs that a model may be fetched for."""
BLOCK_SIZES = (0, 8, 16, 32, 64, 128, 256)

OPERATOR_FLAGS = (
    "--model",
    "--format",
    "--served-name",
    "--max-length",
    "--host",
    "--port",
    "--device",
    "--dtype",
    "--quantization",
    "--kv-dtype",
    "--block-size",
    "--launch-table",
    "--memory-percent",
    "--prefix-caching",
    "--tensor-parallel",
    "--drain-seconds",
)
"""The flags of `octavo-server serve` that the operator sets. Removing or renaming one breaks running clusters."""


class ExitCode(IntEnum):
    """How the process ends."""

    ENDED = 0
    FAILED = 1
    REFUSED = 2
    """Refused at start for a reason that a person must mend."""


class CheckReason(StrEnum):
    """What `fetch` and `fetch --check` report."""

    MODEL_FOUND = "ModelFound"
    MODEL_NOT_FOUND = "ModelNotFound"
    MODEL_UNREADABLE = "ModelUnreadable"
    ARCHITECTURE_UNSUPPORTED = "ArchitectureUnsupported"
    FORMAT_UNSUPPORTED = "FormatUnsupported"
    ACCESS_DENIED = "AccessDenied"
    SOURCE_UNREACHABLE = "SourceUnreachable"
    MAX_LENGTH_TOO_LONG = "MaxLengthTooLong"
    NO_SPACE_LEFT = "NoSpaceLeft"
    SCHEME_UNSUPPORTED = "SchemeUnsupported"
