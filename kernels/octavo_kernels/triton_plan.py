# mypy: disable-error-code="no-untyped-def,no-untyped-call,untyped-decorator,misc"
"""Writes the work lists of plan on the device, each by one small launch at the head of a step's graph.

Every program sums the costs of all sequences by itself and then finds its own rows in closed form, so that nothing
waits for anything else. Products of two counts are 64-bit.
"""

import triton
import triton.language as tl


@triton.jit
def _sequence_costs(
    new_tokens,
    length,
    window,
    TILE_TOKENS: tl.constexpr,
    BLOCK_N: tl.constexpr,
    HAS_WINDOW: tl.constexpr,
):
    """Tiles of each sequence, and the blocks of keys of its longest tile (one at least: empty rows are written)."""
    keys = tl.maximum(length, 0)
    if HAS_WINDOW:
        keys = tl.minimum(keys, window - 1 + TILE_TOKENS)
    return (new_tokens + TILE_TOKENS - 1) // TILE_TOKENS, tl.maximum((keys + BLOCK_N - 1) // BLOCK_N, 1)


@triton.jit
def _tile_range(tile, new_tokens, length, window, TILE_TOKENS: tl.constexpr, HAS_WINDOW: tl.constexpr):
    """Tokens of a tile, the position of its first one, and its keys' begin and end."""
    first_token = tile * TILE_TOKENS
    tokens = tl.minimum(new_tokens - first_token, TILE_TOKENS)
    position = length - new_tokens + first_token
    end = tl.maximum(position + tokens, 0)
    begin = end * 0
    if HAS_WINDOW:
        begin = tl.maximum(position + 1 - window, 0)
    return first_token, tokens, position, begin, end


@triton.jit
def _processors_for_short(
    new_tokens,
    length,
    longest,
    window,
    processors,
    KV_HEADS: tl.constexpr,
    SHORT_TOKENS: tl.constexpr,
    SHORT_BLOCK: tl.constexpr,
    LONG_TOKENS: tl.constexpr,
    LONG_BLOCK: tl.constexpr,
    HAS_WINDOW: tl.constexpr,
):
    """How many multiprocessors short tiles get where both kinds run side by side, so that both end at the same time.

    Measured on an H200: a multiprocessor takes about 3.6 times as long for 128 rows on 128 keys as for the 32 KiB of a
    short tile's 64 keys, beside each other.
    """
    short_tiles, short_blocks = _sequence_costs(new_tokens, length, window, SHORT_TOKENS, SHORT_BLOCK, HAS_WINDOW)
    long_tiles, long_blocks = _sequence_costs(new_tokens, length, window, LONG_TOKENS, LONG_BLOCK, HAS_WINDOW)
    if not HAS_WINDOW:
        # The mean of a prompt's first tile and its last.
        long_blocks = (2 * length - new_tokens + LONG_TOKENS) // (2 * LONG_BLOCK) + 1
    is_short = new_tokens <= longest
    short_work = tl.sum(tl.where(is_short, short_tiles * short_blocks, 0).to(tl.float32), 0)
    long_work = tl.sum(tl.where(is_short, 0, long_tiles * long_blocks).to(tl.float32), 0) * 3.6
    share = processors * short_work / tl.maximum(short_work + long_work, 1.0)
    found = tl.minimum(tl.maximum((share + 0.5).to(tl.int32), 1), processors - 1)
    return tl.where(short_work == 0.0, 0, tl.where(long_work == 0.0, processors, found))


@triton.jit
def _store_item(
    items_ptr, row, mask, slot, first_row, tokens, position, begin, end, head, partial, first_partial, next_partial,
    splits, following, length, ITEM_COLUMNS: tl.constexpr,
):  # fmt: skip
    item = items_ptr + row * ITEM_COLUMNS
    tl.store(item, slot, mask=mask)
    tl.store(item + 1, first_row, mask=mask)
    tl.store(item + 2, tokens, mask=mask)
    tl.store(item + 3, position, mask=mask)
    tl.store(item + 4, begin, mask=mask)
    tl.store(item + 5, end, mask=mask)
    tl.store(item + 6, head, mask=mask)
    tl.store(item + 7, partial, mask=mask)
    tl.store(item + 8, first_partial, mask=mask)
    tl.store(item + 9, next_partial, mask=mask)
    tl.store(item + 10, splits, mask=mask)
    tl.store(item + 11, following, mask=mask)
    tl.store(item + 12, length, mask=mask)


