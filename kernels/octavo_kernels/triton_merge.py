# mypy: disable-error-code="no-untyped-def,no-untyped-call,untyped-decorator,misc,assignment"
"""Merges the partial results of a split pair, in the order of their keys, whatever order the programs ran in.

The program that arrives last merges (flash decoding, Dao et al. 2023, without its second launch). It reads all partial
results from memory, its own too, so that equal inputs give equal bits whoever is last. A partial result is a sum of
weighted values and a sum of weights, both relative to its largest score, which stands beside them: beside scores of any
size a logarithm of the sum would be rounded away.
"""

import triton
import triton.language as tl


@triton.jit
def store_rows(
    acc, row_max, row_sum, out_ptr, lse_ptr, sinks_ptr, rows, heads, used, lane, stride_out_token, stride_out_head,
    stride_lse_token, HEAD_SIZE: tl.constexpr, HAS_SINKS: tl.constexpr, HAS_LSE: tl.constexpr,
):  # fmt: skip
    """Divides finished sums and writes rows (int64 rows of out, their heads) of out and lse.

    Each head's sink, a score without a value, takes part in the softmax here: once, when all keys have.
    """
    if HAS_SINKS:
        sink = tl.load(sinks_ptr + heads, mask=used, other=float("-inf")) * 1.4426950408889634
        new_max = tl.maximum(row_max, sink)
        shift = tl.where(new_max == float("-inf"), 0.0, new_max)
        decay = tl.exp2(row_max - shift)
        acc = acc * decay[:, None]
        row_sum = row_sum * decay + tl.exp2(sink - shift)
        row_max = new_max
    empty = row_sum == 0.0
    total = tl.where(empty, 1.0, row_sum)
    values = (acc / total[:, None]).to(out_ptr.dtype.element_ty)
    out_row = rows * stride_out_token + heads * stride_out_head
    tl.store(out_ptr + out_row[:, None] + lane[None, :], values, mask=used[:, None] & (lane < HEAD_SIZE)[None, :])
    if HAS_LSE:
        lse = tl.where(empty, float("-inf"), row_max + tl.log2(total)) * 0.6931471805599453
        tl.store(lse_ptr + rows * stride_lse_token + heads, lse, mask=used)


