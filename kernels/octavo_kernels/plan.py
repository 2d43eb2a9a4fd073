"""The work list of the Triton backend: its columns, and capacities that follow from a batch's shapes alone.

A *tile* is up to tile_tokens new tokens that follow each other in a list of rows: those of one sequence, or of all
sequences that share a prefix, wherever in the batch these stand. With a KV head it makes a *pair*. An *item* is a range
of keys of one pair. Sequences with few new tokens make short tiles, whose items are cut at equal steps of the
prefix sum of all pairs' blocks of keys: each program gets the same number of blocks, whatever the lengths are (the idea
of stream-K, Osama et al. 2023). The others make long tiles, one item each, the longest sequences first; only where
there are too few of them for the device is each cut into equal parts. triton_plan writes the rows on the device.
"""

from __future__ import annotations

from dataclasses import dataclass

# Columns of an item.
SLOT = 0  # row of the page table that is read
FIRST_ROW = 1  # its first token's place in the list of rows; without shared prefixes, the row of q itself
TOKENS = 2  # tokens of the tile; 0: nothing to do
FIRST_POSITION = 3  # position of the first token
BEGIN = 4  # first key
END = 5  # end of keys
KV_HEAD = 6
PARTIAL = 7  # where its partial result goes; −1: it writes the output itself
FIRST_PARTIAL = 8  # the pair's partial results, in the order of their keys: this one first,
NEXT_PARTIAL = 9  # then the ones from here on
SPLITS = 10  # how many they are; 0: a launch of its own merges them, by the tokens' merge lists
NEXT = 11  # the item that the same program does next; −1: none
LENGTH = 12  # tokens of the sequence in the cache: slots of its pages past them may hold anything
SEQUENCE = 13  # its place in the batch
ITEM_COLUMNS = 16  # a row fills half a cache line

# Columns of a token's merge list: for the shared prefix, then for its own keys: first partial result, next ones, how
# many, and the token's place in the tile.
MERGE_COLUMNS = 8


# Where keys are cut in the batch-invariant mode: at every INVARIANT_KEYS keys, or into so many parts of the longest
# sequence that a row of the page table can hold.
INVARIANT_KEYS = 1024
INVARIANT_PARTS = 8


@dataclass(frozen=True)
class ShortLimits:
    """Capacities of the list of short tiles.

    tile_tokens: query tokens of a tile at most.
    pairs: capacity for pairs; at least `tile_capacity` times the KV heads.
    programs: how many programs share the work.
    block: keys that a program takes at a time, the unit in which work is cut.
    longest: new tokens of a sequence up to which its tiles are short; 0: all are.
    chunks: parts of a pair at most where keys are cut at fixed steps (invariant_chunk); 0: they are not.
    """

    tile_tokens: int
    pairs: int
    programs: int
    block: int
    longest: int
    chunks: int = 0

    @property
    def items(self) -> int:
        """Rows: each program's first item, then one for each pair (or part) that begins inside a program's work."""
        return self.programs + self.pairs * max(1, self.chunks)

    @property
    def partials(self) -> int:
        """Partial results: a program cuts a pair where its work begins and where it ends; or one for each part."""
        return self.pairs * self.chunks if self.chunks > 1 else 2 * self.programs


@dataclass(frozen=True)
class LongLimits:
    """Capacities of the list of long tiles.

    share: the number of parts that all work is divided among; a pair with more than one part's work is split.
    shortest: new tokens of a sequence from which on its tiles are long.
    least_blocks: blocks of keys below which a pair is not split.
    """

    tile_tokens: int
    pairs: int
    share: int
    block: int
    shortest: int
    least_blocks: int

    @property
    def items(self) -> int:
        """Rows: a pair that is split has fewer items than twice its work's parts."""
        return self.pairs + self.partials

    @property
    def partials(self) -> int:
        """Partial results of all split pairs together."""
        return 2 * self.share


def tile_capacity(tokens: int, batch: int, tile_tokens: int) -> int:
    """The most tiles that a batch of this many tokens and sequences can have."""
    return min(tokens, tokens // tile_tokens + batch)


def invariant_chunk(most_tokens: int) -> int:
    """Keys after which a batch-invariant plan cuts each sequence: a power of two, at most INVARIANT_PARTS parts."""
    wanted = -(-most_tokens // INVARIANT_PARTS)
    return max(INVARIANT_KEYS, 1 << (wanted - 1).bit_length() if wanted > 1 else 1)
