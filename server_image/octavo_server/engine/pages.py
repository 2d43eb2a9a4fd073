"""The page table on the device: each slot's blocks in their order, changed by small scatters."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch

from octavo_server.engine.plan import StepPlan


class PageTable:
    """`table`: int32 `[slots, columns]`; entries that a slot does not use are 0.

    spare: a place behind the table, where changes that a graph makes for nothing go.
    """

    def __init__(self, slots: int, columns: int, device: torch.device) -> None:
        self._flat = torch.zeros(slots * columns + 1, dtype=torch.int32, device=device)
        self.table = self._flat[:-1].view(slots, columns)
        self.spare = slots * columns
        self._columns = columns
        # What the device has, per slot: entries other than 0, and the admission that they belong to.
        self._sent = np.zeros(slots, np.int64)
        self._admission = np.full(slots, -1, np.int64)

    def collect(self, plan: StepPlan, places: npt.NDArray[np.int64], pages: npt.NDArray[np.int32]) -> int:
        """Writes what changed for the rows of a plan: places in the table, and their pages.

        Returns the entries written; what found no room is sent at once.
        """
        table, slots = plan.table, plan.slots
        held, admission = table.held[slots], plan.admissions
        same = admission == self._admission[slots]
        grown = held - self._sent[slots]
        # Nearly always a request that generates got one block more.
        one = slots[same & (grown == 1)][: len(places)]
        at = len(one)
        places[:at] = one * self._columns + table.held[one] - 1
        pages[:at] = table.tail[one]
        self._sent[one] += 1
        for row in np.flatnonzero((held != self._sent[slots]) | ~same).tolist():
            slot, count = int(slots[row]), int(held[row])
            sent = int(self._sent[slot])
            known = sent if self._admission[slot] == admission[row] else 0
            # Entries that the slot's last owner left behind become 0 again.
            end = max(count, sent)
            values = np.zeros(end - known, np.int32)
            values[: count - known] = plan.requests[row].blocks[known:count]
            where = np.arange(slot * self._columns + known, slot * self._columns + end)
            self._sent[slot], self._admission[slot] = count, admission[row]
            if at + len(values) <= len(places):
                places[at : at + len(values)], pages[at : at + len(values)] = where, values
                at += len(values)
            else:
                device = self.table.device
                self.write(torch.from_numpy(where).to(device), torch.from_numpy(values).to(device))
        return at

    def write(self, places: torch.Tensor, pages: torch.Tensor) -> None:
        """Queues the change of these entries; int64 and int32 `[n]` on the device."""
        if len(places):
            self._flat.index_copy_(0, places, pages)

    def forget(self) -> None:
        """Clears the table; only while no request runs."""
        self.table.zero_()
        self._sent[:] = 0
        self._admission[:] = -1
