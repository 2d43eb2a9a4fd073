"""What a block size leaves of prefix hits: requests that begin alike ask the server's own prefix cache."""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from octavo_server.engine.blocks import BlockPool
from octavo_server.engine.digests import digest_seed, digests

PREFIX_TOKENS = (48, 100, 200, 400, 800, 1600, 3200)
"""Lengths of shared prefixes, from a short system prompt to a long document."""
PREFIX_OFFSETS = 16
"""Each length stands for as many lengths behind it, or a multiple of every block would show no loss at all."""
_OWN_TOKENS = 64
"""What follows a shared prefix, another text for each request."""


def prefix_lengths() -> list[int]:
    """Lengths of the prefixes that are tried, in tokens."""
    return [
        length + offset * max(1, length // (2 * PREFIX_OFFSETS))
        for length in PREFIX_TOKENS
        for offset in range(PREFIX_OFFSETS)
    ]


@lru_cache(maxsize=16)
def prefix_hit_share(block_size_tokens: int) -> float:
    """Mean over shared prefixes of the share of their tokens that a second request finds in the prefix cache.

    The others are computed again: a prefix that is shorter than a block is found by nobody.
    """
    shares = [_hit_tokens(length, block_size_tokens) / length for length in prefix_lengths()]
    return sum(shares) / len(shares)


def _hit_tokens(shared: int, block_size_tokens: int) -> int:
    """One request fills the cache, another one that shares its first tokens asks for them."""
    seed = digest_seed()
    tokens = np.arange(shared + 2 * _OWN_TOKENS, dtype="<i4")
    first, second = tokens[: shared + _OWN_TOKENS], np.concatenate([tokens[:shared], tokens[-_OWN_TOKENS:]])
    written = digests(first.tobytes(), block_size_tokens, seed)
    pool = BlockPool(len(written) + 2)
    blocks = pool.allocate(len(written)) or []
    for block, digest in zip(blocks, written, strict=True):
        pool.register(block, digest)
    return len(pool.match(digests(second.tobytes(), block_size_tokens, seed))) * block_size_tokens
