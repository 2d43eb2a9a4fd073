# mypy: disable-error-code="no-untyped-def,no-untyped-call,untyped-decorator,misc"
"""Attention of short tiles (decode, verification) on Hopper GPUs, in Gluon: one warp loads, one warpgroup computes.

A tile has up to 64 rows of queries: the tensor cores have time to spare, memory has none. A program's ring of pages is
nearly all of a multiprocessor's shared memory; the loading warp fills it from the first moment and goes on into the
program's next items while the warpgroup still works on the ones before, so that memory never waits.
"""

import triton.experimental.gluon.language as gl
from triton.experimental import gluon
from triton.experimental.gluon.language.nvidia.hopper import fence_async_shared, mbarrier

from octavo_kernels.triton_hopper_blocks import (
    attend_blocks,
    let_next_launch_start,
    load_blocks,
    sync_warps,
    wait_for_launch_before,
)


@gluon.jit
def _load(
    desc, items_ptr, table_ptr, stride_table, kv_heads, k_smem, v_smem, k_full, k_empty, v_full, v_empty,
    PAGE_SIZE: gl.constexpr, HEAD_SIZE: gl.constexpr, BLOCK_N: gl.constexpr, BOX: gl.constexpr, STAGES: gl.constexpr,
    ITEM_COLUMNS: gl.constexpr,
):  # fmt: skip
    item = gl.program_id(0)
    step = 0
    while item >= 0:
        item_ptr = items_ptr + item * ITEM_COLUMNS
        tokens = gl.load(item_ptr + 2)
        item = gl.load(item_ptr + 11)
        if tokens > 0:
            step = load_blocks(
                desc, item_ptr, table_ptr, stride_table, kv_heads,
                k_smem, v_smem, k_full, k_empty, v_full, v_empty, step, PAGE_SIZE, HEAD_SIZE, BLOCK_N, BOX, STAGES,
            )  # fmt: skip


