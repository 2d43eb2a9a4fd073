"""Which tokens the next step computes. There are no phases: a request has known tokens and computed ones.

Each step hands out one token budget: first to requests that need a single token (they generate), then to longer parts,
then to waiting requests, in the order of (priority, arrival). Admission reserves blocks for all known tokens at once,
so a prompt never stalls half-way. When a generating request finds no block, the last one in the order gives its blocks
back and returns to its place in the queue; its tokens are computed anew. The first one in the order is never
preempted and one request always fits the pool alone, so some request always moves on.
"""

from __future__ import annotations

from bisect import insort
from dataclasses import dataclass

from octavo_server.engine.blocks import BlockPool
from octavo_server.engine.request import Request

PROMPT_LOGPROB_ROWS = 256
"""Tokens per step whose logits are kept for prompt log-probabilities: a row is a whole vocabulary of float32."""


@dataclass(frozen=True)
class Part:
    """A request's share of a step: `count` tokens from `computed` on; the last known token among them → it samples."""

    request: Request
    start: int
    count: int
    samples: bool


@dataclass(frozen=True)
class SchedulerLimits:
    """Limits of one step."""

    max_batched_tokens: int
    max_sequences: int
    block_size: int


class Scheduler:
    """Owns the queue, the running requests, their slots and their blocks."""

    def __init__(self, pool: BlockPool, limits: SchedulerLimits) -> None:
        self.pool = pool
        self.limits = limits
        self.waiting: list[Request] = []
        self.running: list[Request] = []
        self.preemptions = 0
        self.queried_tokens = 0
        self.hit_tokens = 0
        self._logprob_rows = 0
        self._free_slots = list(range(limits.max_sequences - 1, -1, -1))

    def add(self, request: Request) -> None:
        """Puts a new request into the queue."""
        insort(self.waiting, request, key=lambda other: other.order)

    def remove(self, request: Request) -> None:
        """Takes a request out, wherever it is, and gives its slot and blocks back."""
        if request.slot < 0:
            self.waiting.remove(request)
        else:
            self.running.remove(request)
            self._release(request)

    def schedule(self, *, long_parts_budget: int | None = None) -> list[Part]:
        """The parts of the next step; empty only when nothing is known that is not computed.

        long_parts_budget: limit on tokens of parts longer than 1 while other requests generate (it bounds a step's
        time); None = the token budget alone.
        """
        budget = self.limits.max_batched_tokens
        self._logprob_rows = PROMPT_LOGPROB_ROWS
        parts: list[Part] = []
        preempted = self._reserve_for_generation()
        for request in self.running:
            if request.pending == 1 and budget > 0:
                parts.append(Part(request, request.computed, 1, True))
                budget -= 1
        if parts and long_parts_budget is not None:
            budget = min(budget, max(1, long_parts_budget))
        for request in self.running:
            if request.pending > 1 and budget > 0:
                budget -= self._add_part(parts, request, budget)
        while self.waiting and budget > 0 and not preempted and self._admit(self.waiting[0]):
            request = self.waiting.pop(0)
            insort(self.running, request, key=lambda other: other.order)
            budget -= self._add_part(parts, request, budget)
        return parts

    def complete(self, parts: list[Part]) -> None:
        """Marks the parts of a step as computed and offers blocks that became full to the prefix cache."""
        size = self.limits.block_size
        for part in parts:
            request = part.request
            request.computed = part.start + part.count
            if self.pool.prefix_caching:
                full = request.computed // size
                for index in range(request.registered, full):
                    self.pool.register(request.blocks[index], request.digest(index, size))
                request.registered = max(request.registered, full)

    def withdraw(self, request: Request, kept_length: int) -> None:
        """Makes blocks unfindable that hold tokens past the first `kept_length` of this request."""
        self.pool.withdraw(request.blocks[kept_length // self.limits.block_size : request.registered])

    def check_integrity(self) -> None:
        """Raises AssertionError when slots, blocks and requests disagree."""
        size = self.limits.block_size
        self.pool.check_integrity([request.blocks for request in self.running])
        slots = [request.slot for request in self.running] + self._free_slots
        assert sorted(slots) == list(range(self.limits.max_sequences)), "a slot is lost or used twice"
        for request in self.running:
            assert 0 <= request.computed < request.length <= request.max_length, f"{request.request_id}: counts"
            assert len(request.blocks) * size >= request.computed, f"{request.request_id}: computed tokens lack a block"
        for request in self.waiting:
            assert request.slot == -1, f"{request.request_id} waits and holds a slot"
            assert not request.blocks, f"{request.request_id} waits and holds blocks"
        for queue in (self.running, self.waiting):
            assert queue == sorted(queue, key=lambda request: request.order), "a queue is out of order"

    def _add_part(self, parts: list[Part], request: Request, budget: int) -> int:
        count = min(request.pending, budget)
        if request.sampling.prompt_logprobs >= 0:
            count = min(count, self._logprob_rows)
            self._logprob_rows -= count
        if count == 0:
            return 0
        parts.append(Part(request, request.computed, count, request.computed + count == request.length))
        return count

    def _blocks_for(self, tokens: int) -> int:
        return -(-tokens // self.limits.block_size)

    def _reserve_for_generation(self) -> bool:
        """Gives each running request the blocks of its known tokens, preempting from the end; True when one was."""
        preempted = False
        index = 0
        while index < len(self.running):
            request = self.running[index]
            missing = self._blocks_for(request.length) - len(request.blocks)
            if missing > 0:
                fresh = self.pool.allocate(missing)
                if fresh is None:
                    self._preempt(self.running[-1])
                    preempted = True
                    continue
                request.blocks += fresh
            index += 1
        return preempted

    def _preempt(self, request: Request) -> None:
        self.running.remove(request)
        self._release(request)
        self.preemptions += 1
        insort(self.waiting, request, key=lambda other: other.order)

    def _release(self, request: Request) -> None:
        self.pool.release(request.blocks)
        self._free_slots.append(request.slot)
        request.blocks = []
        request.computed = request.registered = 0
        request.slot = -1

    def _admit(self, request: Request) -> bool:
        """Reserves blocks for all known tokens, and leaves each running request one to grow; False when they lack."""
        if not self._free_slots:
            return False
        size = self.limits.block_size
        hits: list[int] = []
        # Without the logits of every prompt token there are no prompt log-probabilities, so those requests compute all.
        use_cache = self.pool.prefix_caching and request.sampling.prompt_logprobs < 0
        if use_cache:
            usable = (request.length - 1) // size
            for index in range(usable):
                request.digest(index, size)
            hits = self.pool.match(request.digest_chain[:usable])
        fresh = self._blocks_for(request.length) - len(hits)
        if fresh + self.pool.unused_among(hits) + len(self.running) > self.pool.available:
            return False
        self.pool.share(hits)
        request.blocks = hits + (self.pool.allocate(fresh) or [])
        request.computed = len(hits) * size
        request.registered = len(hits)
        request.slot = self._free_slots.pop()
        request.admissions += 1
        if request.cached_tokens < 0:
            request.cached_tokens = min(request.computed, request.prompt_length)
            if use_cache:
                self.queried_tokens += request.prompt_length
                self.hit_tokens += request.cached_tokens
        return True
