"""A step's work lists on the device, and the places of their partial results: made once for each size, then kept."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from octavo_kernels.plan import ITEM_COLUMNS, MERGE_COLUMNS
from octavo_kernels.triton_launch import Launch, power_of_two


@dataclass(frozen=True)
class Groups:
    """Where the plan writes what shared prefixes need (triton_plan_groups).

    rows: int32 `[2 · tokens]`, rows of q as they stand and then in the groups' order.
    offsets: int32 `[members + 1]`, tokens before each member in that order.
    group_of: int32 `[batch]`, each sequence's group.
    shared: int32 `[groups]`, tokens that each group reads once: 0 where that does not pay.
    merges: int32 `[tokens · KV heads, MERGE_COLUMNS]`, where the tokens' partial results lie.
    """

    rows: torch.Tensor
    offsets: torch.Tensor
    group_of: torch.Tensor
    shared: torch.Tensor
    merges: torch.Tensor


@dataclass(frozen=True)
class WorkList:
    """A work list and what its launch needs."""

    kind: str
    launch: Launch
    items: torch.Tensor
    programs: int
    block_d: int
    merge_rows: int
    merge_splits: int
    two_loops: bool
    partials: torch.Tensor
    partial_sums: torch.Tensor
    arrivals: torch.Tensor
    tickets: torch.Tensor
    groups: Groups | None


class WorkLists:
    """All lists of a backend. A captured launch finds every later plan of the same size in the same place."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._kept: dict[tuple[object, ...], WorkList] = {}

    def take(
        self,
        kind: str,
        launch: Launch,
        *,
        items: int,
        partials: int,
        programs: int,
        block_d: int,
        merge_tile: tuple[int, int],
        two_loops: bool,
        group_sizes: tuple[int, int, int, int, int] | None = None,
    ) -> WorkList:
        """The list of this kind and these sizes.

        items, partials: rows and partial results at most. block_d: elements of a head with padding.
        merge_tile: rows and partial results that a merging program holds at a time.
        group_sizes: tokens, members, batch, groups and merge lists where prefixes are shared.
        """
        key = (kind, items, partials, programs, group_sizes)
        kept = self._kept.get(key)
        if kept is None:
            kept = self._kept[key] = self._make(
                kind, launch, items, partials, programs, block_d, merge_tile, two_loops, group_sizes
            )
        return kept

    def _make(
        self,
        kind: str,
        launch: Launch,
        items: int,
        partials: int,
        programs: int,
        block_d: int,
        merge_tile: tuple[int, int],
        two_loops: bool,
        group_sizes: tuple[int, int, int, int, int] | None,
    ) -> WorkList:
        # Lists of one kind never run at the same time: a smaller one takes a larger one's places.
        fitting = (entry for entry in self._kept.values() if entry.kind == kind)
        same = next((entry for entry in fitting if entry.arrivals.shape[0] >= 2 * partials), None)
        if same is None:
            results = torch.empty(partials * launch.block_m * block_d, dtype=torch.float32, device=self._device)
            sums = torch.empty(partials * 2 * launch.block_m, dtype=torch.float32, device=self._device)
            arrivals = self._zeros(2 * partials)
        else:
            results, sums, arrivals = same.partials, same.partial_sums, same.arrivals
        groups = None
        if group_sizes is not None:
            tokens, members, batch, count, merges = group_sizes
            groups = Groups(
                self._zeros(2 * tokens),
                self._zeros(members + 1),
                self._zeros(batch),
                self._zeros(count),
                self._zeros(merges, MERGE_COLUMNS),
            )
        return WorkList(
            kind=kind,
            launch=launch,
            items=self._zeros(items, ITEM_COLUMNS),
            programs=programs,
            block_d=block_d,
            merge_rows=merge_tile[0],
            merge_splits=merge_tile[1],
            two_loops=two_loops,
            partials=results,
            partial_sums=sums,
            arrivals=arrivals,
            tickets=self._zeros(3),
            groups=groups,
        )

    def _zeros(self, *sizes: int) -> torch.Tensor:
        return torch.zeros(*sizes, dtype=torch.int32, device=self._device)


def merge_tile(launch: Launch, group: int, block_d: int, values: int) -> tuple[int, int]:
    """Rows and partial results that a merging program of this launch holds at a time, at so many values a thread."""
    at_once = launch.warps * 32 * values // block_d
    rows = min(launch.block_m, power_of_two(group), at_once)
    return rows, max(1, min(32, at_once // rows))


def plan_block(entries: int) -> tuple[int, int]:
    """Lanes for the entries, and rows of a plan's program: their product stays in registers."""
    block = max(16, power_of_two(entries))
    return block, max(4, min(32, 4096 // block))
