"""What sampling means, in torch operations: the CPU's path and the truth of the GPU's kernels, bit for bit.

A probability is a whole number of 2⁻⁴⁰ of the largest one's: W(u) = ⌊2⁴⁰ · 2ᵘ⌋ for u = (x − largest) / (T · ln 2), with
2ᵘ from a polynomial whose every step is one rounded float32 operation. Sums of whole numbers are the same in any order,
so a vocabulary may be divided among programs in any way. The random number is Philox4x32-10 (Salmon et al. 2011, §4.3).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from octavo_kernels.sampling import Biases, Penalties, SamplingRows, TokenLists, TokenMasks

CHUNK = 4096
"""Tokens whose weights are added relative to their own largest logit where nothing is cut off."""
WEIGHT_BITS = 40
LOG2_E = 1.4426950216293335
"""log2(e) as float32 holds it."""
LEAST_TEMPERATURE = 1e-5
LEAST_EXPONENT = -100.0
"""Below it a weight is 0 by far."""
LARGEST_LOGIT = 3.4028234663852886e38
ROUNDER = 12582912.0
"""1.5 · 2²³: added to a small float32, it leaves the nearest whole number in the low bits."""
POWERS = (
    1.0,
    0.6931470036506653,
    0.24022242426872253,
    0.05550733581185341,
    0.009671512991189957,
    0.0013264723820611835,
)
"""2^f on [−½, ½] to 1.9e-7, in float32 steps; exact at 0."""
_FIRST_CANDIDATES = 512
_LOW = 0xFFFFFFFF


def sample_reference(logits: torch.Tensor, rows: SamplingRows) -> torch.Tensor:
    """int64 `[rows]` for adjusted logits float32 `[rows, vocabulary]`, which stay as they are."""
    x = finite_logits(logits)
    largest = x.amax(dim=1, keepdim=True)
    greedy = first_equal(x, largest)
    drawn = (rows.temperature > 0).nonzero().squeeze(1)
    if not len(drawn):
        return greedy
    every = len(drawn) == x.shape[0]

    def pick(tensor: torch.Tensor) -> torch.Tensor:
        return tensor if every else tensor[drawn]

    values, top = pick(x), pick(largest)
    # A division, not the reciprocal's product that a number divided by a tensor would be.
    divisor = pick(rows.temperature).clamp_min(LEAST_TEMPERATURE)[:, None]
    factor = torch.full_like(divisor, LOG2_E).div_(divisor)
    cut = torch.zeros(values.shape[0], dtype=torch.bool, device=x.device)
    if rows.truncates:
        values, cut = truncate(
            values, top, factor, *(None if t is None else pick(t) for t in (rows.top_k, rows.top_p, rows.min_p))
        )
    bits = random_bits(pick(rows.seeds), pick(rows.choices), pick(rows.positions))
    chosen = draw(values, top, factor, cut, bits)
    chosen = torch.where(torch.isneginf(top.squeeze(1)), pick(greedy), chosen)
    return chosen if every else greedy.index_copy(0, drawn, chosen)


def finite_logits(logits: torch.Tensor) -> torch.Tensor:
    """NaN → −inf, +inf → the largest float32."""
    return logits.nan_to_num(nan=float("-inf"), posinf=LARGEST_LOGIT, neginf=float("-inf"))


def first_equal(x: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
    """The lowest index per row whose element equals value `[rows, 1]`."""
    return (x == value).to(torch.uint8).argmax(dim=1)


def powers_of_two(exponents: torch.Tensor) -> torch.Tensor:
    """2⁴⁰ · 2^u for float32 u ≤ 0, cut at −100, in float32."""
    u = exponents.clamp_min(LEAST_EXPONENT)
    shifted = u + ROUNDER
    fraction = u.sub_(shifted - ROUNDER)
    scale = float(1 << WEIGHT_BITS)
    power = torch.full_like(fraction, POWERS[5] * scale)
    for coefficient in reversed(POWERS[:5]):
        power.mul_(fraction).add_(coefficient * scale)
    return (power.view(torch.int32) + (shifted.view(torch.int32) << 23)).view(torch.float32)


def weights(x: torch.Tensor, anchor: torch.Tensor, factor: torch.Tensor) -> torch.Tensor:
    """int64 weights of logits relative to anchor; 0 where a logit or its anchor is −inf."""
    exponents = ((x - anchor) * factor).nan_to_num_(nan=float("-inf"), neginf=LEAST_EXPONENT)
    return powers_of_two(exponents).long()


def truncate(
    x: torch.Tensor,
    largest: torch.Tensor,
    factor: torch.Tensor,
    top_k: torch.Tensor | None,
    top_p: torch.Tensor | None,
    min_p: torch.Tensor | None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """x with −inf where top-k, top-p or min-p cut, and which rows may be cut at all.

    top-k keeps what is not below the k-th largest; top-p the shortest beginning of the sorted rest that holds p of its
    weight; min-p what weighs at least min_p of the largest.
    """
    count = x.shape[1]
    cut = torch.zeros(x.shape[0], dtype=torch.bool, device=x.device)
    if top_k is not None:
        limited = (top_k > 0) & (top_k < count)
        cut |= limited
        most = int(torch.where(limited, top_k, 0).amax())
        if most:
            best = x.topk(most, dim=1).values
            limit = best.gather(1, (top_k.clamp(1, most) - 1).long()[:, None])
            x = x.masked_fill((x < limit) & limited[:, None], float("-inf"))
    w = weights(x, largest, factor) if top_p is not None or min_p is not None else None
    if top_p is not None and w is not None:
        limited = top_p < 1
        cut |= limited
        if bool(limited.any()):
            limit = _top_p_limits(x, largest, factor, w.sum(dim=1), top_p)
            x = x.masked_fill((x < limit[:, None]) & limited[:, None], float("-inf"))
    if min_p is not None and w is not None:
        cut |= min_p > 0
        least = (min_p.double() * float(1 << WEIGHT_BITS)).long()
        x = x.masked_fill((w < least[:, None]) & (min_p > 0)[:, None], float("-inf"))
    return x, cut


def _top_p_limits(
    x: torch.Tensor, largest: torch.Tensor, factor: torch.Tensor, total: torch.Tensor, top_p: torch.Tensor
) -> torch.Tensor:
    """The largest value v of each row whose tokens x ≥ v weigh at least ⌊p · total⌋ and 1.

    Sorting a whole vocabulary takes milliseconds on a CPU; the largest few hundred values nearly always reach p.
    """
    need = (top_p.double() * total.double()).long().minimum(total).clamp_min(1)
    limits = torch.full_like(largest.squeeze(1), float("-inf"))
    open_rows = (top_p < 1).nonzero().squeeze(1)
    for count in (min(_FIRST_CANDIDATES, x.shape[1]), x.shape[1]):
        values = x[open_rows].topk(count, dim=1).values
        reached = weights(values, largest[open_rows], factor[open_rows]).cumsum(dim=1) >= need[open_rows, None]
        done = reached.any(dim=1)
        last = first_equal(reached, torch.ones_like(reached[:, :1]))
        limits[open_rows[done]] = values.gather(1, last[:, None]).squeeze(1)[done]
        open_rows = open_rows[~done]
        if not len(open_rows):
            break
    return limits


def draw(
    x: torch.Tensor, largest: torch.Tensor, factor: torch.Tensor, cut: torch.Tensor, bits: torch.Tensor
) -> torch.Tensor:
    """The first token at which the running sum of weights passes the row's random share of all of it.

    Chunks of rows that are not cut weigh their tokens relative to their own largest logit, so that one reading of the
    logits is enough; whole chunks are then weighed relative to the row's.
    """
    rows, count = x.shape
    chunks = -(-count // CHUNK)
    padded = torch.nn.functional.pad(x, (0, chunks * CHUNK - count), value=float("-inf")).view(rows, chunks, CHUNK)
    own = torch.where(cut[:, None], largest, padded.amax(dim=2))
    w = weights(padded, own[:, :, None], factor[:, :, None])
    sums = w.sum(dim=2)
    unit = 2.0**-WEIGHT_BITS
    share = powers_of_two(((own - largest) * factor).nan_to_num_(nan=LEAST_EXPONENT, neginf=LEAST_EXPONENT))
    share = share.double() * unit
    ends = (sums.double() * share).long().cumsum(dim=1)
    total = ends[:, -1:]
    target = (bits[:, None].double() * 2.0**-53 * total.double()).long().minimum(total - 1)
    chunk = (ends <= target).sum(dim=1, keepdim=True).clamp_max(chunks - 1)
    before = torch.where(chunk > 0, ends.gather(1, (chunk - 1).clamp_min(0)), 0)
    inside = ((target - before).double() / share.gather(1, chunk)).long().minimum(sums.gather(1, chunk) - 1)
    running = w.gather(1, chunk[:, :, None].expand(-1, 1, CHUNK)).squeeze(1).cumsum(dim=1)
    return chunk.squeeze(1) * CHUNK + (running <= inside).sum(dim=1).clamp_max(CHUNK - 1)


def random_bits(seeds: torch.Tensor, choices: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
    """53 random bits per row, int64 `[rows]`: Philox4x32-10, key the seed, counter (position, choice, 0)."""
    c0, c1, c2, c3 = positions & _LOW, (positions >> 32) & _LOW, choices & _LOW, torch.zeros_like(positions)
    k0, k1 = seeds & _LOW, (seeds >> 32) & _LOW
    for _ in range(10):
        first, second = c0 * 0xD2511F53, c2 * 0xCD9E8D57
        c0, c1, c2, c3 = (
            ((second >> 32) & _LOW) ^ c1 ^ k0,
            second & _LOW,
            ((first >> 32) & _LOW) ^ c3 ^ k1,
            first & _LOW,
        )
        k0, k1 = (k0 + 0x9E3779B9) & _LOW, (k1 + 0xBB67AE85) & _LOW
    return (c0 << 21) | (c1 >> 11)


def adjust_reference(
    logits: torch.Tensor,
    vocabulary: torch.Tensor | None,
    penalties: Penalties | None,
    biases: Biases | None,
    masks: TokenMasks | None,
) -> None:
    """Masks, ids without a token, penalties and biases, in place."""
    if masks is not None:
        _mask(logits, masks)
    if vocabulary is not None:
        lanes = torch.arange(logits.shape[1], device=logits.device)
        logits.masked_fill_(lanes >= vocabulary[:, None], float("-inf"))
    if penalties is not None:
        row, place = _entries(penalties.tokens, logits.shape[0])
        ids, counts = penalties.tokens.ids[place].long(), penalties.counts[place]
        values, repetition = logits[row, ids], penalties.repetition[row]
        values = torch.where(values > 0, values / repetition, values * repetition)
        less = penalties.frequency[row] * counts + penalties.presence[row]
        logits[row, ids] = torch.where(counts > 0, values - less, values)
    if biases is not None:
        row, place = _entries(biases.tokens, logits.shape[0])
        logits[row, biases.tokens.ids[place].long()] += biases.values[place]


def _entries(tokens: TokenLists, rows: int) -> tuple[torch.Tensor, tuple[torch.Tensor, torch.Tensor]]:
    """Row of each entry in use, and its place in the list tensors."""
    lists = torch.arange(rows, device=tokens.ids.device) if tokens.lists is None else tokens.lists.long()
    lengths = torch.where(lists >= 0, tokens.lengths[lists.clamp_min(0)], 0)
    used = torch.arange(tokens.ids.shape[1], device=tokens.ids.device) < lengths[:, None]
    row, place = used.nonzero(as_tuple=True)
    return row, (lists[row], place)


def _mask(logits: torch.Tensor, masks: TokenMasks) -> None:
    rows = torch.arange(logits.shape[0], device=logits.device) if masks.rows is None else masks.rows.long()
    masked = (rows >= 0).nonzero().squeeze(1)
    words = masks.words[rows[masked]]
    bits = torch.arange(32, dtype=torch.int32, device=logits.device)
    allowed = ((words[:, :, None] >> bits) & 1).flatten(1).bool()[:, : logits.shape[1]]
    forbidden = torch.ones(len(masked), logits.shape[1], dtype=torch.bool, device=logits.device)
    forbidden[:, : allowed.shape[1]] = ~allowed
    logits[masked] = logits[masked].masked_fill(forbidden, float("-inf"))
