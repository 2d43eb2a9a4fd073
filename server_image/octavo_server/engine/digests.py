"""Names of cache blocks: a SHA-256 chain over (parent, tokens), started by adapter and salt.

Both sides use it: the API process for the prompt, the engine for generated tokens. All parts have a fixed or a stated
length, so two different inputs never give the same bytes to hash (an adapter's name can't imitate a salt, and a
collision would be one of SHA-256 itself).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from hashlib import sha256

import numpy as np

TOKEN_BYTES = 4


def digest_seed(adapter: str = "", salt: str = "") -> bytes:
    """The parent of a first block, 32 bytes: requests share blocks only with the same adapter and the same salt."""
    state = sha256(b"octavo-kv-1")
    for part in (adapter.encode(), salt.encode()):
        state.update(len(part).to_bytes(8, "little"))
        state.update(part)
    return state.digest()


def extend(parent: bytes, tokens: bytes) -> bytes:
    """The digest of a block that follows `parent` (32 bytes) and holds `tokens` (int32, little endian)."""
    return sha256(parent + tokens).digest()


def digests(tokens: bytes, block_size_tokens: int, seed: bytes, known: Sequence[bytes] = ()) -> list[bytes]:
    """One digest per full block of `tokens` (int32, little endian); a last part that fills no block has none.

    known: digests of the first blocks, which are not hashed again.
    """
    step = block_size_tokens * TOKEN_BYTES
    chain = list(known)
    parent = chain[-1] if chain else seed
    for start in range(len(chain) * step, len(tokens) - step + 1, step):
        parent = extend(parent, tokens[start : start + step])
        chain.append(parent)
    return chain


class RecentChains:
    """Chains of the last few prompts: one that begins like another of them is hashed from where they part.

    A conversation sends its whole past with each turn, and requests of an application share their instructions.
    """

    def __init__(self, block_size_tokens: int, *, kept: int = 4) -> None:
        self._block_size = block_size_tokens
        self._kept: deque[tuple[bytes, bytes, list[bytes]]] = deque(maxlen=kept)

    def digests(self, tokens: bytes, seed: bytes) -> list[bytes]:
        """As the function of this name."""
        known: list[bytes] = []
        for other_seed, other, chain in self._kept:
            if other_seed == seed:
                blocks = _common_bytes(tokens, other) // (self._block_size * TOKEN_BYTES)
                known = max(known, chain[:blocks], key=len)
        chain = digests(tokens, self._block_size, seed, known)
        self._kept.append((seed, tokens, chain))
        return list(chain)


def _common_bytes(first: bytes, second: bytes) -> int:
    """Length of the longest common beginning."""
    count = min(len(first), len(second))
    differ = np.frombuffer(first, np.uint8, count) != np.frombuffer(second, np.uint8, count)
    return int(differ.argmax()) if differ.any() else count
