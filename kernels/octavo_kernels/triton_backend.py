"""Plans on the device and launches the attention kernels: once for short tiles, once for long ones."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton

from octavo_kernels.batch import Batch, PackedMask, SharedPrefixes
from octavo_kernels.compat import TRITON_DTYPES, is_interpreting
from octavo_kernels.launch_table import LaunchTable, table_for
from octavo_kernels.plan import ITEM_COLUMNS, MERGE_COLUMNS, LongLimits, ShortLimits, invariant_chunk, tile_capacity
from octavo_kernels.shape import FP8, AttentionShape, AttentionVariant
from octavo_kernels.triton_hopper_choice import refuse_hopper
from octavo_kernels.triton_launch import Device, Launch, choose_launch, power_of_two
from octavo_kernels.triton_lists import WorkList, WorkLists, merge_tile, plan_block
from octavo_kernels.triton_plan_groups import plan_merge, plan_rows
from octavo_kernels.triton_plan_long import plan_long
from octavo_kernels.triton_plan_short import plan_short
from octavo_kernels.triton_run import Runner, Tensors, hopper_head_size

# A batch of at most this many tokens a sequence is all short tiles; else sequences with at most this many short tiles
# are, and the others make long tiles.
SHORT_TOKENS_PER_SEQUENCE = 2
SHORT_TILES = 2
# Keys and values of a step, in bytes, up to which it counts as little. Measured on an H200: one program a
# multiprocessor, with room for the next launch's beside it, is 5 % faster than two for 268 MB and 2 % slower for 537.
# Up to here, a launch that merges shared prefixes' results could cost more than 2 % of the step, too.
LITTLE_BYTES = 400_000_000
# What all shared prefixes of a step together must save for their merge to pay: about 8 µs of an H200's memory.
LEAST_SAVED_BYTES = 32 * 2**20
# Parts that long tiles' work is divided among, per multiprocessor.
PARTS_PER_PROCESSOR = 2
# Blocks of keys that a part of the last round of long tiles has at least, by split_last_round; 0: it stays whole.
LEAST_LAST_BLOCKS = 0


@dataclass(frozen=True)
class _Step:
    lists: tuple[WorkList, ...]
    page_table: torch.Tensor
    query_starts: torch.Tensor
    mask: PackedMask | None
    beside: bool
    """Whether short tiles run beside the long ones, which are launched before them."""


class TritonBackend:
    """Backend for GPUs (and, for tests, for Triton's interpreter): float16, bfloat16 or float32 operands.

    share: programs that short tiles' work is divided among, and parts of long tiles' work; None derives them from the
        device.
    decode_launch, prefill_launch: launch configurations; None takes those of choose_launch.
    launch_table: where choose_launch looks; None: the package's table for the device.
    hopper: whether to take the kernels for Hopper GPUs; None: where they serve the shape and the device.
    batch_invariant: keys are cut at places that follow from each sequence alone (PagedAttention).
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
        batch_invariant: bool = False,
        launch_table: LaunchTable | None = None,
    ) -> None:
        for field, dtype, known in (
            ("dtype", shape.dtype, TRITON_DTYPES),
            ("kv_dtype", shape.pool_dtype, (*TRITON_DTYPES, FP8)),
        ):
            if dtype not in known:
                raise ValueError(f"{field} is {dtype}; backend Triton takes {', '.join(map(str, known))}")
        self._shape = shape
        self._variant = variant
        self._device = device
        self._max_tokens = max_tokens
        self._invariant = batch_invariant
        self._gpu = Device.of(device)
        refusal = refuse_hopper(shape, variant, self._gpu)
        self._hopper = refusal is None if hopper is None else hopper
        self.fallback_reason = refusal if self._gpu.major == 9 and not self._hopper else None
        # Short and long tiles of one step side by side, each on its share of the multiprocessors.
        self._beside = self._hopper and share is None
        table = table_for(device, launch_table)
        self.launch_reason = table.reason
        self._short = decode_launch or choose_launch(shape, decode=True, hopper=self._hopper, table=table)
        self._long = prefill_launch or choose_launch(shape, decode=False, hopper=self._hopper, table=table)
        self._share = share
        self._block_d = hopper_head_size(shape) if self._hopper else power_of_two(shape.head_size)
        self._runner = Runner(
            shape,
            variant,
            self._gpu,
            overlap=self._gpu.major >= 9,
            fp8_bits=shape.pool_dtype == FP8 and (is_interpreting() or not _converts_fp8(device)),
        )
        self._step: _Step | None = None
        self._lists = WorkLists(device)

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
        if self._invariant:
            # A sequence's kind of tiles must not follow from its neighbours' new tokens.
            mixed = tokens > self._longest_short
        else:
            mixed = tokens > SHORT_TOKENS_PER_SEQUENCE * batch.size
        groups = batch.groups
        variant = self._variant
        flat = mixed or self._invariant or variant.window is not None or variant.transform is not None
        if groups is not None and (
            flat or variant.custom_mask or groups.count == 0 or self._is_little(batch, batch.size)
        ):
            # Long tiles read a prefix once for many rows as it is; a window moves away from it; a transform or a mask
            # may ask where a query stands, which a prefix's rows do not say.
            groups = None
        chunk = invariant_chunk(batch.page_table.shape[1] * self._shape.page_size) if self._invariant else 0
        lists = [self._plan_short(index, batch, tokens, groups, chunk, mixed=mixed)]
        if mixed:
            # Long tiles first: short ones begin on the multiprocessors that these leave.
            lists.insert(0, self._plan_long(index, batch.size, tokens))
        mask = batch.mask
        if mask is not None:
            mask = PackedMask(mask.bits.to(device), mask.starts.to(device))
        self._step = _Step(tuple(lists), batch.page_table.to(device), index[0], mask, mixed and self._beside)

    @property
    def _longest_short(self) -> int:
        """New tokens up to which a sequence of a mixed batch makes short tiles."""
        return SHORT_TILES * (self._short.block_m // self._shape.group_size)

    def _programs(self, batch: Batch, tiles: int, *, little: bool) -> int:
        """Programs that share the work of so many short tiles; little: whether it may count as little work."""
        if self._share:
            return self._share
        one = self._hopper and little and self._is_little(batch, tiles)
        return (1 if one else self._short.programs) * self._gpu.processors

    def _is_little(self, batch: Batch, tiles: int) -> bool:
        """Whether so many tiles read little on a GPU, by what the page table has room for or the caller's bound."""
        shape = self._shape
        keys = tiles * batch.page_table.shape[1] * shape.page_size
        if batch.kv_tokens is not None:
            keys = min(keys, batch.kv_tokens * max(1, tiles // batch.size))
        size = keys * 2 * shape.kv_heads * shape.head_size * shape.pool_dtype.itemsize
        return self._gpu.major > 0 and self._share is None and size <= LITTLE_BYTES

    def _plan_short(
        self,
        index: list[torch.Tensor],
        batch: Batch,
        tokens: int,
        groups: SharedPrefixes | None,
        chunk: int,
        *,
        mixed: bool,
    ) -> WorkList:
        shape, launch = self._shape, self._short
        tile_tokens = launch.block_m // shape.group_size
        count = 0 if groups is None else groups.count
        tiles = tile_capacity(tokens, batch.size, tile_tokens) + tile_capacity(tokens, count, tile_tokens)
        if mixed:
            tiles = min(tiles, SHORT_TILES * batch.size)
        most_keys = batch.page_table.shape[1] * shape.page_size
        limits = ShortLimits(
            tile_tokens=tile_tokens,
            pairs=max(1, tiles) * shape.kv_heads,
            programs=self._programs(batch, tiles, little=not mixed and groups is None),
            block=launch.block_n,
            longest=self._longest_short if mixed else 0,
            chunks=max(1, -(-most_keys // chunk)) if chunk else 0,
        )
        members = 0
        if groups is not None:
            members = batch.size if groups.members is None else groups.members.shape[0]
        merges = 0 if groups is None else max(1, tokens) * shape.kv_heads
        # More values at a time are faster and need registers that the loop over keys would miss on other kernels.
        values = 128 if self._hopper else 32
        kept = self._lists.take(
            "short",
            launch,
            items=limits.items,
            # With prefixes every item may leave a partial result.
            partials=limits.items if groups is not None else limits.partials,
            programs=limits.programs,
            block_d=self._block_d,
            merge_tile=merge_tile(launch, shape.group_size, self._block_d, values),
            two_loops=False,
            group_sizes=None if groups is None else (max(1, tokens), members, batch.size, count, merges),
        )
        block_b, rows = plan_block(max(batch.size + count, members + 1))
        shared = [index[0]] * 5
        if groups is not None:
            shared = self._plan_groups(kept, index, groups, batch.size, members, max(1, tokens), block_b, rows)
        constants = {
            "KV_HEADS": shape.kv_heads,
            "TILE_TOKENS": tile_tokens,
            "BLOCK_N": launch.block_n,
            "LEAST_BLOCKS": launch.least_blocks,
            "BLOCK_B": block_b,
            "ROWS": rows,
        }
        plan_short[(triton.cdiv(limits.items, rows),)](
            *index,
            *shared,
            kept.items,
            batch.size,
            count,
            max(1, tokens),
            limits.programs,
            limits.items,
            limits.longest,
            self._variant.window or 0,
            **constants,
            HAS_WINDOW=self._variant.window is not None,
            HAS_MASK=self._variant.custom_mask,
            GROUPED=groups is not None,
            CHUNK=chunk,
            BESIDE=launch.programs if mixed and self._beside else 0,
            LONG_TOKENS=self._long.block_m // shape.group_size,
            LONG_BLOCK=self._long.block_n,
            ITEM_COLUMNS=ITEM_COLUMNS,
        )
        if kept.groups is not None:
            plan_merge[(triton.cdiv(merges, rows),)](
                *index,
                *shared,
                kept.groups.merges,
                batch.size,
                count,
                max(1, tokens),
                members,
                limits.programs,
                merges,
                **constants,
                MERGE_COLUMNS=MERGE_COLUMNS,
            )
        return kept

    def _plan_groups(
        self,
        kept: WorkList,
        index: list[torch.Tensor],
        groups: SharedPrefixes,
        batch: int,
        members: int,
        tokens: int,
        block_b: int,
        rows: int,
    ) -> list[torch.Tensor]:
        """Lists the groups' rows; returns the plan's tensors of groups."""
        assert kept.groups is not None
        device, shape = self._device, self._shape
        listed = groups.members
        if listed is None:
            listed = torch.arange(batch, dtype=torch.int32, device=device)
        listed, starts, lengths = listed.to(device), groups.starts.to(device), groups.lengths.to(device)
        into = kept.groups
        plan_rows[(triton.cdiv(tokens, rows),)](
            index[0],
            listed,
            starts,
            into.rows,
            into.offsets,
            into.group_of,
            lengths,
            into.shared,
            batch,
            members,
            groups.count,
            tokens,
            LEAST_SAVED_BYTES // (2 * shape.head_size * shape.pool_dtype.itemsize) if self._share is None else 0,
            KV_HEADS=shape.kv_heads,
            TILE_TOKENS=self._short.block_m // shape.group_size,
            BLOCK_N=self._short.block_n,
            PAGE_SIZE=shape.page_size,
            BLOCK_B=block_b,
            CHUNK=max(2, 4096 // block_b),
            ROWS=rows,
        )
        return [listed, into.group_of, into.offsets, starts, into.shared]

    def _plan_long(self, index: list[torch.Tensor], batch: int, tokens: int) -> WorkList:
        shape, launch = self._shape, self._long
        tile_tokens = launch.block_m // shape.group_size
        shortest = self._longest_short + 1
        limits = LongLimits(
            tile_tokens=tile_tokens,
            pairs=max(1, tile_capacity(tokens, min(batch, tokens // shortest), tile_tokens)) * shape.kv_heads,
            share=self._share or PARTS_PER_PROCESSOR * self._gpu.processors,
            block=launch.block_n,
            shortest=shortest,
            least_blocks=launch.least_blocks,
        )
        variant = self._variant
        kept = self._lists.take(
            "long",
            launch,
            items=limits.items,
            partials=limits.partials,
            programs=limits.items,
            block_d=self._block_d,
            # On Hopper GPUs a warpgroup merges its own 64 rows.
            merge_tile=(64, 1) if self._hopper else merge_tile(launch, shape.group_size, self._block_d, 32),
            two_loops=variant.window is None and not variant.custom_mask,
        )
        block_b, rows = plan_block(batch)
        plan_long[(triton.cdiv(limits.items, rows),)](
            *index,
            kept.items,
            kept.tickets,
            batch,
            limits.share,
            limits.items,
            limits.shortest,
            variant.window or 0,
            self._gpu.processors,
            KV_HEADS=shape.kv_heads,
            TILE_TOKENS=tile_tokens,
            BLOCK_N=launch.block_n,
            LEAST_BLOCKS=launch.least_blocks,
            HAS_WINDOW=variant.window is not None,
            HAS_MASK=variant.custom_mask,
            SPLIT=not self._invariant,
            ITEM_COLUMNS=ITEM_COLUMNS,
            BLOCK_B=block_b,
            ROWS=rows,
            SORTED=batch > 1,
            CHUNK=max(2, 4096 // block_b),
            BESIDE=int(self._beside),
            SHORT_TOKENS=self._short.block_m // shape.group_size,
            SHORT_BLOCK=self._short.block_n,
            LEAST_LAST=0 if self._invariant or variant.window is not None or variant.custom_mask else LEAST_LAST_BLOCKS,
        )
        return kept

    def run(
        self,
        q: torch.Tensor,
        kv: torch.Tensor,
        out: torch.Tensor,
        lse: torch.Tensor | None,
        scales: torch.Tensor | None = None,
    ) -> None:
        """Writes out and, where given, lse; rows of no sequence stay as they are."""
        step = self._step
        if step is None or q.shape[0] == 0:
            return
        mask = step.mask
        tensors = Tensors(
            q=q,
            kv=kv,
            out=out,
            lse=lse,
            scales=scales,
            page_table=step.page_table,
            query_starts=step.query_starts,
            mask_bits=None if mask is None else mask.bits,
            mask_starts=None if mask is None else mask.starts,
        )
        for work in step.lists:
            if self._hopper:
                self._runner.attend_hopper(work, tensors, beside=step.beside)
            else:
                self._runner.attend(work, tensors)
            if work.groups is not None:
                self._runner.merge(work, work.groups.merges, tensors)


def _converts_fp8(device: torch.device) -> bool:
    """Whether the device converts e4m3 numbers: from compute capability 8.9 on."""
    return device.type == "cuda" and torch.cuda.get_device_capability(device) >= (8, 9)
