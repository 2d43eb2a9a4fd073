# mypy: disable-error-code="no-untyped-def,no-untyped-call,untyped-decorator,misc"
"""The attention kernel: each program attends the items of its list, one query tile over one range of keys at a time.

Decode, prefill and mixed batches differ only in their work lists (plan). Query heads that share a KV head are packed
into the tile's rows, so that keys are read once for all of them. Online softmax in base 2 (Dao et al. 2022); an item of
a split pair leaves a normalised float32 partial with its base-2 log-sum-exp, and the program that comes last merges
them (triton_merge).
"""

import triton
import triton.language as tl

from octavo_kernels.triton_merge import merge_partials, store_rows


@triton.jit
def _widen(stored, DTYPE: tl.constexpr, FP8_BITS: tl.constexpr):
    """Keys or values in the dtype of the products; with FP8_BITS, bytes of e4m3 as 1/256 of their values.

    An e4m3 number's bits, moved to where float16 has its exponent and mantissa, read as 2⁻⁸ of it, subnormal ones too.
    """
    if FP8_BITS:
        bits = stored.to(tl.int16)
        return (((bits & 0x80) << 8) | ((bits & 0x7F) << 7)).to(tl.float16, bitcast=True).to(DTYPE)
    return stored.to(DTYPE)


@triton.jit
def _split_pairs(pairs):
    """float16 tiles of the lower and of the upper numbers of e4m3 pairs in int16, from compute capability 8.9 on."""
    return tl.inline_asm_elementwise(
        """
        {
            .reg .b32 lower, upper;
            .reg .b16 two;
            prmt.b32 lower, $2, 0, 0x0020;
            prmt.b32 upper, $2, 0, 0x0031;
            cvt.u16.u32 two, lower;
            cvt.rn.f16x2.e4m3x2 $0, two;
            cvt.u16.u32 two, upper;
            cvt.rn.f16x2.e4m3x2 $1, two;
        }
        """,
        "=r,=r,r",
        [pairs],
        dtype=(tl.float16, tl.float16),
        is_pure=True,
        pack=2,
    )


