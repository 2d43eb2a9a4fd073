"""The page table on the device: each slot's blocks in their order, changed by small scatters."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch

from octavo_server.engine.plan import StepPlan


class PageTable:
    """`table`: int32 `[slots, columns]`; entries that a slot does not use are 0."""

    def __init__(self, slots: int, columns: int, device: torch.device) -> None:
        self.table = torch.zeros(slots, columns, dtype=torch.int32, device=device)
        self._columns = columns
        # What the device has, per slot: entries other than 0, and the admission that they belong to.
        self._sent = np.zeros(slots, np.int64)
        self._admission = np.full(slots, -1, np.int64)

    def collect(self, plan: StepPlan, room: npt.NDArray[np.int64]) -> int:
        """Writes what changed for the rows of a plan into `room`, int64 `[n, 2]`: place in the table, and page.

        Returns the entries written; what found no room is sent at once.
        """
        table, slots = plan.table, plan.slots
        held, admission = table.held[slots], plan.admissions
        changed = (held != self._sent[slots]) | (admission != self._admission[slots])
        at = 0
        for row in np.flatnonzero(changed).tolist():
            slot, count = int(slots[row]), int(held[row])
            sent = int(self._sent[slot])
            known = sent if self._admission[slot] == admission[row] else 0
            # Entries that the slot's last owner left behind become 0 again.
            end = max(count, sent)
            pages = plan.requests[row].blocks[known:count]
            entries = np.zeros((end - known, 2), np.int64)
            entries[:, 0] = np.arange(slot * self._columns + known, slot * self._columns + end)
            entries[: len(pages), 1] = pages
            self._sent[slot], self._admission[slot] = count, admission[row]
            if at + len(entries) <= len(room):
                room[at : at + len(entries)] = entries
                at += len(entries)
            else:
                self.write(torch.from_numpy(entries).to(self.table.device))
        return at

    def write(self, entries: torch.Tensor) -> None:
        """Queues the change of these entries, int64 `[n, 2]` on the device."""
        if len(entries):
            self.table.view(-1)[entries[:, 0]] = entries[:, 1].int()

    def forget(self) -> None:
        """Clears the table; only while no request runs."""
        self.table.zero_()
        self._sent[:] = 0
        self._admission[:] = -1
