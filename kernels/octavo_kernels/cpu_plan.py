"""Which pool rows a step's sequences need on the CPU, and how sequences are put together into one call.

The pool is seen as rows of one (page, K or V, head), each a contiguous `[page_size, head_size]` block. The rows of a
group, in the order K of sequence 0 head 0, K of sequence 0 head 1, …, V of the last sequence's last head, give after
one index_select a contiguous `[2, sequences, kv_heads, tokens, head_size]`.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from octavo_kernels.batch import Batch
from octavo_kernels.launch_table import LaunchTable, launch_shape
from octavo_kernels.reference import visible_range
from octavo_kernels.shape import AttentionShape

# Gathered keys and values that fit a core's second-level cache are attended from there; larger groups were slower.
GROUP_BYTES = 768 * 1024
MOST_GROUP_BYTES = 1 << 40
CPU_KERNEL = "attention.cpu"
"""The CPU backend's name in launch tables."""


@dataclass(frozen=True)
class Span:
    """One sequence of the batch: rows of q, its length, its page-table row, and the positions that are visible."""

    first_row: int
    last_row: int
    kv_length: int
    slot: int
    low: int
    first_page: int
    end_page: int

    @property
    def new_tokens(self) -> int:
        return self.last_row - self.first_row

    @property
    def pages(self) -> int:
        return self.end_page - self.first_page


@dataclass(frozen=True)
class Group:
    """Sequences attended by one call: either one of any number of new tokens, or several of one new token each.

    pool_rows: int64, the pool rows to gather.
    width: gathered positions per sequence, a multiple of the page size.
    mask: what is added to the scores, or None; `[sequences, 1, 1, width]` for several sequences,
        `[new tokens, visible positions]` for one.
    stale: int64, gathered positions `[2 · sequences · kv_heads · width]` that hold no visible token, or None.
    """

    spans: tuple[Span, ...]
    pool_rows: torch.Tensor
    width: int
    mask: torch.Tensor | None = None
    is_causal: bool = False
    stale: torch.Tensor | None = None
    query_rows: torch.Tensor | None = None


def group_bytes_of(table: LaunchTable, shape: AttentionShape) -> int:
    """Bytes of keys and values that one call gathers at most: the table's, else GROUP_BYTES.

    Raises ValueError where the table's row for this kernel names anything else, or a size that cannot be meant.
    """
    found = table.find(CPU_KERNEL, launch_shape(shape))
    if found is None:
        return GROUP_BYTES
    if set(found) != {"group_bytes"}:
        named = ", ".join(sorted(found)) or "nothing"
        raise ValueError(f"launch table: {CPU_KERNEL} has {named}; a launch has group_bytes")
    if not 1 <= found["group_bytes"] <= MOST_GROUP_BYTES:
        raise ValueError(
            f"launch table: {CPU_KERNEL} has group_bytes {found['group_bytes']}; it must be 1 to {MOST_GROUP_BYTES}"
        )
    return found["group_bytes"]


def plan_groups(batch: Batch, shape: AttentionShape, window: int | None, group_bytes: int = GROUP_BYTES) -> list[Group]:
    """Groups the batch's sequences; pure apart from reading the batch's tensors, which must lie in host memory."""
    starts, lengths, slots = batch.query_starts.tolist(), batch.kv_lengths.tolist(), batch.slots.tolist()
    spans = [
        _span(starts[index], starts[index + 1], lengths[index], slots[index], shape.page_size, window)
        for index in range(batch.size)
        if starts[index + 1] > starts[index]
    ]
    decodes = sorted((span for span in spans if span.new_tokens == 1 and span.kv_length > 0), key=lambda s: s.pages)
    groups = [_single(span, batch.page_table, shape, window) for span in spans if span not in set(decodes)]
    page_bytes = 2 * shape.kv_heads * shape.page_size * shape.head_size * shape.pool_dtype.itemsize
    pending: list[Span] = []
    for span in decodes:
        # Ascending pages: the newest member sets the group's width.
        if pending and (len(pending) + 1) * span.pages * page_bytes > group_bytes:
            groups.append(_decodes(pending, batch.page_table, shape, window))
            pending = []
        pending.append(span)
    if pending:
        groups.append(_decodes(pending, batch.page_table, shape, window))
    return groups


def _span(first_row: int, last_row: int, kv_length: int, slot: int, page_size: int, window: int | None) -> Span:
    low, high = visible_range(last_row - first_row, kv_length, window)
    return Span(first_row, last_row, kv_length, slot, low, low // page_size, -(-high // page_size))


def _pool_rows(pages: torch.Tensor, kv_heads: int) -> torch.Tensor:
    """pages `[sequences, pages per sequence]` → rows in the order (K or V, sequence, head, page)."""
    heads = torch.arange(2 * kv_heads).view(2, 1, kv_heads, 1)
    return (pages.long()[None, :, None, :] * (2 * kv_heads) + heads).reshape(-1)


def _single(span: Span, page_table: torch.Tensor, shape: AttentionShape, window: int | None) -> Group:
    pages = page_table[span.slot, span.first_page : span.end_page]
    is_causal = span.new_tokens == span.kv_length and window is None
    mask = None
    if not is_causal and (span.new_tokens > 1 or span.kv_length == 0):
        query_position = torch.arange(span.kv_length - span.new_tokens, span.kv_length)[:, None]
        key_position = torch.arange(span.low, span.kv_length)[None, :]
        visible = key_position <= query_position
        if window is not None:
            visible &= key_position > query_position - window
        mask = torch.zeros(visible.shape, dtype=shape.pool_dtype).masked_fill_(~visible, float("-inf"))
    return Group((span,), _pool_rows(pages[None], shape.kv_heads), span.pages * shape.page_size, mask, is_causal)


def _decodes(spans: list[Span], page_table: torch.Tensor, shape: AttentionShape, window: int | None) -> Group:
    if len(spans) == 1:
        return _single(spans[0], page_table, shape, window)
    count, columns = len(spans), spans[-1].pages
    width = columns * shape.page_size
    slots = torch.tensor([span.slot for span in spans])
    first_pages = torch.tensor([span.first_page for span in spans])
    owned = torch.tensor([span.pages for span in spans])
    column = torch.arange(columns)
    inside = column < owned[:, None]
    pages = page_table[slots[:, None], torch.where(inside, first_pages[:, None] + column, 0)]
    position = first_pages[:, None] * shape.page_size + torch.arange(width)
    low = torch.tensor([span.low for span in spans])
    length = torch.tensor([span.kv_length for span in spans])
    visible = (position >= low[:, None]) & (position < length[:, None])
    mask = stale = None
    if not bool(visible.all()):
        mask = torch.zeros(visible.shape, dtype=shape.pool_dtype).masked_fill_(~visible, float("-inf"))
        mask = mask.view(count, 1, 1, width)
        hidden = ~visible[None, :, None, :].expand(2, count, shape.kv_heads, width)
        stale = hidden.reshape(-1).nonzero().squeeze(1)
    rows = [span.first_row for span in spans]
    consecutive = rows == list(range(rows[0], rows[0] + count))
    query_rows = None if consecutive else torch.tensor(rows)
    return Group(tuple(spans), _pool_rows(pages, shape.kv_heads), width, mask, False, stale, query_rows)
