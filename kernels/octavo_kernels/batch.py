"""One step's batch as `plan` receives it, checked once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class SharedPrefixes:
    """Sequences whose caches begin with the same pages, so that these can be read once for all of them.

    starts: int32 `[groups + 1]`, ascending: group g is the sequences at starts[g] … starts[g + 1] − 1 of members;
        sequences before the first start and from the last one on belong to none.
    lengths: int32 `[groups]`, the tokens that a group shares; rounded down to whole pages. They are at most the tokens
        that each of its sequences had before the step.
    members: int32 `[members]`, sequences of the batch in the order of their groups, each one once at most; None: the
        batch as it stands, so that a group's sequences are neighbours.
    """

    starts: torch.Tensor
    lengths: torch.Tensor
    members: torch.Tensor | None = None

    @property
    def count(self) -> int:
        """Groups."""
        return self.lengths.shape[0]


@dataclass(frozen=True)
class PackedMask:
    """Which positions each new token sees, a bit each, for variants with custom_mask.

    bits: uint8 `[bytes]`. Row i of sequence b, its i-th new token, takes ⌈kv_lengths[b] / 8⌉ bytes from
        starts[b] + i · ⌈kv_lengths[b] / 8⌉ on; position p is bit p % 8 (the lowest first) of byte p // 8.
    starts: int64 `[batch]`, the byte at which each sequence's first row begins.
    """

    bits: torch.Tensor
    starts: torch.Tensor

    @classmethod
    def pack(cls, masks: Sequence[torch.Tensor]) -> PackedMask:
        """From one bool `[new tokens, kv length]` a sequence, in the order of the batch and on one device."""
        if not masks:
            return cls(torch.zeros(0, dtype=torch.uint8), torch.zeros(0, dtype=torch.int64))
        weights = 2 ** torch.arange(8, device=masks[0].device)
        rows = []
        for mask in masks:
            padded = torch.nn.functional.pad(mask.long(), (0, -mask.shape[1] % 8))
            rows.append(
                (padded.view(*mask.shape[:1], padded.shape[1] // 8, 8) * weights).sum(-1).to(torch.uint8).flatten()
            )
        ends = torch.tensor([0, *(row.shape[0] for row in rows)]).cumsum(0)[:-1]
        return cls(torch.cat(rows), ends.to(masks[0].device))

    def unpack(self, sequence: int, new_tokens: int, length: int) -> torch.Tensor:
        """One sequence's bool `[new tokens, kv length]`."""
        width = -(-length // 8)
        start = int(self.starts[sequence])
        rows = self.bits[start : start + new_tokens * width].view(new_tokens, width)
        bits = (rows[:, :, None] >> torch.arange(8, device=rows.device, dtype=torch.uint8)) & 1
        return bits.flatten(1)[:, :length].bool()


@dataclass(frozen=True)
class Batch:
    """The four index tensors of a step, all int32 and on one device.

    query_starts: `[batch + 1]`, prefix sum of the new tokens of each sequence.
    kv_lengths: `[batch]`, tokens of each sequence in the cache, the new ones included.
    page_table: `[max_sequences, max_pages_per_sequence]`, row = slot.
    slots: `[batch]`, the page-table row of each sequence.
    groups: prefixes that sequences share; None for none.
    mask: for variants with custom_mask, what each new token sees.
    kv_tokens: the sum of kv_lengths at most; None: unknown.
    """

    query_starts: torch.Tensor
    kv_lengths: torch.Tensor
    page_table: torch.Tensor
    slots: torch.Tensor
    groups: SharedPrefixes | None = None
    mask: PackedMask | None = None
    kv_tokens: int | None = None

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
    mask: PackedMask | None = None,
    kv_tokens: int | None = None,
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
        if groups.members is not None:
            if groups.members.dim() != 1 or groups.members.shape[0] > batch:
                raise ValueError(
                    f"groups.members has shape {list(groups.members.shape)}; it must be [members], at most {batch}"
                )
            tensors.append(("groups.members", groups.members))
    if mask is not None:
        if mask.bits.dtype != torch.uint8 or mask.bits.dim() != 1:
            raise ValueError(f"mask.bits is {mask.bits.dtype} {list(mask.bits.shape)}; it must be uint8 [bytes]")
        if mask.starts.dtype != torch.int64 or mask.starts.shape != (batch,):
            raise ValueError(
                f"mask.starts is {mask.starts.dtype} {list(mask.starts.shape)}; it must be int64 [{batch}]"
            )
    for name, tensor in tensors:
        if tensor.dtype != torch.int32:
            raise ValueError(f"{name} has dtype {tensor.dtype}; it must be torch.int32")
    return Batch(query_starts, kv_lengths, page_table, slots, groups, mask, kv_tokens)
