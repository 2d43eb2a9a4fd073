# mypy: disable-error-code="no-untyped-def,no-untyped-call,untyped-decorator,misc,assignment"
"""What the two kernels for Hopper GPUs share, in Gluon: loading pages, and attending a range of keys.

Pages arrive by the bulk tensor copy engine, one box a page, into slices of one swizzled tile of shared memory. A
warpgroup starts the next scores' product before it works on the last weights; where there are two warpgroups, they take
turns at the tensor cores, so that the exponentials of one hide behind the products of the other (Shah et al. 2024,
FlashAttention-3, sections 3.1 and 3.2).
"""

import torch
import triton.experimental.gluon.language as gl
import triton.language as tl
from triton.experimental import gluon
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    tma,
    warpgroup_mma,
    warpgroup_mma_wait,
)
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

from octavo_kernels.triton_hopper_merge import sync_warps

# Renamed between Triton's versions; where the new name exists, the old one may exist as well, and raise.
load_box = tma.async_load if hasattr(tma, "async_load") else tma.async_copy_global_to_shared
wait_for_launch_before = tl.extra.cuda.gdc_wait
let_next_launch_start = tl.extra.cuda.gdc_launch_dependents


def describe_pool(kv: torch.Tensor, box: int, head_size: int) -> TensorDescriptor:
    """The pool `[pages, 2, kv_heads, page_size, head_size]` as rows of one head's tokens, copied by boxes of rows.

    head_size: a box's width, a power of two; the copy engine fills what a row lacks with zeros.
    """
    rows = kv.view(-1, kv.shape[-1])
    return TensorDescriptor.from_tensor(rows, [box, head_size], gl.NVMMASharedLayout(128, 16, 2))


@gluon.jit
def load_queries(
    q_ptr, rows_ptr, item_ptr, exists, row, lane, stride_q_token, stride_q_head,
    GROUP: gl.constexpr, HEAD_USED: gl.constexpr, LISTED: gl.constexpr,
):  # fmt: skip
    """Rows of an item's queries; zeros where it has none. LISTED: its rows of q stand in a list of rows."""
    first_row = gl.load(item_ptr + 1).to(gl.int64)
    tokens = gl.load(item_ptr + 2)
    kv_head = gl.load(item_ptr + 6)
    token = row // GROUP
    used = (token < tokens) & exists
    row_of_q = first_row + token
    if LISTED:
        row_of_q = gl.load(rows_ptr + row_of_q, mask=used, other=0).to(gl.int64)
    q_row = row_of_q * stride_q_token + (kv_head * GROUP + row % GROUP) * stride_q_head
    stored = used[:, None] & (lane < HEAD_USED)[None, :]
    return gl.load(q_ptr + q_row[:, None] + lane[None, :], mask=stored, other=0.0)