@triton.jit
def fold_partials(
    acc, row_max, row_sum, partial_ptr, partial_sums_ptr, place, tile_row, used, lane,
    BLOCK_M: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    """Takes partial results `[parts, rows]` (int64 places, rows of their tiles) into the rows' running sums."""
    # Another multiprocessor may have written them in this launch: not from the first-level cache.
    sums = partial_sums_ptr + place[:, None] * (2 * BLOCK_M) + tile_row
    part_max = tl.load(sums, mask=used, other=float("-inf"), cache_modifier=".cg")
    part_sum = tl.load(sums + BLOCK_M, mask=used, other=0.0, cache_modifier=".cg")
    base = (place[:, None] * BLOCK_M + tile_row) * BLOCK_D
    values = tl.load(
        partial_ptr + base[:, :, None] + lane[None, None, :], mask=used[:, :, None], other=0.0, cache_modifier=".cg"
    )
    new_max = tl.maximum(row_max, tl.max(part_max, 0))
    shift = tl.where(new_max == float("-inf"), 0.0, new_max)
    decay = tl.exp2(row_max - shift)
    weight = tl.exp2(part_max - shift[None, :])
    acc = acc * decay[:, None] + tl.sum(values * weight[:, :, None], 0)
    return acc, new_max, row_sum * decay + tl.sum(part_sum * weight, 0)


@triton.jit
def merge_partials(
    item_ptr,
    partial_ptr,
    partial_sums_ptr,
    arrivals_ptr,
    out_ptr,
    lse_ptr,
    first_row,
    tokens,
    kv_head,
    stride_out_token,
    stride_out_head,
    stride_lse_token,
    sinks_ptr,
    GROUP: tl.constexpr,
    HEAD_SIZE: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_D: tl.constexpr,
    MERGE_ROWS: tl.constexpr,
    MERGE_SPLITS: tl.constexpr,
    HAS_SINKS: tl.constexpr,
    HAS_LSE: tl.constexpr,
):
    """Counts the arrival of a program whose partial result is stored; the last one merges and sets the count back."""
    first_partial = tl.load(item_ptr + 8)
    next_partial = tl.load(item_ptr + 9)
    splits = tl.load(item_ptr + 10)
    # All threads have stored before one of them counts, and the count releases what they stored.
    tl.debug_barrier()
    arrived = tl.atomic_add(arrivals_ptr + first_partial, 1, sem="acq_rel", scope="gpu")
    if arrived == splits - 1:
        tl.store(arrivals_ptr + first_partial, 0)
        lane = tl.arange(0, BLOCK_D)
        for first in range(0, tokens * GROUP, MERGE_ROWS):
            row = first + tl.arange(0, MERGE_ROWS)
            row_used = row < tokens * GROUP
            row_max = tl.full([MERGE_ROWS], float("-inf"), tl.float32)
            row_sum = tl.zeros([MERGE_ROWS], tl.float32)
            acc = tl.zeros([MERGE_ROWS, BLOCK_D], tl.float32)
            for start in range(0, splits, MERGE_SPLITS):
                split = start + tl.arange(0, MERGE_SPLITS)
                # The first partial result has a place of its own, the others follow each other.
                place = tl.where(split == 0, first_partial, next_partial + split - 1).to(tl.int64)
                acc, row_max, row_sum = fold_partials(
                    acc, row_max, row_sum, partial_ptr, partial_sums_ptr, place, row[None, :],
                    (split < splits)[:, None] & row_used[None, :], lane, BLOCK_M, BLOCK_D,
                )  # fmt: skip
            store_rows(
                acc, row_max, row_sum, out_ptr, lse_ptr, sinks_ptr, first_row + row // GROUP,
                kv_head * GROUP + row % GROUP, row_used, lane, stride_out_token, stride_out_head, stride_lse_token,
                HEAD_SIZE, HAS_SINKS, HAS_LSE,
            )  # fmt: skip


@triton.jit
def merge_lists(
    merges_ptr,
    partial_ptr,
    partial_sums_ptr,
    out_ptr,
    lse_ptr,
    stride_out_token,
    stride_out_head,
    stride_lse_token,
    sinks_ptr,
    GROUP: tl.constexpr,
    HEAD_SIZE: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_D: tl.constexpr,
    MERGE_ROWS: tl.constexpr,
    MERGE_SPLITS: tl.constexpr,
    MERGE_COLUMNS: tl.constexpr,
    HAS_SINKS: tl.constexpr,
    HAS_LSE: tl.constexpr,
    OVERLAP: tl.constexpr,
):
    """Merges one token's rows of one KV head by the list of plan_merge: the shared prefix's results, then its own."""
    if OVERLAP:
        tl.extra.cuda.gdc_wait()
        tl.extra.cuda.gdc_launch_dependents()
    token = tl.program_id(0)
    kv_head = tl.program_id(1)
    list_ptr = merges_ptr + (token * tl.num_programs(1) + kv_head) * MERGE_COLUMNS
    shared_first = tl.load(list_ptr)
    shared_next = tl.load(list_ptr + 1)
    shared = tl.load(list_ptr + 2)
    shared_token = tl.load(list_ptr + 3)
    own_first = tl.load(list_ptr + 4)
    own_next = tl.load(list_ptr + 5)
    splits = shared + tl.load(list_ptr + 6)
    own_token = tl.load(list_ptr + 7)
    if splits > 0:
        lane = tl.arange(0, BLOCK_D)
        for first_row in tl.static_range(0, GROUP, MERGE_ROWS):
            row = first_row + tl.arange(0, MERGE_ROWS)
            row_used = row < GROUP
            row_max = tl.full([MERGE_ROWS], float("-inf"), tl.float32)
            row_sum = tl.zeros([MERGE_ROWS], tl.float32)
            acc = tl.zeros([MERGE_ROWS, BLOCK_D], tl.float32)
            for start in range(0, splits, MERGE_SPLITS):
                # One after the other in the order of the keys, with all of their loads on their way first.
                maxima = ()
                totals = ()
                parts = ()
                for part in tl.static_range(MERGE_SPLITS):
                    split = start + part
                    own = split - shared
                    shared_place = tl.where(split == 0, shared_first, shared_next + split - 1)
                    place = tl.where(own < 0, shared_place, tl.where(own == 0, own_first, own_next + own - 1))
                    tile_row = tl.where(own < 0, shared_token, own_token) * GROUP + row
                    used = row_used & (row * 0 + split < splits)
                    sums = partial_sums_ptr + place.to(tl.int64) * (2 * BLOCK_M) + tile_row
                    base = (place.to(tl.int64) * BLOCK_M + tile_row) * BLOCK_D
                    maxima = maxima + (tl.load(sums, mask=used, other=float("-inf")),)  # noqa: RUF005
                    totals = totals + (tl.load(sums + BLOCK_M, mask=used, other=0.0),)  # noqa: RUF005
                    values = tl.load(partial_ptr + base[:, None] + lane[None, :], mask=used[:, None], other=0.0)
                    parts = parts + (values,)  # noqa: RUF005
                for part in tl.static_range(MERGE_SPLITS):
                    new_max = tl.maximum(row_max, maxima[part])
                    shift = tl.where(new_max == float("-inf"), 0.0, new_max)
                    decay = tl.exp2(row_max - shift)
                    weight = tl.exp2(maxima[part] - shift)
                    acc = acc * decay[:, None] + parts[part] * weight[:, None]
                    row_sum = row_sum * decay + totals[part] * weight
                    row_max = new_max
            store_rows(
                acc, row_max, row_sum, out_ptr, lse_ptr, sinks_ptr, (row * 0 + token).to(tl.int64),
                kv_head * GROUP + row, row_used, lane, stride_out_token, stride_out_head, stride_lse_token,
                HEAD_SIZE, HAS_SINKS, HAS_LSE,
            )  # fmt: skip
