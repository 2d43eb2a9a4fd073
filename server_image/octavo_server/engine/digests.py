"""Names of cache blocks: a SHA-256 chain over (parent, tokens), started by adapter and salt.

Both sides use it: the API process for the prompt, the engine for generated tokens. All parts have a fixed or a stated
length, so two different inputs never give the same bytes to hash (an adapter's name can't imitate a salt, and a
collision would be one of SHA-256 itself).
"""

from __future__ import annotations

from hashlib import sha256

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


def digests(tokens: bytes, block_size_tokens: int, seed: bytes) -> list[bytes]:
    """One digest per full block of `tokens` (int32, little endian); a last part that fills no block has none."""
    step = block_size_tokens * TOKEN_BYTES
    chain: list[bytes] = []
    parent = seed
    for start in range(0, len(tokens) - step + 1, step):
        parent = extend(parent, tokens[start : start + step])
        chain.append(parent)
    return chain
