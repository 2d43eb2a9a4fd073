# mypy: disable-error-code="no-untyped-def,no-untyped-call,untyped-decorator,misc"
"""Head norms, rotary embedding and the write into the pool in one launch: a program per token and tensor (q, k, v)."""

import torch
import triton
import triton.language as tl

from octavo_kernels.shape import FP8


@triton.jit
def _stored(x, scale, SCALED: tl.constexpr, FP8_BITS: tl.constexpr, ELEMENT: tl.constexpr):
    """The pool's form of x: cast, or divided by its scale and rounded to e4m3 in whole numbers.

    Whole numbers give the same bytes on every device, also where it has no conversion of its own.
    """
    if FP8_BITS:
        value = x.to(tl.float32)
        if SCALED:
            value = tl.div_rn(value, tl.broadcast_to(scale, value.shape))
        bits = value.to(tl.int32, bitcast=True)
        sign = (bits >> 24) & 0x80
        size = tl.minimum(tl.abs(value), 448.0)
        size_bits = size.to(tl.int32, bitcast=True)
        # 23 bits of fraction become 3, to the nearest, ties to even; exponents are biased by 7 instead of 127.
        normal = ((size_bits + 0x7FFFF + ((size_bits >> 20) & 1)) >> 20) - (120 << 3)
        # Below 2⁻⁶ the stored number counts steps of 2⁻⁹, which is the last place of 2¹⁴ + size.
        small = (size + 16384.0).to(tl.int32, bitcast=True) - 0x46800000
        byte = tl.where(size < 0.015625, small, normal) | sign
        stored = tl.where(value != value, 0x7F, byte).to(tl.uint8)
    else:
        stored = x.to(ELEMENT)
    return stored


