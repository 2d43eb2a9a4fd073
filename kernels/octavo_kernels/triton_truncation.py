# mypy: disable-error-code="no-untyped-def,no-untyped-call,untyped-decorator,misc"
"""Draws for rows with top-k, top-p or min-p: a program per row, mostly in one more reading of it.

A sample of the row tells between which two logits the limit should lie. One pass adds up what is above, lists what is
between and skips what is below; the limit is then found in the list, by sums of whole numbers, and checked. Where the
sample misled, or where the list would be too long, the same search runs over the whole row: slower, and as exact.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
import triton
import triton.language as tl

from octavo_kernels.sampling_reference import CHUNK
from octavo_kernels.triton_sampling import EXACT, factor_of, finite, is_cut, random_bits, target_of, weights

if TYPE_CHECKING:
    from octavo_kernels.sampling import SamplingRows

LISTED = 32768
"""Candidates that a program can list."""
LOWEST = tl.constexpr(-2139095040)
"""order_of the smallest finite float32; −inf is one less."""
HIGHEST = tl.constexpr(2139095040)
"""Above order_of the largest finite float32."""


@triton.jit
def order_of(x):
    """int32 that orders as x does."""
    bits = x.to(tl.int32, bitcast=True)
    # −0 and +0 are equal, so they get one place.
    bits = tl.where(x == 0.0, 0, bits)
    return tl.where(bits >= 0, bits, bits ^ 0x7FFFFFFF)


@triton.jit
def order_by_rank(orders, rank):
    """The largest of the sample's orders, in steps of 2¹⁶, that at least `rank` of them reach."""
    low = -32768
    high = 32768
    for _ in range(16):
        middle = (low + high) >> 1
        enough = tl.sum((orders >= middle).to(tl.int32), 0) >= rank
        low = tl.where(enough, middle, low)
        high = tl.where(enough, high, middle)
    return low


@triton.jit
def bracket_by_mass(orders, sampled, left_out):
    """Ranks of the sample between which x must lie so that what is smaller weighs `left_out` in the sample's units."""
    low = -32768
    high = 32768
    for _ in range(16):
        middle = (low + high) >> 1
        less = tl.sum(tl.where(orders < middle, sampled, 0.0), 0) < left_out
        low = tl.where(less, middle, low)
        high = tl.where(less, high, middle)
    below = tl.where(orders < low, sampled, 0.0)
    heaviest = tl.maximum(tl.max(below, 0), 1e-30)
    # Four standard deviations of the sampled sum, in tokens of the limit's weight.
    margin = 4.0 * tl.sqrt(tl.sum((below / heaviest) * (below / heaviest), 0)) + 12.0
    rank = tl.sum((orders >= low).to(tl.int32), 0).to(tl.float32)
    return (rank + margin).to(tl.int32), (rank - margin).to(tl.int32)


@triton.jit
def listed(whole, row_ptr, end, values_ptr, weights_ptr, place, count, largest, factor):
    """Logits and weights at places of the list, or of the row itself."""
    if whole:
        x = finite(tl.load(row_ptr + place, mask=place < end, other=float("-inf")))
        w = weights(x, largest, factor)
    else:
        x = tl.load(values_ptr + place, mask=place < count, other=float("-inf"))
        w = tl.load(weights_ptr + place, mask=place < count, other=0)
    return x, w


