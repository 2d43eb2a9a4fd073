"""Plans on the device and launches the attention and merge kernels."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from octavo_kernels.batch import Batch
from octavo_kernels.compat import TRITON_DTYPES, is_interpreting
from octavo_kernels.plan import ITEM_COLUMNS, TILE_COLUMNS, PlanLimits, build_work_list, tile_capacity
from octavo_kernels.shape import AttentionShape, AttentionVariant
from octavo_kernels.triton_attention import attend
from octavo_kernels.triton_merge import merge

# Programs that the plan aims at, per multiprocessor.
PROGRAMS_PER_PROCESSOR = 4
MIN_CHUNK_BLOCKS = 4


@dataclass(frozen=True)
class Launch:
    """Launch configuration: rows and keys of a program's tile, warps, software-pipelining depth."""

    block_m: int
    block_n: int
    warps: int
    stages: int


@dataclass(frozen=True)
class _Step:
    launch: Launch
    limits: PlanLimits
    items: torch.Tensor
    tiles: torch.Tensor
    page_table: torch.Tensor


def choose_launch(shape: AttentionShape, *, decode: bool) -> Launch:
    """Launch configuration by shape; decode tiles hold one token's group, prefill tiles many tokens."""
    group = _power_of_two(shape.group_size)
    if is_interpreting():
        return Launch(max(16, group), 16, 4, 1) if decode else Launch(max(32, group), 32, 4, 1)
    wide = _power_of_two(shape.head_size) > 128
    if shape.dtype == torch.float32:
        # Exact float32 products run outside of the matrix units, where large tiles only take long to compile.
        return Launch(max(16 if decode else 32, group), 16 if wide else 32, 4, 2)
    return Launch(max(16 if decode else 64, group), 32 if wide else 64, 4, 2)


class TritonBackend:
    """Backend for GPUs (and, for tests, for Triton's interpreter): float16, bfloat16 or float32 operands.

    share: items that a plan divides the keys among; None derives it from the device.
    decode_launch, prefill_launch: launch configurations; None takes those of choose_launch.
    Products are made in the dtype of q, float32 ones without reduced-precision modes; sums are float32.
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
    ) -> None:
        for field, dtype in (("dtype", shape.dtype), ("kv_dtype", shape.pool_dtype)):
            if dtype not in TRITON_DTYPES:
                raise ValueError(f"{field} is {dtype}; backend Triton takes {', '.join(map(str, TRITON_DTYPES))}")
        self._shape = shape
        self._variant = variant
        self._device = device
        self._max_tokens = max_tokens
        self._share = share or _default_share(shape, device)
        self._decode = decode_launch or choose_launch(shape, decode=True)
        self._prefill = prefill_launch or choose_launch(shape, decode=False)
        self._step: _Step | None = None
        self._partials = torch.empty(0, dtype=torch.float32, device=device)
        self._tables: dict[tuple[int, int, Launch], tuple[torch.Tensor, torch.Tensor]] = {}

    def plan(self, batch: Batch, tokens: int | None) -> None:
        """Builds the work list on the batch's device; tokens bounds the rows of q, None means max_tokens."""
        if batch.size == 0:
            self._step = None
            return
        if tokens is None:
            starts = batch.query_starts
            tokens = int(starts[-1]) if starts.device.type == "cpu" else self._max_tokens
        shape = self._shape
        launch = self._decode if tokens <= 2 * batch.size else self._prefill
        tile_tokens = launch.block_m // shape.group_size
        limits = PlanLimits(
            tile_tokens=tile_tokens,
            tiles=max(1, tile_capacity(tokens, batch.size, tile_tokens)),
            share=self._share,
            block=launch.block_n,
            min_chunk=MIN_CHUNK_BLOCKS * launch.block_n,
        )
        items, tiles = build_work_list(batch.query_starts, batch.kv_lengths, batch.slots, limits, self._variant.window)
        # Tables of a size keep their place, so that a captured launch finds the next plan in them.
        kept = self._tables.get((limits.items, limits.tiles, launch))
        if kept is None:
            kept = (items.to(self._device), tiles.to(self._device))
            self._tables[limits.items, limits.tiles, launch] = kept
        else:
            kept[0].copy_(items, non_blocking=True)
            kept[1].copy_(tiles, non_blocking=True)
        self._step = _Step(launch, limits, *kept, batch.page_table.to(self._device))
        needed = limits.partials * shape.kv_heads * launch.block_m * (_power_of_two(shape.head_size) + 1)
        if self._partials.numel() < needed:
            self._partials = torch.empty(needed, dtype=torch.float32, device=self._device)

    def run(self, q: torch.Tensor, kv: torch.Tensor, out: torch.Tensor, lse: torch.Tensor | None) -> None:
        """Writes out and, where given, lse; rows of no sequence stay as they are."""
        step = self._step
        if step is None or q.shape[0] == 0:
            return
        shape, variant, launch = self._shape, self._variant, step.launch
        block_d = _power_of_two(shape.head_size)
        rows = step.limits.partials * shape.kv_heads * launch.block_m
        partial, partial_lse = self._partials[: rows * block_d], self._partials[rows * block_d :]
        scale = variant.scale_for(shape.head_size)
        lse_tensor = out if lse is None else lse
        lse_stride = 0 if lse is None else lse.stride(0)
        attend[(step.limits.items, shape.kv_heads)](
            q,
            kv,
            out,
            lse_tensor,
            step.items,
            step.page_table,
            partial,
            partial_lse,
            q.stride(0),
            q.stride(1),
            out.stride(0),
            out.stride(1),
            lse_stride,
            kv.stride(0),
            kv.stride(1),
            kv.stride(2),
            step.page_table.stride(0),
            scale if variant.soft_cap is not None else scale * math.log2(math.e),
            variant.soft_cap or 0.0,
            variant.window or 0,
            GROUP=shape.group_size,
            PAGE_SIZE=shape.page_size,
            HEAD_SIZE=shape.head_size,
            ITEM_COLUMNS=ITEM_COLUMNS,
            BLOCK_M=launch.block_m,
            BLOCK_N=launch.block_n,
            BLOCK_D=block_d,
            HAS_WINDOW=variant.window is not None,
            SOFT_CAP=variant.soft_cap is not None,
            HAS_LSE=lse is not None,
            PRECISION="ieee",
            num_warps=launch.warps,
            num_stages=launch.stages,
        )
        merge[(step.limits.tiles, shape.kv_heads)](
            step.tiles,
            partial,
            partial_lse,
            out,
            lse_tensor,
            out.stride(0),
            out.stride(1),
            lse_stride,
            GROUP=shape.group_size,
            HEAD_SIZE=shape.head_size,
            TILE_COLUMNS=TILE_COLUMNS,
            BLOCK_M=launch.block_m,
            BLOCK_D=block_d,
            HAS_LSE=lse is not None,
            num_warps=launch.warps,
        )


def _power_of_two(value: int) -> int:
    return 1 << (value - 1).bit_length()


def _default_share(shape: AttentionShape, device: torch.device) -> int:
    if device.type != "cuda":
        return 4
    processors = torch.cuda.get_device_properties(device).multi_processor_count
    return max(1, -(-PROGRAMS_PER_PROCESSOR * processors // shape.kv_heads))
