"""Which tokens the next step computes. There are no phases: a request has planned tokens and computed ones.

Each step hands out one token budget: first to requests that need a single token (they generate), then to longer parts,
then to waiting requests, in the order of (priority, arrival). Admission reserves blocks for all known tokens at once,
so a prompt never stalls half-way. When a generating request finds no block, the last one in the order gives its blocks
back and returns to its place in the queue; its tokens are computed anew. The first one in the order is never
preempted and one request always fits the pool alone, so some request always moves on.

A step may be planned while the one before still runs: a token that it samples is planned and not known yet. A request
whose last token is planned gets no further step. Nothing is preempted before all launched steps are collected.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from octavo_server.engine.blocks import BlockPool
from octavo_server.engine.groups import SharingGroups, StepGroups
from octavo_server.engine.plan import Ints, StepPlan, empty_plan
from octavo_server.engine.request import Request
from octavo_server.engine.slots import RECENT, Flags, SlotTable

PROMPT_LOGPROB_ROWS = 256
"""Tokens per step whose logits are kept for prompt log-probabilities: a row is a whole vocabulary of float32."""

PromptBudget = Callable[[int, int, int], int]
"""(generating rows, cached tokens that they read, tokens before the first longer part) → tokens of longer parts."""


@dataclass(frozen=True)
class SchedulerLimits:
    """Limits of one step."""

    max_batched_tokens: int
    max_sequences: int
    block_size: int


@dataclass(frozen=True, eq=False)
class _SingleRows:
    """Rows of one token: the slots asked for, the same in the order of the step, and what stays while they do."""

    wanted: Ints
    slots: Ints
    requests: list[Request]
    groups: StepGroups | None
    counts: Ints
    samples: Flags
    admissions: Ints
    mark: object = field(default_factory=object)


class Scheduler:
    """Owns the queue, the running requests, their slots and their blocks.

    A step goes through `schedule`, `launched` (its kernels are queued) and `collected` (its tokens are known); `undo`
    in place of `collected` when it failed.
    """

    def __init__(self, pool: BlockPool, limits: SchedulerLimits) -> None:
        self.pool = pool
        self.limits = limits
        self.table = SlotTable(limits.max_sequences)
        self.groups = SharingGroups(limits.max_sequences, limits.block_size)
        self.waiting: list[Request] = []
        self.running: list[Request] = []
        self.preemptions = 0
        self.queried_tokens = 0
        self.hit_tokens = 0
        self._logprob_rows = 0
        self._order: Ints | None = None
        self._rows: _SingleRows | None = None
        # Digests of blocks that a running request is about to compute, and by which request.
        self._computing: dict[bytes, Request] = {}

    def add(self, request: Request) -> None:
        """Puts a new request into the queue."""
        insort(self.waiting, request, key=lambda other: other.order)

    def remove(self, request: Request) -> None:
        """Takes a request out, wherever it is, and gives its slot and blocks back.

        A launched step may still read and write these blocks. The next step that gets them runs after it on the same
        stream, so nothing has to wait.
        """
        if request.slot < 0:
            self.waiting.remove(request)
        else:
            self.running.remove(request)
            self._release(request)

    def schedule(self, *, prompt_budget: PromptBudget | int | None = None) -> StepPlan:
        """The rows of the next step; empty when nothing can be computed.

        prompt_budget: limit on tokens of parts longer than 1 while other requests generate (it bounds a step's time),
        or what computes it; None = the token budget alone.
        """
        table, budget = self.table, self.limits.max_batched_tokens
        self._logprob_rows = PROMPT_LOGPROB_ROWS
        preempted = self._reserve()
        if preempted is None:
            return empty_plan(table, waits=True)
        slots = self._slots()
        computed = table.computed[slots]
        pending = np.where(table.planned[slots] < table.limit[slots], table.planned[slots] - computed, 0)
        rows = self._single_rows(slots[pending == 1][:budget])
        single = rows.slots
        starts = table.computed[single]
        budget -= len(single)
        longer = [self._request(slot) for slot in slots[pending > 1].tolist()]
        if len(single) and prompt_budget is not None and (longer or self.waiting):
            if not isinstance(prompt_budget, int):
                before = int(table.computed[slots[pending > 1][0]]) if longer else 0
                prompt_budget = prompt_budget(len(single), int(starts.sum()), before)
            budget = min(budget, max(1, prompt_budget))
        long: list[tuple[Request, int, int, bool]] = []
        for request in longer:
            if budget > 0:
                budget -= self._add_part(long, request, budget)
        if not preempted:
            self._admit_waiting(long, budget)
        return self._plan(rows, starts, long)

    def launched(self, plan: StepPlan) -> None:
        """The step's kernels are queued: what it writes counts as computed, and its full blocks may be shared."""
        table, slots = self.table, plan.slots
        table.computed[slots] = plan.starts + plan.counts
        sampling = slots[plan.samples]
        table.planned[sampling] += 1
        table.drawn[sampling] = True
        self._register(slots)

    def collected(self, plan: StepPlan) -> None:
        """The step's tokens were appended to its requests: blocks that they filled may be shared."""
        self._register(plan.slots[plan.alive])

    def undo(self, plan: StepPlan) -> None:
        """The launched step failed: nothing that it wrote is found in the prefix cache any more."""
        size = self.limits.block_size
        for row, alive in enumerate(plan.alive.tolist()):
            if alive:
                request = plan.requests[row]
                self.pool.withdraw(request.blocks[int(plan.starts[row]) // size :])

    def withdraw(self, request: Request, kept_length: int) -> None:
        """Makes blocks unfindable that hold tokens past the first `kept_length` of this request."""
        if request.slot >= 0:
            registered = int(self.table.registered[request.slot])
            self.pool.withdraw(request.blocks[kept_length // self.limits.block_size : registered])

    def used_slots(self) -> int:
        """Token slots of active blocks that hold a token; shared blocks counted once."""
        size = self.limits.block_size
        slots = self._slots()
        whole = 0
        # Only the last blocks of a request are partly filled, and those are never shared.
        full: set[int] = set()
        for slot, computed in zip(slots.tolist(), self.table.computed[slots].tolist(), strict=True):
            request = self.table.requests[slot]
            assert request is not None
            full.update(request.blocks[: computed // size])
            whole += computed % size
        return whole + size * len(full)

    def check_integrity(self) -> None:
        """Raises AssertionError when slots, blocks, families and requests disagree."""
        size, table = self.limits.block_size, self.table
        self.pool.check_integrity([request.blocks for request in self.running])
        self.groups.check_integrity({request.slot: request.blocks for request in self.running})
        slots = [request.slot for request in self.running] + table.free
        assert sorted(slots) == list(range(self.limits.max_sequences)), "a slot is lost or used twice"
        for request in self.running:
            name, slot = request.request_id, request.slot
            assert table.requests[slot] is request, f"{name}: another request has its slot"
            assert 0 <= table.known[slot] - table.kept[slot] <= RECENT, f"{name}: tokens that nobody fetched"
            assert table.held[slot] == len(request.blocks), f"{name}: blocks"
            assert table.tail[slot] == request.blocks[-1], f"{name}: last block"
            assert 0 <= request.computed <= table.planned[slot], f"{name}: more computed than planned"
            assert request.length <= table.planned[slot] <= request.max_length, f"{name}: planned tokens"
            assert len(request.blocks) * size >= request.computed, f"{name}: computed tokens lack a block"
            assert table.registered[slot] * size <= min(request.computed, request.length), f"{name}: registered"
        for request in self.waiting:
            assert request.slot == -1, f"{request.request_id} waits and holds a slot"
            assert not request.blocks, f"{request.request_id} waits and holds blocks"
        for queue in (self.running, self.waiting):
            assert queue == sorted(queue, key=lambda request: request.order), "a queue is out of order"
        for request in self._computing.values():
            assert request.slot >= 0, f"{request.request_id} computes a prefix and does not run"

    def _slots(self) -> Ints:
        """Slots of the running requests in their order."""
        if self._order is None:
            self._order = np.array([request.slot for request in self.running], np.int64)
        return self._order

    def _single_rows(self, slots: Ints) -> _SingleRows:
        """These slots family by family, with their requests and groups: mostly those of the step before."""
        if self._rows is None or not np.array_equal(slots, self._rows.wanted):
            ordered = self.groups.order(slots)
            groups = None
            if ordered is not None:
                groups = self.groups.step_groups(ordered, self.table.computed[ordered])
            order = slots if ordered is None else ordered
            requests, count = [self._request(slot) for slot in order.tolist()], len(order)
            ones, all_of_them = np.ones(count, np.int64), np.ones(count, np.bool_)
            admissions = self.table.admission[order]
            self._rows = _SingleRows(slots, order, requests, groups, ones, all_of_them, admissions)
        return self._rows

    def _plan(self, single: _SingleRows, starts: Ints, long: list[tuple[Request, int, int, bool]]) -> StepPlan:
        slots, count, groups, table = single.slots, len(single.slots), single.groups, self.table
        counts, samples, admissions = single.counts, single.samples, single.admissions
        if not long:
            return StepPlan(
                single.requests, slots, starts, counts, samples, admissions, count, table, groups, same=single.mark
            )
        requests = single.requests + [request for request, *_ in long]
        slots = np.concatenate((slots, np.array([request.slot for request, *_ in long], np.int64)))
        starts = np.concatenate((starts, np.array([start for _, start, _, _ in long], np.int64)))
        counts = np.concatenate((counts, np.array([tokens for _, _, tokens, _ in long], np.int64)))
        samples = np.concatenate((samples, np.array([last for *_, last in long], np.bool_)))
        return StepPlan(requests, slots, starts, counts, samples, table.admission[slots], count, table, groups)

    def _request(self, slot: int) -> Request:
        request = self.table.requests[slot]
        assert request is not None, "a row without a request"
        return request

    def _register(self, slots: Ints) -> None:
        """Offers blocks that are full and known to the prefix cache; Python sees only rows that have such."""
        if not self.pool.prefix_caching:
            return
        table, size = self.table, self.limits.block_size
        full = np.minimum(table.computed[slots], table.known[slots]) // size
        grown = (full > table.registered[slots]).nonzero()[0]
        if not len(grown):
            return
        for slot, end in zip(slots[grown].tolist(), full[grown].tolist(), strict=True):
            request = self._request(slot)
            for index in range(int(table.registered[slot]), end):
                digest = request.digest(index, size)
                self.pool.register(request.blocks[index], digest)
                if self._computing.get(digest) is request:
                    del self._computing[digest]
            table.registered[slot] = end

    def _add_part(self, parts: list[tuple[Request, int, int, bool]], request: Request, budget: int) -> int:
        computed = request.computed
        count = min(request.length - computed, budget)
        if request.sampling.prompt_logprobs >= 0:
            count = min(count, self._logprob_rows)
            self._logprob_rows -= count
        if count == 0:
            return 0
        parts.append((request, computed, count, computed + count == request.length))
        return count

    def _blocks_for(self, tokens: int) -> int:
        return -(-tokens // self.limits.block_size)

    def _reserve(self) -> bool | None:
        """Gives each running request the blocks of its planned tokens, preempting from the end.

        Returns whether one was preempted; None when that has to wait for a launched step.
        """
        table, size = self.table, self.limits.block_size
        slots = self._slots()
        planned = table.planned[slots]
        lacking = slots[(-(-planned // size) > table.held[slots]) & (planned < table.limit[slots])]
        missing = -(-table.planned[lacking] // size) - table.held[lacking]
        if missing.sum() <= self.pool.available:
            for slot, count in zip(lacking.tolist(), missing.tolist(), strict=True):
                blocks = self._request(slot).blocks
                blocks += self.pool.allocate(count) or []
                table.grew(slot, blocks)
            return False
        return self._reserve_tightly(lacking)

    def _reserve_tightly(self, lacking: Ints) -> bool | None:
        """As `_reserve`, where blocks do not suffice for all of these slots."""
        table, preempted = self.table, False
        for slot in lacking.tolist():
            request = table.requests[slot]
            if request is None:  # preempted by one before it
                continue
            missing = self._blocks_for(int(table.planned[slot])) - len(request.blocks)
            while request.slot >= 0:
                fresh = self.pool.allocate(missing)
                if fresh is not None:
                    request.blocks += fresh
                    table.grew(slot, request.blocks)
                    break
                if (table.planned[self._slots()] > table.known[self._slots()]).any():
                    return None
                self._preempt(self.running[-1])
                preempted = True
        return preempted

    def _preempt(self, request: Request) -> None:
        self.running.remove(request)
        self._release(request)
        self.preemptions += 1
        insort(self.waiting, request, key=lambda other: other.order)

    def _release(self, request: Request) -> None:
        for digest in request.digest_chain[int(self.table.registered[request.slot]) :]:
            if self._computing.get(digest) is request:
                del self._computing[digest]
        self.groups.leave(request.slot)
        self.pool.release(request.blocks)
        request.leave_slot()
        self._order = self._rows = None
        request.blocks = []

    def _admit_waiting(self, long: list[tuple[Request, int, int, bool]], budget: int) -> None:
        """Admits from the head of the queue; one whose prefix is being computed lets others pass until it is there."""
        place = 0
        while place < len(self.waiting) and budget > 0:
            request = self.waiting[place]
            hits = self._hits(request)
            if hits is None:
                place += 1
                continue
            if not self._admit(request, hits):
                return
            self.waiting.pop(place)
            insort(self.running, request, key=lambda other: other.order)
            self._order = self._rows = None
            budget -= self._add_part(long, request, budget)

    def _hits(self, request: Request) -> list[int] | None:
        """Cached blocks that the request begins with; None when a running request is computing the next one."""
        # Without the logits of every prompt token there are no prompt log-probabilities, so those requests compute all.
        if not self.pool.prefix_caching or request.sampling.prompt_logprobs >= 0:
            return []
        size = self.limits.block_size
        usable = (request.length - 1) // size
        if len(request.digest_chain) < usable:
            request.digest(usable - 1, size)
        hits = self.pool.match(request.digest_chain[:usable])
        if len(hits) < usable and request.digest_chain[len(hits)] in self._computing:
            return None
        return hits

    def _admit(self, request: Request, hits: list[int]) -> bool:
        """Reserves blocks for all known tokens, and leaves each running request one to grow; False when they lack."""
        if not self.table.free:
            return False
        size = self.limits.block_size
        fresh = self._blocks_for(request.length) - len(hits)
        if fresh + self.pool.unused_among(hits) + len(self.running) > self.pool.available:
            return False
        self.pool.share(hits)
        request.blocks = hits + (self.pool.allocate(fresh) or [])
        request.table = self.table
        request.slot = self.table.take(request, computed=len(hits) * size)
        self.table.registered[request.slot] = len(hits)
        self.groups.join(request.slot, request.blocks)
        use_cache = self.pool.prefix_caching and request.sampling.prompt_logprobs < 0
        if use_cache:
            for digest in request.digest_chain[len(hits) : request.length // size]:
                self._computing.setdefault(digest, request)
        if request.cached_tokens < 0:
            request.cached_tokens = min(len(hits) * size, request.prompt_length)
            if use_cache:
                self.queried_tokens += request.prompt_length
                self.hit_tokens += request.cached_tokens
        return True
