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
    load_queries,
    wait_for_launch_before,
)
from octavo_kernels.triton_hopper_merge import finish_rows, merge_arrived, sync_warps


@gluon.jit
def _load(
    desc, items_ptr, table_ptr, stride_table, kv_heads, k_smem, v_smem, k_full, k_empty, v_full, v_empty,
    PAGE_SIZE: gl.constexpr, HEAD_SIZE: gl.constexpr, BLOCK_N: gl.constexpr, BOX: gl.constexpr, STAGES: gl.constexpr,
    ITEM_COLUMNS: gl.constexpr, OVERLAP: gl.constexpr, BESIDE: gl.constexpr, EARLY: gl.constexpr,
):  # fmt: skip
    """The loading warp: keeps the rings full through all items of the program."""
    item = gl.program_id(0)
    if OVERLAP and not BESIDE:
        # What comes before this line may run while the launch before still does; nothing of its results is read there.
        wait_for_launch_before()
        if EARLY:
            # There is room beside this launch's programs: the next one's may settle there.
            let_next_launch_start()
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
    if OVERLAP and not BESIDE:
        # All pages are asked for: the next launch may begin while this one computes and merges.
        let_next_launch_start()


@gluon.jit
def _compute(
    q_ptr, out_ptr, lse_ptr, sinks_ptr, rows_ptr, items_ptr, partial_ptr, partial_sums_ptr, arrivals_ptr,
    stride_q_token, stride_q_head, stride_out_token, stride_out_head, stride_lse_token,
    scale_log2, soft_cap, window, q_smem, k_smem, v_smem, k_full, k_empty, v_full, v_empty,
    GROUP: gl.constexpr, HEAD_SIZE: gl.constexpr, HEAD_USED: gl.constexpr, BLOCK_N: gl.constexpr, BOX: gl.constexpr,
    STAGES: gl.constexpr, ITEM_COLUMNS: gl.constexpr, HAS_WINDOW: gl.constexpr, SOFT_CAP: gl.constexpr,
    HAS_SINKS: gl.constexpr, HAS_LSE: gl.constexpr, LISTED: gl.constexpr, MERGE_ROWS: gl.constexpr,
    MERGE_SPLITS: gl.constexpr, OVERLAP: gl.constexpr, BESIDE: gl.constexpr,
):  # fmt: skip
    """The computing warpgroup: all items of the program, each to its place among the results."""
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
    if OVERLAP and not BESIDE:
        wait_for_launch_before()
    while item >= 0:
        item_ptr = items_ptr + item * ITEM_COLUMNS
        first_row = gl.load(item_ptr + 1).to(gl.int64)
        tokens = gl.load(item_ptr + 2)
        first_position = gl.load(item_ptr + 3)
        kv_begin = gl.load(item_ptr + 4)
        kv_end = gl.load(item_ptr + 5)
        kv_head = gl.load(item_ptr + 6)
        partial = gl.load(item_ptr + 7).to(gl.int64)
        splits = gl.load(item_ptr + 10)
        length = gl.load(item_ptr + 12)
        item = gl.load(item_ptr + 11)
        if tokens > 0:
            q_smem.store(
                load_queries(
                    q_ptr, rows_ptr, item_ptr, tokens > 0, wide_row, wide_lane, stride_q_token, stride_q_head,
                    GROUP, HEAD_USED, LISTED,
                )
            )  # fmt: skip
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
                if splits > 0:
                    merge_arrived(
                        item_ptr, partial_ptr, partial_sums_ptr, arrivals_ptr + gl.load(item_ptr + 8), out_ptr, lse_ptr,
                        sinks_ptr, first_row, 0, tokens * GROUP, kv_head,
                        stride_out_token, stride_out_head, stride_lse_token,
                        64, GROUP, HEAD_SIZE, HEAD_USED, MERGE_ROWS, MERGE_SPLITS, HAS_SINKS, HAS_LSE,
                    )  # fmt: skip
            else:
                head = kv_head * GROUP + row % GROUP
                values, lse = finish_rows(acc, row_max, row_sum, sinks_ptr, head, used, HAS_SINKS)
                out_row = (first_row + token) * stride_out_token + head * stride_out_head
                stored = used[:, None] & (lane < HEAD_USED)[None, :]
                gl.store(out_ptr + out_row[:, None] + lane[None, :], values.to(out_ptr.dtype.element_ty), mask=stored)
                if HAS_LSE:
                    gl.store(lse_ptr + (first_row + token) * stride_lse_token + head, lse, mask=used)


@gluon.jit
def attend_short(
    q_ptr, kv_desc, out_ptr, lse_ptr, sinks_ptr, rows_ptr, items_ptr, table_ptr, partial_ptr, partial_sums_ptr,
    arrivals_ptr, stride_q_token, stride_q_head, stride_out_token, stride_out_head, stride_lse_token, stride_table,
    kv_heads, scale_log2, soft_cap, window,
    GROUP: gl.constexpr, PAGE_SIZE: gl.constexpr, HEAD_SIZE: gl.constexpr, HEAD_USED: gl.constexpr,
    ITEM_COLUMNS: gl.constexpr, BLOCK_N: gl.constexpr, BOX: gl.constexpr, STAGES: gl.constexpr,
    HAS_WINDOW: gl.constexpr, SOFT_CAP: gl.constexpr, HAS_SINKS: gl.constexpr, HAS_LSE: gl.constexpr,
    LISTED: gl.constexpr, MERGE_ROWS: gl.constexpr, MERGE_SPLITS: gl.constexpr, OVERLAP: gl.constexpr,
    BESIDE: gl.constexpr, EARLY: gl.constexpr,
):  # fmt: skip
    """The launch: rings of BLOCK_N keys and values in STAGES, filled by one warp and taken by one warpgroup.

    BESIDE: long tiles run at the same time. EARLY: there is one program a multiprocessor at most.
    """
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
    gl.warp_specialize(
        [
            (
                _compute,
                (
                    q_ptr, out_ptr, lse_ptr, sinks_ptr, rows_ptr, items_ptr, partial_ptr, partial_sums_ptr,
                    arrivals_ptr, stride_q_token, stride_q_head, stride_out_token, stride_out_head, stride_lse_token,
                    scale_log2, soft_cap, window, q_smem, k_smem, v_smem, k_full, k_empty, v_full, v_empty,
                    GROUP, HEAD_SIZE, HEAD_USED, BLOCK_N, BOX, STAGES, ITEM_COLUMNS, HAS_WINDOW, SOFT_CAP, HAS_SINKS,
                    HAS_LSE, LISTED, MERGE_ROWS, MERGE_SPLITS, OVERLAP, BESIDE,
                ),
            ),
            (
                _load,
                (
                    kv_desc, items_ptr, table_ptr, stride_table, kv_heads,
                    k_smem, v_smem, k_full, k_empty, v_full, v_empty,
                    PAGE_SIZE, HEAD_SIZE, BLOCK_N, BOX, STAGES, ITEM_COLUMNS, OVERLAP, BESIDE, EARLY,
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
