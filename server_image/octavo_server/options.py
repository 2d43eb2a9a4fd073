"""The settings of each command, as tables, and the frozen dataclasses made from them."""

from __future__ import annotations

import re
from typing import Any

from octavo_server.calibration.command import CalibrateConfig
from octavo_server.config import (
    ApiConfig,
    CacheConfig,
    EngineConfig,
    FetchConfig,
    LimitsConfig,
    ModelConfig,
    SchedulerConfig,
    ServeConfig,
)
from octavo_server.contract import (
    BLOCK_SIZES,
    DEVICES,
    DTYPES,
    FORMATS,
    HTTP_PORT,
    KV_DTYPES,
    QUANTIZATIONS,
    REASONING_PARSERS,
    RUNTIMES,
    SWITCH,
    TOOL_PARSERS,
)
from octavo_server.flags import Option
from octavo_server.logs import FORMATS as LOG_FORMATS
from octavo_server.termination import Refused

_ORIGIN = re.compile(r"https?://[^/\s]+\Z")
_MODEL = "model"
_ENGINE = "engine"
_CACHE = "KV cache and scheduling"
_HTTP = "HTTP"
_LIMITS = "limits of one request"
_LIMIT = LimitsConfig()
_API = ApiConfig()

_SOURCE = (
    Option("model", "a folder or file, or a location: hf://org/name, s3://bucket/key, file:///path", _MODEL,
           required=True, metavar="PATH_OR_URI"),
    Option("format", "form of the weights", _MODEL, "choice", "Auto", FORMATS),
    Option("revision", "branch, tag or commit of an hf:// model", _MODEL, metavar="REVISION"),
    Option("max-length", "longest prompt + answer; 0 = what the model allows, cut to what fits", _MODEL, "integer", 0,
           minimum=0, metavar="TOKENS"),
)  # fmt: skip

_CACHE_FOLDER = (
    Option("cache", "folder for fetched files, by content; many pods may share it; empty = inside of --to, or ~/.cache",
           _MODEL, metavar="FOLDER"),
    Option("connections", "pieces of a model that are fetched at once", _MODEL, "integer", 4, minimum=1, maximum=64,
           metavar="COUNT"),
)  # fmt: skip

