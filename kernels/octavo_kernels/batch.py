"""One step's batch as `plan` receives it, checked once."""

from __future__ import annotations

from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class Batch:
    """The four index tensors of a step, all int32 and on one device.

    query_starts: `[batch + 1]`, prefix sum of the new tokens of each sequence.
    kv_lengths: `[batch]`, tokens of each sequence in the cache, the new ones included.
    page_table: `[max_sequences, max_pages_per_sequence]`, row = slot.
    slots: `[batch]`, the page-table row of each sequence.
    """

    query_starts: torch.Tensor
    kv_lengths: torch.Tensor
    page_table: torch.Tensor
    slots: torch.Tensor

    @property
    def size(self) -> int:
        """Sequences of the batch."""
        return self.kv_lengths.shape[0]


def check_batch(
    query_starts: torch.Tensor,
    kv_lengths: torch.Tensor,
    page_table: torch.Tensor,
    slots: torch.Tensor | None,
    *,
    max_sequences: int,
) -> Batch:
    """Checks dtypes and shapes, never values (that would wait for the device); fills in the default slots.

    Raises ValueError with the tensor's name, what it is and what it must be.
    """
    batch = kv_lengths.shape[0] if kv_lengths.dim() == 1 else -1
    if batch < 0:
        raise ValueError(f"kv_lengths has shape {tuple(kv_lengths.shape)}; it must be [batch]")
    if batch > max_sequences:
        raise ValueError(f"the batch has {batch} sequences; this PagedAttention was made for {max_sequences}")
    if slots is None:
        slots = torch.arange(batch, dtype=torch.int32, device=kv_lengths.device)
    for name, tensor, shape in (
        ("query_starts", query_starts, (batch + 1,)),
        ("kv_lengths", kv_lengths, (batch,)),
        ("slots", slots, (batch,)),
    ):
        if tuple(tensor.shape) != shape:
            raise ValueError(f"{name} has shape {tuple(tensor.shape)}; for this batch it must be {list(shape)}")
    if page_table.dim() != 2:
        raise ValueError(
            f"page_table has shape {tuple(page_table.shape)}; it must be [max_sequences, max_pages_per_sequence]"
        )
    for name, tensor in (
        ("query_starts", query_starts),
        ("kv_lengths", kv_lengths),
        ("page_table", page_table),
        ("slots", slots),
    ):
        if tensor.dtype != torch.int32:
            raise ValueError(f"{name} has dtype {tensor.dtype}; it must be torch.int32")
    return Batch(query_starts, kv_lengths, page_table, slots)