@triton.jit
def _rope_append(
    q_ptr,
    k_ptr,
    v_ptr,
    positions_ptr,
    cos_sin_ptr,
    kv_ptr,
    slots_ptr,
    q_norm_ptr,
    k_norm_ptr,
    scales_ptr,
    eps,
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
    NORMED: tl.constexpr,
    SCALED: tl.constexpr,
    FP8_BITS: tl.constexpr,
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
    element = kv_ptr.dtype.element_ty
    scale = tl.full([BLOCK_HEADS, 1], 1.0, tl.float32)
    if SCALED:
        row_of_scales = KV_HEADS if part == 2 else 0
        scale = tl.load(scales_ptr + row_of_scales + head, mask=head < KV_HEADS, other=1.0)[:, None]
    if part == 2:
        lane = tl.arange(0, BLOCK_D)
        inside = (head < KV_HEADS)[:, None] & (lane < HEAD_SIZE)[None, :]
        v = tl.load(v_ptr + token * stride_v_token + head[:, None] * stride_v_head + lane[None, :], mask=inside)
        at = stride_kind + head[:, None].to(tl.int64) * stride_kv_head + lane[None, :]
        if writes:
            tl.store(target + at, _stored(v, scale, SCALED, FP8_BITS, element), mask=inside)
        return

    is_k = part == 1
    heads = KV_HEADS if is_k else QUERY_HEADS
    if is_k:
        row = k_ptr + token * stride_k_token + head[:, None] * stride_k_head
    else:
        row = q_ptr + token * stride_q_token + head[:, None] * stride_q_head
    head_inside = (head < heads)[:, None]
    at_head = head[:, None].to(tl.int64) * stride_kv_head
    factor = tl.full([BLOCK_HEADS, 1], 1.0, tl.float32)
    if NORMED:
        lane = tl.arange(0, BLOCK_D)
        whole = tl.load(row + lane[None, :], mask=head_inside & (lane < HEAD_SIZE)[None, :], other=0.0).to(tl.float32)
        mean = tl.sum(whole * whole, 1) / HEAD_SIZE
        factor = (1.0 / tl.sqrt(mean + eps))[:, None]
        # Whole heads were read by other threads than those that write their pairs below.
        tl.debug_barrier()
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
        if NORMED:
            if is_k:
                weight_a = tl.load(k_norm_ptr + first, mask=pair_inside, other=0.0).to(tl.float32)
                weight_b = tl.load(k_norm_ptr + second, mask=pair_inside, other=0.0).to(tl.float32)
            else:
                weight_a = tl.load(q_norm_ptr + first, mask=pair_inside, other=0.0).to(tl.float32)
                weight_b = tl.load(q_norm_ptr + second, mask=pair_inside, other=0.0).to(tl.float32)
            a = a * factor * weight_a[None, :]
            b = b * factor * weight_b[None, :]
        turned_a = a * cos - b * sin
        turned_b = b * cos + a * sin
        if is_k:
            if writes:
                stored_a = _stored(turned_a, scale, SCALED, FP8_BITS, element)
                stored_b = _stored(turned_b, scale, SCALED, FP8_BITS, element)
                tl.store(target + at_head + first[None, :], stored_a, mask=inside)
                tl.store(target + at_head + second[None, :], stored_b, mask=inside)
            tl.store(row + first[None, :], turned_a.to(k_ptr.dtype.element_ty), mask=inside)
            tl.store(row + second[None, :], turned_b.to(k_ptr.dtype.element_ty), mask=inside)
        else:
            tl.store(row + first[None, :], turned_a.to(q_ptr.dtype.element_ty), mask=inside)
            tl.store(row + second[None, :], turned_b.to(q_ptr.dtype.element_ty), mask=inside)
    if ROPE_SIZE < HEAD_SIZE:
        rest_lane = tl.arange(0, BLOCK_D)
        rest_inside = (rest_lane >= ROPE_SIZE) & (rest_lane < HEAD_SIZE)
        rest_mask = head_inside & rest_inside[None, :]
        if NORMED:
            rest = tl.load(row + rest_lane[None, :], mask=rest_mask, other=0.0).to(tl.float32)
            if is_k:
                weight = tl.load(k_norm_ptr + rest_lane, mask=rest_inside, other=0.0).to(tl.float32)
            else:
                weight = tl.load(q_norm_ptr + rest_lane, mask=rest_inside, other=0.0).to(tl.float32)
            rest = rest * factor * weight[None, :]
            if is_k:
                if writes:
                    stored = _stored(rest, scale, SCALED, FP8_BITS, element)
                    tl.store(target + at_head + rest_lane[None, :], stored, mask=rest_mask)
                tl.store(row + rest_lane[None, :], rest.to(k_ptr.dtype.element_ty), mask=rest_mask)
            else:
                tl.store(row + rest_lane[None, :], rest.to(q_ptr.dtype.element_ty), mask=rest_mask)
        elif is_k and writes:
            kept_rest = tl.load(row + rest_lane[None, :], mask=rest_mask)
            stored = _stored(kept_rest, scale, SCALED, FP8_BITS, element)
            tl.store(target + at_head + rest_lane[None, :], stored, mask=rest_mask)


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
    q_norm: torch.Tensor | None = None,
    k_norm: torch.Tensor | None = None,
    norm_eps: float = 0.0,
    scales: torch.Tensor | None = None,
) -> None:
    """append_kv (q, positions and cos_sin None) and rope_append_kv; arguments as theirs, already checked."""
    tokens, kv_heads, head_size = k.shape
    if tokens == 0:
        return
    query = k if q is None else q
    rope_size = 0 if cos_sin is None else cos_sin.shape[1]
    first_part = 1 if cos_sin is None else 0
    in_bytes = kv.dtype == FP8
    _rope_append[(tokens, 3 - first_part)](
        query,
        k,
        v,
        slot_mapping if positions is None else positions,
        k if cos_sin is None else cos_sin,
        kv.view(torch.uint8) if in_bytes else kv,
        slot_mapping,
        k if q_norm is None else q_norm,
        k if k_norm is None else k_norm,
        k if scales is None else scales,
        norm_eps,
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
        NORMED=q_norm is not None,
        SCALED=scales is not None,
        FP8_BITS=in_bytes,
        BLOCK_HEADS=triton.next_power_of_2(max(query.shape[1], kv_heads)),
        BLOCK_PAIRS=max(1, triton.next_power_of_2(rope_size // 2)),
        BLOCK_D=triton.next_power_of_2(head_size),
        FIRST_PART=first_part,
        num_warps=4,
    )
