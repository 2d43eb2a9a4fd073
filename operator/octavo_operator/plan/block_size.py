"""Which KV block size a node type gets."""

from __future__ import annotations

DEFAULT_BLOCK_SIZE_TOKENS = 16


def choose_block_size(explicit: int) -> tuple[int, str]:
    """(tokens per block, reason): the spec's value, else 16."""
    if explicit:
        return explicit, "engine.kvCache.blockSize"
    return DEFAULT_BLOCK_SIZE_TOKENS, "default: nothing was measured for this node type"
