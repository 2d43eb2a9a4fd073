"""Plans on the device and launches the attention kernel: once for short tiles, once for long ones."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
import triton

from octavo_kernels.batch import Batch, SharedPrefixes
from octavo_kernels.compat import TRITON_DTYPES
from octavo_kernels.plan import ITEM_COLUMNS, MERGE_COLUMNS, LongLimits, ShortLimits, tile_capacity
from octavo_kernels.shape import AttentionShape, AttentionVariant
from octavo_kernels.triton_attention import attend
from octavo_kernels.triton_launch import Device, Launch, choose_launch, power_of_two, serves_hopper
from octavo_kernels.triton_merge import merge_lists
from octavo_kernels.triton_plan import plan_long, plan_merge, plan_short

# A batch of at most this many tokens a sequence is all short tiles; else sequences with at most this many short tiles
# are, and the others make long tiles.
SHORT_TOKENS_PER_SEQUENCE = 2
SHORT_TILES = 2
# Parts that long tiles' work is divided among, per multiprocessor.
PARTS_PER_PROCESSOR = 2


@dataclass(frozen=True)
class _List:
    """A work list and what its launch needs."""

    launch: Launch
    items: torch.Tensor
    programs: int
    merge_rows: int
    merge_splits: int
    two_loops: bool
    partials: torch.Tensor
    partial_sums: torch.Tensor
    arrivals: torch.Tensor
    tickets: torch.Tensor
    merges: torch.Tensor | None
    """With shared prefixes: where each token's partial results lie, for a launch of its own."""


@dataclass(frozen=True)
class _Step:
    lists: tuple[_List, ...]
    page_table: torch.Tensor
    beside: bool
    """Whether short tiles run beside the long ones, which are launched before them."""


