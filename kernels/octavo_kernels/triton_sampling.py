# mypy: disable-error-code="no-untyped-def,no-untyped-call,untyped-decorator,misc"
"""Sampling in one reading of the logits: each program weighs a chunk of a row, the last one of a row draws.

sampling_reference.py defines every number here. Kernels are compiled without fused multiply-adds, so that each float32
step is rounded as torch rounds it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
import triton
import triton.language as tl

from octavo_kernels.sampling_reference import CHUNK

if TYPE_CHECKING:
    from octavo_kernels.sampling import Biases, Penalties, SamplingRows, TokenMasks

EXACT = {"enable_fp_fusion": False}
_LISTED = 256


@triton.jit
def finite(x):
    """NaN → −inf, +inf → the largest float32."""
    return tl.minimum(tl.where(x == x, x, float("-inf")), 3.4028234663852886e38)


@triton.jit
def powers_of_two(exponents):
    """2⁴⁰ · 2^u for float32 u ≤ 0, cut at −100: the nearest whole number goes into the exponent."""
    u = tl.maximum(exponents, -100.0)
    shifted = u + 12582912.0
    fraction = u - (shifted - 12582912.0)
    power = fraction * (0.0013264723820611835 * 1099511627776.0) + 0.009671512991189957 * 1099511627776.0
    power = power * fraction + 0.05550733581185341 * 1099511627776.0
    power = power * fraction + 0.24022242426872253 * 1099511627776.0
    power = power * fraction + 0.6931470036506653 * 1099511627776.0
    power = power * fraction + 1099511627776.0
    bits = power.to(tl.int32, bitcast=True) + (shifted.to(tl.int32, bitcast=True) << 23)
    return bits.to(tl.float32, bitcast=True)


@triton.jit
def weights(x, anchor, factor):
    """int64 weights relative to a finite anchor."""
    return powers_of_two((x - anchor) * factor).to(tl.int64)


@triton.jit
def factor_of(temperature):
    return tl.div_rn(temperature * 0.0 + 1.4426950216293335, tl.maximum(temperature, 1e-5))


@triton.jit
def random_bits(seed, choice, position):
    """53 bits of Philox4x32-10 for int64 scalars."""
    c0 = position.to(tl.uint32)
    c1 = (position >> 32).to(tl.uint32)
    c2 = choice.to(tl.uint32)
    c3 = c0 ^ c0
    k0 = seed.to(tl.uint32)
    k1 = (seed >> 32).to(tl.uint32)
    first = c3 + tl.full([], 0xD2511F53, tl.uint32)
    second = c3 + tl.full([], 0xCD9E8D57, tl.uint32)
    for _ in tl.static_range(10):
        low0 = c0 * first
        low2 = c2 * second
        high0 = tl.umulhi(c0, first)
        high2 = tl.umulhi(c2, second)
        c0 = high2 ^ c1 ^ k0
        c1 = low2
        c2 = high0 ^ c3 ^ k1
        c3 = low0
        k0 = k0 + 0x9E3779B9
        k1 = k1 + 0xBB67AE85
    return (c0.to(tl.int64) << 21) | (c1.to(tl.int64) >> 11)


@triton.jit
def target_of(bits, total):
    """Where in [0, total) the random number falls."""
    return tl.minimum((bits.to(tl.float64) * 1.1102230246251565e-16 * total.to(tl.float64)).to(tl.int64), total - 1)


@triton.jit
def list_of(lists_ptr, row):
    # One exit: the compiler goes on behind a return inside of a branch that it takes.
    place = row
    if lists_ptr is not None:
        place = tl.load(lists_ptr + row).to(tl.int64)
    return place


@triton.jit
def is_cut(top_k_ptr, top_p_ptr, min_p_ptr, row, columns):
    """Whether the row asks for top-k, top-p or min-p."""
    cut = columns < 0
    if top_k_ptr is not None:
        k = tl.load(top_k_ptr + row)
        cut = cut | ((k > 0) & (k < columns))
    if top_p_ptr is not None:
        cut = cut | (tl.load(top_p_ptr + row) < 1.0)
    if min_p_ptr is not None:
        cut = cut | (tl.load(min_p_ptr + row) > 0.0)
    return cut


@triton.jit
def measure_and_draw(
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
    words_ptr,
    mask_rows_ptr,
    largest_ptr,
    first_ptr,
    sum_ptr,
    row_largest_ptr,
    row_sum_ptr,
    arrivals_ptr,
    stride_logits,
    words,
    columns,
    CHUNKS: tl.constexpr,
    CHUNK: tl.constexpr,
    BLOCK_CHUNKS: tl.constexpr,
):
    """Grid (chunks, rows). Draws where nothing is cut off; for cut rows it leaves the largest logit and the sum."""
    chunk = tl.program_id(0)
    row = tl.program_id(1).to(tl.int64)
    row_ptr = logits_ptr + row * stride_logits
    end = columns
    if vocabulary_ptr is not None:
        end = tl.minimum(tl.load(vocabulary_ptr + row), columns)
    lane = chunk * CHUNK + tl.arange(0, CHUNK)
    x = finite(tl.load(row_ptr + lane, mask=lane < end, other=float("-inf")))
    if words_ptr is not None:
        mask = list_of(mask_rows_ptr, row)
        if mask >= 0:
            bits = tl.load(words_ptr + mask * words + lane // 32, mask=lane < tl.minimum(words * 32, end), other=0)
            x = tl.where(((bits >> (lane % 32)) & 1) != 0, x, float("-inf"))
            tl.store(row_ptr + lane, x, mask=lane < columns)
    own = tl.max(x, 0)
    first = tl.min(tl.where(x == own, lane, 1 << 30), 0)
    temperature = tl.load(temperature_ptr + row)
    factor = factor_of(temperature)
    place = row * CHUNKS + chunk
    tl.store(largest_ptr + place, own)
    tl.store(first_ptr + place, first)
    if temperature > 0:
        tl.store(sum_ptr + place, tl.sum(weights(x, tl.where(own == float("-inf"), 0.0, own), factor), 0))
    # All threads have stored before one of them counts, and the count releases what they stored.
    tl.debug_barrier()
    arrived = tl.atomic_add(arrivals_ptr + row, 1, sem="acq_rel", scope="gpu")
    if arrived == CHUNKS - 1:
        tl.store(arrivals_ptr + row, 0)
        part = tl.arange(0, BLOCK_CHUNKS)
        used = part < CHUNKS
        places = row * CHUNKS + part
        chunk_largest = tl.load(largest_ptr + places, mask=used, other=float("-inf"), cache_modifier=".cg")
        chunk_first = tl.load(first_ptr + places, mask=used, other=1 << 30, cache_modifier=".cg")
        largest = tl.max(chunk_largest, 0)
        token = tl.min(tl.where(chunk_largest == largest, chunk_first, 1 << 30), 0)
        if temperature > 0:
            tl.store(row_largest_ptr + row, largest)
        if (temperature > 0) & (largest > float("-inf")):
            chunk_sum = tl.load(sum_ptr + places, mask=used, other=0, cache_modifier=".cg")
            share = powers_of_two((chunk_largest - largest) * factor).to(tl.float64) * 9.094947017729282e-13
            scaled = (chunk_sum.to(tl.float64) * share).to(tl.int64)
            total = tl.sum(scaled, 0)
            tl.store(row_sum_ptr + row, total)
            if is_cut(top_k_ptr, top_p_ptr, min_p_ptr, row, columns) == 0:
                bits = random_bits(tl.load(seeds_ptr + row), tl.load(choices_ptr + row), tl.load(positions_ptr + row))
                target = target_of(bits, total)
                chosen = tl.sum((tl.cumsum(scaled, 0) <= target).to(tl.int32), 0)
                at = part == chosen
                left = target - tl.sum(tl.where(part < chosen, scaled, 0), 0)
                inside = (left.to(tl.float64) / tl.sum(tl.where(at, share, 0.0), 0)).to(tl.int64)
                inside = tl.minimum(inside, tl.sum(tl.where(at, chunk_sum, 0), 0) - 1)
                anchor = tl.max(tl.where(at, chunk_largest, float("-inf")), 0)
                lanes = chosen * CHUNK + tl.arange(0, CHUNK)
                again = tl.load(row_ptr + lanes, mask=lanes < end, other=float("-inf"), cache_modifier=".cg")
                running = tl.cumsum(weights(finite(again), anchor, factor), 0)
                token = chosen * CHUNK + tl.minimum(tl.sum((running <= inside).to(tl.int32), 0), CHUNK - 1)
        tl.store(out_ptr + row, token.to(tl.int64))


@triton.jit
def penalize(
    logits_ptr,
    ids_ptr,
    counts_ptr,
    lengths_ptr,
    lists_ptr,
    repetition_ptr,
    presence_ptr,
    frequency_ptr,
    stride_logits,
    capacity,
    columns,
    BLOCK: tl.constexpr,
):
    """Grid (rows, programs): a row's programs walk its list together."""
    row = tl.program_id(0).to(tl.int64)
    place = list_of(lists_ptr, row)
    if place >= 0:
        length = tl.load(lengths_ptr + place)
        repetition = tl.load(repetition_ptr + row)
        presence = tl.load(presence_ptr + row)
        frequency = tl.load(frequency_ptr + row)
        for start in range(tl.program_id(1) * BLOCK, length, tl.num_programs(1) * BLOCK):
            entry = start + tl.arange(0, BLOCK)
            used = entry < length
            token = tl.load(ids_ptr + place * capacity + entry, mask=used, other=-1)
            count = tl.load(counts_ptr + place * capacity + entry, mask=used, other=0)
            used = used & (token >= 0) & (token < columns)
            at = logits_ptr + row * stride_logits + token
            x = tl.load(at, mask=used, other=0.0)
            x = tl.where(x > 0, tl.div_rn(x, repetition), x * repetition)
            less = frequency * count.to(tl.float32) + presence
            tl.store(at, tl.where(count > 0, x - less, x), mask=used)


