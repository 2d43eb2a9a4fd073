# mypy: disable-error-code="no-untyped-def,no-untyped-call,untyped-decorator,misc"
"""Writes the list of long tiles on the device, by one small launch at the head of a step's graph."""

import triton
import triton.language as tl

from octavo_kernels.triton_plan import processors_for_short, sequence_costs, store_item, tile_range


@triton.jit
def split_last_round(pairs, blocks, first_blocks, processors, most_partials, LEAST_LAST: tl.constexpr):
    """How many of a sequence's last pairs are split, and into how many parts; `pairs` are those of all sequences.

    Where pairs of nearly equal length follow each other, the last round of them leaves multiprocessors without work for
    most of a pair's time. Parts of fewer than LEAST_LAST blocks would cost more than they save, and so would any where
    the last tiles are much shorter than the first, as they are without a long cached prefix.
    """
    left = (pairs % tl.maximum(processors, 1)).to(tl.int32)
    parts = tl.minimum(tl.minimum(most_partials // tl.maximum(left, 1), 8), first_blocks // LEAST_LAST)
    apart = (left > 0) & (parts > 1) & (first_blocks * 3 >= blocks * 2)
    return tl.where(apart, left, 0), tl.where(apart, parts, 1)


@triton.jit(do_not_specialize=["batch", "share", "rows_used", "shortest", "window", "processors"])
def plan_long(
    starts_ptr,
    lengths_ptr,
    slots_ptr,
    items_ptr,
    tickets_ptr,
    batch,
    share,
    rows_used,
    shortest,
    window,
    processors,
    KV_HEADS: tl.constexpr,
    TILE_TOKENS: tl.constexpr,
    BLOCK_N: tl.constexpr,
    LEAST_BLOCKS: tl.constexpr,
    HAS_WINDOW: tl.constexpr,
    HAS_MASK: tl.constexpr,
    SPLIT: tl.constexpr,
    ITEM_COLUMNS: tl.constexpr,
    BLOCK_B: tl.constexpr,
    ROWS: tl.constexpr,
    SORTED: tl.constexpr,
    CHUNK: tl.constexpr,
    BESIDE: tl.constexpr,
    SHORT_TOKENS: tl.constexpr,
    SHORT_BLOCK: tl.constexpr,
    LEAST_LAST: tl.constexpr,
):
    """One item a pair, the longest sequences first; with SPLIT, pairs of more than one part's work are divided.

    LEAST_LAST: above 0, a lone sequence's last round of pairs is divided as split_last_round says.
    """
    lane = tl.arange(0, BLOCK_B)
    present = lane < batch
    start = tl.load(starts_ptr + lane, mask=present, other=0)
    new_tokens = tl.load(starts_ptr + lane + 1, mask=present, other=0) - start
    length = tl.load(lengths_ptr + lane, mask=present, other=0)
    tiles, blocks = sequence_costs(new_tokens, length, window, TILE_TOKENS, BLOCK_N, HAS_WINDOW)
    tiles = tl.where(new_tokens >= shortest, tiles, 0)
    pairs = tiles * KV_HEADS
    work = tl.sum(pairs.to(tl.int64) * blocks, 0)
    part = tl.maximum((work + share - 1) // share, LEAST_BLOCKS).to(tl.int32)
    if not SPLIT:
        part = part * 0 + 2147483647 // 2
    splits = (blocks + part - 1) // part
    items = pairs * splits
    partials = tl.where(splits > 1, items, 0)
    mine = processors
    if BESIDE > 0:
        mine -= processors_for_short(
            new_tokens, length, shortest - 1, window, processors,
            KV_HEADS, SHORT_TOKENS, SHORT_BLOCK, TILE_TOKENS, BLOCK_N, HAS_WINDOW,
        )  # fmt: skip
    # A lone sequence's last round may be split where no pair is.
    last = tl.sum(pairs, 0) * 0
    parts = last + 1
    if LEAST_LAST > 0:
        longest = tl.max(tl.where(pairs > 0, blocks, 0), 0)
        lone = tl.sum((pairs > 0).to(tl.int32), 0) == 1
        first_blocks = tl.sum(tl.where(pairs > 0, tl.maximum(length - new_tokens, 0), 0), 0) // BLOCK_N
        first_blocks = tl.where(lone & (tl.sum(partials, 0) == 0), first_blocks, 0)
        last, parts = split_last_round(tl.sum(pairs, 0), longest, first_blocks, mine, 2 * share, LEAST_LAST)
        items += tl.where(pairs > 0, last * (parts - 1), 0)
    if tl.program_id(0) == 0:
        tl.store(tickets_ptr, tl.sum(items, 0))
        tl.store(tickets_ptr + 2, mine)
    if SORTED:
        # The order of the sequences: longest first, equal ones as they come.
        item_end = items * 0
        for first in range(0, batch, CHUNK):
            other = first + tl.arange(0, CHUNK)
            other_start = tl.load(starts_ptr + other, mask=other < batch, other=0)
            other_new = tl.load(starts_ptr + other + 1, mask=other < batch, other=0) - other_start
            other_length = tl.load(lengths_ptr + other, mask=other < batch, other=0)
            other_tiles, other_blocks = sequence_costs(
                other_new, other_length, window, TILE_TOKENS, BLOCK_N, HAS_WINDOW
            )
            other_items = other_tiles * KV_HEADS * ((other_blocks + part - 1) // part)
            other_items = tl.where(other_new >= shortest, other_items + last * (parts - 1), 0)
            earlier = (other_blocks[None, :] > blocks[:, None]) | (
                (other_blocks[None, :] == blocks[:, None]) & (other[None, :] <= lane[:, None])
            )
            item_end += tl.sum(tl.where(earlier, other_items[None, :], 0), 1)
    else:
        item_end = tl.cumsum(items, 0)

    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    inside = (item_end[None, :] > row[:, None]) & ((item_end - items)[None, :] <= row[:, None])
    sequence = tl.max(tl.where(inside, lane[None, :], -1), 1)
    exists = (sequence >= 0) & (row < rows_used)
    first_item = tl.sum(tl.where(inside, (item_end - items)[None, :], 0), 1)
    before = item_end[None, :] <= first_item[:, None]
    first_partial = tl.sum(tl.where(before, partials[None, :], 0), 1)

    sequence = tl.maximum(sequence, 0)
    start = tl.load(starts_ptr + sequence, mask=exists, other=0)
    new_tokens = tl.load(starts_ptr + sequence + 1, mask=exists, other=0) - start
    length = tl.load(lengths_ptr + sequence, mask=exists, other=0)
    slot = tl.load(slots_ptr + sequence, mask=exists, other=0)
    tiles, blocks = sequence_costs(new_tokens, length, window, TILE_TOKENS, BLOCK_N, HAS_WINDOW)
    tiles = tl.maximum(tiles, 1)
    splits = (blocks + part - 1) // part
    whole = tiles * KV_HEADS - last
    if LEAST_LAST > 0:
        # Rows from here on are parts of the last pairs.
        part_row = row - first_item - whole
        is_part = (last > 0) & (part_row >= 0)
        splits = tl.where(is_part, parts, splits)
        pair = tl.where(is_part, whole + part_row // parts, (row - first_item) // splits)
        split = tl.where(is_part, part_row % parts, (row - first_item) % splits)
    else:
        pair = (row - first_item) // splits
        split = (row - first_item) % splits
    # A head's tiles follow each other, the last tile (which sees the most keys) first: they share keys in the cache.
    tile = tiles - 1 - pair % tiles
    first_token, tokens, position, begin, end = tile_range(
        tile, new_tokens, length, window, TILE_TOKENS, HAS_WINDOW, HAS_MASK
    )
    blocks = (tl.maximum(end - begin, 0) + BLOCK_N - 1) // BLOCK_N
    step = (blocks + splits - 1) // splits * BLOCK_N
    item_begin = begin + split * step
    first_partial += tl.where(last > 0, (pair - whole) * parts, pair * splits)
    store_item(
        items_ptr, row, row < rows_used, slot, start + first_token, tl.where(exists, tokens, 0), position, item_begin,
        tl.minimum(item_begin + step, end), pair // tiles, tl.where(splits > 1, first_partial + split, -1),
        first_partial, first_partial + 1, splits, row * 0 - 1, length, sequence, ITEM_COLUMNS,
    )  # fmt: skip