SERVE = (
    *_SOURCE,
    *_CACHE_FOLDER,
    Option("served-name", "name of the model in the HTTP interface; empty = last part of the path", _MODEL,
           metavar="NAME"),
    Option("chat-template", "a jinja file in place of the model's own chat template", _MODEL, metavar="FILE"),
    Option("tool-parser", "how the model writes calls of functions; Auto = as its chat template tells", _MODEL,
           "choice", "Auto", TOOL_PARSERS),
    Option("reasoning-parser", "splits reasoning from the answer; Auto = think tags where the chat template has them",
           _MODEL, "choice", "Auto", REASONING_PARSERS),
    Option("device", "where the engine computes", _ENGINE, "choice", "Auto", DEVICES),
    Option("dtype", "number format of weights and activations", _ENGINE, "choice", "Auto", DTYPES),
    Option("quantization", "smaller weights at load; Int8 is for CPUs and keeps a GGUF file's 4 bits for small steps",
           _ENGINE, "choice", "None", QUANTIZATIONS),
    Option("load-format", "Dummy = random weights of the shape that config.json names, for measurements", _MODEL,
           "choice", "Auto", ("Auto", "Dummy")),
    Option("kernel-cache", "folder of compiled GPU kernels; empty = TRITON_CACHE_DIR or Triton's own", _ENGINE,
           metavar="FOLDER"),
    Option("compile-processes", "processes that compile GPU kernels at start; 0 = one per core, 1 = each kernel at its "
           "first launch", _ENGINE, "integer", 0, minimum=0, maximum=256, metavar="COUNT"),
    Option("launch-table", "launch configurations of the kernels, as `octavo-server calibrate` or the kernels' tuner "
           "writes them; empty = those that come with the kernels", _ENGINE, metavar="FILE"),
    Option("tensor-parallel", "GPUs that share one model", _ENGINE, "integer", 1, minimum=1, maximum=64,
           metavar="GPUS"),
    Option("cpu-threads", "threads of the engine on a CPU; 0 = one per core", _ENGINE, "integer", 0, minimum=0,
           maximum=4096, metavar="THREADS"),
    Option("kv-dtype", "number format of the KV cache", _CACHE, "choice", "Auto", KV_DTYPES),
    Option("block-size", "tokens per page of the KV cache; 0 = 16", _CACHE, "integer", 0, BLOCK_SIZES,
           metavar="0|8|16|32|64|128|256"),
    Option("memory-percent", "share of the GPU's memory for weights, graphs and cache", _CACHE, "integer", 92,
           minimum=1, maximum=100, metavar="PERCENT"),
    Option("pool-bytes", "size of the KV cache; 0 = from --memory-percent, on a CPU 1 GiB or a quarter of what is free",
           _CACHE, "integer", 0, minimum=0, metavar="BYTES"),
    Option("prefix-caching", "keep the cache of prompts for later requests that begin alike", _CACHE, "choice",
           "Enabled", SWITCH),
    Option("max-batched-tokens", "tokens that one engine step may compute", _CACHE, "integer", 8192, minimum=1,
           metavar="TOKENS"),
    Option("max-step-milliseconds", "predicted time of a step while requests generate, which bounds the prompt tokens "
           "it takes along; 0 = 25 on a GPU, 200 on a CPU", _CACHE, "number", 0.0, minimum=0, maximum=60_000,
           metavar="MS"),
    Option("max-sequences", "requests that run at once", _CACHE, "integer", 1024, minimum=1, maximum=65536,
           metavar="COUNT"),
    Option("host", "address to listen on", _HTTP, "text", "0.0.0.0", metavar="ADDRESS"),
    Option("port", "port to listen on", _HTTP, "integer", HTTP_PORT, minimum=1, maximum=65535),
    Option("api-key", "key that clients must send as bearer token", _HTTP, secret=True),
    Option("api-key-file", "a file with further keys, one per line; it is read again when it changes", _HTTP,
           metavar="FILE"),
    Option("max-queued", "choices that may wait for their first token, more get a 429; 0 = no limit", _HTTP, "integer",
           _API.max_queued, minimum=0, metavar="COUNT"),
    Option("request-timeout-seconds", "a request that takes longer ends with an error; 0 = no limit", _HTTP, "number",
           0.0, minimum=0, maximum=86_400, metavar="SECONDS"),
    Option("drain-notice-seconds", "after SIGTERM, time in which new requests are still served", _HTTP, "number", 5.0,
           minimum=0, maximum=600, metavar="SECONDS"),
    Option("drain-seconds", "time that running requests get after that", _HTTP, "number", 30.0, minimum=0,
           maximum=86_400, metavar="SECONDS"),
    Option("engine-silence-seconds", "an engine that reports nothing for so long hangs and is started again", _HTTP,
           "number", 120.0, minimum=1, maximum=86400, metavar="SECONDS"),
    Option("max-unread-bytes", "what of a stream may pile up for a client that reads slowly, then the stream ends with "
           "an error; 0 = no limit", _HTTP, "integer", _API.max_unread_bytes, minimum=0, metavar="BYTES"),
    Option("api-processes", "processes that serve HTTP with one engine", _HTTP, "integer", 1, minimum=1, maximum=64,
           metavar="COUNT"),
    Option("allowed-origins", "origins of web pages that may use the server (CORS), separated by commas; * = all",
           _HTTP, metavar="ORIGINS"),
    Option("log-format", "lines for people, or one JSON object per line", _HTTP, "choice", "Text", LOG_FORMATS),
    Option("log-level", "how much is logged", _HTTP, "choice", "info", ("debug", "info", "warning", "error")),
    Option("access-log", "one log line per HTTP request", _HTTP, "choice", "Disabled", SWITCH),
    Option("max-body-bytes", "size of a request's body", _LIMITS, "integer", _LIMIT.max_body_bytes, minimum=1024,
           metavar="BYTES"),
    Option("max-choices", "prompts of one request × n", _LIMITS, "integer", _LIMIT.max_choices, minimum=1,
           metavar="COUNT"),
    Option("max-stop-strings", "stop strings of one request", _LIMITS, "integer", _LIMIT.max_stop_strings, minimum=1,
           metavar="COUNT"),
    Option("max-stop-characters", "length of one stop string", _LIMITS, "integer", _LIMIT.max_stop_characters,
           minimum=1, metavar="COUNT"),
    Option("max-logit-bias", "entries of logit_bias", _LIMITS, "integer", _LIMIT.max_logit_bias, minimum=1,
           metavar="COUNT"),
    Option("max-logprobs", "log-probabilities per token", _LIMITS, "integer", _LIMIT.max_logprobs, minimum=0,
           maximum=1000, metavar="COUNT"),
    Option("max-messages", "messages of one chat request", _LIMITS, "integer", _LIMIT.max_messages, minimum=1,
           metavar="COUNT"),
    Option("max-bad-words", "entries of bad_words", _LIMITS, "integer", _LIMIT.max_bad_words, minimum=1,
           metavar="COUNT"),
    Option("max-tools", "functions of one chat request", _LIMITS, "integer", _LIMIT.max_tools, minimum=1,
           metavar="COUNT"),
    Option("max-grammar-bytes", "a JSON schema, regular expression or grammar, as JSON", _LIMITS, "integer",
           _LIMIT.max_grammar_bytes, minimum=64, metavar="BYTES"),
)  # fmt: skip

FETCH = (
    *_SOURCE,
    *_CACHE_FOLDER,
    Option("to", "folder in which the model appears; empty = one inside of the cache", _MODEL, metavar="FOLDER"),
    Option(
        "runtime",
        "program that will serve the model; another than Octavo decides itself whether it can",
        _MODEL,
        "choice",
        "Octavo",
        RUNTIMES,
    ),
    Option("progress-address", "answer GET /progress here during the fetch", _MODEL, metavar="HOST:PORT"),
)

