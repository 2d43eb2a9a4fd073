"""vLLM (`vllm serve`), from version 0.19 on, which ends gracefully with --shutdown-timeout.

Flags and values are those of vLLM 0.34: vllm/engine/arg_utils.py, vllm/entrypoints/common/cli_args.py.
"""

from __future__ import annotations

from octavo_operator.api.base import Switch
from octavo_operator.api.engine_section import CacheDType, Quantization

from .. import server_contract as contract
from .base import HOMELESS, TORCH_DTYPES, RuntimeProgram, Serving, refused_formats

FLAGS = (
    "--served-model-name",
    "--host",
    "--port",
    "--max-model-len",
    "--dtype",
    "--quantization",
    "--kv-cache-dtype",
    "--block-size",
    "--gpu-memory-utilization",
    "--enable-prefix-caching",
    "--no-enable-prefix-caching",
    "--tensor-parallel-size",
    "--shutdown-timeout",
    "--api-key",
)
CACHE_DTYPES = {
    CacheDType.AUTO: "auto",
    CacheDType.BFLOAT16: "bfloat16",
    CacheDType.FLOAT16: "float16",
    CacheDType.FP8: "fp8",
}


def _arguments(serving: Serving) -> list[str]:
    engine, cache = serving.engine, serving.engine.kv_cache
    values = {
        "--served-model-name": serving.served_name,
        "--port": str(contract.PORT),
        "--dtype": TORCH_DTYPES[engine.dtype],
        "--kv-cache-dtype": CACHE_DTYPES[cache.dtype],
        "--gpu-memory-utilization": f"{cache.memory_percent / 100:.2f}",
        "--tensor-parallel-size": str(engine.parallelism.tensor),
        "--shutdown-timeout": str(serving.spec.rollout.drain_seconds),
    }
    if serving.spec.model.max_length:
        values["--max-model-len"] = str(serving.spec.model.max_length)
    if engine.quantization == Quantization.FP8:
        values["--quantization"] = "fp8"
    if serving.block_size_tokens:
        values["--block-size"] = str(serving.block_size_tokens)
    prefix = cache.prefix_caching == Switch.ENABLED
    switch = "--enable-prefix-caching" if prefix else "--no-enable-prefix-caching"
    return [serving.location, *(part for pair in values.items() for part in pair), switch]


VLLM = RuntimeProgram(
    "VLLM",
    ("vllm", "serve"),
    _arguments,
    FLAGS,
    environment=(*HOMELESS, ("VLLM_NO_USAGE_STATS", "1"), ("DO_NOT_TRACK", "1")),
    key_variable="VLLM_API_KEY",
    refused=lambda spec: refused_formats(spec, CACHE_DTYPES),
)
