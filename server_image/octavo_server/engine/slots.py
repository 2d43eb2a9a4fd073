"""Numbers of the running requests by slot: what a step reads of all of them at once.

A request takes a slot when it is admitted and gives it back when it ends or is preempted. A step works on these arrays;
Python touches only requests that change (a new block, an end, a sampling rule of their own).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from octavo_server.engine.request import Request

STOP_IDS = 8
"""Stop token ids of a request that are compared for all rows at once; one with more is looked at by itself."""

Ints = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]


class SlotTable:
    """One row per slot; rows of free slots keep stale numbers, and `admission` −1.

    known: tokens whose values the host has. planned: those and the ones that a launched step samples. computed: tokens
    that launched steps write into the cache. limit: tokens at which the request ends. held: its blocks; tail: the last
    of them. registered: full blocks offered to the prefix cache. admission: a number per admission, never used again.
    drawn: whether the device holds its last token. silent: nothing was sent for it yet. special: its tokens are looked
    at one by one (grammar, log-probabilities, many stop ids). adjusted: its logits are changed by a rule of its own.
    """

    def __init__(self, slots: int) -> None:
        self.known: Ints = np.zeros(slots, np.int64)
        self.planned: Ints = np.zeros(slots, np.int64)
        self.computed: Ints = np.zeros(slots, np.int64)
        self.limit: Ints = np.zeros(slots, np.int64)
        self.held: Ints = np.zeros(slots, np.int64)
        self.tail: Ints = np.zeros(slots, np.int64)
        self.registered: Ints = np.zeros(slots, np.int64)
        self.admission: Ints = np.full(slots, -1, np.int64)
        self.connection: Ints = np.zeros(slots, np.int64)
        self.request_id: npt.NDArray[np.uint64] = np.zeros(slots, np.uint64)
        self.stops: Ints = np.full((slots, STOP_IDS), -1, np.int64)
        self.stop_from: Ints = np.zeros(slots, np.int64)
        self.drawn: Flags = np.zeros(slots, np.bool_)
        self.silent: Flags = np.zeros(slots, np.bool_)
        self.special: Flags = np.zeros(slots, np.bool_)
        self.adjusted: Flags = np.zeros(slots, np.bool_)
        self.temperature: npt.NDArray[np.float32] = np.zeros(slots, np.float32)
        self.vocabulary: Ints = np.zeros(slots, np.int64)
        self.requests: list[Request | None] = [None] * slots
        self._free = list(range(slots - 1, -1, -1))
        self._admissions = 0

    @property
    def free(self) -> list[int]:
        """Slots that nobody has."""
        return self._free

    def take(self, request: Request, *, computed: int) -> int:
        """Gives a request a slot and fills its row; its blocks must be set."""
        slot = self._free.pop()
        sampling = request.sampling
        self.known[slot] = self.planned[slot] = request.length
        self.computed[slot] = computed
        self.limit[slot] = request.max_length
        self.registered[slot] = 0
        self.admission[slot] = self._admissions
        self._admissions += 1
        self.connection[slot] = request.connection
        self.request_id[slot] = request.request_id
        stops = list(request.stop_ids)[:STOP_IDS]
        self.stops[slot] = -1
        self.stops[slot, : len(stops)] = stops
        self.stop_from[slot] = request.prompt_length + sampling.min_tokens
        self.drawn[slot] = False
        self.silent[slot] = not request.first_output_sent
        self.special[slot] = request.looked_at
        self.adjusted[slot] = request.adjusted
        self.temperature[slot] = sampling.temperature
        self.vocabulary[slot] = sampling.vocabulary_size
        self.requests[slot] = request
        self.grew(slot, request.blocks)
        return slot

    def grew(self, slot: int, blocks: list[int]) -> None:
        """Notes a request's blocks after some were added."""
        self.held[slot] = len(blocks)
        self.tail[slot] = blocks[-1] if blocks else 0

    def give_back(self, slot: int) -> None:
        """Ends a slot's use: whatever a launched step still does for it is dropped."""
        self.admission[slot] = -1
        self.requests[slot] = None
        self._free.append(slot)
