# mypy: disable-error-code="no-untyped-def,no-untyped-call,untyped-decorator,misc"
"""Rotary embedding and the write into the pool in one launch: a program per token and per tensor (q, k, v)."""

import torch
import triton
import triton.language as tl


@triton.jit
def _rope_append(
    q_ptr,
    k_ptr,
    v_ptr,
    positions_ptr,
    cos_sin_ptr,
    kv_ptr,
    slots_ptr,
    stride_q_token,
    stride_q_head,
    stride_k_token,
    stride_k_head,
    stride_v_token,
    stride_v_head,
    stride_cos_sin,
    stride_page,
    stride_kind,
    stride_kv_head,
    QUERY_HEADS: tl.constexpr,
    KV_HEADS: tl.constexpr,
    HEAD_SIZE: tl.constexpr,
    ROPE_SIZE: tl.constexpr,
    PAGE_SIZE: tl.constexpr,
    INTERLEAVED: tl.constexpr,
    BLOCK_HEADS: tl.constexpr,
    BLOCK_PAIRS: tl.constexpr,
    BLOCK_D: tl.constexpr,
    FIRST_PART: tl.constexpr,
):
    token = tl.program_id(0).to(tl.int64)
    part = tl.program_id(1) + FIRST_PART
    head = tl.arange(0, BLOCK_HEADS)
    slot = tl.load(slots_ptr + token)
    writes = slot >= 0
    # −1 is never divided: it becomes 0, and nothing is stored.
    kept = tl.where(writes, slot, 0)
    target = kv_ptr + (kept // PAGE_SIZE) * stride_page + (kept % PAGE_SIZE) * HEAD_SIZE
    if part == 2:
        lane = tl.arange(0, BLOCK_D)
        inside = (head < KV_HEADS)[:, None] & (lane < HEAD_SIZE)[None, :]
        v = tl.load(v_ptr + token * stride_v_token + head[:, None] * stride_v_head + lane[None, :], mask=inside)
        at = stride_kind + head[:, None].to(tl.int64) * stride_kv_head + lane[None, :]
        if writes:
            tl.store(target + at, v.to(kv_ptr.dtype.element_ty), mask=inside)
        return

    is_k = part == 1
    heads = KV_HEADS if is_k else QUERY_HEADS
    if is_k:
        row = k_ptr + token * stride_k_token + head[:, None] * stride_k_head
    else:
        row = q_ptr + token * stride_q_token + head[:, None] * stride_q_head
    head_inside = (head < heads)[:, None]
    at_head = head[:, None].to(tl.int64) * stride_kv_head
    if ROPE_SIZE > 0:
        pair = tl.arange(0, BLOCK_PAIRS)
        first = pair * 2 if INTERLEAVED else pair
        second = pair * 2 + 1 if INTERLEAVED else pair + ROPE_SIZE // 2
        pair_inside = pair < ROPE_SIZE // 2
        inside = head_inside & pair_inside[None, :]
        angles = cos_sin_ptr + tl.load(positions_ptr + token) * stride_cos_sin + pair
        cos = tl.load(angles, mask=pair_inside, other=0.0)[None, :]
        sin = tl.load(angles + ROPE_SIZE // 2, mask=pair_inside, other=0.0)[None, :]
        a = tl.load(row + first[None, :], mask=inside).to(tl.float32)
        b = tl.load(row + second[None, :], mask=inside).to(tl.float32)
        turned_a = a * cos - b * sin
        turned_b = b * cos + a * sin
        if is_k:
            if writes:
                tl.store(target + at_head + first[None, :], turned_a.to(kv_ptr.dtype.element_ty), mask=inside)
                tl.store(target + at_head + second[None, :], turned_b.to(kv_ptr.dtype.element_ty), mask=inside)
            tl.store(row + first[None, :], turned_a.to(k_ptr.dtype.element_ty), mask=inside)
            tl.store(row + second[None, :], turned_b.to(k_ptr.dtype.element_ty), mask=inside)
        else:
            tl.store(row + first[None, :], turned_a.to(q_ptr.dtype.element_ty), mask=inside)
            tl.store(row + second[None, :], turned_b.to(q_ptr.dtype.element_ty), mask=inside)
    if ROPE_SIZE < HEAD_SIZE:
        rest_lane = tl.arange(0, BLOCK_D)
        rest_inside = (rest_lane >= ROPE_SIZE) & (rest_lane < HEAD_SIZE)
        if is_k and writes:
            rest_mask = head_inside & rest_inside[None, :]
            rest = tl.load(row + rest_lane[None, :], mask=rest_mask)
            tl.store(target + at_head + rest_lane[None, :], rest.to(kv_ptr.dtype.element_ty), mask=rest_mask)


def launch_append(
    q: torch.Tensor | None,
    k: torch.Tensor,
    v: torch.Tensor,
    positions: torch.Tensor | None,
    cos_sin: torch.Tensor | None,
    kv: torch.Tensor,
    slot_mapping: torch.Tensor,
    *,
    interleaved: bool = False,
) -> None:
    """append_kv (q, positions and cos_sin None) and rope_append_kv; arguments as theirs, already checked."""
    tokens, kv_heads, head_size = k.shape
    if tokens == 0:
        return
    query = k if q is None else q
    rope_size = 0 if cos_sin is None else cos_sin.shape[1]
    first_part = 1 if cos_sin is None else 0
    _rope_append[(tokens, 3 - first_part)](
        query,
        k,
        v,
        slot_mapping if positions is None else positions,
        k if cos_sin is None else cos_sin,
        kv,
        slot_mapping,
        query.stride(0),
        query.stride(1),
        k.stride(0),
        k.stride(1),
        v.stride(0),
        v.stride(1),
        0 if cos_sin is None else cos_sin.stride(0),
        kv.stride(0),
        kv.stride(1),
        kv.stride(2),
        QUERY_HEADS=query.shape[1],
        KV_HEADS=kv_heads,
        HEAD_SIZE=head_size,
        ROPE_SIZE=rope_size,
        PAGE_SIZE=kv.shape[3],
        INTERLEAVED=interleaved,
        BLOCK_HEADS=triton.next_power_of_2(max(query.shape[1], kv_heads)),
        BLOCK_PAIRS=max(1, triton.next_power_of_2(rope_size // 2)),
        BLOCK_D=triton.next_power_of_2(head_size),
        FIRST_PART=first_part,
        num_warps=4,
    )
