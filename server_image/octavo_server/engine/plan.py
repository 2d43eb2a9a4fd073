"""What one step computes, as arrays with a row per sequence."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from octavo_server.engine.groups import StepGroups
from octavo_server.engine.request import Request
from octavo_server.engine.slots import SlotTable

Ints = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Part:
    """A request's share of a step: `count` tokens from `start` on; the last known token among them → it samples."""

    request: Request
    start: int
    count: int
    samples: bool


@dataclass(frozen=True)
class StepPlan:
    """Rows of a step: first `singles` rows of one token each, then longer ones.

    slots, starts, counts: int64 `[rows]`. samples: bool `[rows]`, whether a row's last planned token is among its
    tokens. admissions: int64 `[rows]`, which tells later whether a row's request still runs. groups: prefixes that
    single rows share. waits: nothing can be planned before the step in flight is collected. table: the slots' numbers.
    same: the mark of a step of single rows alone; the next one that bears the same mark has the same rows, and each of
    them one token more.
    """

    requests: list[Request]
    slots: Ints
    starts: Ints
    counts: Ints
    samples: npt.NDArray[np.bool_]
    admissions: Ints
    singles: int
    table: SlotTable
    groups: StepGroups | None = None
    waits: bool = False
    same: object = None

    @property
    def tokens(self) -> int:
        """New tokens of all rows."""
        return self.singles + int(self.counts[self.singles :].sum())

    @property
    def alive(self) -> npt.NDArray[np.bool_]:
        """bool `[rows]`: whether each row's request still runs as it did when the step was planned."""
        result: npt.NDArray[np.bool_] = self.table.admission[self.slots] == self.admissions
        return result

    def __len__(self) -> int:
        return len(self.requests)

    def __iter__(self) -> Iterator[Part]:
        rows = zip(self.requests, self.starts.tolist(), self.counts.tolist(), self.samples.tolist(), strict=True)
        return (Part(*row) for row in rows)


def empty_plan(table: SlotTable, *, waits: bool = False) -> StepPlan:
    """A plan without rows."""
    none = np.zeros(0, np.int64)
    return StepPlan([], none, none, none, np.zeros(0, np.bool_), none, 0, table, waits=waits)
