"""Which KV block size a node type gets."""

from __future__ import annotations

from octavo_operator.api.engine_section import Runtime

DEFAULT_BLOCK_SIZE_TOKENS = 16


def choose_block_size(explicit: int, runtime: Runtime = Runtime.OCTAVO) -> tuple[int, str]:
    """(tokens per block, reason): the spec's value, else 16; 0 = another runtime's own choice."""
    if explicit:
        return explicit, "engine.kvCache.blockSize"
    if runtime != Runtime.OCTAVO:
        return 0, f"the runtime {runtime.value} chooses for itself"
    return DEFAULT_BLOCK_SIZE_TOKENS, "default: nothing was measured for this node type"
