"""Numbers of the running requests by slot: what a step reads of all of them at once.

A request takes a slot when it is admitted and gives it back when it ends or is preempted. A step works on these arrays;
Python touches only requests that change (a new block, an end, a sampling rule of their own).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from octavo_server.engine.philox import NumbersAhead

if TYPE_CHECKING:
    from octavo_server.engine.request import Request

STOP_IDS = 8
"""Stop token ids of a request that are compared for all rows at once; one with more is looked at by itself."""
RECENT = 64
"""Generated tokens of a slot that wait for its request to fetch them."""
_MOST = 2**62
"""A number of a request above it means the same."""

Ints = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]
Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class RowRules:
    """How the rows of a step are sampled, all `[rows]`.

    temperature: 0 = the largest logit. vocabulary: 0 = all ids have a token. adjusted: whether a row's logits are
    changed by rules of its own. top_k: 0 = all tokens. numbers: random, in [0, 1).
    """

    temperature: Floats
    vocabulary: Ints
    adjusted: Flags
    top_k: Ints
    top_p: Floats
    min_p: Floats
    numbers: Floats


class SlotTable:
    """One row per slot; rows of free slots keep stale numbers, and `admission` −1.

    known: tokens whose values the host has; kept: those in the request's own buffer; recent: `[slots, RECENT]`, the
    last ones by position modulo RECENT. planned: those and the ones that a launched step samples. computed: tokens
    that launched steps write into the cache. limit: tokens at which the request ends. held: its blocks; tail: the last
    of them. registered: full blocks offered to the prefix cache. admission: a number per admission, never used again.
    drawn: whether the device holds its last token. silent: nothing was sent for it yet. special: its tokens are looked
    at one by one (grammar, log-probabilities, many stop ids). adjusted: its logits are changed by a rule of its own.
    """

    def __init__(self, slots: int) -> None:
        self.known: Ints = np.zeros(slots, np.int64)
        self.kept: Ints = np.zeros(slots, np.int64)
        self.recent: npt.NDArray[np.int32] = np.zeros((slots, RECENT), np.int32)
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
        self.temperature: Floats = np.zeros(slots)
        self.vocabulary: Ints = np.zeros(slots, np.int64)
        self.top_k: Ints = np.zeros(slots, np.int64)
        self.top_p: Floats = np.zeros(slots)
        self.min_p: Floats = np.zeros(slots)
        self.seed: npt.NDArray[np.uint64] = np.zeros(slots, np.uint64)
        self.choice: npt.NDArray[np.uint64] = np.zeros(slots, np.uint64)
        self._numbers = NumbersAhead(self.seed, self.choice)
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
        self.known[slot] = self.kept[slot] = self.planned[slot] = request.length
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
        self.stop_from[slot] = min(request.prompt_length + sampling.min_tokens, _MOST)
        self.drawn[slot] = False
        self.silent[slot] = not request.first_output_sent
        self.special[slot] = request.looked_at
        self.adjusted[slot] = request.adjusted
        self.temperature[slot] = sampling.temperature
        self.vocabulary[slot] = min(sampling.vocabulary_size, _MOST)
        self.top_k[slot] = min(sampling.top_k, _MOST)
        self.top_p[slot] = sampling.top_p
        self.min_p[slot] = sampling.min_p
        self.seed[slot] = sampling.seed
        self.choice[slot] = sampling.choice_index
        self._numbers.restart(slot)
        self.requests[slot] = request
        last = np.arange(max(0, request.length - RECENT), request.length)
        self.recent[slot, last % RECENT] = request.buffer[last]
        self.grew(slot, request.blocks)
        return slot

    def grew(self, slot: int, blocks: list[int]) -> None:
        """Notes a request's blocks after some were added."""
        self.held[slot] = len(blocks)
        self.tail[slot] = blocks[-1] if blocks else 0

    def append(self, slots: Ints, tokens: Ints) -> None:
        """Adds a token to each of these slots."""
        known = self.known[slots]
        for slot in slots[known - self.kept[slots] >= RECENT].tolist():
            self.fetch(slot)
        self.recent[slots, known % RECENT] = tokens
        self.known[slots] = known + 1

    def fetch(self, slot: int) -> None:
        """Moves a slot's recent tokens into its request's buffer."""
        kept, known, request = int(self.kept[slot]), int(self.known[slot]), self.requests[slot]
        if request is None:
            return
        while kept < known:
            place = kept % RECENT
            count = min(known - kept, RECENT - place)
            request.buffer[kept : kept + count] = self.recent[slot, place : place + count]
            kept += count
        self.kept[slot] = known

    def recent_block(self, slot: int, index: int, size: int) -> bytes | None:
        """Values of a slot's block as int32, when all of them are among its recent tokens; else None."""
        start, known = index * size, int(self.known[slot])
        if RECENT % size or start + size > known or start + RECENT < known:
            return None
        return self.recent[slot, start % RECENT : start % RECENT + size].tobytes()

    def rules(self, slots: Ints) -> RowRules:
        """How these slots' next tokens are sampled; all earlier ones must be known."""
        temperature = self.temperature[slots]
        drawn = bool((temperature > 0).any())
        return RowRules(
            temperature,
            self.vocabulary[slots],
            self.adjusted[slots],
            self.top_k[slots],
            self.top_p[slots],
            self.min_p[slots],
            self._numbers.at(slots, self.known[slots]) if drawn else np.zeros(len(slots)),
        )

    def give_back(self, slot: int) -> None:
        """Ends a slot's use: whatever a launched step still does for it is dropped."""
        self.fetch(slot)
        self.admission[slot] = -1
        self.requests[slot] = None
        self._free.append(slot)