CALIBRATE = (
    Option("shape", "the model's attention: layers,queryHeads,kvHeads,headSize", _MODEL, required=True,
           metavar="L,Q,K,H"),
    Option("device", "where to measure", _ENGINE, "choice", "Auto", DEVICES),
    Option("dtype", "number format of activations", _ENGINE, "choice", "Auto", DTYPES),
    Option("kv-dtype", "number format of the KV cache", _ENGINE, "choice", "Auto", KV_DTYPES),
    Option("cpu-threads", "threads on a CPU; 0 = one per core", _ENGINE, "integer", 0, minimum=0, maximum=4096,
           metavar="THREADS"),
    Option("budget-seconds", "after which no further measurement begins", _ENGINE, "number", 300.0, minimum=1,
           maximum=86_400, metavar="SECONDS"),
)  # fmt: skip


def serve_config(values: dict[str, Any]) -> ServeConfig:
    """The settings of `serve` from resolved options; the model's path is still the location as given."""
    model = ModelConfig(
        path=values["model"],
        format=values["format"],
        served_name=values["served_name"],
        max_length_tokens=values["max_length"],
        dtype=values["dtype"],
        quantization=values["quantization"],
        load_format=values["load_format"],
    )
    cache = CacheConfig(
        block_size_tokens=values["block_size"] or CacheConfig.block_size_tokens,
        dtype=values["kv_dtype"],
        memory_percent=values["memory_percent"],
        pool_bytes=values["pool_bytes"],
        prefix_caching=values["prefix_caching"] == "Enabled",
    )
    engine = EngineConfig(
        model=model,
        cache=cache,
        scheduler=SchedulerConfig(
            values["max_batched_tokens"], values["max_sequences"], values["max_step_milliseconds"]
        ),
        device=values["device"],
        tensor_parallel=values["tensor_parallel"],
        cpu_threads=values["cpu_threads"],
        kernel_cache=values["kernel_cache"],
        compile_processes=values["compile_processes"],
        launch_table=values["launch_table"],
    )
    limits = LimitsConfig(
        **{name: values[name] for name in LimitsConfig.__dataclass_fields__},
    )
    api = ApiConfig(
        host=values["host"],
        port=values["port"],
        api_key=values["api_key"],
        api_key_file=values["api_key_file"],
        max_queued=values["max_queued"],
        request_timeout_seconds=values["request_timeout_seconds"],
        chat_template=values["chat_template"],
        tool_parser=values["tool_parser"],
        reasoning_parser=values["reasoning_parser"],
        drain_notice_seconds=values["drain_notice_seconds"],
        drain_seconds=values["drain_seconds"],
        engine_silence_seconds=values["engine_silence_seconds"],
        max_unread_bytes=values["max_unread_bytes"],
        api_processes=values["api_processes"],
        allowed_origins=_origins(values["allowed_origins"]),
        log_format=values["log_format"],
        log_level=values["log_level"],
        access_log=values["access_log"] == "Enabled",
        limits=limits,
    )
    return ServeConfig(engine, api, fetch_config({**values, "to": "", "progress_address": "", "runtime": "Octavo"}))


def _origins(text: str) -> tuple[str, ...]:
    origins = tuple(part.strip().rstrip("/") for part in text.split(",") if part.strip())
    for origin in origins:
        if origin != "*" and not _ORIGIN.match(origin):
            raise Refused("InvalidFlag", f"--allowed-origins: {origin!r} is no origin; write https://host or *")
    return origins


def fetch_config(values: dict[str, Any], *, check: bool = False) -> FetchConfig:
    """The settings of `fetch` from resolved options."""
    return FetchConfig(
        model=values["model"],
        format=values["format"],
        revision=values["revision"],
        to=values["to"],
        cache=values["cache"],
        connections=values["connections"],
        progress_address=values["progress_address"],
        runtime=values["runtime"],
        check=check,
        max_length_tokens=values["max_length"],
    )


def calibrate_config(values: dict[str, Any]) -> CalibrateConfig:
    """The settings of `calibrate` from resolved options."""
    return CalibrateConfig(**{name: values[name] for name in CalibrateConfig.__dataclass_fields__})


def documentation_row(option: Option) -> str:
    """The option's row in docs/reference/server-flags.md."""
    name = "–" if option.secret else f"`--{option.name}`"
    default = "required" if option.required else f"`{option.default}`" if option.default != "" else "–"
    allowed = ", ".join(map(str, option.choices)) if option.choices else option.kind
    if option.minimum is not None:
        allowed = f"≥ {option.minimum:g}" if option.maximum is None else f"{option.minimum:g} … {option.maximum:g}"
    return f"| {name} | `{option.variable}` | {allowed} | {default} | {option.help} |"
