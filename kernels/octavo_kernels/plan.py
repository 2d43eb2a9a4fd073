"""The work list of the Triton backend: which program attends which query tile over which range of keys.

Everything is a fixed sequence of tensor operations on the batch's own device: no value is read by the host, and sizes
follow from shapes alone, so that planning can be part of a CUDA graph.

A *tile* is up to tile_tokens consecutive new tokens of one sequence. An *item* is one split of a tile's keys. Tiles are
split so that no item has more keys than its share of all work: one long sequence fills the device, and a batch that
fills it already is not split.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

# Columns of an item: page-table row, first row of q, tokens of the tile (0: nothing to do), position of its first
# token, first key, end of keys, index of its partial result (−1: writes the output itself).
ITEM_COLUMNS = 7
# Columns of a tile: first row of q, tokens, index of its first partial result, splits.
TILE_COLUMNS = 4


@dataclass(frozen=True)
class PlanLimits:
    """Sizes of a work list, fixed by shapes.

    tile_tokens: query tokens of a tile at most.
    tiles: capacity for tiles; at least `tile_capacity`.
    share: the number of items that all keys are divided among.
    block: keys that a program takes at a time; every split but a tile's last holds a multiple of it.
    min_chunk: keys below which splitting costs more than it gains.
    """

    tile_tokens: int
    tiles: int
    share: int
    block: int
    min_chunk: int

    @property
    def items(self) -> int:
        """Capacity for items: a tile has one more item than its keys hold whole shares, at most."""
        return self.tiles + self.share

    @property
    def partials(self) -> int:
        """Capacity for partial results: a tile that is split has fewer items than twice its keys' shares."""
        return 2 * self.share


def tile_capacity(tokens: int, batch: int, tile_tokens: int) -> int:
    """The most tiles that a batch of this many tokens and sequences can have."""
    return min(tokens, tokens // tile_tokens + batch)


def build_work_list(
    query_starts: torch.Tensor,
    kv_lengths: torch.Tensor,
    slots: torch.Tensor,
    limits: PlanLimits,
    window: int | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Items and tiles of a batch of at least one sequence.

    query_starts int32 `[batch + 1]`, kv_lengths and slots int32 `[batch]`, on one device.
    Returns items int32 `[limits.items, ITEM_COLUMNS]` and tiles int32 `[limits.tiles, TILE_COLUMNS]`; unused rows have
    0 tokens. Every tile has at least one item, so that rows without keys are written as well.
    """
    device = kv_lengths.device
    last_sequence = kv_lengths.shape[0] - 1
    starts = query_starts.long()
    new_tokens = starts[1:] - starts[:-1]
    tiles_of = (new_tokens + limits.tile_tokens - 1) // limits.tile_tokens
    tile_end = tiles_of.cumsum(0)
    tile = torch.arange(limits.tiles, device=device)
    sequence = torch.searchsorted(tile_end, tile, right=True).clamp_(max=last_sequence)
    used = tile < tile_end[-1]
    first_token = (tile - tile_end[sequence] + tiles_of[sequence]) * limits.tile_tokens
    tokens = torch.where(used, (new_tokens[sequence] - first_token).clamp(max=limits.tile_tokens), 0)
    first_position = kv_lengths.long()[sequence] - new_tokens[sequence] + first_token
    end = torch.where(used, (first_position + tokens).clamp(min=0), 0)
    begin = torch.zeros_like(end) if window is None else (first_position + 1 - window).clamp(min=0)
    keys = (end - begin).clamp(min=0)

    share = (keys.sum() + limits.share - 1) // limits.share
    chunk = (share.clamp(min=limits.min_chunk) + limits.block - 1) // limits.block * limits.block
    splits = torch.where(used, ((keys + chunk - 1) // chunk).clamp(min=1), 0)
    item_end = splits.cumsum(0)
    partials = torch.where(splits > 1, splits, 0)
    first_partial = partials.cumsum(0) - partials
    item = torch.arange(limits.items, device=device)
    item_used = item < item_end[-1]
    of_tile = torch.searchsorted(item_end, item, right=True).clamp_(max=limits.tiles - 1)
    split = item - item_end[of_tile] + splits[of_tile]
    item_begin = begin[of_tile] + split * chunk
    first_row = starts[sequence] + first_token
    items = torch.stack(
        (
            slots.long()[sequence][of_tile],
            first_row[of_tile],
            torch.where(item_used, tokens[of_tile], 0),
            first_position[of_tile],
            item_begin,
            torch.minimum(item_begin + chunk, end[of_tile]),
            torch.where(item_used & (partials[of_tile] > 0), first_partial[of_tile] + split, -1),
        ),
        dim=1,
    )
    tiles = torch.stack((first_row, tokens, first_partial, splits), dim=1)
    return items.int(), tiles.int()
