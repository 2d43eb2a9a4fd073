# mypy: disable-error-code="no-untyped-def,no-untyped-call,untyped-decorator,misc"
"""What the kernels that write work lists share: costs, ranges of keys, shares of the device, rows of the list.

Every program of such a kernel sums the costs of all sequences by itself and then finds its own rows in closed form, so
that nothing waits for anything else. Products of two counts are 64-bit.
"""

import triton
import triton.language as tl


@triton.jit
def sequence_costs(
    new_tokens,
    length,
    window,
    TILE_TOKENS: tl.constexpr,
    BLOCK_N: tl.constexpr,
    HAS_WINDOW: tl.constexpr,
):
    """Tiles of each sequence, and the blocks of keys of its longest tile (one at least: empty rows are written)."""
    keys = tl.maximum(length, 0)
    if HAS_WINDOW:
        keys = tl.minimum(keys, window - 1 + TILE_TOKENS)
    return (new_tokens + TILE_TOKENS - 1) // TILE_TOKENS, tl.maximum((keys + BLOCK_N - 1) // BLOCK_N, 1)


@triton.jit
def tile_range(
    tile, new_tokens, length, window, TILE_TOKENS: tl.constexpr, HAS_WINDOW: tl.constexpr, HAS_MASK: tl.constexpr
):
    """Tokens of a tile, the position of its first one, and its keys' begin and end; a mask may show it every key."""
    first_token = tile * TILE_TOKENS
    tokens = tl.minimum(new_tokens - first_token, TILE_TOKENS)
    position = length - new_tokens + first_token
    end = tl.maximum(position + tokens, 0)
    if HAS_MASK:
        end = tl.maximum(length, 0)
    begin = end * 0
    if HAS_WINDOW:
        begin = tl.maximum(position + 1 - window, 0)
    return first_token, tokens, position, begin, end


@triton.jit
def processors_for_short(
    new_tokens,
    length,
    longest,
    window,
    processors,
    KV_HEADS: tl.constexpr,
    SHORT_TOKENS: tl.constexpr,
    SHORT_BLOCK: tl.constexpr,
    LONG_TOKENS: tl.constexpr,
    LONG_BLOCK: tl.constexpr,
    HAS_WINDOW: tl.constexpr,
):
    """How many multiprocessors short tiles get where both kinds run side by side, so that both end at the same time.

    Measured on an H200: a multiprocessor takes about 3.6 times as long for 128 rows on 128 keys as for the 32 KiB of a
    short tile's 64 keys, beside each other.
    """
    short_tiles, short_blocks = sequence_costs(new_tokens, length, window, SHORT_TOKENS, SHORT_BLOCK, HAS_WINDOW)
    long_tiles, long_blocks = sequence_costs(new_tokens, length, window, LONG_TOKENS, LONG_BLOCK, HAS_WINDOW)
    if not HAS_WINDOW:
        # The mean of a prompt's first tile and its last.
        long_blocks = (2 * length - new_tokens + LONG_TOKENS) // (2 * LONG_BLOCK) + 1
    is_short = new_tokens <= longest
    short_work = tl.sum(tl.where(is_short, short_tiles * short_blocks, 0).to(tl.float32), 0)
    long_work = tl.sum(tl.where(is_short, 0, long_tiles * long_blocks).to(tl.float32), 0) * 3.6
    share = processors * short_work / tl.maximum(short_work + long_work, 1.0)
    found = tl.minimum(tl.maximum((share + 0.5).to(tl.int32), 1), processors - 1)
    return tl.where(short_work == 0.0, 0, tl.where(long_work == 0.0, processors, found))


@triton.jit
def programs_used(pairs, blocks, work, programs, LEAST_BLOCKS: tl.constexpr):
    """How many of the programs share the work: as few as do not raise the largest share.

    Where all pairs are equal and it costs the largest share 4 % at most, cuts fall on the pairs' boundaries: each pair
    goes to as many programs, or each program takes as many pairs, and no partial results lie between.
    """
    most = tl.minimum(tl.maximum(work // LEAST_BLOCKS, 1), programs)
    share = tl.maximum((work + most - 1) // most, 1)
    used = tl.maximum((work + share - 1) // share, 1)
    count = tl.maximum(tl.sum(pairs, 0).to(tl.int64), 1)
    longest = tl.max(tl.where(pairs > 0, blocks, 0), 0)
    equal = longest == tl.min(tl.where(pairs > 0, blocks, 2147483647), 0)
    # Programs of each pair, or pairs of each program.
    splits = tl.maximum(tl.minimum(most // count, longest), 1)
    several = (count + most - 1) // most
    aligned = tl.where(count <= most, count * splits, (count + several - 1) // several)
    aligned_share = tl.where(count <= most, (longest + splits - 1) // splits, several * longest)
    whole = (count <= most) | (count % several == 0)
    return tl.where(equal & whole & (aligned_share * 24 <= share * 25), aligned, used)


@triton.jit
def store_item(
    items_ptr, row, mask, slot, first_row, tokens, position, begin, end, head, partial, first_partial, next_partial,
    splits, following, length, sequence, ITEM_COLUMNS: tl.constexpr,
):  # fmt: skip
    """Writes rows of the list; octavo_kernels.plan names the columns."""
    item = items_ptr + row * ITEM_COLUMNS
    tl.store(item, slot, mask=mask)
    tl.store(item + 1, first_row, mask=mask)
    tl.store(item + 2, tokens, mask=mask)
    tl.store(item + 3, position, mask=mask)
    tl.store(item + 4, begin, mask=mask)
    tl.store(item + 5, end, mask=mask)
    tl.store(item + 6, head, mask=mask)
    tl.store(item + 7, partial, mask=mask)
    tl.store(item + 8, first_partial, mask=mask)
    tl.store(item + 9, next_partial, mask=mask)
    tl.store(item + 10, splits, mask=mask)
    tl.store(item + 11, following, mask=mask)
    tl.store(item + 12, length, mask=mask)
    tl.store(item + 13, sequence, mask=mask)
