"""Which running requests begin with the same blocks, kept up to date as they come and go.

Requests that share their first block are a family; what all of them share is its prefix. The attention kernel reads a
family's prefix once for all of its members, so a step's rows stand family by family.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

LEAST_SAVED_TOKENS = 16384
"""Reads of cached tokens that sharing must save in a step: merging costs every layer a launch of a few µs."""

_MAX_FAMILIES = 16


@dataclass(frozen=True)
class StepGroups:
    """Sharing rows of a step.

    starts: int32 `[groups + 1]`, the first row of each family and the end of the last. lengths: int32 `[groups]`,
    tokens that a family shares, whole blocks. saved_tokens: reads of cached tokens that sharing saves.
    """

    starts: npt.NDArray[np.int32]
    lengths: npt.NDArray[np.int32]
    saved_tokens: int


@dataclass
class _Family:
    number: int
    first: list[int]
    """Blocks of the member that the others are compared with."""
    common: dict[int, int] = field(default_factory=dict)
    """Slot → leading blocks that it shares with `first`."""
    members: dict[int, list[int]] = field(default_factory=dict)
    shared: int = 0


class SharingGroups:
    """Changed only by `join` (admission) and `leave` (end, preemption)."""

    def __init__(self, slots: int, block_size: int) -> None:
        self._block_size = block_size
        self._families: dict[int, _Family] = {}
        self._by_number: dict[int, _Family] = {}
        self._next_number = 0
        self._key_of: dict[int, int] = {}
        self.family_of = np.full(slots, -1, np.int64)
        """Number of each slot's family while it has two members at least, else −1."""

    def join(self, slot: int, blocks: list[int]) -> None:
        """A request was admitted; `blocks` is its own list, of which the shared beginning never changes."""
        key = blocks[0]
        self._key_of[slot] = key
        family = self._families.get(key)
        if family is None:
            family = self._families[key] = _Family(self._next_number, blocks)
            self._by_number[family.number] = family
            self._next_number += 1
        family.members[slot] = blocks
        family.common[slot] = _common(family.first, blocks)
        self._refresh(family)

    def leave(self, slot: int) -> None:
        """A request ended or was preempted."""
        family = self._families[self._key_of[slot]]
        was_first = family.members.pop(slot) is family.first
        del family.common[slot]
        if not family.members:
            del self._families[self._key_of.pop(slot)]
            del self._by_number[family.number]
            self.family_of[slot] = -1
            return
        del self._key_of[slot]
        self.family_of[slot] = -1
        if was_first:
            family.first = next(iter(family.members.values()))
            family.common = {one: _common(family.first, blocks) for one, blocks in family.members.items()}
        self._refresh(family)

    def order(self, slots: npt.NDArray[np.int64]) -> npt.NDArray[np.int64] | None:
        """The same slots with families side by side, those without one first; None when there is no family."""
        families = self.family_of[slots]
        if families.max(initial=-1) < 0:
            return None
        return slots[np.argsort(families, kind="stable")]

    def step_groups(
        self, slots: npt.NDArray[np.int64], computed: npt.NDArray[np.int64], *, first_row: int = 0
    ) -> StepGroups | None:
        """Groups among ordered rows of single tokens; None where sharing saves too little.

        computed: tokens that each of them has in the cache before the step.
        """
        families = self.family_of[slots]
        changes = np.flatnonzero(np.diff(families, prepend=-1))
        starts: list[int] = []
        lengths: list[int] = []
        saved = 0
        begin = len(slots)
        for place in changes.tolist():
            if families[place] < 0:
                continue
            begin = min(begin, place)
            end = int(np.searchsorted(families, families[place], side="right"))
            shared = self._by_number[int(families[place])].shared * self._block_size
            shared = min(shared, int(computed[place:end].min()))
            shared -= shared % self._block_size
            starts.append(first_row + place)
            lengths.append(shared if end - place > 1 else 0)
            saved += lengths[-1] * (end - place - 1)
        if saved < LEAST_SAVED_TOKENS or len(lengths) > _MAX_FAMILIES:
            return None
        starts.append(first_row + len(slots))
        return StepGroups(np.array(starts, np.int32), np.array(lengths, np.int32), saved)

    def check_integrity(self, running: dict[int, list[int]]) -> None:
        """Raises AssertionError when families differ from what these blocks by slot say."""
        assert set(self._key_of) == set(running), "families and running requests differ"
        for key, family in self._families.items():
            assert family.members, "an empty family"
            for slot, blocks in family.members.items():
                assert running[slot] is blocks, f"slot {slot}: a family remembers other blocks"
                assert blocks[0] == key, f"slot {slot}: in the family of another block"
                assert blocks[: family.shared] == family.first[: family.shared], f"slot {slot}: shares less"

    def _refresh(self, family: _Family) -> None:
        family.shared = min(family.common.values())
        number = family.number if len(family.members) > 1 else -1
        for slot in family.members:
            self.family_of[slot] = number


def _common(first: list[int], second: list[int]) -> int:
    """Leading entries that two lists share."""
    count = min(len(first), len(second))
    if first[:count] == second[:count]:
        return count
    low, high = 0, count
    while low < high:
        middle = (low + high + 1) // 2
        if first[:middle] == second[:middle]:
            low = middle
        else:
            high = middle - 1
    return low