@gluon.jit
def _merge(
    item_ptr, partial_ptr, partial_sums_ptr, arrivals_ptr, out_ptr, lse_ptr, first_row, tokens, kv_head,
    stride_out_token, stride_out_head, stride_lse_token,
    GROUP: gl.constexpr, HEAD_SIZE: gl.constexpr, MERGE_ROWS: gl.constexpr, MERGE_SPLITS: gl.constexpr,
    HAS_LSE: gl.constexpr,
):  # fmt: skip
    """triton_merge, with all partial results of a few rows on their way at once."""
    cube: gl.constexpr = gl.BlockedLayout([MERGE_SPLITS, 1, HEAD_SIZE // 32], [1, 1, 32], [1, 4, 1], [2, 1, 0])
    by_row: gl.constexpr = gl.SliceLayout(2, cube)
    plane: gl.constexpr = gl.SliceLayout(0, cube)
    rows_of_plane: gl.constexpr = gl.SliceLayout(1, plane)
    first_partial = gl.load(item_ptr + 8)
    next_partial = gl.load(item_ptr + 9)
    splits = gl.load(item_ptr + 10)
    # All threads have stored before one of them counts, and the count releases what they stored.
    sync_warps()
    arrived = gl.atomic_add(arrivals_ptr + first_partial, 1, sem="acq_rel", scope="gpu")
    if arrived == splits - 1:
        gl.store(arrivals_ptr + first_partial, 0)
        part = gl.arange(0, MERGE_SPLITS, gl.SliceLayout(1, by_row))
        part_row = gl.arange(0, MERGE_ROWS, gl.SliceLayout(0, by_row))
        part_lane = gl.arange(0, HEAD_SIZE, gl.SliceLayout(0, gl.SliceLayout(1, cube)))
        lane = gl.arange(0, HEAD_SIZE, gl.SliceLayout(0, plane))
        for first in range(0, tokens * GROUP, MERGE_ROWS):
            row_max = gl.full([MERGE_ROWS], float("-inf"), gl.float32, gl.SliceLayout(0, by_row))
            row_sum = gl.zeros([MERGE_ROWS], gl.float32, gl.SliceLayout(0, by_row))
            acc = gl.zeros([MERGE_ROWS, HEAD_SIZE], gl.float32, plane)
            for start in range(0, splits, MERGE_SPLITS):
                split = start + part
                place = gl.where(split == 0, first_partial, next_partial + split - 1).to(gl.int64)
                used = (split < splits)[:, None] & (first + part_row < tokens * GROUP)[None, :]
                sums = partial_sums_ptr + place[:, None] * 128 + first + part_row[None, :]
                part_max = gl.load(sums, mask=used, other=float("-inf"), cache_modifier=".cg")
                part_sum = gl.load(sums + 64, mask=used, other=0.0, cache_modifier=".cg")
                base = (place[:, None] * 64 + first + part_row[None, :]) * HEAD_SIZE
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
            empty = row_sum == 0.0
            total = gl.where(empty, 1.0, row_sum)
            lse = gl.convert_layout(gl.where(empty, float("-inf"), row_max + gl.log2(total)), rows_of_plane)
            row = first + gl.arange(0, MERGE_ROWS, rows_of_plane)
            token = row // GROUP
            head = kv_head * GROUP + row % GROUP
            out_row = (first_row + token) * stride_out_token + head * stride_out_head
            stored = row < tokens * GROUP
            merged = (acc / gl.convert_layout(total, rows_of_plane)[:, None]).to(out_ptr.dtype.element_ty)
            gl.store(out_ptr + out_row[:, None] + lane[None, :], merged, mask=stored[:, None])
            if HAS_LSE:
                lse_row = (first_row + token) * stride_lse_token + head
                gl.store(lse_ptr + lse_row, lse * 0.6931471805599453, mask=stored)


@gluon.jit
def _compute(
    q_ptr, out_ptr, lse_ptr, items_ptr, partial_ptr, partial_sums_ptr, arrivals_ptr,
    stride_q_token, stride_q_head, stride_out_token, stride_out_head, stride_lse_token,
    scale_log2, soft_cap, window, q_smem, k_smem, v_smem, k_full, k_empty, v_full, v_empty,
    GROUP: gl.constexpr, HEAD_SIZE: gl.constexpr, BLOCK_N: gl.constexpr, BOX: gl.constexpr, STAGES: gl.constexpr,
    ITEM_COLUMNS: gl.constexpr, HAS_WINDOW: gl.constexpr, SOFT_CAP: gl.constexpr, HAS_LSE: gl.constexpr,
    MERGE_ROWS: gl.constexpr, MERGE_SPLITS: gl.constexpr, MERGE_LATER: gl.constexpr,
):  # fmt: skip
    wide: gl.constexpr = gl.BlockedLayout([1, 8], [32 * 8 // HEAD_SIZE, HEAD_SIZE // 8], [4, 1], [1, 0])
    scores_layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, BLOCK_N, 16])
    acc_layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, HEAD_SIZE, 16])
    rows_of_acc: gl.constexpr = gl.SliceLayout(1, acc_layout)
    score_row = gl.arange(0, 64, gl.SliceLayout(1, scores_layout))
    position_lane = gl.arange(0, BLOCK_N, gl.SliceLayout(0, scores_layout))
    wide_row = gl.arange(0, 64, gl.SliceLayout(1, wide))
    wide_lane = gl.arange(0, HEAD_SIZE, gl.SliceLayout(0, wide))
    row = gl.arange(0, 64, rows_of_acc)
    lane = gl.arange(0, HEAD_SIZE, gl.SliceLayout(0, acc_layout))
    token = row // GROUP
    step = 0
    order = 0
    fixes = 0
    item = gl.program_id(0)
    while item >= 0:
        item_ptr = items_ptr + item * ITEM_COLUMNS
        first_row = gl.load(item_ptr + 1).to(gl.int64)
        tokens = gl.load(item_ptr + 2)
        first_position = gl.load(item_ptr + 3)
        kv_begin = gl.load(item_ptr + 4)
        kv_end = gl.load(item_ptr + 5)
        kv_head = gl.load(item_ptr + 6)
        partial = gl.load(item_ptr + 7).to(gl.int64)
        length = gl.load(item_ptr + 12)
        item = gl.load(item_ptr + 11)
        if tokens > 0:
            q_row = (first_row + wide_row // GROUP) * stride_q_token
            q_row += (kv_head * GROUP + wide_row % GROUP) * stride_q_head
            q_used = (wide_row // GROUP < tokens)[:, None]
            q_smem.store(gl.load(q_ptr + q_row[:, None] + wide_lane[None, :], mask=q_used, other=0.0))
            fence_async_shared()
            sync_warps()
            acc, row_max, row_sum, step, order, fixes = attend_blocks(
                q_smem, k_smem, v_smem, k_full, k_empty, v_full, v_empty, k_full, k_full.index(0), step, order, fixes,
                kv_begin, kv_end, length, first_position, first_position + score_row // GROUP, position_lane,
                scale_log2, soft_cap, window,
                0, 1, HEAD_SIZE, BLOCK_N, BOX, STAGES, HAS_WINDOW, SOFT_CAP, False,
            )  # fmt: skip
            row_max = gl.convert_layout(row_max, rows_of_acc)
            row_sum = gl.convert_layout(row_sum, rows_of_acc)
            used = token < tokens
            if partial >= 0:
                base = partial * 64 + row
                gl.store(partial_ptr + base[:, None] * HEAD_SIZE + lane[None, :], acc, mask=used[:, None])
                sums = partial_sums_ptr + partial * 128 + row
                gl.store(sums, row_max, mask=used)
                gl.store(sums + 64, row_sum, mask=used)
                if not MERGE_LATER:
                    _merge(
                        item_ptr, partial_ptr, partial_sums_ptr, arrivals_ptr, out_ptr, lse_ptr, first_row, tokens,
                        kv_head, stride_out_token, stride_out_head, stride_lse_token,
                        GROUP, HEAD_SIZE, MERGE_ROWS, MERGE_SPLITS, HAS_LSE,
                    )  # fmt: skip
            else:
                empty = row_sum == 0.0
                total = gl.where(empty, 1.0, row_sum)
                head = kv_head * GROUP + row % GROUP
                out_row = (first_row + token) * stride_out_token + head * stride_out_head
                values = (acc / total[:, None]).to(out_ptr.dtype.element_ty)
                gl.store(out_ptr + out_row[:, None] + lane[None, :], values, mask=used[:, None])
                if HAS_LSE:
                    lse = gl.where(empty, float("-inf"), row_max + gl.log2(total))
                    lse_row = (first_row + token) * stride_lse_token + head
                    gl.store(lse_ptr + lse_row, lse * 0.6931471805599453, mask=used)


@gluon.jit
def attend_short(
    q_ptr, kv_desc, out_ptr, lse_ptr, items_ptr, table_ptr, partial_ptr, partial_sums_ptr, arrivals_ptr,
    stride_q_token, stride_q_head, stride_out_token, stride_out_head, stride_lse_token, stride_table, kv_heads,
    scale_log2, soft_cap, window,
    GROUP: gl.constexpr, PAGE_SIZE: gl.constexpr, HEAD_SIZE: gl.constexpr, ITEM_COLUMNS: gl.constexpr,
    BLOCK_N: gl.constexpr, BOX: gl.constexpr, STAGES: gl.constexpr, HAS_WINDOW: gl.constexpr, SOFT_CAP: gl.constexpr,
    HAS_LSE: gl.constexpr, MERGE_ROWS: gl.constexpr, MERGE_SPLITS: gl.constexpr, MERGE_LATER: gl.constexpr,
    OVERLAP: gl.constexpr, BESIDE: gl.constexpr,
):  # fmt: skip
    dtype: gl.constexpr = q_ptr.dtype.element_ty
    layout: gl.constexpr = gl.NVMMASharedLayout(128, 16, 2)
    counter: gl.constexpr = mbarrier.MBarrierLayout()
    k_smem = gl.allocate_shared_memory(dtype, [STAGES, BLOCK_N, HEAD_SIZE], layout)
    v_smem = gl.allocate_shared_memory(dtype, [STAGES, BLOCK_N, HEAD_SIZE], layout)
    q_smem = gl.allocate_shared_memory(dtype, [64, HEAD_SIZE], layout)
    k_full = gl.allocate_shared_memory(gl.int64, [STAGES, 1], counter)
    k_empty = gl.allocate_shared_memory(gl.int64, [STAGES, 1], counter)
    v_full = gl.allocate_shared_memory(gl.int64, [STAGES, 1], counter)
    v_empty = gl.allocate_shared_memory(gl.int64, [STAGES, 1], counter)
    for stage in gl.static_range(STAGES):
        mbarrier.init(k_full.index(stage), count=1)
        mbarrier.init(k_empty.index(stage), count=1)
        mbarrier.init(v_full.index(stage), count=1)
        mbarrier.init(v_empty.index(stage), count=1)
    fence_async_shared()
    if OVERLAP and not BESIDE:
        # Everything before this line may run while the launch before still does; nothing of its results is read there.
        wait_for_launch_before()
        let_next_launch_start()
    gl.warp_specialize(
        [
            (
                _compute,
                (
                    q_ptr, out_ptr, lse_ptr, items_ptr, partial_ptr, partial_sums_ptr, arrivals_ptr,
                    stride_q_token, stride_q_head, stride_out_token, stride_out_head, stride_lse_token,
                    scale_log2, soft_cap, window, q_smem, k_smem, v_smem, k_full, k_empty, v_full, v_empty,
                    GROUP, HEAD_SIZE, BLOCK_N, BOX, STAGES, ITEM_COLUMNS, HAS_WINDOW, SOFT_CAP, HAS_LSE,
                    MERGE_ROWS, MERGE_SPLITS, MERGE_LATER,
                ),
            ),
            (
                _load,
                (
                    kv_desc, items_ptr, table_ptr, stride_table, kv_heads,
                    k_smem, v_smem, k_full, k_empty, v_full, v_empty,
                    PAGE_SIZE, HEAD_SIZE, BLOCK_N, BOX, STAGES, ITEM_COLUMNS,
                ),
            ),
        ],
        [1],
        [24],
    )  # fmt: skip
    if BESIDE:
        # The launch before is that of long tiles, which began when all before it had ended, and wrote nothing that is
        # read here. What comes after this launch may count on both.
        wait_for_launch_before()
