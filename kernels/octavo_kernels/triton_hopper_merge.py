# mypy: disable-error-code="no-untyped-def,no-untyped-call,untyped-decorator,misc"
"""triton_merge for both kernels for Hopper GPUs, in Gluon, whose layouts Triton's functions do not take.

The program (or the warpgroup, for its rows) that arrives last merges, in the order of the keys, with all partial
results of a few rows on their way at once.
"""

import triton.experimental.gluon.language as gl
from triton.experimental import gluon

# Renamed between Triton's versions; where the new name exists, the old one may exist as well, and raise.
sync_warps = gl.barrier if hasattr(gl, "barrier") else gl.thread_barrier


@gluon.jit
def finish_rows(acc, row_max, row_sum, sinks_ptr, head, used, HAS_SINKS: gl.constexpr):
    """Divides finished sums: values like acc, and the natural logarithm of each row's denominator.

    row_max, row_sum, head and used lie as acc's rows do. Each head's sink takes part in the softmax here, once.
    """
    if HAS_SINKS:
        sink = gl.load(sinks_ptr + head, mask=used, other=float("-inf")) * 1.4426950408889634
        new_max = gl.maximum(row_max, sink)
        shift = gl.where(new_max == float("-inf"), 0.0, new_max)
        decay = gl.exp2(row_max - shift)
        acc = acc * decay[:, None]
        row_sum = row_sum * decay + gl.exp2(sink - shift)
        row_max = new_max
    empty = row_sum == 0.0
    total = gl.where(empty, 1.0, row_sum)
    lse = gl.where(empty, float("-inf"), row_max + gl.log2(total)) * 0.6931471805599453
    return acc / total[:, None], lse


@gluon.jit
def merge_arrived(
    item_ptr, partial_ptr, partial_sums_ptr, arrivals_ptr, out_ptr, lse_ptr, sinks_ptr, first_row, begin, end, kv_head,
    stride_out_token, stride_out_head, stride_lse_token,
    TILE_ROWS: gl.constexpr, GROUP: gl.constexpr, HEAD_SIZE: gl.constexpr, HEAD_USED: gl.constexpr,
    MERGE_ROWS: gl.constexpr, MERGE_SPLITS: gl.constexpr, HAS_SINKS: gl.constexpr, HAS_LSE: gl.constexpr,
):  # fmt: skip
    """Counts an arrival at arrivals_ptr; the last one merges rows begin … end − 1 of the tile and sets the count back.

    TILE_ROWS: rows of a partial result's place. HEAD_USED: elements of a head, HEAD_SIZE with padding.
    """
    cube: gl.constexpr = gl.BlockedLayout([MERGE_SPLITS, 1, HEAD_SIZE // 32], [1, 1, 32], [1, 4, 1], [2, 1, 0])
    by_row: gl.constexpr = gl.SliceLayout(2, cube)
    plane: gl.constexpr = gl.SliceLayout(0, cube)
    rows_of_plane: gl.constexpr = gl.SliceLayout(1, plane)
    first_partial = gl.load(item_ptr + 8)
    next_partial = gl.load(item_ptr + 9)
    splits = gl.load(item_ptr + 10)
    # All threads have stored before one of them counts, and the count releases what they stored.
    sync_warps()
    arrived = gl.atomic_add(arrivals_ptr, 1, sem="acq_rel", scope="gpu")
    if arrived == splits - 1:
        gl.store(arrivals_ptr, 0)
        part = gl.arange(0, MERGE_SPLITS, gl.SliceLayout(1, by_row))
        part_row = gl.arange(0, MERGE_ROWS, gl.SliceLayout(0, by_row))
        part_lane = gl.arange(0, HEAD_SIZE, gl.SliceLayout(0, gl.SliceLayout(1, cube)))
        lane = gl.arange(0, HEAD_SIZE, gl.SliceLayout(0, plane))
        for first in range(begin, end, MERGE_ROWS):
            row_max = gl.full([MERGE_ROWS], float("-inf"), gl.float32, gl.SliceLayout(0, by_row))
            row_sum = gl.zeros([MERGE_ROWS], gl.float32, gl.SliceLayout(0, by_row))
            acc = gl.zeros([MERGE_ROWS, HEAD_SIZE], gl.float32, plane)
            for start in range(0, splits, MERGE_SPLITS):
                split = start + part
                place = gl.where(split == 0, first_partial, next_partial + split - 1).to(gl.int64)
                used = (split < splits)[:, None] & (first + part_row < end)[None, :]
                sums = partial_sums_ptr + place[:, None] * (2 * TILE_ROWS) + first + part_row[None, :]
                part_max = gl.load(sums, mask=used, other=float("-inf"), cache_modifier=".cg")
                part_sum = gl.load(sums + TILE_ROWS, mask=used, other=0.0, cache_modifier=".cg")
                base = (place[:, None] * TILE_ROWS + first + part_row[None, :]) * HEAD_SIZE
                values = gl.load(
                    partial_ptr + base[:, :, None] + part_lane[None, :][:, None, :],
                    mask=used[:, :, None],
                    other=0.0,
                    cache_modifier=".cg",
                )
                new_max = gl.maximum(row_max, gl.max(part_max, 0))
                shift = gl.where(new_max == float("-inf"), 0.0, new_max)
                decay = gl.exp2(row_max - shift)
                weight = gl.exp2(part_max - shift[None, :])
                acc = acc * gl.convert_layout(decay, rows_of_plane)[:, None] + gl.sum(values * weight[:, :, None], 0)
                row_sum = row_sum * decay + gl.sum(part_sum * weight, 0)
                row_max = new_max
            row = first + gl.arange(0, MERGE_ROWS, rows_of_plane)
            used = row < end
            head = kv_head * GROUP + row % GROUP
            values, lse = finish_rows(
                acc, gl.convert_layout(row_max, rows_of_plane), gl.convert_layout(row_sum, rows_of_plane),
                sinks_ptr, head, used, HAS_SINKS,
            )  # fmt: skip
            out_row = (first_row + row // GROUP) * stride_out_token + head * stride_out_head
            stored = used[:, None] & (lane < HEAD_USED)[None, :]
            gl.store(out_ptr + out_row[:, None] + lane[None, :], values.to(out_ptr.dtype.element_ty), mask=stored)
            if HAS_LSE:
                gl.store(lse_ptr + (first_row + row // GROUP) * stride_lse_token + head, lse, mask=used)
