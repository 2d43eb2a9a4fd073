# mypy: disable-error-code="no-untyped-def,no-untyped-call,untyped-decorator,misc"
"""Writes on the device what shared prefixes need beside their items: the list of rows, and each token's merge list."""

import triton
import triton.language as tl

from octavo_kernels.triton_plan import programs_used, sequence_costs
from octavo_kernels.triton_plan_short import entry_of, partials_of


@triton.jit(do_not_specialize=["batch", "members", "groups", "listed", "least_saved"])
def plan_rows(
    starts_ptr,
    members_ptr,
    group_starts_ptr,
    rows_ptr,
    offsets_ptr,
    group_of_ptr,
    lengths_ptr,
    shared_ptr,
    batch,
    members,
    groups,
    listed,
    least_saved,
    KV_HEADS: tl.constexpr,
    TILE_TOKENS: tl.constexpr,
    BLOCK_N: tl.constexpr,
    PAGE_SIZE: tl.constexpr,
    BLOCK_B: tl.constexpr,
    CHUNK: tl.constexpr,
    ROWS: tl.constexpr,
):
    """Rows of q in the order in which tiles take them: as they stand, and from `listed` on group by group.

    rows int32 `[2 · listed]`; offsets int32 `[members + 1]`: tokens before each member in the groups' order; group_of
    int32 `[batch]`: each sequence's group, −1 for none; shared int32 `[groups]`: tokens that a group reads once. These
    are 0 where a group saves too few blocks of keys, and everywhere if all together save fewer than least_saved keys.
    """
    lane = tl.arange(0, BLOCK_B)
    present = lane < members
    member = tl.load(members_ptr + lane, mask=present, other=0)
    new_tokens = tl.load(starts_ptr + member + 1, mask=present, other=0)
    new_tokens -= tl.load(starts_ptr + member, mask=present, other=0)
    ends = tl.cumsum(new_tokens, 0)
    if tl.program_id(0) == 0:
        tl.store(offsets_ptr + lane, ends - new_tokens, mask=lane <= members)
        group = lane * 0 - 1
        for first in range(0, groups + 1, CHUNK):
            begin = first + tl.arange(0, CHUNK)
            begins = tl.load(group_starts_ptr + begin, mask=begin <= groups, other=2147483647)
            group += tl.sum((begins[None, :] <= lane[:, None]).to(tl.int32), 1)
        tl.store(group_of_ptr + lane, -1, mask=lane < batch)
        tl.debug_barrier()
        tl.store(group_of_ptr + member, group, mask=present & (group < groups))
        exists = lane < groups
        first = tl.load(group_starts_ptr + lane, mask=exists, other=0)
        last = tl.load(group_starts_ptr + lane + 1, mask=exists, other=0)
        rows = tl.load(offsets_ptr + last, mask=exists, other=0) - tl.load(offsets_ptr + first, mask=exists, other=0)
        shared = tl.load(lengths_ptr + lane, mask=exists, other=0) // PAGE_SIZE * PAGE_SIZE
        saved = (last - first - (rows + TILE_TOKENS - 1) // TILE_TOKENS) * (shared // BLOCK_N)
        pays = saved >= 16
        all_saved = tl.sum(tl.where(pays, saved, 0).to(tl.int64) * (KV_HEADS * BLOCK_N), 0)
        tl.store(shared_ptr + lane, tl.where(pays & (all_saved >= least_saved), shared, 0), mask=exists)

    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    tl.store(rows_ptr + row, row, mask=row < listed)
    before = ends[None, :] <= row[:, None]
    place = tl.sum(before.to(tl.int32), 1)
    first = tl.sum(tl.where(before, new_tokens[None, :], 0), 1)
    exists = (place < members) & (row < listed)
    of = tl.load(members_ptr + place, mask=exists, other=0)
    start = tl.load(starts_ptr + of, mask=exists, other=0)
    tl.store(rows_ptr + listed + row, start + row - first, mask=exists)


@triton.jit(do_not_specialize=["batch", "groups", "listed", "members", "programs", "rows_used"])
def plan_merge(
    starts_ptr,
    lengths_ptr,
    slots_ptr,
    members_ptr,
    group_of_ptr,
    offsets_ptr,
    group_starts_ptr,
    shared_ptr,
    merges_ptr,
    batch,
    groups,
    listed,
    members,
    programs,
    rows_used,
    KV_HEADS: tl.constexpr,
    TILE_TOKENS: tl.constexpr,
    BLOCK_N: tl.constexpr,
    LEAST_BLOCKS: tl.constexpr,
    MERGE_COLUMNS: tl.constexpr,
    BLOCK_B: tl.constexpr,
    ROWS: tl.constexpr,
):
    """For each token and KV head that reads a shared prefix, where its partial results lie: the prefix's, then its own.

    merges int32 `[tokens · KV heads, MERGE_COLUMNS]`: of the prefix and then of its own keys the first partial result,
    the next ones, how many (0: none) and the token's place in the tile.
    """
    lane = tl.arange(0, BLOCK_B)
    _, new_tokens, own, length, _, _ = entry_of(
        lane, starts_ptr, lengths_ptr, slots_ptr, members_ptr, group_of_ptr, offsets_ptr, group_starts_ptr,
        shared_ptr, batch, groups, listed, True,
    )  # fmt: skip
    tiles, blocks = sequence_costs(new_tokens, length - own, 0, TILE_TOKENS, BLOCK_N, False)
    pairs = tiles * KV_HEADS
    costs = pairs * blocks
    work = tl.sum(costs, 0).to(tl.int64)
    used = programs_used(pairs, blocks, work, programs, LEAST_BLOCKS)
    sequence_end = tl.load(starts_ptr + lane + 1, mask=lane < batch, other=2147483647)
    member = tl.load(members_ptr + lane, mask=lane < members, other=-1)
    offset = tl.load(offsets_ptr + lane, mask=lane < members, other=0)

    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    token = row // KV_HEADS
    head = row % KV_HEADS
    sequence = tl.sum((sequence_end[None, :] <= token[:, None]).to(tl.int32), 1)
    exists = (sequence < batch) & (row < rows_used)
    group = tl.load(group_of_ptr + sequence, mask=exists, other=-1)
    start = tl.load(starts_ptr + sequence, mask=exists, other=0)
    # The token's row in the groups' order.
    in_list = tl.sum(tl.where(member[None, :] == sequence[:, None], offset[None, :], 0), 1) + token - start
    _, _, shared, _, _, _ = entry_of(
        tl.where(exists, groups + sequence, groups + batch), starts_ptr, lengths_ptr, slots_ptr, members_ptr,
        group_of_ptr, offsets_ptr, group_starts_ptr, shared_ptr, batch, groups, listed,
        True,
    )  # fmt: skip
    reads = exists & (shared > 0)
    for part in tl.static_range(2):
        if part == 0:
            entry = group
            place = listed + in_list
        else:
            entry = groups + sequence
            place = token
        earlier = lane[None, :] < entry[:, None]
        first_unit = tl.sum(tl.where(earlier, costs[None, :], 0), 1)
        first_pair = tl.sum(tl.where(earlier, pairs[None, :], 0), 1)
        first_place, new_tokens, own, length, _, _ = entry_of(
            tl.where(reads, entry, groups + batch), starts_ptr, lengths_ptr, slots_ptr, members_ptr, group_of_ptr,
            offsets_ptr, group_starts_ptr, shared_ptr, batch, groups, listed,
            True,
        )  # fmt: skip
        tiles, blocks = sequence_costs(new_tokens, length - own, 0, TILE_TOKENS, BLOCK_N, False)
        pair = head * tiles + (place - first_place) // TILE_TOKENS
        unit = (first_unit + pair * blocks).to(tl.int64)
        first, following, splits = partials_of(unit, blocks, work, used, programs, first_pair + pair, True)
        column = merges_ptr + row * MERGE_COLUMNS + part * 4
        tl.store(column, first.to(tl.int32), mask=row < rows_used)
        tl.store(column + 1, following.to(tl.int32), mask=row < rows_used)
        tl.store(column + 2, tl.where(reads, splits, 0), mask=row < rows_used)
        tl.store(column + 3, (place - first_place) % TILE_TOKENS, mask=row < rows_used)
