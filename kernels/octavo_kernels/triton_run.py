"""Launches the attention kernels over a planned list: the plain Triton kernel, those for Hopper GPUs, and the merge."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from octavo_kernels.plan import ITEM_COLUMNS, MERGE_COLUMNS
from octavo_kernels.shape import FP8, AttentionShape, AttentionVariant
from octavo_kernels.triton_attention import attend
from octavo_kernels.triton_launch import Device, Launch
from octavo_kernels.triton_lists import WorkList, merge_tile
from octavo_kernels.triton_merge import merge_lists

# Partial results whose rows the merge of shared prefixes has on their way at a time.
MERGE_SPLITS = 8


@dataclass(frozen=True)
class Tensors:
    """What one call of run is given, with the step's page table and, for masks, sequences' rows and bits."""

    q: torch.Tensor
    kv: torch.Tensor
    out: torch.Tensor
    lse: torch.Tensor | None
    scales: torch.Tensor | None
    page_table: torch.Tensor
    query_starts: torch.Tensor
    mask_bits: torch.Tensor | None
    mask_starts: torch.Tensor | None


@dataclass(frozen=True)
class Runner:
    """Launches for one shape and variant on one device.

    overlap: whether launches may begin while the one before ends (from compute capability 9 on).
    fp8_bits: whether FP8 pools are read as bytes, where the device has no conversion of its own.
    """

    shape: AttentionShape
    variant: AttentionVariant
    gpu: Device
    overlap: bool
    fp8_bits: bool

    def attend(self, work: WorkList, tensors: Tensors) -> None:
        """The plain Triton kernel: short or long tiles."""
        shape, variant, launch = self.shape, self.variant, work.launch
        q, out, lse, kv = tensors.q, tensors.out, tensors.lse, tensors.kv
        if self.fp8_bits and kv.dtype == FP8:
            kv = kv.view(torch.uint8)
        transform = variant.transform
        attend[(work.programs,)](
            q,
            kv,
            out,
            out if lse is None else lse,
            work.items,
            tensors.page_table,
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
            tensors.page_table.stride(0),
            self._scale(in_base_two=variant.soft_cap is None and transform is None),
            variant.soft_cap or 0.0,
            variant.window or 0,
            out if variant.sinks is None else variant.sinks,
            (0,) if transform is None else (*transform.values, 0),
            work.items if work.groups is None else work.groups.rows,
            tensors.query_starts,
            work.items if tensors.mask_bits is None else tensors.mask_bits,
            work.items if tensors.mask_starts is None else tensors.mask_starts,
            work.partial_sums if tensors.scales is None else tensors.scales,
            shape.kv_heads,
            GROUP=shape.group_size,
            PAGE_SIZE=shape.page_size,
            HEAD_SIZE=shape.head_size,
            ITEM_COLUMNS=ITEM_COLUMNS,
            BLOCK_M=launch.block_m,
            BLOCK_N=launch.block_n,
            BLOCK_D=work.block_d,
            HAS_WINDOW=variant.window is not None,
            HAS_MASK=variant.custom_mask,
            HAS_SCALES=tensors.scales is not None,
            FP8_BITS=kv.dtype == torch.uint8,
            FP8_PAIRS=kv.dtype == FP8 and q.dtype != torch.float32,
            LISTED=work.groups is not None,
            SOFT_CAP=variant.soft_cap is not None,
            TRANSFORM=None if transform is None else transform.kernel,
            HAS_SINKS=variant.sinks is not None,
            HAS_LSE=lse is not None,
            PRECISION="ieee",
            TWO_LOOPS=work.two_loops,
            MERGE_ROWS=work.merge_rows,
            MERGE_SPLITS=work.merge_splits,
            OVERLAP=self.overlap,
            num_warps=launch.warps,
            num_stages=launch.stages,
            **({"launch_pdl": True} if self.overlap else {}),
        )

    def attend_hopper(self, work: WorkList, tensors: Tensors, *, beside: bool) -> None:
        """The kernels for Hopper GPUs; beside: short tiles run at the same time as the long ones launched before."""
        # Imported here: Gluon is a part of Triton that other GPUs do not need.
        from octavo_kernels.triton_hopper_blocks import describe_pool
        from octavo_kernels.triton_hopper_long import attend_long
        from octavo_kernels.triton_hopper_short import attend_short

        shape, variant, launch = self.shape, self.variant, work.launch
        q, out, lse, kv = tensors.q, tensors.out, tensors.lse, tensors.kv
        table = tensors.page_table
        head_size = hopper_head_size(shape)
        box = min(shape.page_size, launch.block_n)
        pool = describe_pool(kv, box, head_size)
        written = (out, out if lse is None else lse, out if variant.sinks is None else variant.sinks)
        lists = (work.items, table, work.partials, work.partial_sums, work.arrivals)
        strides = (
            q.stride(0),
            q.stride(1),
            out.stride(0),
            out.stride(1),
            0 if lse is None else lse.stride(0),
            table.stride(0),
            shape.kv_heads,
        )
        numbers = (
            self._scale(in_base_two=variant.soft_cap is None),
            variant.soft_cap or 0.0,
            variant.window or 0,
        )
        constants = {
            "GROUP": shape.group_size,
            "PAGE_SIZE": shape.page_size,
            "HEAD_SIZE": head_size,
            "HEAD_USED": shape.head_size,
            "ITEM_COLUMNS": ITEM_COLUMNS,
            "BLOCK_N": launch.block_n,
            "BOX": box,
            "STAGES": launch.stages,
            "HAS_WINDOW": variant.window is not None,
            "SOFT_CAP": variant.soft_cap is not None,
            "HAS_SINKS": variant.sinks is not None,
            "HAS_LSE": lse is not None,
            "MERGE_ROWS": work.merge_rows,
            "MERGE_SPLITS": work.merge_splits,
            "BESIDE": beside,
            "num_warps": 4,
        }
        if work.kind == "long":
            attend_long[(self.gpu.processors,)](
                q, pool, *written, *lists, work.tickets, *strides, *numbers, **constants, PING_PONG=launch.ping_pong
            )
            return
        # Several programs share a multiprocessor's registers; what the loading warp leaves goes to the computing ones.
        limit = {"maxnreg": 256 // launch.programs} if launch.programs > 1 else {}
        attend_short[(work.programs,)](
            q,
            pool,
            *written,
            work.items if work.groups is None else work.groups.rows,
            *lists,
            *strides,
            *numbers,
            **constants,
            LISTED=work.groups is not None,
            OVERLAP=self.overlap,
            EARLY=work.programs <= self.gpu.processors,
            launch_pdl=self.overlap,
            **limit,
        )

    def merge(self, work: WorkList, merges: torch.Tensor, tensors: Tensors) -> None:
        """Merges what shared prefixes and sequences' own keys gave, by the plan's lists."""
        shape, out, lse = self.shape, tensors.out, tensors.lse
        tokens = min(out.shape[0], merges.shape[0] // shape.kv_heads)
        block_m = work.launch.block_m
        rows, _ = merge_tile(Launch(block_m, 0, 4, 0), shape.group_size, work.block_d, 8)
        sinks = self.variant.sinks
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
            BLOCK_M=block_m,
            BLOCK_D=work.block_d,
            MERGE_ROWS=rows,
            MERGE_SPLITS=MERGE_SPLITS,
            MERGE_COLUMNS=MERGE_COLUMNS,
            HAS_SINKS=sinks is not None,
            HAS_LSE=lse is not None,
            OVERLAP=self.overlap,
            num_warps=4,
            **({"launch_pdl": True} if self.overlap else {}),
        )

    def _scale(self, *, in_base_two: bool) -> float:
        scale = self.variant.scale_for(self.shape.head_size)
        return scale * math.log2(math.e) if in_base_two else scale


def hopper_head_size(shape: AttentionShape) -> int:
    """Elements of a head with padding in the kernels for Hopper GPUs."""
    return 64 if shape.head_size <= 64 else 128
