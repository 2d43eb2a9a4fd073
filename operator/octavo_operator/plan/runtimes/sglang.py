"""SGLang (`python3 -m sglang.launch_server`). On SIGTERM it finishes what runs by itself.

Flags and values are those of SGLang 0.5.23: sglang/srt/server_args.py, sglang/srt/arg_groups/fields.
"""

from __future__ import annotations

from octavo_operator.api.base import Switch
from octavo_operator.api.engine_section import CacheDType, Quantization

from .. import server_contract as contract
from .base import HOMELESS, TORCH_DTYPES, RuntimeProgram, Serving, refused_formats

FLAGS = (
    "--model-path",
    "--served-model-name",
    "--host",
    "--port",
    "--context-length",
    "--dtype",
    "--quantization",
    "--kv-cache-dtype",
    "--page-size",
    "--mem-fraction-static",
    "--disable-radix-cache",
    "--tp-size",
    "--enable-metrics",
    "--device",
    "--api-key",
)
CACHE_DTYPES = {CacheDType.AUTO: "auto", CacheDType.BFLOAT16: "bfloat16", CacheDType.FP8: "fp8_e4m3"}


def _arguments(serving: Serving) -> list[str]:
    engine, cache = serving.engine, serving.engine.kv_cache
    values = {
        "--model-path": serving.location,
        "--served-model-name": serving.served_name,
        "--port": str(contract.PORT),
        "--dtype": TORCH_DTYPES[engine.dtype],
        "--kv-cache-dtype": CACHE_DTYPES[cache.dtype],
        "--mem-fraction-static": f"{cache.memory_percent / 100:.2f}",
        "--tp-size": str(engine.parallelism.tensor),
    }
    if serving.is_cpu:
        values["--device"] = "cpu"
    if serving.spec.model.max_length:
        values["--context-length"] = str(serving.spec.model.max_length)
    if engine.quantization == Quantization.FP8:
        values["--quantization"] = "fp8"
    if serving.block_size_tokens:
        values["--page-size"] = str(serving.block_size_tokens)
    # Its metrics are what scaling reads; without the flag there are none.
    words = [*(part for pair in values.items() for part in pair), "--enable-metrics"]
    return words if cache.prefix_caching == Switch.ENABLED else [*words, "--disable-radix-cache"]


SGLANG = RuntimeProgram(
    "SGLang",
    ("python3", "-m", "sglang.launch_server"),
    _arguments,
    FLAGS,
    environment=HOMELESS,
    key_variable=contract.API_KEY_ENV,
    key_arguments=("--api-key", f"$({contract.API_KEY_ENV})"),
    refused=lambda spec: refused_formats(spec, CACHE_DTYPES),
)
