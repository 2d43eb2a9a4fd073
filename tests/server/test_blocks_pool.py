"""The block pool against a plain model of it: counts, sharing, eviction order, integrity after every step."""

from __future__ import annotations

from hashlib import sha256

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, rule
from octavo_server.engine.blocks import BlockCounts, BlockPool


def digest(number: int) -> bytes:
    return sha256(str(number).encode()).digest()


class PoolMachine(RuleBasedStateMachine):
    """Sequences come, share, register and go in any order."""

    held = Bundle("held")

    def __init__(self) -> None:
        super().__init__()
        self.pool = BlockPool(9)
        self.living: list[list[int]] = []

    @rule(target=held, count=st.integers(0, 5))
    def allocate(self, count: int) -> list[int]:
        before = self.pool.available
        blocks = self.pool.allocate(count)
        assert (blocks is None) == (count > before)
        blocks = blocks or []
        assert 0 not in blocks
        assert len(set(blocks)) == len(blocks)
        self.living.append(blocks)
        return blocks

    @rule(target=held, first=st.integers(0, 3), count=st.integers(0, 3))
    def share(self, first: int, count: int) -> list[int]:
        blocks = self.pool.match([digest(number) for number in range(first, first + count)])
        self.pool.share(blocks)
        self.living.append(blocks)
        return blocks

    @rule(blocks=held, first=st.integers(0, 3))
    def register(self, blocks: list[int], first: int) -> None:
        for number, block in enumerate(blocks):
            self.pool.register(block, digest(first + number))

    @rule(blocks=held)
    def withdraw(self, blocks: list[int]) -> None:
        self.pool.withdraw(blocks)

    @rule(blocks=consumes(held))
    def release(self, blocks: list[int]) -> None:
        self.living.remove(blocks)
        self.pool.release(blocks)

    @invariant()
    def all_agrees(self) -> None:
        self.pool.check_integrity(self.living)
        counts = self.pool.counts()
        assert counts.active == len({block for blocks in self.living for block in blocks})
        assert counts.active + counts.cached + counts.free == self.pool.size


TestPoolMachine = PoolMachine.TestCase
TestPoolMachine.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)


def test_usage_is_zero_when_idle_with_a_warm_cache_half_when_half_full_and_one_when_full() -> None:
    pool = BlockPool(9)
    first = pool.allocate(4)
    assert first is not None
    assert pool.counts() == BlockCounts(active=4, cached=0, free=4)
    for number, block in enumerate(first):
        pool.register(block, digest(number))
    pool.release(first)
    assert pool.counts() == BlockCounts(active=0, cached=4, free=4)
    assert pool.allocate(8) is not None
    assert pool.counts() == BlockCounts(active=8, cached=0, free=0)


def test_free_blocks_are_taken_before_cached_ones_and_a_prefix_outlives_its_tail() -> None:
    pool = BlockPool(6)
    chain = pool.allocate(3)
    assert chain is not None
    for number, block in enumerate(chain):
        pool.register(block, digest(number))
    pool.release(chain)
    assert pool.allocate(3) is not None
    digests = [digest(number) for number in range(3)]
    assert pool.match(digests) == chain[:2]


def test_a_cached_block_that_is_used_again_is_evicted_last() -> None:
    pool = BlockPool(3)
    for number in (0, 1):
        taken = pool.allocate(1)
        assert taken is not None
        pool.register(taken[0], digest(number))
        pool.release(taken)
    again = pool.match([digest(0)])
    pool.share(again)
    pool.release(again)
    pool.allocate(1)
    assert pool.match([digest(0)]) == again
    assert pool.match([digest(1)]) == []


def test_the_integrity_check_sees_a_leaked_and_a_doubly_held_block() -> None:
    pool = BlockPool(4)
    blocks = pool.allocate(2)
    assert blocks is not None
    pool.check_integrity([blocks])
    for wrong in ([], [blocks, blocks[:1]], [[*blocks, blocks[0]]]):
        with pytest.raises(AssertionError):
            pool.check_integrity(wrong)


def test_without_prefix_caching_nothing_is_found_again() -> None:
    pool = BlockPool(4, prefix_caching=False)
    blocks = pool.allocate(1)
    assert blocks is not None
    pool.register(blocks[0], digest(0))
    pool.release(blocks)
    assert pool.match([digest(0)]) == []
    assert pool.counts().cached == 0
