# mypy: disable-error-code="no-untyped-def,no-untyped-call,untyped-decorator,misc"
"""Attention of long tiles on Hopper GPUs, in Gluon: one warp loads, two warpgroups compute 64 rows each.

Programs stay and take the next item by a ticket, in the list's order: neighbours read the same keys at about the same
time, out of the second-level cache, and the longest items come first. The loading warp runs ahead into the next item
while the warpgroups still compute.
"""

import triton.experimental.gluon.language as gl
from triton.experimental import gluon
from triton.experimental.gluon.language.nvidia.hopper import fence_async_shared, mbarrier

from octavo_kernels.triton_hopper_blocks import (
    attend_blocks,
    let_next_launch_start,
    load_blocks,
    load_queries,
)
from octavo_kernels.triton_hopper_merge import finish_rows, merge_arrived, sync_warps


@gluon.jit
def _produce(
    desc, items_ptr, table_ptr, tickets_ptr, stride_table, kv_heads,
    k_smem, v_smem, k_full, k_empty, v_full, v_empty, item_smem, item_full, item_empty,
    PAGE_SIZE: gl.constexpr, HEAD_SIZE: gl.constexpr, BLOCK_N: gl.constexpr, BOX: gl.constexpr, STAGES: gl.constexpr,
    ITEM_COLUMNS: gl.constexpr,
):  # fmt: skip
    """The loading warp: takes items, tells them to the warpgroups and keeps the rings of keys and values full."""
    one: gl.constexpr = gl.BlockedLayout([1], [32], [1], [0])
    count = gl.load(tickets_ptr)
    # Programs past this many leave their multiprocessors to short tiles.
    programs = gl.load(tickets_ptr + 2)
    item = gl.where(gl.program_id(0) < programs, gl.program_id(0), count)
    turn = 0
    step = 0
    while item < count:
        mbarrier.wait(item_empty.index(turn % 2), ((turn // 2) & 1) ^ 1)
        item_smem.index(turn % 2).store(gl.full([1], item, gl.int32, one))
        mbarrier.arrive(item_full.index(turn % 2), count=1)
        turn += 1
        step = load_blocks(
            desc, items_ptr + item * ITEM_COLUMNS, table_ptr, stride_table, kv_heads,
            k_smem, v_smem, k_full, k_empty, v_full, v_empty, step, PAGE_SIZE, HEAD_SIZE, BLOCK_N, BOX, STAGES,
        )  # fmt: skip
        ticket = gl.atomic_add(tickets_ptr + 1, 1)
        if ticket == count - 1:
            # The launch takes as many tickets as there are items: the last one sets the counter back for the next.
            gl.store(tickets_ptr + 1, 0)
        item = programs + ticket
    mbarrier.wait(item_empty.index(turn % 2), ((turn // 2) & 1) ^ 1)
    item_smem.index(turn % 2).store(gl.full([1], -1, gl.int32, one))
    mbarrier.arrive(item_full.index(turn % 2), count=1)


@gluon.jit
def _take(item_smem, item_full, item_empty, turn):
    """The item that the loading warp told of; −1 at the end."""
    one: gl.constexpr = gl.BlockedLayout([1], [32], [4], [0])
    mbarrier.wait(item_full.index(turn % 2), (turn // 2) & 1)
    item = gl.max(item_smem.index(turn % 2).load(one), 0)
    sync_warps()
    mbarrier.arrive(item_empty.index(turn % 2), count=1)
    return item


@gluon.jit
def _consume(
    q_ptr, out_ptr, lse_ptr, sinks_ptr, items_ptr, partial_ptr, partial_sums_ptr, arrivals_ptr,
    stride_q_token, stride_q_head, stride_out_token, stride_out_head, stride_lse_token,
    scale_log2, soft_cap, window,
    q_smem, k_smem, v_smem, k_full, k_empty, v_full, v_empty, item_smem, item_full, item_empty, turns, fixed,
    WG: gl.constexpr, GROUP: gl.constexpr, HEAD_SIZE: gl.constexpr, HEAD_USED: gl.constexpr, BLOCK_N: gl.constexpr,
    BOX: gl.constexpr, STAGES: gl.constexpr, ITEM_COLUMNS: gl.constexpr, HAS_WINDOW: gl.constexpr,
    SOFT_CAP: gl.constexpr, HAS_SINKS: gl.constexpr, HAS_LSE: gl.constexpr, MERGE_ROWS: gl.constexpr,
    MERGE_SPLITS: gl.constexpr, PING_PONG: gl.constexpr,
):  # fmt: skip
    """A computing warpgroup: 64 rows of each item that the loading warp tells of."""
    wide: gl.constexpr = gl.BlockedLayout([1, 8], [32 * 8 // HEAD_SIZE, HEAD_SIZE // 8], [4, 1], [1, 0])
    scores_layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, BLOCK_N, 16])
    acc_layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, HEAD_SIZE, 16])
    rows_of_scores: gl.constexpr = gl.SliceLayout(1, scores_layout)
    rows_of_acc: gl.constexpr = gl.SliceLayout(1, acc_layout)

    row = WG * 64 + gl.arange(0, 64, rows_of_scores)
    position_lane = gl.arange(0, BLOCK_N, gl.SliceLayout(0, scores_layout))
    wide_row = WG * 64 + gl.arange(0, 64, gl.SliceLayout(1, wide))
    lane = gl.arange(0, HEAD_SIZE, gl.SliceLayout(0, wide))
    acc_row = WG * 64 + gl.arange(0, 64, rows_of_acc)
    turn = 0
    step = 0
    order = 0
    fixes = 0
    item = _take(item_smem, item_full, item_empty, turn)
    turn += 1
    item_ptr = items_ptr + gl.maximum(item, 0) * ITEM_COLUMNS
    queries = load_queries(
        q_ptr, q_ptr, item_ptr, item >= 0, wide_row, lane, stride_q_token, stride_q_head, GROUP, HEAD_USED, False
    )
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
        q_smem.store(queries)
        fence_async_shared()
        sync_warps()
        query_position = first_position + row // GROUP
        acc, row_max, row_sum, step, order, fixes = attend_blocks(
            q_smem, k_smem, v_smem, k_full, k_empty, v_full, v_empty, turns, fixed, step, order, fixes,
            kv_begin, kv_end, length, first_position, query_position, position_lane, scale_log2, soft_cap, window,
            WG, 2, HEAD_SIZE, BLOCK_N, BOX, STAGES, HAS_WINDOW, SOFT_CAP, PING_PONG,
        )  # fmt: skip

        # The next item's queries are on their way while this one's results are written.
        item = _take(item_smem, item_full, item_empty, turn)
        turn += 1
        next_ptr = items_ptr + gl.maximum(item, 0) * ITEM_COLUMNS
        queries = load_queries(
            q_ptr, q_ptr, next_ptr, item >= 0, wide_row, lane, stride_q_token, stride_q_head, GROUP, HEAD_USED, False
        )

        if partial >= 0:
            base = partial * 128 + wide_row
            part = gl.convert_layout(acc, wide)
            gl.store(partial_ptr + base[:, None] * HEAD_SIZE + lane[None, :], part)
            sums = partial_sums_ptr + partial * 256 + row
            gl.store(sums, row_max)
            gl.store(sums + 128, row_sum)
            # Each warpgroup's rows are counted and merged by themselves.
            merge_arrived(
                item_ptr, partial_ptr, partial_sums_ptr, arrivals_ptr + gl.load(item_ptr + 8) * 2 + WG, out_ptr,
                lse_ptr, sinks_ptr, first_row, WG * 64, gl.minimum(WG * 64 + 64, tokens * GROUP), kv_head,
                stride_out_token, stride_out_head, stride_lse_token,
                128, GROUP, HEAD_SIZE, HEAD_USED, MERGE_ROWS, MERGE_SPLITS, HAS_SINKS, HAS_LSE,
            )  # fmt: skip
        else:
            acc_head = kv_head * GROUP + acc_row % GROUP
            used = acc_row // GROUP < tokens
            values, lse = finish_rows(
                acc, gl.convert_layout(row_max, rows_of_acc), gl.convert_layout(row_sum, rows_of_acc), sinks_ptr,
                acc_head, used, HAS_SINKS,
            )  # fmt: skip
            out_row = (first_row + wide_row // GROUP) * stride_out_token
            out_row += (kv_head * GROUP + wide_row % GROUP) * stride_out_head
            stored = (wide_row // GROUP < tokens)[:, None] & (lane < HEAD_USED)[None, :]
            values = gl.convert_layout(values.to(out_ptr.dtype.element_ty), wide)
            gl.store(out_ptr + out_row[:, None] + lane[None, :], values, mask=stored)
            if HAS_LSE:
                lse_row = (first_row + acc_row // GROUP) * stride_lse_token + acc_head
                gl.store(lse_ptr + lse_row, lse, mask=used)


@gluon.jit
def attend_long(
    q_ptr, kv_desc, out_ptr, lse_ptr, sinks_ptr, items_ptr, table_ptr, partial_ptr, partial_sums_ptr, arrivals_ptr,
    tickets_ptr, stride_q_token, stride_q_head, stride_out_token, stride_out_head, stride_lse_token, stride_table,
    kv_heads, scale_log2, soft_cap, window,
    GROUP: gl.constexpr, PAGE_SIZE: gl.constexpr, HEAD_SIZE: gl.constexpr, HEAD_USED: gl.constexpr,
    ITEM_COLUMNS: gl.constexpr, BLOCK_N: gl.constexpr, BOX: gl.constexpr, STAGES: gl.constexpr,
    HAS_WINDOW: gl.constexpr, SOFT_CAP: gl.constexpr, HAS_SINKS: gl.constexpr, HAS_LSE: gl.constexpr,
    MERGE_ROWS: gl.constexpr, MERGE_SPLITS: gl.constexpr, PING_PONG: gl.constexpr, BESIDE: gl.constexpr,
):  # fmt: skip
    """The launch: rings of BLOCK_N keys and values in STAGES, filled by one warp and taken by two warpgroups.

    BESIDE: short tiles run at the same time.
    """
    dtype: gl.constexpr = q_ptr.dtype.element_ty
    layout: gl.constexpr = gl.NVMMASharedLayout(128, 16, 2)
    counter: gl.constexpr = mbarrier.MBarrierLayout()
    k_smem = gl.allocate_shared_memory(dtype, [STAGES, BLOCK_N, HEAD_SIZE], layout)
    v_smem = gl.allocate_shared_memory(dtype, [STAGES, BLOCK_N, HEAD_SIZE], layout)
    q_smem = gl.allocate_shared_memory(dtype, [2, 64, HEAD_SIZE], layout)
    item_smem = gl.allocate_shared_memory(gl.int32, [2, 1], gl.SwizzledSharedLayout(1, 1, 1, [0]))
    k_full = gl.allocate_shared_memory(gl.int64, [STAGES, 1], counter)
    k_empty = gl.allocate_shared_memory(gl.int64, [STAGES, 1], counter)
    v_full = gl.allocate_shared_memory(gl.int64, [STAGES, 1], counter)
    v_empty = gl.allocate_shared_memory(gl.int64, [STAGES, 1], counter)
    item_full = gl.allocate_shared_memory(gl.int64, [2, 1], counter)
    item_empty = gl.allocate_shared_memory(gl.int64, [2, 1], counter)
    turns = gl.allocate_shared_memory(gl.int64, [2, 1], counter)
    fixed = gl.allocate_shared_memory(gl.int64, [1], counter)
    for stage in gl.static_range(STAGES):
        mbarrier.init(k_full.index(stage), count=1)
        mbarrier.init(k_empty.index(stage), count=2)
        mbarrier.init(v_full.index(stage), count=1)
        mbarrier.init(v_empty.index(stage), count=2)
    for slot in gl.static_range(2):
        mbarrier.init(item_full.index(slot), count=1)
        mbarrier.init(item_empty.index(slot), count=2)
        mbarrier.init(turns.index(slot), count=1)
    mbarrier.init(fixed, count=2)
    fence_async_shared()

    first: gl.constexpr = 0
    second: gl.constexpr = 1
    if BESIDE:
        # Short tiles' launch may begin on the multiprocessors that this one's surplus programs leave at once.
        let_next_launch_start()
    gl.warp_specialize(
        [
            (
                _consume,
                (
                    q_ptr, out_ptr, lse_ptr, sinks_ptr, items_ptr, partial_ptr, partial_sums_ptr, arrivals_ptr,
                    stride_q_token, stride_q_head, stride_out_token, stride_out_head, stride_lse_token,
                    scale_log2, soft_cap, window, q_smem.index(0), k_smem, v_smem, k_full, k_empty, v_full, v_empty,
                    item_smem, item_full, item_empty, turns, fixed,
                    first, GROUP, HEAD_SIZE, HEAD_USED, BLOCK_N, BOX, STAGES, ITEM_COLUMNS, HAS_WINDOW, SOFT_CAP,
                    HAS_SINKS, HAS_LSE, MERGE_ROWS, MERGE_SPLITS, PING_PONG,
                ),
            ),
            (
                _consume,
                (
                    q_ptr, out_ptr, lse_ptr, sinks_ptr, items_ptr, partial_ptr, partial_sums_ptr, arrivals_ptr,
                    stride_q_token, stride_q_head, stride_out_token, stride_out_head, stride_lse_token,
                    scale_log2, soft_cap, window, q_smem.index(1), k_smem, v_smem, k_full, k_empty, v_full, v_empty,
                    item_smem, item_full, item_empty, turns, fixed,
                    second, GROUP, HEAD_SIZE, HEAD_USED, BLOCK_N, BOX, STAGES, ITEM_COLUMNS, HAS_WINDOW, SOFT_CAP,
                    HAS_SINKS, HAS_LSE, MERGE_ROWS, MERGE_SPLITS, PING_PONG,
                ),
            ),
            (
                _produce,
                (
                    kv_desc, items_ptr, table_ptr, tickets_ptr, stride_table, kv_heads,
                    k_smem, v_smem, k_full, k_empty, v_full, v_empty, item_smem, item_full, item_empty,
                    PAGE_SIZE, HEAD_SIZE, BLOCK_N, BOX, STAGES, ITEM_COLUMNS,
                ),
            ),
        ],
        [4, 1],
        [240, 24],
    )  # fmt: skip
