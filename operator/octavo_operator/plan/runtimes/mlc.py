"""MLC LLM (`mlc_llm serve`). Precision and quantization are compiled into the model; its metrics tell no load.

Flags and values are those of its sources: python/mlc_llm/cli/serve.py (it is on no package registry).
"""

from __future__ import annotations

from octavo_operator.api.base import Switch
from octavo_operator.api.engine_section import CacheDType, DType, Quantization
from octavo_operator.api.inference_service import InferenceServiceSpec

from .. import server_contract as contract
from .base import HOMELESS, RuntimeProgram, Serving

FLAGS = ("--host", "--port", "--device", "--mode", "--prefix-cache-mode", "--overrides")


def _arguments(serving: Serving) -> list[str]:
    engine, overrides = serving.engine, []
    overrides.append(f"gpu_memory_utilization={engine.kv_cache.memory_percent / 100:.2f}")
    if serving.spec.model.max_length:
        overrides.append(f"context_window_size={serving.spec.model.max_length}")
    if engine.parallelism.tensor > 1:
        overrides.append(f"tensor_parallel_shards={engine.parallelism.tensor}")
    device = "cpu" if serving.is_cpu else "auto"
    words = [serving.location, "--port", str(contract.PORT), "--device", device, "--mode", "server"]
    cache = "radix" if engine.kv_cache.prefix_caching == Switch.ENABLED else "disable"
    return [*words, "--prefix-cache-mode", cache, "--overrides", ";".join(overrides)]


def _refused(spec: InferenceServiceSpec) -> list[tuple[str, str]]:
    engine, found = spec.engine, []
    if engine.dtype != DType.AUTO:
        found.append(("engine.dtype", engine.dtype.value))
    if engine.quantization != Quantization.NONE:
        found.append(("engine.quantization", engine.quantization.value))
    if engine.kv_cache.dtype != CacheDType.AUTO:
        found.append(("engine.kvCache.dtype", engine.kv_cache.dtype.value))
    if engine.kv_cache.block_size:
        found.append(("engine.kvCache.blockSize", str(engine.kv_cache.block_size)))
    if spec.access.api_key_secret_ref is not None:
        # Served without the key that somebody asked for, the model would be open to all.
        found.append(("access.apiKeySecretRef", spec.access.api_key_secret_ref.name))
    if spec.model.served_name is not None:
        found.append(("model.servedName", spec.model.served_name))
    return found


MLC = RuntimeProgram(
    "MLC",
    ("mlc_llm", "serve"),
    _arguments,
    FLAGS,
    health_path="/v1/models",
    ready_path="/v1/models",
    environment=HOMELESS,
    refused=_refused,
)
