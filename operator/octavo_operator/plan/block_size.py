"""Which KV block size a node type gets."""

from __future__ import annotations

from octavo_operator.api.engine_section import Runtime

from .tuning import Measured

DEFAULT_BLOCK_SIZE_TOKENS = 16


def choose_block_size(
    explicit: int, runtime: Runtime = Runtime.OCTAVO, known: Measured | None = None
) -> tuple[int, str]:
    """(tokens per block, reason): the spec's value, else the measured one, else 16; 0 = another runtime's choice."""
    if explicit:
        return explicit, "engine.kvCache.blockSize"
    if runtime != Runtime.OCTAVO:
        return 0, f"the runtime {runtime.value} chooses for itself"
    if known is not None:
        return known.block_size_tokens, known.reason
    return DEFAULT_BLOCK_SIZE_TOKENS, "default: nothing was measured for this node type"