@triton.jit
def _entry(
    index,
    starts_ptr,
    lengths_ptr,
    slots_ptr,
    members_ptr,
    group_starts_ptr,
    group_lengths_ptr,
    batch,
    groups,
    TILE_TOKENS: tl.constexpr,
    BLOCK_N: tl.constexpr,
    PAGE_SIZE: tl.constexpr,
    GROUPED: tl.constexpr,
):
    """What short tiles are cut from: first the groups' shared prefixes, then the sequences with what is their own.

    Returns the first row of q, new tokens, first key, end of keys, page-table row, and whether it is a prefix: the rows
    of a prefix are those of all sequences of its group, and each sees all of it.
    """
    if not GROUPED:
        exists = index < batch
        start = tl.load(starts_ptr + index, mask=exists, other=0)
        new_tokens = tl.load(starts_ptr + index + 1, mask=exists, other=0) - start
        length = tl.load(lengths_ptr + index, mask=exists, other=0)
        slot = tl.load(slots_ptr + index, mask=exists, other=0)
        return start, new_tokens, length * 0, length, slot, index < 0
    prefix = index < groups
    exists = index < groups + batch
    sequence = index - groups
    member = tl.load(members_ptr + sequence, mask=exists & ~prefix, other=-1)
    group = tl.where(prefix, index, member)
    grouped = exists & (group >= 0)
    first = tl.load(group_starts_ptr + group, mask=grouped, other=0)
    last = tl.load(group_starts_ptr + group + 1, mask=grouped, other=0)
    rows = tl.load(starts_ptr + last, mask=grouped, other=0) - tl.load(starts_ptr + first, mask=grouped, other=0)
    shared = tl.load(group_lengths_ptr + group, mask=grouped, other=0) // PAGE_SIZE * PAGE_SIZE
    # Blocks of keys that need not be read again; too few of them do not pay for their merge.
    saved = (last - first - (rows + TILE_TOKENS - 1) // TILE_TOKENS) * (shared // BLOCK_N)
    shared = tl.where(saved >= 16, shared, 0)
    sequence = tl.where(prefix, first, sequence)
    start = tl.load(starts_ptr + sequence, mask=exists, other=0)
    new_tokens = tl.load(starts_ptr + sequence + 1, mask=exists, other=0) - start
    length = tl.load(lengths_ptr + sequence, mask=exists, other=0)
    slot = tl.load(slots_ptr + sequence, mask=exists, other=0)
    new_tokens = tl.where(prefix, tl.where(shared > 0, rows, 0), new_tokens)
    return start, new_tokens, tl.where(prefix, 0, shared), tl.where(prefix, shared, length), slot, prefix


@triton.jit(do_not_specialize=["batch", "groups", "programs", "rows_used", "longest", "window"])
def plan_short(
    starts_ptr,
    lengths_ptr,
    slots_ptr,
    members_ptr,
    group_starts_ptr,
    group_lengths_ptr,
    items_ptr,
    batch,
    groups,
    programs,
    rows_used,
    longest,
    window,
    KV_HEADS: tl.constexpr,
    TILE_TOKENS: tl.constexpr,
    BLOCK_N: tl.constexpr,
    PAGE_SIZE: tl.constexpr,
    LEAST_BLOCKS: tl.constexpr,
    HAS_WINDOW: tl.constexpr,
    GROUPED: tl.constexpr,
    BESIDE: tl.constexpr,
    LONG_TOKENS: tl.constexpr,
    LONG_BLOCK: tl.constexpr,
    ITEM_COLUMNS: tl.constexpr,
    BLOCK_B: tl.constexpr,
    ROWS: tl.constexpr,
):
    lane = tl.arange(0, BLOCK_B)
    _, new_tokens, own, length, _, _ = _entry(
        lane, starts_ptr, lengths_ptr, slots_ptr, members_ptr, group_starts_ptr, group_lengths_ptr, batch, groups,
        TILE_TOKENS, BLOCK_N, PAGE_SIZE, GROUPED,
    )  # fmt: skip
    tiles, blocks = _sequence_costs(new_tokens, length - own, window, TILE_TOKENS, BLOCK_N, HAS_WINDOW)
    if longest > 0:
        tiles = tl.where(new_tokens <= longest, tiles, 0)
    pairs = tiles * KV_HEADS
    costs = pairs * blocks
    cost_end = tl.cumsum(costs, 0)
    pair_end = tl.cumsum(pairs, 0)
    work = tl.sum(costs, 0).to(tl.int64)
    # Cut w lies at ceil(w · work / used), so that unit x of the work belongs to program x · used // work.
    used = tl.minimum(tl.maximum(work // LEAST_BLOCKS, 1), programs)
    if BESIDE > 0:
        # BESIDE programs on each of the multiprocessors that long tiles leave.
        mine = _processors_for_short(
            new_tokens, length, longest, window, programs // BESIDE,
            KV_HEADS, TILE_TOKENS, BLOCK_N, LONG_TOKENS, LONG_BLOCK, HAS_WINDOW,
        )  # fmt: skip
        used = tl.maximum(tl.minimum(used, mine * BESIDE), 1)
    divisor = tl.maximum(work, 1)

    # Rows below `programs` begin at a cut, the others at a pair's first block of keys.
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    at_cut = row < programs
    unit = (row * work + used - 1) // used
    before = tl.where(
        at_cut[:, None],
        cost_end[None, :] <= unit.to(tl.int32)[:, None],
        pair_end[None, :] <= (row - programs)[:, None],
    )
    entry = tl.sum(before.to(tl.int32), 1)
    first_unit = tl.sum(tl.where(before, costs[None, :], 0), 1)
    first_pair = tl.sum(tl.where(before, pairs[None, :], 0), 1)
    exists = (entry < batch + groups) & (row < rows_used) & (~at_cut | (row < used))

    start, new_tokens, own, length, slot, prefix = _entry(
        entry, starts_ptr, lengths_ptr, slots_ptr, members_ptr, group_starts_ptr, group_lengths_ptr, batch, groups,
        TILE_TOKENS, BLOCK_N, PAGE_SIZE, GROUPED,
    )  # fmt: skip
    tiles, blocks = _sequence_costs(new_tokens, length - own, window, TILE_TOKENS, BLOCK_N, HAS_WINDOW)
    tiles = tl.maximum(tiles, 1)
    pair = tl.where(at_cut, (unit - first_unit).to(tl.int32) // blocks, row - programs - first_pair)
    pair_unit = (first_unit + pair * blocks).to(tl.int64)
    unit = tl.where(at_cut, unit, pair_unit)
    program = tl.where(at_cut, row.to(tl.int64), unit * used // divisor)
    next_cut = ((program + 1) * work + used - 1) // used
    end_unit = tl.minimum(next_cut, pair_unit + blocks)
    first_partial, next_partial, splits = _partials_of(
        pair_unit, blocks, work, used, programs, first_pair + pair, GROUPED
    )
    partial = tl.where(unit == pair_unit, first_partial, program)
    following = tl.where(end_unit < next_cut, programs + first_pair + pair + 1, -1)

    first_token, tokens, position, begin, end = _tile_range(
        pair % tiles, new_tokens, length, window, TILE_TOKENS, HAS_WINDOW
    )
    if GROUPED:
        # Each row of a prefix sees all of it; what is a sequence's own begins after it. Another launch merges both.
        position = tl.where(prefix, length, position)
        end = tl.where(prefix, length, end)
        begin = own
        partial = partial.to(tl.int32)
    else:
        partial = tl.where(splits > 1, partial, -1).to(tl.int32)
    item_begin = begin + (unit - pair_unit).to(tl.int32) * BLOCK_N
    item_end = tl.minimum(begin + (end_unit - pair_unit).to(tl.int32) * BLOCK_N, end)
    _store_item(
        items_ptr, row, (row < rows_used) & (exists | at_cut), slot, start + first_token, tl.where(exists, tokens, 0),
        position, item_begin, item_end, pair // tiles, partial, first_partial.to(tl.int32),
        next_partial.to(tl.int32), splits, tl.where(exists, following, -1), length, ITEM_COLUMNS,
    )  # fmt: skip


@triton.jit
def _partials_of(pair_unit, blocks, work, used, programs, rank, ALL: tl.constexpr):
    """Where the partial results of a pair that begins at a unit of the work lie: the first, the others, how many.

    A program leaves one for the pair that its work begins inside of, and one for the pair that its work ends inside of;
    with ALL, one for every pair, by the pair's rank.
    """
    divisor = tl.maximum(work, 1)
    first_program = pair_unit * used // divisor
    last_program = (pair_unit + blocks - 1) * used // divisor
    at_cut = (first_program * work + used - 1) // used == pair_unit
    if ALL:
        first = tl.where(at_cut, first_program, programs + rank)
    else:
        first = tl.where(at_cut, first_program, programs + first_program)
    return first, first_program + 1, (last_program - first_program + 1).to(tl.int32)


@triton.jit(do_not_specialize=["batch", "groups", "programs", "rows_used"])
def plan_merge(
    starts_ptr,
    lengths_ptr,
    slots_ptr,
    members_ptr,
    group_starts_ptr,
    group_lengths_ptr,
    merges_ptr,
    batch,
    groups,
    programs,
    rows_used,
    KV_HEADS: tl.constexpr,
    TILE_TOKENS: tl.constexpr,
    BLOCK_N: tl.constexpr,
    PAGE_SIZE: tl.constexpr,
    LEAST_BLOCKS: tl.constexpr,
    MERGE_COLUMNS: tl.constexpr,
    BLOCK_B: tl.constexpr,
    ROWS: tl.constexpr,
):
    """For each token and KV head, where its partial results lie: the shared prefix's, then its own.

    merges int32 `[tokens · KV heads, MERGE_COLUMNS]`: of the prefix and then of its own keys the first partial result,
    the next ones, how many (0: none) and the token's place in the tile.
    """
    lane = tl.arange(0, BLOCK_B)
    _, new_tokens, own, length, _, _ = _entry(
        lane, starts_ptr, lengths_ptr, slots_ptr, members_ptr, group_starts_ptr, group_lengths_ptr, batch, groups,
        TILE_TOKENS, BLOCK_N, PAGE_SIZE, True,
    )  # fmt: skip
    tiles, blocks = _sequence_costs(new_tokens, length - own, 0, TILE_TOKENS, BLOCK_N, False)
    pairs = tiles * KV_HEADS
    costs = pairs * blocks
    work = tl.sum(costs, 0).to(tl.int64)
    used = tl.minimum(tl.maximum(work // LEAST_BLOCKS, 1), programs)
    sequence_end = tl.load(starts_ptr + lane + 1, mask=lane < batch, other=2147483647)

    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    token = row // KV_HEADS
    head = row % KV_HEADS
    sequence = tl.sum((sequence_end[None, :] <= token[:, None]).to(tl.int32), 1)
    exists = (sequence < batch) & (row < rows_used)
    member = tl.load(members_ptr + sequence, mask=exists, other=-1)
    for part in tl.static_range(2):
        if part == 0:
            entry = member
        else:
            entry = groups + sequence
        wanted = exists & (entry >= 0)
        earlier = lane[None, :] < entry[:, None]
        first_unit = tl.sum(tl.where(earlier, costs[None, :], 0), 1)
        first_pair = tl.sum(tl.where(earlier, pairs[None, :], 0), 1)
        start, new_tokens, own, length, _, _ = _entry(
            tl.where(wanted, entry, groups + batch), starts_ptr, lengths_ptr, slots_ptr, members_ptr, group_starts_ptr,
            group_lengths_ptr, batch, groups, TILE_TOKENS, BLOCK_N, PAGE_SIZE, True,
        )  # fmt: skip
        tiles, blocks = _sequence_costs(new_tokens, length - own, 0, TILE_TOKENS, BLOCK_N, False)
        wanted = wanted & (new_tokens > 0)
        pair = head * tiles + (token - start) // TILE_TOKENS
        unit = (first_unit + pair * blocks).to(tl.int64)
        first, following, splits = _partials_of(unit, blocks, work, used, programs, first_pair + pair, True)
        column = merges_ptr + row * MERGE_COLUMNS + part * 4
        tl.store(column, first.to(tl.int32), mask=row < rows_used)
        tl.store(column + 1, following.to(tl.int32), mask=row < rows_used)
        tl.store(column + 2, tl.where(wanted, splits, 0), mask=row < rows_used)
        tl.store(column + 3, (token - start) % TILE_TOKENS, mask=row < rows_used)


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
    ITEM_COLUMNS: tl.constexpr,
    BLOCK_B: tl.constexpr,
    ROWS: tl.constexpr,
    SORTED: tl.constexpr,
    CHUNK: tl.constexpr,
    BESIDE: tl.constexpr,
    SHORT_TOKENS: tl.constexpr,
    SHORT_BLOCK: tl.constexpr,
):
    lane = tl.arange(0, BLOCK_B)
    present = lane < batch
    start = tl.load(starts_ptr + lane, mask=present, other=0)
    new_tokens = tl.load(starts_ptr + lane + 1, mask=present, other=0) - start
    length = tl.load(lengths_ptr + lane, mask=present, other=0)
    tiles, blocks = _sequence_costs(new_tokens, length, window, TILE_TOKENS, BLOCK_N, HAS_WINDOW)
    tiles = tl.where(new_tokens >= shortest, tiles, 0)
    pairs = tiles * KV_HEADS
    work = tl.sum(pairs.to(tl.int64) * blocks, 0)
    part = tl.maximum((work + share - 1) // share, LEAST_BLOCKS).to(tl.int32)
    splits = (blocks + part - 1) // part
    items = pairs * splits
    partials = tl.where(splits > 1, items, 0)
    if tl.program_id(0) == 0:
        tl.store(tickets_ptr, tl.sum(items, 0))
        mine = processors
        if BESIDE > 0:
            mine -= _processors_for_short(
                new_tokens, length, shortest - 1, window, processors,
                KV_HEADS, SHORT_TOKENS, SHORT_BLOCK, TILE_TOKENS, BLOCK_N, HAS_WINDOW,
            )  # fmt: skip
        tl.store(tickets_ptr + 2, mine)
    if SORTED:
        # The order of the sequences: longest first, equal ones as they come.
        item_end = items * 0
        for first in range(0, batch, CHUNK):
            other = first + tl.arange(0, CHUNK)
            other_start = tl.load(starts_ptr + other, mask=other < batch, other=0)
            other_new = tl.load(starts_ptr + other + 1, mask=other < batch, other=0) - other_start
            other_length = tl.load(lengths_ptr + other, mask=other < batch, other=0)
            other_tiles, other_blocks = _sequence_costs(
                other_new, other_length, window, TILE_TOKENS, BLOCK_N, HAS_WINDOW
            )
            other_items = other_tiles * KV_HEADS * ((other_blocks + part - 1) // part)
            other_items = tl.where(other_new >= shortest, other_items, 0)
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
    tiles, blocks = _sequence_costs(new_tokens, length, window, TILE_TOKENS, BLOCK_N, HAS_WINDOW)
    tiles = tl.maximum(tiles, 1)
    splits = (blocks + part - 1) // part
    pair = (row - first_item) // splits
    split = (row - first_item) % splits
    # A head's tiles follow each other, the last tile (which sees the most keys) first: they share keys in the cache.
    tile = tiles - 1 - pair % tiles
    first_token, tokens, position, begin, end = _tile_range(tile, new_tokens, length, window, TILE_TOKENS, HAS_WINDOW)
    blocks = (tl.maximum(end - begin, 0) + BLOCK_N - 1) // BLOCK_N
    step = (blocks + splits - 1) // splits * BLOCK_N
    item_begin = begin + split * step
    first_partial += pair * splits
    _store_item(
        items_ptr, row, row < rows_used, slot, start + first_token, tl.where(exists, tokens, 0), position, item_begin,
        tl.minimum(item_begin + step, end), pair // tiles, tl.where(splits > 1, first_partial + split, -1),
        first_partial, first_partial + 1, splits, row * 0 - 1, length,
        ITEM_COLUMNS,
    )  # fmt: skip