@gluon.jit
def load_blocks(
    desc, item_ptr, table_ptr, stride_table, kv_heads, k_smem, v_smem, k_full, k_empty, v_full, v_empty, step,
    PAGE_SIZE: gl.constexpr, HEAD_SIZE: gl.constexpr, BLOCK_N: gl.constexpr, BOX: gl.constexpr, STAGES: gl.constexpr,
):  # fmt: skip
    """Fills the rings with an item's keys and values, one block of BLOCK_N after the other; returns the next step."""
    table = table_ptr + gl.load(item_ptr + 0).to(gl.int64) * stride_table
    kv_begin = gl.load(item_ptr + 4)
    kv_end = gl.load(item_ptr + 5)
    kv_head = gl.load(item_ptr + 6)
    # Past the sequence's last page, that page again: what lies beyond the sequence is masked.
    last_page = (gl.load(item_ptr + 12) - 1) // PAGE_SIZE
    first = kv_begin // BOX * BOX
    for position in range(first, kv_end, BLOCK_N):
        stage = step % STAGES
        empty_phase = ((step // STAGES) & 1) ^ 1
        rows = ()
        for box in gl.static_range(BLOCK_N // BOX):
            at = position + box * BOX
            page = gl.load(table + gl.minimum(at // PAGE_SIZE, last_page))
            rows = rows + ((page * 2 * kv_heads + kv_head) * PAGE_SIZE + at % PAGE_SIZE,)  # noqa: RUF005
        mbarrier.wait(k_empty.index(stage), empty_phase)
        mbarrier.expect(k_full.index(stage), BLOCK_N * HEAD_SIZE * 2)
        for box in gl.static_range(BLOCK_N // BOX):
            load_box(desc, [rows[box], 0], k_full.index(stage), k_smem.index(stage).slice(box * BOX, BOX))
        mbarrier.wait(v_empty.index(stage), empty_phase)
        mbarrier.expect(v_full.index(stage), BLOCK_N * HEAD_SIZE * 2)
        for box in gl.static_range(BLOCK_N // BOX):
            row = rows[box] + kv_heads * PAGE_SIZE
            load_box(desc, [row, 0], v_full.index(stage), v_smem.index(stage).slice(box * BOX, BOX))
        step += 1
    return step


@gluon.jit
def _weigh(
    scores, row_max, row_sum, start, kv_begin, kv_end, first_position, query_position, position_lane,
    scale_log2, soft_cap, window,
    BLOCK_N: gl.constexpr, HAS_WINDOW: gl.constexpr, SOFT_CAP: gl.constexpr,
):  # fmt: skip
    """One block's scores to weights, by online softmax; masks only where some row does not see the whole block."""
    if SOFT_CAP:
        scores = scores * scale_log2
        scores = soft_cap * (1.0 - 2.0 / (1.0 + gl.exp2(scores * (2.0 * 1.4426950408889634) / soft_cap)))
        scores = scores * 1.4426950408889634
    inside = (start >= kv_begin) & (start + BLOCK_N <= gl.minimum(kv_end, first_position + 1))
    if HAS_WINDOW:
        inside = inside & False
    if not inside:
        position = start + position_lane
        seen = (position >= kv_begin) & (position < kv_end)
        visible = seen[None, :] & (position[None, :] <= query_position[:, None])
        if HAS_WINDOW:
            visible = visible & (position[None, :] > query_position[:, None] - window)
        scores = gl.where(visible, scores, float("-inf"))
    scaling = 1.0 if SOFT_CAP else scale_log2
    new_max = gl.maximum(row_max, gl.max(scores, 1) * scaling)
    # A row that has seen nothing keeps −inf; subtracting 0 instead makes its weights 0, not NaN.
    shift = gl.where(new_max == float("-inf"), 0.0, new_max)
    weights = gl.exp2(scores * scaling - shift[:, None])
    decay = gl.exp2(row_max - shift)
    return weights, decay, new_max, row_sum * decay + gl.sum(weights, 1)


@gluon.jit
def _clear_outside(
    tile, start, kv_begin, length, fixed, fixes,
    WG: gl.constexpr, WGS: gl.constexpr, BLOCK_N: gl.constexpr, HEAD_SIZE: gl.constexpr,
):  # fmt: skip
    """Sets values of slots that hold no token of the sequence to 0, each warpgroup its part: they may be NaN."""
    layout: gl.constexpr = gl.BlockedLayout([1, 8], [32 * 8 // HEAD_SIZE, HEAD_SIZE // 8], [4, 1], [1, 0])
    ROWS: gl.constexpr = BLOCK_N // WGS
    part = tile.slice(WG * ROWS, ROWS)
    position = start + WG * ROWS + gl.arange(0, ROWS, gl.SliceLayout(1, layout))
    keep = (position >= kv_begin) & (position < length)
    values = part.load(layout)
    part.store(gl.where(keep[:, None], values, gl.zeros_like(values)))
    fence_async_shared()
    sync_warps()
    if WGS > 1:
        mbarrier.arrive(fixed, count=1)
        mbarrier.wait(fixed, fixes & 1)


@gluon.jit
def attend_blocks(
    q_smem, k_smem, v_smem, k_full, k_empty, v_full, v_empty, turns, fixed, step, order, fixes,
    kv_begin, kv_end, length, first_position, query_position, position_lane, scale_log2, soft_cap, window,
    WG: gl.constexpr, WGS: gl.constexpr, HEAD_SIZE: gl.constexpr, BLOCK_N: gl.constexpr, BOX: gl.constexpr,
    STAGES: gl.constexpr, HAS_WINDOW: gl.constexpr, SOFT_CAP: gl.constexpr, PING_PONG: gl.constexpr,
):  # fmt: skip
    """64 rows of queries against all keys of an item.

    Returns the sum of weighted values, each row's largest score (base 2) and its sum of weights relative to it, and how
    far the rings and counts have gone.
    """
    dtype: gl.constexpr = q_smem.dtype
    scores_layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, BLOCK_N, 16])
    acc_layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, HEAD_SIZE, 16])
    weights_layout: gl.constexpr = gl.DotOperandLayout(0, acc_layout, 2)
    rows_of_acc: gl.constexpr = gl.SliceLayout(1, acc_layout)
    no_scores = gl.zeros([64, BLOCK_N], gl.float32, scores_layout)
    row_max = gl.full([64], float("-inf"), gl.float32, gl.SliceLayout(1, scores_layout))
    row_sum = gl.zeros([64], gl.float32, gl.SliceLayout(1, scores_layout))
    acc = gl.zeros([64, HEAD_SIZE], gl.float32, acc_layout)
    first = kv_begin // BOX * BOX
    if kv_end > first:
        stage = step % STAGES
        mbarrier.wait(k_full.index(stage), (step // STAGES) & 1)
        scores = warpgroup_mma(q_smem, k_smem.index(stage).permute((1, 0)), no_scores, use_acc=False, is_async=True)
        scores = warpgroup_mma_wait(0, deps=(scores,))
        mbarrier.arrive(k_empty.index(stage), count=1)
        weights, decay, row_max, row_sum = _weigh(
            scores, row_max, row_sum, first, kv_begin, kv_end, first_position, query_position, position_lane,
            scale_log2, soft_cap, window, BLOCK_N, HAS_WINDOW, SOFT_CAP,
        )  # fmt: skip
        operand = gl.convert_layout(weights.to(dtype), weights_layout)
        before = first
        for start in range(first + BLOCK_N, kv_end, BLOCK_N):
            next_stage = (step + 1) % STAGES
            mbarrier.wait(k_full.index(next_stage), ((step + 1) // STAGES) & 1)
            mbarrier.wait(v_full.index(stage), (step // STAGES) & 1)
            if (before < kv_begin) | (before + BLOCK_N > length):
                _clear_outside(v_smem.index(stage), before, kv_begin, length, fixed, fixes, WG, WGS, BLOCK_N, HEAD_SIZE)
                fixes += 1
            if PING_PONG:
                mbarrier.wait(turns.index(WG), (order & 1) ^ (1 - WG))
            scores_token = warpgroup_mma(
                q_smem, k_smem.index(next_stage).permute((1, 0)), no_scores, use_acc=False, is_async=True
            )
            acc_token = warpgroup_mma(operand, v_smem.index(stage), acc, is_async=True)
            if PING_PONG:
                mbarrier.arrive(turns.index(1 - WG), count=1)
                order += 1
            scores = warpgroup_mma_wait(1, deps=(scores_token,))
            mbarrier.arrive(k_empty.index(next_stage), count=1)
            weights, decay, row_max, row_sum = _weigh(
                scores, row_max, row_sum, start, kv_begin, kv_end, first_position, query_position, position_lane,
                scale_log2, soft_cap, window, BLOCK_N, HAS_WINDOW, SOFT_CAP,
            )  # fmt: skip
            acc = warpgroup_mma_wait(0, deps=(acc_token,))
            mbarrier.arrive(v_empty.index(stage), count=1)
            acc = acc * gl.convert_layout(decay, rows_of_acc)[:, None]
            operand = gl.convert_layout(weights.to(dtype), weights_layout)
            step += 1
            stage = next_stage
            before = start
        mbarrier.wait(v_full.index(stage), (step // STAGES) & 1)
        if (before < kv_begin) | (before + BLOCK_N > length):
            _clear_outside(v_smem.index(stage), before, kv_begin, length, fixed, fixes, WG, WGS, BLOCK_N, HEAD_SIZE)
            fixes += 1
        acc = warpgroup_mma(operand, v_smem.index(stage), acc, is_async=True)
        acc = warpgroup_mma_wait(0, deps=(acc,))
        mbarrier.arrive(v_empty.index(stage), count=1)
        step += 1
    return acc, row_max, row_sum, step, order, fixes
