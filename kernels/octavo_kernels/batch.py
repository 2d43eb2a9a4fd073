"""One step's batch as `plan` receives it, checked once."""

from __future__ import annotations

from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class SharedPrefixes:
    """Sequences whose caches begin with the same pages, so that these can be read once for all of them.

    starts: int32 `[groups + 1]`, ascending: group g is sequences starts[g] … starts[g + 1] − 1 of the batch; sequences
        before the first start and from the last one on belong to none.
    lengths: int32 `[groups]`, the tokens that a group shares; rounded down to whole pages. They are at most the tokens
        that each of its sequences had before the step.
    """

    starts: torch.Tensor
    lengths: torch.Tensor

    @property
    def count(self) -> int:
        """Groups."""
        return self.lengths.shape[0]


@dataclass(frozen=True)
class Batch:
    """The four index tensors of a step, all int32 and on one device.

    query_starts: `[batch + 1]`, prefix sum of the new tokens of each sequence.
    kv_lengths: `[batch]`, tokens of each sequence in the cache, the new ones included.
    page_table: `[max_sequences, max_pages_per_sequence]`, row = slot.
    slots: `[batch]`, the page-table row of each sequence.
    groups: prefixes that sequences share; None for none.
    """

    query_starts: torch.Tensor
    kv_lengths: torch.Tensor
    page_table: torch.Tensor
    slots: torch.Tensor
    groups: SharedPrefixes | None = None

    @property
    def size(self) -> int:
        """Sequences of the batch."""
        return self.kv_lengths.shape[0]


def check_batch(
    query_starts: torch.Tensor,
    kv_lengths: torch.Tensor,
    page_table: torch.Tensor,
    slots: torch.Tensor | None,
    groups: SharedPrefixes | None = None,
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
    tensors = [
        ("query_starts", query_starts),
        ("kv_lengths", kv_lengths),
        ("page_table", page_table),
        ("slots", slots),
    ]
    if groups is not None:
        if groups.lengths.dim() != 1 or tuple(groups.starts.shape) != (groups.count + 1,):
            raise ValueError(
                f"groups has starts of shape {list(groups.starts.shape)} and lengths of shape"
                f" {list(groups.lengths.shape)}; they must be [groups + 1] and [groups]"
            )
        tensors += [("groups.starts", groups.starts), ("groups.lengths", groups.lengths)]
    for name, tensor in tensors:
        if tensor.dtype != torch.int32:
            raise ValueError(f"{name} has dtype {tensor.dtype}; it must be torch.int32")
    return Batch(query_starts, kv_lengths, page_table, slots, groups)