@triton.jit
def add_biases(
    logits_ptr, ids_ptr, values_ptr, lengths_ptr, lists_ptr, stride_logits, capacity, columns, BLOCK: tl.constexpr
):
    """Grid (rows, programs)."""
    row = tl.program_id(0).to(tl.int64)
    place = list_of(lists_ptr, row)
    if place >= 0:
        length = tl.load(lengths_ptr + place)
        for start in range(tl.program_id(1) * BLOCK, length, tl.num_programs(1) * BLOCK):
            entry = start + tl.arange(0, BLOCK)
            used = entry < length
            token = tl.load(ids_ptr + place * capacity + entry, mask=used, other=-1)
            value = tl.load(values_ptr + place * capacity + entry, mask=used, other=0.0)
            used = used & (token >= 0) & (token < columns)
            at = logits_ptr + row * stride_logits + token
            tl.store(at, tl.load(at, mask=used, other=0.0) + value, mask=used)


class SamplingKernels:
    """Launches for up to max_rows rows, and the scratch memory that they leave as they found it."""

    def __init__(self, vocabulary: int, max_rows: int, device: torch.device) -> None:
        from octavo_kernels.triton_truncation import Truncation

        self._columns = vocabulary
        self._chunks = -(-vocabulary // CHUNK)
        size = (max_rows, self._chunks)
        self._largest = torch.empty(size, dtype=torch.float32, device=device)
        self._first = torch.empty(size, dtype=torch.int32, device=device)
        self._sums = torch.empty(size, dtype=torch.int64, device=device)
        self._row_largest = torch.empty(max_rows, dtype=torch.float32, device=device)
        self._row_sums = torch.empty(max_rows, dtype=torch.int64, device=device)
        self._arrivals = torch.zeros(max_rows, dtype=torch.int32, device=device)
        self._truncation = Truncation(vocabulary, max_rows, device)

    def sample(
        self,
        logits: torch.Tensor,
        rows: SamplingRows,
        penalties: Penalties | None,
        biases: Biases | None,
        masks: TokenMasks | None,
        out: torch.Tensor,
    ) -> None:
        """Sampler.sample with checked arguments."""
        count, stride = logits.shape[0], logits.stride(0)
        if penalties is not None:
            tokens = penalties.tokens
            penalize[(count, _programs(tokens.ids.shape[1]))](
                *(logits, tokens.ids, penalties.counts, tokens.lengths, tokens.lists),
                *(penalties.repetition, penalties.presence, penalties.frequency),
                *(stride, tokens.ids.shape[1], self._columns),
                BLOCK=_LISTED,
                num_warps=4,
                **EXACT,
            )
        if biases is not None:
            tokens = biases.tokens
            add_biases[(count, _programs(tokens.ids.shape[1]))](
                *(logits, tokens.ids, biases.values, tokens.lengths, tokens.lists),
                *(stride, tokens.ids.shape[1], self._columns),
                BLOCK=_LISTED,
                num_warps=4,
                **EXACT,
            )
        limits = (rows.top_k, rows.top_p, rows.min_p)
        measure_and_draw[(self._chunks, count)](
            *(logits, out, rows.temperature, rows.seeds, rows.choices, rows.positions, *limits, rows.vocabulary),
            *((None, None) if masks is None else (masks.words, masks.rows)),
            *(self._largest, self._first, self._sums, self._row_largest, self._row_sums, self._arrivals),
            *(stride, 0 if masks is None else masks.words.shape[1], self._columns),
            CHUNKS=self._chunks,
            CHUNK=CHUNK,
            BLOCK_CHUNKS=triton.next_power_of_2(self._chunks),
            num_warps=8,
            **EXACT,
        )
        if rows.truncates:
            self._truncation.draw(logits, rows, self._row_largest, self._row_sums, out)


def _programs(capacity: int) -> int:
    """Programs of a row that walk its list: a long list gets more, at most 16."""
    return max(1, min(16, capacity // (4 * _LISTED)))
