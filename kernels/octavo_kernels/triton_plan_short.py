# mypy: disable-error-code="no-untyped-def,no-untyped-call,untyped-decorator,misc"
"""Writes the list of short tiles on the device, by one small launch at the head of a step's graph."""

import triton
import triton.language as tl

from octavo_kernels.triton_plan import processors_for_short, programs_used, sequence_costs, store_item, tile_range


@triton.jit
def entry_of(
    index,
    starts_ptr,
    lengths_ptr,
    slots_ptr,
    members_ptr,
    group_of_ptr,
    offsets_ptr,
    group_starts_ptr,
    shared_ptr,
    batch,
    groups,
    listed,
    GROUPED: tl.constexpr,
):
    """What short tiles are cut from: first the groups' shared prefixes, then the sequences with what is their own.

    Returns the place of its first row in the list of rows, new tokens, first key, end of keys, page-table row, and
    whether it is a prefix: the rows of a prefix are those of all sequences of its group (triton_plan_groups lists them
    from `listed` on), and each sees all of it.
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
    group_of = tl.load(group_of_ptr + sequence, mask=exists & ~prefix, other=-1)
    group = tl.where(prefix, index, group_of)
    grouped = exists & (group >= 0)
    first = tl.load(group_starts_ptr + group, mask=grouped, other=0)
    last = tl.load(group_starts_ptr + group + 1, mask=grouped, other=0)
    first_listed = tl.load(offsets_ptr + first, mask=grouped, other=0)
    rows = tl.load(offsets_ptr + last, mask=grouped, other=0) - first_listed
    shared = tl.load(shared_ptr + group, mask=grouped, other=0)
    leader = tl.load(members_ptr + first, mask=prefix & grouped & (last > first), other=0)
    sequence = tl.where(prefix, leader, sequence)
    start = tl.load(starts_ptr + sequence, mask=exists, other=0)
    new_tokens = tl.load(starts_ptr + sequence + 1, mask=exists, other=0) - start
    length = tl.load(lengths_ptr + sequence, mask=exists, other=0)
    slot = tl.load(slots_ptr + sequence, mask=exists, other=0)
    start = tl.where(prefix, listed + first_listed, start)
    new_tokens = tl.where(prefix, tl.where(shared > 0, rows, 0), new_tokens)
    return start, new_tokens, tl.where(prefix, 0, shared), tl.where(prefix, shared, length), slot, prefix


@triton.jit
def partials_of(pair_unit, blocks, work, used, programs, rank, ALL: tl.constexpr):
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


@triton.jit(do_not_specialize=["batch", "groups", "listed", "programs", "rows_used", "longest", "window"])
def plan_short(
    starts_ptr,
    lengths_ptr,
    slots_ptr,
    members_ptr,
    group_of_ptr,
    offsets_ptr,
    group_starts_ptr,
    shared_ptr,
    items_ptr,
    batch,
    groups,
    listed,
    programs,
    rows_used,
    longest,
    window,
    KV_HEADS: tl.constexpr,
    TILE_TOKENS: tl.constexpr,
    BLOCK_N: tl.constexpr,
    LEAST_BLOCKS: tl.constexpr,
    HAS_WINDOW: tl.constexpr,
    HAS_MASK: tl.constexpr,
    GROUPED: tl.constexpr,
    CHUNK: tl.constexpr,
    BESIDE: tl.constexpr,
    LONG_TOKENS: tl.constexpr,
    LONG_BLOCK: tl.constexpr,
    ITEM_COLUMNS: tl.constexpr,
    BLOCK_B: tl.constexpr,
    ROWS: tl.constexpr,
):
    """Cuts all pairs' keys at equal steps of the prefix sum of their blocks.

    CHUNK: above 0, each pair is first divided at every so many keys, and a chunk is the unit of work: where keys are
    cut then depends on their own sequence alone.
    """
    UNIT: tl.constexpr = CHUNK if CHUNK > 0 else BLOCK_N
    lane = tl.arange(0, BLOCK_B)
    _, new_tokens, own, length, _, _ = entry_of(
        lane, starts_ptr, lengths_ptr, slots_ptr, members_ptr, group_of_ptr, offsets_ptr, group_starts_ptr, shared_ptr,
        batch, groups, listed, GROUPED,
    )  # fmt: skip
    tiles, blocks = sequence_costs(new_tokens, length - own, window, TILE_TOKENS, UNIT, HAS_WINDOW)
    if longest > 0:
        tiles = tl.where(new_tokens <= longest, tiles, 0)
    pairs = tiles * KV_HEADS
    if CHUNK > 0:
        pairs = pairs * blocks
        blocks = blocks * 0 + 1
    costs = pairs * blocks
    cost_end = tl.cumsum(costs, 0)
    pair_end = tl.cumsum(pairs, 0)
    work = tl.sum(costs, 0).to(tl.int64)
    most = programs
    if BESIDE > 0:
        # BESIDE programs on each of the multiprocessors that long tiles leave.
        mine = processors_for_short(
            new_tokens, length, longest, window, programs // BESIDE,
            KV_HEADS, TILE_TOKENS, BLOCK_N, LONG_TOKENS, LONG_BLOCK, HAS_WINDOW,
        )  # fmt: skip
        most = tl.maximum(tl.minimum(most, mine * BESIDE), 1)
    # Cut w lies at ceil(w · work / used), so that unit x of the work belongs to program x · used // work.
    used = programs_used(pairs, blocks, work, most, LEAST_BLOCKS)
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

    start, new_tokens, own, length, slot, prefix = entry_of(
        entry, starts_ptr, lengths_ptr, slots_ptr, members_ptr, group_of_ptr, offsets_ptr, group_starts_ptr, shared_ptr,
        batch, groups, listed, GROUPED,
    )  # fmt: skip
    tiles, blocks = sequence_costs(new_tokens, length - own, window, TILE_TOKENS, UNIT, HAS_WINDOW)
    tiles = tl.maximum(tiles, 1)
    chunks = blocks * 0 + 1
    if CHUNK > 0:
        chunks = blocks
        blocks = blocks * 0 + 1
    pair = tl.where(at_cut, (unit - first_unit).to(tl.int32) // blocks, row - programs - first_pair)
    pair_unit = (first_unit + pair * blocks).to(tl.int64)
    unit = tl.where(at_cut, unit, pair_unit)
    program = tl.where(at_cut, row.to(tl.int64), unit * used // divisor)
    next_cut = ((program + 1) * work + used - 1) // used
    end_unit = tl.minimum(next_cut, pair_unit + blocks)
    following = tl.where(end_unit < next_cut, programs + first_pair + pair + 1, -1)
    chunk = pair % chunks
    tile = pair // chunks
    first_token, tokens, position, begin, end = tile_range(
        tile % tiles, new_tokens, length, window, TILE_TOKENS, HAS_WINDOW, HAS_MASK
    )
    if CHUNK > 0:
        # Every chunk of a pair of several leaves a partial result, by its rank.
        splits = chunks
        partial = tl.where(chunks > 1, first_pair + pair, -1)
        first_partial = (first_pair + pair - chunk).to(tl.int64)
        next_partial = first_partial + 1
    else:
        first_partial, next_partial, splits = partials_of(
            pair_unit, blocks, work, used, programs, first_pair + pair, GROUPED
        )
        partial = tl.where(unit == pair_unit, first_partial, program)
    if GROUPED:
        # Each row of a prefix sees all of it; what is a sequence's own begins after it. Another launch merges both:
        # their count of partial results is 0 here.
        position = tl.where(prefix, length, position)
        end = tl.where(prefix, length, end)
        begin = own
        later = prefix | (own > 0)
        partial = tl.where((splits > 1) | later, partial, -1)
        splits = tl.where(later, 0, splits)
    else:
        partial = tl.where(splits > 1, partial, -1)
    item_begin = begin + chunk * UNIT + (unit - pair_unit).to(tl.int32) * UNIT
    item_end = tl.minimum(item_begin + (end_unit - unit).to(tl.int32) * UNIT, end)
    store_item(
        items_ptr, row, (row < rows_used) & (exists | at_cut), slot, start + first_token, tl.where(exists, tokens, 0),
        position, item_begin, item_end, tile // tiles, partial.to(tl.int32), first_partial.to(tl.int32),
        next_partial.to(tl.int32), splits, tl.where(exists, following, -1), length, entry - groups, ITEM_COLUMNS,
    )  # fmt: skip
