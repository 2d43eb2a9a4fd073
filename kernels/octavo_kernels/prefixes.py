"""Finds sequences that share their first pages, for callers that do not know it from their own prefix cache."""

from __future__ import annotations

import torch

from octavo_kernels.batch import SharedPrefixes


def detect_shared_prefix(
    page_table: torch.Tensor, past_lengths: torch.Tensor, *, page_size: int, least_tokens: int = 256
) -> SharedPrefixes:
    """Groups of sequences, anywhere in the batch, whose caches begin with the same pages.

    page_table: int32 `[batch, max_pages_per_sequence]`, in the order of the batch.
    past_lengths: int32 `[batch]`, tokens of each sequence in the cache before the step.
    least_tokens: a prefix shorter than this is not shared.
    Sequences are sorted by the pages of the shortest prefix that counts and then compared with their neighbours. Waits
    for the device. Raises ValueError where a shape is wrong.
    """
    if page_table.dim() != 2 or past_lengths.shape != page_table.shape[:1]:
        raise ValueError(
            f"page_table has shape {list(page_table.shape)} and past_lengths {list(past_lengths.shape)};"
            " they must be [batch, pages] and [batch]"
        )
    batch, columns = page_table.shape
    compared = page_table[:, : max(1, least_tokens // page_size)]
    order = torch.unique(compared, dim=0, return_inverse=True)[1].argsort(stable=True)
    page_table, past_lengths = page_table[order], past_lengths[order]
    whole_pages = past_lengths.long() // page_size
    column = torch.arange(columns, device=page_table.device)
    both = column[None, :] < torch.minimum(whole_pages[1:], whole_pages[:-1])[:, None]
    common = ((page_table[1:] == page_table[:-1]) & both).long().cumprod(1).sum(1) * page_size
    begins = torch.ones(batch, dtype=torch.bool, device=page_table.device)
    begins[1:] = common < least_tokens
    group = begins.long().cumsum(0) - 1
    starts = begins.nonzero().squeeze(1)
    ends = torch.cat((starts, torch.tensor([batch], device=starts.device)))
    # A group shares what each two neighbours share at least; alone in a group, a sequence shares nothing.
    lengths = torch.full((starts.shape[0],), columns * page_size, dtype=torch.long, device=page_table.device)
    inside = ~begins[1:]
    lengths.scatter_reduce_(0, group[1:][inside], common[inside], "amin")
    lengths = torch.where(ends[1:] - ends[:-1] > 1, lengths, 0)
    return SharedPrefixes(ends.int(), lengths.int(), order.int())