class TritonBackend:
    """Backend for GPUs (and, for tests, for Triton's interpreter): float16, bfloat16 or float32 operands.

    share: programs that short tiles' work is divided among, and parts of long tiles' work; None derives them from the
        device.
    decode_launch, prefill_launch: launch configurations; None takes those of choose_launch.
    hopper: whether to take the kernels for Hopper GPUs; None: where they serve the shape and the device.
    Products are made in the dtype of q, float32 ones without reduced-precision modes; sums are float32. Partial results
    have one place per backend: run it on one stream at a time.
    """

    name = "Triton"

    def __init__(
        self,
        shape: AttentionShape,
        variant: AttentionVariant,
        device: torch.device,
        *,
        max_tokens: int,
        share: int | None = None,
        decode_launch: Launch | None = None,
        prefill_launch: Launch | None = None,
        hopper: bool | None = None,
    ) -> None:
        for field, dtype in (("dtype", shape.dtype), ("kv_dtype", shape.pool_dtype)):
            if dtype not in TRITON_DTYPES:
                raise ValueError(f"{field} is {dtype}; backend Triton takes {', '.join(map(str, TRITON_DTYPES))}")
        self._shape = shape
        self._variant = variant
        self._device = device
        self._max_tokens = max_tokens
        self._short = decode_launch or choose_launch(shape, decode=True)
        self._gpu = Device.of(device)
        self._hopper = serves_hopper(shape, variant, self._gpu) if hopper is None else hopper
        self._overlap = self._gpu.major >= 9
        # Short and long tiles of one step side by side, each on its share of the multiprocessors.
        self._beside = self._hopper and share is None
        self._short = decode_launch or choose_launch(shape, decode=True, hopper=self._hopper)
        self._long = prefill_launch or choose_launch(shape, decode=False, hopper=self._hopper)
        self._programs = share or self._short.programs * self._gpu.processors
        self._parts = share or PARTS_PER_PROCESSOR * self._gpu.processors
        self._step: _Step | None = None
        self._lists: dict[tuple[str, int, int], _List] = {}

    def plan(self, batch: Batch, tokens: int | None) -> None:
        """Writes the work lists on the device; tokens bounds the rows of q, None means max_tokens."""
        if batch.size == 0:
            self._step = None
            return
        if tokens is None:
            starts = batch.query_starts
            tokens = int(starts[-1]) if starts.device.type == "cpu" else self._max_tokens
        device = self._device
        index = [tensor.to(device) for tensor in (batch.query_starts, batch.kv_lengths, batch.slots)]
        mixed = tokens > SHORT_TOKENS_PER_SEQUENCE * batch.size
        groups = batch.groups
        flat = mixed or self._variant.window is not None or self._variant.transform is not None
        if groups is not None and (flat or groups.count == 0):
            # Long tiles read a prefix once for many rows as it is; a window moves away from it; a transform may ask
            # where a query stands, which a prefix's rows do not say.
            groups = None
        lists = [self._plan_short(index, batch.size, tokens, groups, mixed=mixed)]
        if mixed:
            # Long tiles first: short ones begin on the multiprocessors that these leave.
            lists.insert(0, self._plan_long(index, batch.size, tokens))
        self._step = _Step(tuple(lists), batch.page_table.to(device), mixed and self._beside)

    @property
    def _longest_short(self) -> int:
        """New tokens up to which a sequence of a mixed batch makes short tiles."""
        return SHORT_TILES * (self._short.block_m // self._shape.group_size)

    def _plan_short(
        self, index: list[torch.Tensor], batch: int, tokens: int, groups: SharedPrefixes | None, *, mixed: bool
    ) -> _List:
        shape, launch = self._shape, self._short
        tile_tokens = launch.block_m // shape.group_size
        count = 0 if groups is None else groups.count
        tiles = tile_capacity(tokens, batch, tile_tokens) + tile_capacity(tokens, count, tile_tokens)
        if mixed:
            tiles = min(tiles, SHORT_TILES * batch)
        limits = ShortLimits(
            tile_tokens=tile_tokens,
            pairs=max(1, tiles) * shape.kv_heads,
            programs=self._programs,
            block=launch.block_n,
            longest=self._longest_short if mixed else 0,
        )
        merges = 0 if groups is None else max(1, tokens) * shape.kv_heads
        # With prefixes every item leaves a partial result.
        partials = limits.items if merges else limits.partials
        kept = self._list("short", limits.items, partials, limits.programs, launch, merges)
        tensors = [*index, *(index if groups is None else _group_tensors(groups, batch, self._device))]
        block_b, rows = _plan_block(batch + count)
        constants = {
            "KV_HEADS": shape.kv_heads,
            "TILE_TOKENS": tile_tokens,
            "BLOCK_N": launch.block_n,
            "PAGE_SIZE": shape.page_size,
            "LEAST_BLOCKS": launch.least_blocks,
            "BLOCK_B": block_b,
            "ROWS": rows,
        }
        plan_short[(triton.cdiv(limits.items, rows),)](
            *tensors,
            kept.items,
            batch,
            count,
            limits.programs,
            limits.items,
            limits.longest,
            self._variant.window or 0,
            **constants,
            HAS_WINDOW=self._variant.window is not None,
            GROUPED=groups is not None,
            BESIDE=launch.programs if mixed and self._beside else 0,
            LONG_TOKENS=self._long.block_m // shape.group_size,
            LONG_BLOCK=self._long.block_n,
            ITEM_COLUMNS=ITEM_COLUMNS,
        )
        if kept.merges is not None:
            plan_merge[(triton.cdiv(merges, rows),)](
                *tensors,
                kept.merges,
                batch,
                count,
                limits.programs,
                merges,
                **constants,
                MERGE_COLUMNS=MERGE_COLUMNS,
            )
        return kept

    def _plan_long(self, index: list[torch.Tensor], batch: int, tokens: int) -> _List:
        shape, launch = self._shape, self._long
        tile_tokens = launch.block_m // shape.group_size
        shortest = self._longest_short + 1
        limits = LongLimits(
            tile_tokens=tile_tokens,
            pairs=max(1, tile_capacity(tokens, min(batch, tokens // shortest), tile_tokens)) * shape.kv_heads,
            share=self._parts,
            block=launch.block_n,
            shortest=shortest,
            least_blocks=launch.least_blocks,
        )
        kept = self._list("long", limits.items, limits.partials, limits.items, launch)
        block_b, rows = _plan_block(batch)
        plan_long[(triton.cdiv(limits.items, rows),)](
            *index,
            kept.items,
            kept.tickets,
            batch,
            limits.share,
            limits.items,
            limits.shortest,
            self._variant.window or 0,
            self._gpu.processors,
            KV_HEADS=shape.kv_heads,
            TILE_TOKENS=tile_tokens,
            BLOCK_N=launch.block_n,
            LEAST_BLOCKS=launch.least_blocks,
            HAS_WINDOW=self._variant.window is not None,
            ITEM_COLUMNS=ITEM_COLUMNS,
            BLOCK_B=block_b,
            ROWS=rows,
            SORTED=batch > 1,
            CHUNK=max(2, 4096 // block_b),
            BESIDE=int(self._beside),
            SHORT_TOKENS=self._short.block_m // shape.group_size,
            SHORT_BLOCK=self._short.block_n,
        )
        return kept

    def _list(self, kind: str, items: int, partials: int, programs: int, launch: Launch, merges: int = 0) -> _List:
        """The list of this kind and size, made once: a captured launch finds every later plan in the same place."""
        kept = self._lists.get((kind, items, merges))
        if kept is not None:
            return kept
        shape, device = self._shape, self._device
        block_d = power_of_two(shape.head_size)
        fitting = (entry for (other, _, _), entry in self._lists.items() if other == kind)
        same = next((entry for entry in fitting if entry.arrivals.shape[0] >= 2 * partials), None)
        if same is None:
            results = torch.empty(partials * launch.block_m * block_d, dtype=torch.float32, device=device)
            sums = torch.empty(partials * 2 * launch.block_m, dtype=torch.float32, device=device)
            arrivals = torch.zeros(2 * partials, dtype=torch.int32, device=device)
        else:
            results, sums, arrivals = same.partials, same.partial_sums, same.arrivals
        # More values at a time are faster and need registers that the loop over keys would miss on other kernels.
        values = 128 if self._hopper else 32
        merge_rows, merge_splits = _merge_tile(launch, shape.group_size, block_d, values)
        kept = _List(
            launch=launch,
            items=torch.zeros(items, ITEM_COLUMNS, dtype=torch.int32, device=device),
            programs=programs,
            merge_rows=merge_rows,
            merge_splits=merge_splits,
            two_loops=kind == "long" and self._variant.window is None,
            partials=results,
            partial_sums=sums,
            arrivals=arrivals,
            tickets=torch.zeros(3, dtype=torch.int32, device=device),
            merges=torch.zeros(merges, MERGE_COLUMNS, dtype=torch.int32, device=device) if merges else None,
        )
        self._lists[kind, items, merges] = kept
        return kept

    def run(self, q: torch.Tensor, kv: torch.Tensor, out: torch.Tensor, lse: torch.Tensor | None) -> None:
        """Writes out and, where given, lse; rows of no sequence stay as they are."""
        step = self._step
        if step is None or q.shape[0] == 0:
            return
        for work in step.lists:
            if self._hopper:
                self._attend_hopper(work, step, q, kv, out, lse)
            else:
                self._attend(work, step.page_table, q, kv, out, lse)
            if work.merges is not None:
                self._merge(work, work.merges, out, lse)

    def _merge(self, work: _List, merges: torch.Tensor, out: torch.Tensor, lse: torch.Tensor | None) -> None:
        """Merges what shared prefixes and sequences' own keys gave, by the plan's lists."""
        shape = self._shape
        tokens = min(out.shape[0], merges.shape[0] // shape.kv_heads)
        block_d = power_of_two(shape.head_size)
        rows, splits = _merge_tile(Launch(work.launch.block_m, 0, 4, 0), shape.group_size, block_d, 32)
        sinks = self._variant.sinks
        merge_lists[(tokens, shape.kv_heads)](
            merges,
            work.partials,
            work.partial_sums,
            out,
            out if lse is None else lse,
            out.stride(0),
            out.stride(1),
            0 if lse is None else lse.stride(0),
            out if sinks is None else sinks,
            GROUP=shape.group_size,
            HEAD_SIZE=shape.head_size,
            BLOCK_M=work.launch.block_m,
            BLOCK_D=block_d,
            MERGE_ROWS=rows,
            MERGE_SPLITS=splits,
            MERGE_COLUMNS=MERGE_COLUMNS,
            HAS_SINKS=sinks is not None,
            HAS_LSE=lse is not None,
            OVERLAP=self._overlap,
            num_warps=4,
            **({"launch_pdl": True} if self._overlap else {}),
        )

    def _attend(
        self,
        work: _List,
        page_table: torch.Tensor,
        q: torch.Tensor,
        kv: torch.Tensor,
        out: torch.Tensor,
        lse: torch.Tensor | None,
    ) -> None:
        shape, variant, launch = self._shape, self._variant, work.launch
        scale = variant.scale_for(shape.head_size)
        transform = variant.transform
        options = {"launch_pdl": True} if self._overlap else {}
        attend[(work.programs,)](
            q,
            kv,
            out,
            out if lse is None else lse,
            work.items,
            page_table,
            work.partials,
            work.partial_sums,
            work.arrivals,
            q.stride(0),
            q.stride(1),
            out.stride(0),
            out.stride(1),
            0 if lse is None else lse.stride(0),
            kv.stride(0),
            kv.stride(1),
            kv.stride(2),
            page_table.stride(0),
            scale if variant.soft_cap is not None or transform is not None else scale * math.log2(math.e),
            variant.soft_cap or 0.0,
            variant.window or 0,
            out if variant.sinks is None else variant.sinks,
            (0,) if transform is None else (*transform.values, 0),
            GROUP=shape.group_size,
            PAGE_SIZE=shape.page_size,
            HEAD_SIZE=shape.head_size,
            ITEM_COLUMNS=ITEM_COLUMNS,
            BLOCK_M=launch.block_m,
            BLOCK_N=launch.block_n,
            BLOCK_D=power_of_two(shape.head_size),
            HAS_WINDOW=variant.window is not None,
            SOFT_CAP=variant.soft_cap is not None,
            TRANSFORM=None if transform is None else transform.kernel,
            HAS_SINKS=variant.sinks is not None,
            HAS_LSE=lse is not None,
            PRECISION="ieee",
            TWO_LOOPS=work.two_loops,
            MERGE_ROWS=work.merge_rows,
            MERGE_SPLITS=work.merge_splits,
            MERGE_LATER=work.merges is not None,
            OVERLAP=self._overlap,
            num_warps=launch.warps,
            num_stages=launch.stages,
            **options,
        )

    def _attend_hopper(
        self,
        work: _List,
        step: _Step,
        q: torch.Tensor,
        kv: torch.Tensor,
        out: torch.Tensor,
        lse: torch.Tensor | None,
    ) -> None:
        # Imported here: Gluon is a part of Triton that other GPUs do not need.
        from octavo_kernels.triton_hopper_blocks import describe_pool
        from octavo_kernels.triton_hopper_long import attend_long
        from octavo_kernels.triton_hopper_short import attend_short

        shape, variant, launch = self._shape, self._variant, work.launch
        scale = variant.scale_for(shape.head_size)
        box = min(shape.page_size, launch.block_n)
        tensors = (
            q,
            describe_pool(kv, box),
            out,
            out if lse is None else lse,
            work.items,
            step.page_table,
            work.partials,
            work.partial_sums,
            work.arrivals,
        )
        numbers = (
            q.stride(0),
            q.stride(1),
            out.stride(0),
            out.stride(1),
            0 if lse is None else lse.stride(0),
            step.page_table.stride(0),
            shape.kv_heads,
            scale if variant.soft_cap is not None else scale * math.log2(math.e),
            variant.soft_cap or 0.0,
            variant.window or 0,
        )
        constants = {
            "GROUP": shape.group_size,
            "PAGE_SIZE": shape.page_size,
            "HEAD_SIZE": shape.head_size,
            "ITEM_COLUMNS": ITEM_COLUMNS,
            "BLOCK_N": launch.block_n,
            "BOX": box,
            "STAGES": launch.stages,
            "HAS_WINDOW": variant.window is not None,
            "SOFT_CAP": variant.soft_cap is not None,
            "HAS_LSE": lse is not None,
        }
        if work.launch is self._long:
            attend_long[(self._gpu.processors,)](
                *tensors,
                work.tickets,
                *numbers,
                **constants,
                PING_PONG=launch.ping_pong,
                BESIDE=step.beside,
                num_warps=4,
            )
            return
        # Several programs share a multiprocessor's registers; what the loading warp leaves goes to the computing ones.
        limit = {"maxnreg": 256 // launch.programs} if launch.programs > 1 else {}
        attend_short[(work.programs,)](
            *tensors,
            *numbers,
            **constants,
            MERGE_ROWS=work.merge_rows,
            MERGE_SPLITS=work.merge_splits,
            MERGE_LATER=work.merges is not None,
            OVERLAP=self._overlap,
            BESIDE=step.beside,
            num_warps=4,
            launch_pdl=self._overlap,
            **limit,
        )


def _group_tensors(groups: SharedPrefixes, batch: int, device: torch.device) -> list[torch.Tensor]:
    """Each sequence's group (−1: none), and the groups' starts and lengths."""
    starts, lengths = groups.starts.to(device), groups.lengths.to(device)
    members = torch.searchsorted(starts, torch.arange(batch, dtype=torch.int32, device=device), right=True) - 1
    return [torch.where(members < groups.count, members, -1).int(), starts, lengths]


def _merge_tile(launch: Launch, group: int, block_d: int, values: int) -> tuple[int, int]:
    """Rows and partial results that a merging program of this launch holds at a time, at so many values a thread."""
    at_once = launch.warps * 32 * values // block_d
    rows = min(launch.block_m, power_of_two(group), at_once)
    return rows, max(1, min(32, at_once // rows))


def _plan_block(batch: int) -> tuple[int, int]:
    """Lanes for the sequences, and rows of a plan's program: their product stays in registers."""
    block = max(16, power_of_two(batch))
    return block, max(4, min(32, 4096 // block))