@triton.jit
def amount_from(
    least,
    whole,
    row_ptr,
    end,
    values_ptr,
    weights_ptr,
    count,
    largest,
    factor,
    COUNTS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Number (COUNTS) or weight of the listed tokens of at least this order."""
    amount = tl.zeros([BLOCK], tl.int64)
    for start in range(0, count, BLOCK):
        place = start + tl.arange(0, BLOCK)
        x, w = listed(whole, row_ptr, end, values_ptr, weights_ptr, place, count, largest, factor)
        if COUNTS:
            w = w * 0 + 1
        amount += tl.where(order_of(x) >= least, w, 0)
    return tl.sum(amount, 0)


@triton.jit
def largest_limit(
    low,
    high,
    need,
    above,
    whole,
    row_ptr,
    end,
    values_ptr,
    weights_ptr,
    count,
    largest,
    factor,
    COUNTS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """The largest order in [low, high) from which on tokens amount to `need`; low does, high does not."""
    while high - low > 1:
        step = (high - low + 3) // 4
        first = tl.minimum(low + step, high)
        second = tl.minimum(low + 2 * step, high)
        third = tl.minimum(low + 3 * step, high)
        amount1 = tl.zeros([BLOCK], tl.int64)
        amount2 = tl.zeros([BLOCK], tl.int64)
        amount3 = tl.zeros([BLOCK], tl.int64)
        for start in range(0, count, BLOCK):
            place = start + tl.arange(0, BLOCK)
            x, w = listed(whole, row_ptr, end, values_ptr, weights_ptr, place, count, largest, factor)
            if COUNTS:
                w = w * 0 + 1
            order = order_of(x)
            amount1 += tl.where(order >= first, w, 0)
            amount2 += tl.where(order >= second, w, 0)
            amount3 += tl.where(order >= third, w, 0)
        reached1 = tl.sum(amount1, 0) + above >= need
        reached2 = tl.sum(amount2, 0) + above >= need
        reached3 = tl.sum(amount3, 0) + above >= need
        low = tl.where(reached3, third, tl.where(reached2, second, tl.where(reached1, first, low)))
        high = tl.where(reached1, tl.where(reached2, tl.where(reached3, high, third), second), first)
    return low


@triton.jit
def truncate_and_draw(
    logits_ptr,
    out_ptr,
    temperature_ptr,
    seeds_ptr,
    choices_ptr,
    positions_ptr,
    top_k_ptr,
    top_p_ptr,
    min_p_ptr,
    vocabulary_ptr,
    row_largest_ptr,
    row_sum_ptr,
    values_ptr,
    weights_ptr,
    sums_ptr,
    starts_ptr,
    stride_logits,
    rows,
    columns,
    CHUNKS: tl.constexpr,
    CHUNK: tl.constexpr,
    BLOCK_CHUNKS: tl.constexpr,
    SAMPLES: tl.constexpr,
    LISTED: tl.constexpr,
    BLOCK: tl.constexpr,
    WIDTH: tl.constexpr,
):
    """A program takes every num_programs-th row; rows that are greedy or not cut are left alone."""
    program = tl.program_id(0).to(tl.int64)
    # Of a vocabulary of 1 the compiler makes a plain number, which has no dtype: sums with `none` keep one.
    none = tl.program_id(0) * 0
    values_ptr += program * LISTED
    weights_ptr += program * LISTED
    sums_ptr += program * BLOCK_CHUNKS
    starts_ptr += program * (BLOCK_CHUNKS + 1)
    for row32 in range(tl.program_id(0), rows, tl.num_programs(0)):
        # The interpreter counts in plain numbers, which have no dtype.
        row = program * 0 + row32
        temperature = tl.load(temperature_ptr + row)
        largest = tl.load(row_largest_ptr + row)
        cut = is_cut(top_k_ptr, top_p_ptr, min_p_ptr, row, columns)
        # A greedy row has no row_largest of its own, and a row of −inf none that is finite.
        if cut & (temperature > 0):
            row_ptr = logits_ptr + row * stride_logits
            end = none + columns
            if vocabulary_ptr is not None:
                end = tl.minimum(tl.load(vocabulary_ptr + row), columns)
            factor = factor_of(temperature)
            k = none
            if top_k_ptr is not None:
                k = tl.load(top_k_ptr + row)
                k = tl.where(k < columns, tl.maximum(k, 0), 0)
            p = temperature * 0 + 1.0
            if top_p_ptr is not None:
                p = tl.load(top_p_ptr + row)
            least = program * 0
            if min_p_ptr is not None:
                least = (tl.load(min_p_ptr + row).to(tl.float64) * 1099511627776.0).to(tl.int64)

            # Where the limit should lie, in orders: what is in [low, high) is listed.
            low = LOWEST + none
            high = LOWEST + none
            if (k > 0) | (p < 1.0):
                spot = (tl.arange(0, SAMPLES).to(tl.int64) * columns) // SAMPLES
                sample = finite(tl.load(row_ptr + spot, mask=spot < end, other=float("-inf")))
                orders = order_of(sample) >> 16
                if k > 0:
                    rank = k.to(tl.float32) * SAMPLES / columns
                    low_rank = (rank + 4.0 * tl.sqrt(rank) + 10.0).to(tl.int32)
                    high_rank = none
                else:
                    sampled = tl.exp2(tl.maximum((sample - largest) * factor, -126.0))
                    total = tl.load(row_sum_ptr + row).to(tl.float32) * 9.094947017729282e-13
                    low_rank, high_rank = bracket_by_mass(orders, sampled, (1.0 - p) * total * SAMPLES / columns)
                low = tl.maximum(order_by_rank(orders, low_rank) * 65536, LOWEST)
                high = HIGHEST + none
                if high_rank > 0:
                    high = tl.maximum((order_by_rank(orders, high_rank) + 1) * 65536, low)

            count = none
            total_vector = tl.zeros([CHUNK], tl.int64)
            above_vector = tl.zeros([CHUNK], tl.int64)
            for chunk in range(CHUNKS):
                lane = chunk * CHUNK + tl.arange(0, CHUNK)
                x = finite(tl.load(row_ptr + lane, mask=lane < end, other=float("-inf")))
                w = weights(x, largest, factor)
                order = order_of(x)
                total_vector += w
                above = tl.where(order >= high, w, 0)
                above_vector += above
                tl.store(sums_ptr + chunk, tl.sum(tl.where(w >= least, above, 0), 0))
                tl.store(starts_ptr + chunk, count)
                between = ((order >= low) & (order < high)).to(tl.int32)
                place = count + tl.cumsum(between, 0) - 1
                stored = (between != 0) & (place < LISTED)
                tl.store(values_ptr + place, x, mask=stored)
                tl.store(weights_ptr + place, w, mask=stored)
                count += tl.sum(between, 0)
            tl.store(starts_ptr + CHUNKS, count)
            tl.debug_barrier()
            total = tl.sum(total_vector, 0)
            above = tl.sum(above_vector, 0)
            need = tl.maximum(tl.minimum((p.to(tl.float64) * total.to(tl.float64)).to(tl.int64), total), 1)

            # Whether the list holds the limit; else the row is the list.
            whole = count > LISTED
            if (whole == 0) & (k > 0):
                whole = (count < k) & (low > LOWEST)
            if (whole == 0) & (k == 0) & (p < 1.0):
                inside = amount_from(
                    LOWEST, 0, row_ptr, end, values_ptr, weights_ptr, count, largest, factor, False, BLOCK
                )
                whole = (above >= need) | (above + inside < need)
            if whole:
                count = none + columns
                low = LOWEST + none
                high = HIGHEST + none
                above = above * 0

            limit = low
            if k > 0:
                found = amount_from(
                    LOWEST, whole, row_ptr, end, values_ptr, weights_ptr, count, largest, factor, True, BLOCK
                )
                if found >= k:
                    limit = largest_limit(
                        low.to(tl.int64),
                        high.to(tl.int64),
                        k.to(tl.int64),
                        above * 0,
                        whole,
                        row_ptr,
                        end,
                        values_ptr,
                        weights_ptr,
                        count,
                        largest,
                        factor,
                        True,
                        BLOCK,
                    ).to(tl.int32)
                kept = amount_from(
                    limit, whole, row_ptr, end, values_ptr, weights_ptr, count, largest, factor, False, BLOCK
                )
                need = tl.maximum(tl.minimum((p.to(tl.float64) * kept.to(tl.float64)).to(tl.int64), kept), 1)
            if p < 1.0:
                limit = largest_limit(
                    limit.to(tl.int64),
                    high.to(tl.int64),
                    need,
                    above,
                    whole,
                    row_ptr,
                    end,
                    values_ptr,
                    weights_ptr,
                    count,
                    largest,
                    factor,
                    False,
                    BLOCK,
                ).to(tl.int32)

            # The weight of each chunk's kept tokens.
            part = tl.arange(0, BLOCK_CHUNKS)
            used = part < CHUNKS
            if whole:
                for chunk in range(CHUNKS):
                    lane = chunk * CHUNK + tl.arange(0, CHUNK)
                    x = finite(tl.load(row_ptr + lane, mask=lane < end, other=float("-inf")))
                    w = weights(x, largest, factor)
                    tl.store(sums_ptr + chunk, tl.sum(tl.where((order_of(x) >= limit) & (w >= least), w, 0), 0))
                tl.debug_barrier()
                kept_sums = tl.load(sums_ptr + part, mask=used, other=0)
            else:
                start = tl.load(starts_ptr + part, mask=used, other=0)
                stop = tl.load(starts_ptr + part + 1, mask=used, other=0)
                tile = tl.zeros([BLOCK_CHUNKS, WIDTH], tl.int64)
                for step in range(0, tl.max(stop - start, 0), WIDTH):
                    place = start[:, None] + step + tl.arange(0, WIDTH)[None, :]
                    within = place < stop[:, None]
                    x = tl.load(values_ptr + place, mask=within, other=float("-inf"))
                    w = tl.load(weights_ptr + place, mask=within, other=0)
                    tile += tl.where((order_of(x) >= limit) & (w >= least), w, 0)
                kept_sums = tl.load(sums_ptr + part, mask=used, other=0) + tl.sum(tile, 1)
            bits = random_bits(tl.load(seeds_ptr + row), tl.load(choices_ptr + row), tl.load(positions_ptr + row))
            target = target_of(bits, tl.sum(kept_sums, 0))
            chosen = tl.sum((tl.cumsum(kept_sums, 0) <= target).to(tl.int32), 0)
            inside = target - tl.sum(tl.where(part < chosen, kept_sums, 0), 0)
            lane = chosen * CHUNK + tl.arange(0, CHUNK)
            x = finite(tl.load(row_ptr + lane, mask=lane < end, other=float("-inf")))
            w = weights(x, largest, factor)
            running = tl.cumsum(tl.where((order_of(x) >= limit) & (w >= least), w, 0), 0)
            token = chosen * CHUNK + tl.minimum(tl.sum((running <= inside).to(tl.int32), 0), CHUNK - 1)
            if largest > float("-inf"):
                tl.store(out_ptr + row, token.to(tl.int64))
            # The next row overwrites the list.
            tl.debug_barrier()


class Truncation:
    """Launches for cut rows, and the lists of candidates: one per program, whatever the number of rows."""

    def __init__(self, vocabulary: int, max_rows: int, device: torch.device) -> None:
        self._columns = vocabulary
        self._chunks = -(-vocabulary // CHUNK)
        self._block_chunks = triton.next_power_of_2(self._chunks)
        processors = torch.cuda.get_device_properties(device).multi_processor_count if device.type == "cuda" else 2
        self._programs = min(max_rows, 2 * processors)
        size = (self._programs, LISTED)
        self._values = torch.empty(size, dtype=torch.float32, device=device)
        self._weights = torch.empty(size, dtype=torch.int64, device=device)
        self._sums = torch.empty(self._programs, self._block_chunks, dtype=torch.int64, device=device)
        self._starts = torch.empty(self._programs, self._block_chunks + 1, dtype=torch.int32, device=device)

    def draw(
        self,
        logits: torch.Tensor,
        rows: SamplingRows,
        row_largest: torch.Tensor,
        row_sums: torch.Tensor,
        out: torch.Tensor,
    ) -> None:
        """Tokens of the cut rows into out; row_largest and row_sums as measure_and_draw left them."""
        truncate_and_draw[(min(self._programs, logits.shape[0]),)](
            *(logits, out, rows.temperature, rows.seeds, rows.choices, rows.positions),
            *(rows.top_k, rows.top_p, rows.min_p, rows.vocabulary, row_largest, row_sums),
            *(self._values, self._weights, self._sums, self._starts, logits.stride(0), logits.shape[0], self._columns),
            CHUNKS=self._chunks,
            CHUNK=CHUNK,
            BLOCK_CHUNKS=self._block_chunks,
            SAMPLES=2048,
            LISTED=LISTED,
            BLOCK=2048,
            WIDTH=max(8, 2048 // self._block_chunks),
            num_warps=8,
            **EXACT,
        )
