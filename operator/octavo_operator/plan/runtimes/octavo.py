"""Octavo's own server; its flags are the wire contract."""

from __future__ import annotations

from .. import server_contract as contract
from .base import RuntimeProgram, Serving


def _arguments(serving: Serving) -> list[str]:
    model, engine, cache = serving.spec.model, serving.engine, serving.engine.kv_cache
    values = {
        "--model": serving.location,
        "--format": model.format.value,
        "--served-name": serving.served_name,
        "--max-length": str(model.max_length),
        "--port": str(contract.PORT),
        "--device": "CPU" if serving.is_cpu else "Auto",
        "--dtype": engine.dtype.value,
        "--quantization": engine.quantization.value,
        "--kv-dtype": cache.dtype.value,
        "--block-size": str(serving.block_size_tokens),
        "--memory-percent": str(cache.memory_percent),
        "--prefix-caching": cache.prefix_caching.value,
        "--tensor-parallel": str(engine.parallelism.tensor),
        "--drain-seconds": str(serving.spec.rollout.drain_seconds),
    }
    if serving.launch_table:
        values["--launch-table"] = serving.launch_table
    return ["serve", *(part for pair in values.items() for part in pair)]


OCTAVO = RuntimeProgram(
    "Octavo",
    (contract.PROGRAM,),
    _arguments,
    contract.SERVE_FLAGS,
    contract.HEALTH_PATH,
    contract.READY_PATH,
    probe_seconds=2,
    notice_seconds=0,
    key_variable=contract.API_KEY_ENV,
)