@triton.jit
def _attend_block(
    q,
    acc,
    acc_odd,
    row_max,
    row_sum,
    kv_ptr,
    table_ptr,
    start,
    kv_end,
    query_position,
    head,
    lane,
    stride_page,
    v_offset,
    scale_log2,
    soft_cap,
    window,
    values,
    bits_ptr,
    PAGE_SIZE: tl.constexpr,
    HEAD_SIZE: tl.constexpr,
    BLOCK_N: tl.constexpr,
    HAS_WINDOW: tl.constexpr,
    HAS_MASK: tl.constexpr,
    SOFT_CAP: tl.constexpr,
    TRANSFORM: tl.constexpr,
    MASKED: tl.constexpr,
    FP8_BITS: tl.constexpr,
    FP8_PAIRS: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """One block of keys into a tile's running sums; bits_ptr: where each row's own mask begins.

    FP8_PAIRS: acc holds the even elements of a head and acc_odd the odd ones. The matrix units take values by columns,
    which shared memory gives for 16 bits at a time only: so values come as pairs of e4m3 and are parted in registers.
    """
    position = start + tl.arange(0, BLOCK_N)
    inside = position < kv_end
    page = tl.load(table_ptr + position // PAGE_SIZE, mask=inside, other=0).to(tl.int64)
    row = page * stride_page + (position % PAGE_SIZE) * HEAD_SIZE
    present = inside[:, None] & (lane < HEAD_SIZE)[None, :]
    # What is not present is read as 0, never from memory: a free slot may hold NaN.
    k = _widen(tl.load(kv_ptr + row[:, None] + lane[None, :], mask=present, other=0.0), q.dtype, FP8_BITS)
    if FP8_PAIRS:
        half = tl.arange(0, acc.shape[1])
        pairs_ptr = (kv_ptr + v_offset).to(tl.pointer_type(tl.int16), bitcast=True)
        pair_row = page * (stride_page // 2) + (position % PAGE_SIZE) * (HEAD_SIZE // 2)
        halves = inside[:, None] & (half < HEAD_SIZE // 2)[None, :]
        v, v_odd = _split_pairs(tl.load(pairs_ptr + pair_row[:, None] + half[None, :], mask=halves, other=0))
    else:
        v = tl.load(kv_ptr + v_offset + row[:, None] + lane[None, :], mask=present, other=0.0)
        v = _widen(v, q.dtype, FP8_BITS)
    scores = tl.dot(q, tl.trans(k), input_precision=PRECISION) * scale_log2
    if SOFT_CAP:
        # cap · tanh(s / cap)
        scores = soft_cap * (1.0 - 2.0 / (1.0 + tl.exp2(scores * (2.0 * 1.4426950408889634) / soft_cap)))
    if TRANSFORM is not None:
        scores = TRANSFORM(scores, query_position[:, None], position[None, :], head[:, None], values)
    if SOFT_CAP or TRANSFORM is not None:
        # To base 2: scale_log2 holds no log2(e) here.
        scores = scores * 1.4426950408889634
    if HAS_MASK:
        bits = tl.load(bits_ptr[:, None] + position[None, :] // 8, mask=inside[None, :], other=0).to(tl.int32)
        visible = inside[None, :] & ((bits >> (position % 8)[None, :]) & 1 != 0)
        scores = tl.where(visible, scores, float("-inf"))
    elif MASKED:
        visible = inside[None, :] & (position[None, :] <= query_position[:, None])
        if HAS_WINDOW:
            visible = visible & (position[None, :] > query_position[:, None] - window)
        scores = tl.where(visible, scores, float("-inf"))
    new_max = tl.maximum(row_max, tl.max(scores, 1))
    # A row that has seen nothing keeps −inf; subtracting 0 instead makes its weights 0, not NaN.
    shift = tl.where(new_max == float("-inf"), 0.0, new_max)
    weights = tl.exp2(scores - shift[:, None])
    decay = tl.exp2(row_max - shift)
    acc = acc * decay[:, None]
    acc = tl.dot(weights.to(q.dtype), v, acc, input_precision=PRECISION)
    if FP8_PAIRS:
        acc_odd = tl.dot(weights.to(q.dtype), v_odd, acc_odd * decay[:, None], input_precision=PRECISION)
    return acc, acc_odd, new_max, row_sum * decay + tl.sum(weights, 1)


@triton.jit
def attend(
    q_ptr,
    kv_ptr,
    out_ptr,
    lse_ptr,
    items_ptr,
    table_ptr,
    partial_ptr,
    partial_sums_ptr,
    arrivals_ptr,
    stride_q_token,
    stride_q_head,
    stride_out_token,
    stride_out_head,
    stride_lse_token,
    stride_page,
    stride_kind,
    stride_kv_head,
    stride_table,
    scale_log2,
    soft_cap,
    window,
    sinks_ptr,
    values,
    rows_ptr,
    starts_ptr,
    mask_ptr,
    mask_starts_ptr,
    scales_ptr,
    kv_heads,
    GROUP: tl.constexpr,
    PAGE_SIZE: tl.constexpr,
    HEAD_SIZE: tl.constexpr,
    ITEM_COLUMNS: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_D: tl.constexpr,
    HAS_WINDOW: tl.constexpr,
    HAS_MASK: tl.constexpr,
    HAS_SCALES: tl.constexpr,
    FP8_BITS: tl.constexpr,
    FP8_PAIRS: tl.constexpr,
    LISTED: tl.constexpr,
    SOFT_CAP: tl.constexpr,
    TRANSFORM: tl.constexpr,
    HAS_SINKS: tl.constexpr,
    HAS_LSE: tl.constexpr,
    PRECISION: tl.constexpr,
    TWO_LOOPS: tl.constexpr,
    MERGE_ROWS: tl.constexpr,
    MERGE_SPLITS: tl.constexpr,
    OVERLAP: tl.constexpr,
):
    if OVERLAP:
        # Everything before this line may run while the kernel before still does; nothing of its results is read there.
        tl.extra.cuda.gdc_wait()
        tl.extra.cuda.gdc_launch_dependents()
    row = tl.arange(0, BLOCK_M)
    token = row // GROUP
    lane = tl.arange(0, BLOCK_D)
    stride_page = stride_page.to(tl.int64)
    item = tl.program_id(0)
    while item >= 0:
        item_ptr = items_ptr + item * ITEM_COLUMNS
        tokens = tl.load(item_ptr + 2)
        slot = tl.load(item_ptr).to(tl.int64)
        first_row = tl.load(item_ptr + 1).to(tl.int64)
        first_position = tl.load(item_ptr + 3)
        kv_begin = tl.load(item_ptr + 4)
        kv_end = tl.load(item_ptr + 5)
        kv_head = tl.load(item_ptr + 6)
        partial = tl.load(item_ptr + 7).to(tl.int64)
        splits = tl.load(item_ptr + 10)
        item = tl.load(item_ptr + 11)
        if tokens > 0:
            head = kv_head * GROUP + row % GROUP
            row_used = token < tokens
            stored = row_used[:, None] & (lane < HEAD_SIZE)[None, :]
            row_of_q = first_row + token
            if LISTED:
                row_of_q = tl.load(rows_ptr + row_of_q, mask=row_used, other=0).to(tl.int64)
            q_row = row_of_q * stride_q_token + head * stride_q_head
            q = tl.load(q_ptr + q_row[:, None] + lane[None, :], mask=stored, other=0.0)
            query_position = first_position + token
            bits_ptr = row
            if HAS_MASK:
                sequence = tl.load(item_ptr + 13)
                length = tl.load(item_ptr + 12)
                # Rows past the tile's tokens read its last one's.
                token_of = first_row + tl.minimum(token, tokens - 1) - tl.load(starts_ptr + sequence)
                bits_ptr = mask_ptr + tl.load(mask_starts_ptr + sequence) + token_of * ((length + 7) // 8)
            unit: tl.constexpr = 256.0 if FP8_BITS else 1.0
            scale = scale_log2 * unit
            if HAS_SCALES:
                scale = scale * tl.load(scales_ptr + kv_head)
            if FP8_PAIRS:
                # Products are made in float16, which holds e4m3 numbers as they are: queries go there divided by the
                # power of two below each row's largest, so that none overflows and what is lost is far below it.
                wide = q.to(tl.float32)
                largest = tl.maximum(tl.max(tl.abs(wide), 1), 1e-30)
                power = (largest.to(tl.int32, bitcast=True) & 0x7F800000).to(tl.float32, bitcast=True)
                q = (wide / power[:, None]).to(tl.float16)
                scale = scale * power[:, None]

            row_max = tl.full([BLOCK_M], float("-inf"), tl.float32)
            row_sum = tl.zeros([BLOCK_M], tl.float32)
            acc = tl.zeros([BLOCK_M, BLOCK_D // 2 if FP8_PAIRS else BLOCK_D], tl.float32)
            acc_odd = row_max
            if FP8_PAIRS:
                acc_odd = tl.zeros([BLOCK_M, BLOCK_D // 2], tl.float32)
            table = table_ptr + slot * stride_table
            kv = kv_ptr + kv_head.to(tl.int64) * stride_kv_head
            masked_begin = kv_begin
            if TWO_LOOPS:
                # Whole blocks that every row sees need no mask.
                seen_by_all = tl.maximum(tl.minimum(first_position + 1, kv_end) - kv_begin, 0)
                masked_begin = kv_begin + seen_by_all // BLOCK_N * BLOCK_N
                for start in range(kv_begin, masked_begin, BLOCK_N):
                    acc, acc_odd, row_max, row_sum = _attend_block(
                        q, acc, acc_odd, row_max, row_sum, kv, table, start, kv_end, query_position, head, lane,
                        stride_page, stride_kind, scale, soft_cap, window, values, bits_ptr,
                        PAGE_SIZE, HEAD_SIZE, BLOCK_N, HAS_WINDOW, HAS_MASK, SOFT_CAP, TRANSFORM, False, FP8_BITS,
                        FP8_PAIRS, PRECISION,
                    )  # fmt: skip
            for start in range(masked_begin, kv_end, BLOCK_N):
                acc, acc_odd, row_max, row_sum = _attend_block(
                    q, acc, acc_odd, row_max, row_sum, kv, table, start, kv_end, query_position, head, lane,
                    stride_page, stride_kind, scale, soft_cap, window, values, bits_ptr,
                    PAGE_SIZE, HEAD_SIZE, BLOCK_N, HAS_WINDOW, HAS_MASK, SOFT_CAP, TRANSFORM, True, FP8_BITS,
                    FP8_PAIRS, PRECISION,
                )  # fmt: skip

            if FP8_PAIRS:
                acc = tl.interleave(acc, acc_odd)
            if HAS_SCALES:
                acc = acc * (tl.load(scales_ptr + kv_heads + kv_head) * unit)
            elif FP8_BITS:
                acc = acc * unit
            if partial >= 0:
                base = partial * BLOCK_M + row
                tl.store(partial_ptr + base[:, None] * BLOCK_D + lane[None, :], acc, mask=row_used[:, None])
                sums = partial_sums_ptr + partial * (2 * BLOCK_M) + row
                tl.store(sums, row_max, mask=row_used)
                tl.store(sums + BLOCK_M, row_sum, mask=row_used)
                if splits > 0:
                    merge_partials(
                        item_ptr, partial_ptr, partial_sums_ptr, arrivals_ptr, out_ptr, lse_ptr, first_row, tokens,
                        kv_head, stride_out_token, stride_out_head, stride_lse_token,
                        sinks_ptr, GROUP, HEAD_SIZE, BLOCK_M, BLOCK_D, MERGE_ROWS, MERGE_SPLITS, HAS_SINKS, HAS_LSE,
                    )  # fmt: skip
            else:
                store_rows(
                    acc, row_max, row_sum, out_ptr, lse_ptr, sinks_ptr, first_row + token, head, row_used, lane,
                    stride_out_token, stride_out_head, stride_lse_token, HEAD_SIZE, HAS_SINKS, HAS_LSE,
                )  # fmt: skip
