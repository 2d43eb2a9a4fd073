# mypy: disable-error-code="no-untyped-def,no-untyped-call,untyped-decorator,misc"
"""Merges the partial results of split tiles, in the order of their keys, whatever order the programs ran in."""

import triton
import triton.language as tl


@triton.jit
def merge(
    tiles_ptr,
    partial_ptr,
    partial_lse_ptr,
    out_ptr,
    lse_ptr,
    stride_out_token,
    stride_out_head,
    stride_lse_token,
    GROUP: tl.constexpr,
    HEAD_SIZE: tl.constexpr,
    TILE_COLUMNS: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_D: tl.constexpr,
    HAS_LSE: tl.constexpr,
):
    tile_ptr = tiles_ptr + tl.program_id(0) * TILE_COLUMNS
    kv_head = tl.program_id(1)
    kv_heads = tl.num_programs(1)
    splits = tl.load(tile_ptr + 3)
    if splits < 2:
        return
    first_row = tl.load(tile_ptr).to(tl.int64)
    tokens = tl.load(tile_ptr + 1)
    first_partial = tl.load(tile_ptr + 2).to(tl.int64)

    row = tl.arange(0, BLOCK_M)
    lane = tl.arange(0, BLOCK_D)
    token = row // GROUP
    head = kv_head * GROUP + row % GROUP
    row_used = token < tokens
    row_max = tl.full([BLOCK_M], float("-inf"), tl.float32)
    row_sum = tl.zeros([BLOCK_M], tl.float32)
    acc = tl.zeros([BLOCK_M, BLOCK_D], tl.float32)
    for split in range(splits):
        base = ((first_partial + split) * kv_heads + kv_head) * BLOCK_M + row
        lse = tl.load(partial_lse_ptr + base, mask=row_used, other=float("-inf"))
        part = tl.load(partial_ptr + base[:, None] * BLOCK_D + lane[None, :], mask=row_used[:, None], other=0.0)
        new_max = tl.maximum(row_max, lse)
        shift = tl.where(new_max == float("-inf"), 0.0, new_max)
        decay = tl.exp2(row_max - shift)
        weight = tl.exp2(lse - shift)
        acc = acc * decay[:, None] + part * weight[:, None]
        row_sum = row_sum * decay + weight
        row_max = new_max

    empty = row_sum == 0.0
    acc = acc / tl.where(empty, 1.0, row_sum)[:, None]
    out_row = (first_row + token) * stride_out_token + head * stride_out_head
    stored = row_used[:, None] & (lane < HEAD_SIZE)[None, :]
    tl.store(out_ptr + out_row[:, None] + lane[None, :], acc.to(out_ptr.dtype.element_ty), mask=stored)
    if HAS_LSE:
        lse = tl.where(empty, float("-inf"), row_max + tl.log2(tl.where(empty, 1.0, row_sum)))
        tl.store(lse_ptr + (first_row + token) * stride_lse_token + head, lse * 0.6931471805599453, mask=row_used)
