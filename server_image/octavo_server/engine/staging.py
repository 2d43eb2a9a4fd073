"""The numbers of a step on their way to the device: two host buffers that take turns, one place on the device.

A buffer is written again only after the copy that read it last has ended, which an event tells: the host may be a step
ahead of the device. The place on the device never moves, so captured graphs find every step's numbers there. On a CPU
there is one buffer, and the model reads it where it is.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import torch

MAX_GROUPS = 16
"""Families of a step whose prefixes are read once."""


@dataclass(frozen=True)
class Arrays:
    """Views of one host buffer; `tokens` and `sequences` long at most.

    sources: int64, which entry of the token table each token is: a slot's last token, or (slots + 1 + row) for one
    that comes with the step. tokens, positions, slot_mapping: int64 `[tokens]`. logit_rows: int64 `[sequences]`.
    sample_slots: int64 `[sequences]`. starts: int32 `[sequences + 1]`. lengths, slots: int32 `[sequences]`.
    group_starts, group_lengths: int32. places: int64 `[updates]` in the page table; pages: int32 `[updates]`.
    """

    tokens: npt.NDArray[np.int64]
    sources: npt.NDArray[np.int64]
    positions: npt.NDArray[np.int64]
    slot_mapping: npt.NDArray[np.int64]
    logit_rows: npt.NDArray[np.int64]
    sample_slots: npt.NDArray[np.int64]
    starts: npt.NDArray[np.int32]
    lengths: npt.NDArray[np.int32]
    slots: npt.NDArray[np.int32]
    group_starts: npt.NDArray[np.int32]
    group_lengths: npt.NDArray[np.int32]
    places: npt.NDArray[np.int64]
    pages: npt.NDArray[np.int32]
    _held: list[tuple[object, int, int]] = field(default_factory=list, init=False)

    def holds(self, mark: object, tokens: int, sequences: int) -> bool:
        """Whether the step that was written last bears this mark and has this size; remembers them. None = no mark."""
        now, before = (mark, tokens, sequences), self._held
        if mark is not None and before and before[0][0] is mark and before[0] == now:
            return True
        before[:] = [now]
        return False


@dataclass(frozen=True)
class Tensors:
    """The same on the device, and `table`: int64 `[slots + 1 + tokens]`, last tokens of all slots, then `tokens`."""

    table: torch.Tensor
    sources: torch.Tensor
    positions: torch.Tensor
    slot_mapping: torch.Tensor
    logit_rows: torch.Tensor
    sample_slots: torch.Tensor
    starts: torch.Tensor
    lengths: torch.Tensor
    slots: torch.Tensor
    group_starts: torch.Tensor
    group_lengths: torch.Tensor
    places: torch.Tensor
    pages: torch.Tensor


class Staging:
    """Room for steps of at most `tokens` tokens, `sequences` sequences and `updates` new page-table entries.

    One slot more than `slots` has a last token: what padding samples goes there.
    """

    def __init__(self, *, tokens: int, sequences: int, updates: int, slots: int, device: torch.device) -> None:
        self.tokens, self.sequences, self.updates, self.slots = tokens, sequences, updates, slots
        narrow = (sequences + 1, sequences, sequences, MAX_GROUPS + 1, MAX_GROUPS, updates)
        self._wide, self._narrow = [tokens] * 4 + [sequences] * 2 + [updates], narrow
        size = 8 * sum(self._wide) + 4 * sum(narrow)
        self._device = device
        self._pinned = device.type == "cuda"
        head = 8 * (slots + 1)
        self._whole = torch.zeros(head + size, dtype=torch.uint8, device=device)
        self._area = self._whole[head:]
        self.tensors = Tensors(self._whole[: head + 8 * tokens].view(torch.int64), *self._views(self._area)[1:])
        self.last_tokens = self._whole[:head].view(torch.int64)
        buffers = [torch.zeros(size, dtype=torch.uint8, pin_memory=True) for _ in range(2)] if self._pinned else []
        self._hosts = buffers or [self._area]
        self._arrays = [Arrays(*(view.numpy() for view in self._views(buffer))) for buffer in self._hosts]
        self._copied = [torch.cuda.Event() for _ in self._hosts] if self._pinned else []  # type: ignore[no-untyped-call]
        self._turn = 0

    def begin(self) -> Arrays:
        """The buffer to fill for the next step, once nothing reads it any more."""
        self._turn = (self._turn + 1) % len(self._hosts)
        if self._pinned:
            self._copied[self._turn].synchronize()
        return self._arrays[self._turn]

    def send(self) -> None:
        """Queues the copy of the buffer that `begin` gave."""
        if self._pinned:
            self._area.copy_(self._hosts[self._turn], non_blocking=True)
            self._copied[self._turn].record()

    def _views(self, buffer: torch.Tensor) -> list[torch.Tensor]:
        """Views in the order of Arrays."""
        views: list[torch.Tensor] = []
        at = 0
        for counts, dtype in ((self._wide, torch.int64), (self._narrow, torch.int32)):
            for count in counts:
                end = at + dtype.itemsize * count
                views.append(buffer[at:end].view(dtype))
                at = end
        # The order of Arrays: places stand before pages, behind all others.
        places = views.pop(len(self._wide) - 1)
        return [*views[:-1], places, views[-1]]
