"""The pool of KV blocks: reference counts, a free list in LRU order, and the prefix cache over it.

A block is *active* while its reference count is at least 1, *cached* when nobody uses it but its digest can still be
found, else *free*. Block 0 is reserved: it is never handed out, and unused page-table entries point to it. Digests are
the SHA-256 chain of engine/digests.py.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class BlockCounts:
    """Blocks by state; block 0 is in none of them."""

    active: int
    cached: int
    free: int


class BlockPool:
    """Hands out blocks 1 … blocks − 1. Paired verbs: `allocate` and `share` add references, `release` drops them."""

    def __init__(self, blocks: int, *, prefix_caching: bool = True) -> None:
        if blocks < 2:
            raise ValueError(f"a pool of {blocks} blocks holds nothing: block 0 is reserved, at least 2 are needed")
        self.size = blocks - 1
        self.prefix_caching = prefix_caching
        self._references = [0] * blocks
        self._digest_of: list[bytes | None] = [None] * blocks
        self._block_of: dict[bytes, int] = {}
        # First out = least recently used; blocks without a digest are put in front, so they go before cached ones.
        self._unused: OrderedDict[int, None] = OrderedDict.fromkeys(range(1, blocks))
        self._cached = 0
        self.evicted = 0
        """Cached blocks that were given to somebody else, since the start."""

    @property
    def available(self) -> int:
        """Blocks that `allocate` can hand out: free and cached ones."""
        return len(self._unused)

    def counts(self) -> BlockCounts:
        """Active, cached and free blocks; their sum is `size`."""
        unused = len(self._unused)
        return BlockCounts(self.size - unused, self._cached, unused - self._cached)

    def match(self, digests: Sequence[bytes]) -> list[int]:
        """Blocks of the longest cached prefix of this chain, without taking a reference."""
        found: list[int] = []
        for digest in digests:
            block = self._block_of.get(digest)
            if block is None:
                break
            found.append(block)
        return found

    def unused_among(self, blocks: Iterable[int]) -> int:
        """How many of these nobody uses now: sharing them takes as many out of `available`."""
        return sum(self._references[block] == 0 for block in blocks)

    def share(self, blocks: Iterable[int]) -> None:
        """Adds a reference to each block found by `match`."""
        for block in blocks:
            if self._references[block] == 0:
                del self._unused[block]
                self._cached -= 1
            self._references[block] += 1

    def allocate(self, count: int) -> list[int] | None:
        """`count` blocks with one reference each, least recently used first; None, and no change, when they lack."""
        if count > len(self._unused):
            return None
        taken = []
        for _ in range(count):
            block, _ = self._unused.popitem(last=False)
            self._forget(block)
            self._references[block] = 1
            taken.append(block)
        return taken

    def release(self, blocks: Sequence[int]) -> None:
        """Drops a reference from each block of a sequence; its last blocks become the first to be reused."""
        for block in reversed(blocks):
            self._references[block] -= 1
            if self._references[block] == 0:
                self._unused[block] = None
                if self._digest_of[block] is None:
                    self._unused.move_to_end(block, last=False)
                else:
                    self._cached += 1

    def register(self, block: int, digest: bytes) -> None:
        """Makes an active, completely written block findable; the first block with a digest keeps it."""
        if self.prefix_caching and digest not in self._block_of and self._digest_of[block] is None:
            self._block_of[digest] = block
            self._digest_of[block] = digest

    def withdraw(self, blocks: Iterable[int]) -> None:
        """Makes active blocks unfindable: their content is not to be shared any further."""
        for block in blocks:
            digest = self._digest_of[block]
            if digest is not None:
                self._digest_of[block] = None
                del self._block_of[digest]

    def _forget(self, block: int) -> None:
        digest = self._digest_of[block]
        if digest is not None:
            self._cached -= 1
            self.evicted += 1
            self._digest_of[block] = None
            del self._block_of[digest]

    def check_integrity(self, held: Iterable[Sequence[int]] | None = None) -> None:
        """Raises AssertionError when counts, lists and digests disagree; `held` = blocks of all living sequences."""
        assert self._references[0] == 0, "block 0 has references"
        assert 0 not in self._unused, "block 0 is in the free list"
        for block in range(1, self.size + 1):
            assert (self._references[block] == 0) == (block in self._unused), f"block {block}: count against free list"
            assert self._references[block] >= 0, f"block {block}: negative count"
        for digest, block in self._block_of.items():
            assert self._digest_of[block] == digest, f"block {block}: digest against table"
        named = sum(digest is not None for digest in self._digest_of)
        assert named == len(self._block_of), "digests without an entry"
        cached = sum(self._digest_of[block] is not None for block in self._unused)
        assert cached == self._cached, f"{self._cached} cached blocks counted, {cached} found"
        if held is not None:
            counts = [0] * (self.size + 1)
            for blocks in held:
                assert len(set(blocks)) == len(blocks), "a sequence holds a block twice"
                for block in blocks:
                    counts[block] += 1
            assert counts == self._references, "references differ from what living sequences hold"
