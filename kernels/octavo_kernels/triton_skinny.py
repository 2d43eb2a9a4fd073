# mypy: disable-error-code="no-untyped-def,no-untyped-call,untyped-decorator,misc"
"""A product of up to 16 rows with a large weight: programs read equal parts of it, wherever its tiles begin (stream-K).

A program's part is a range of steps of BLOCK_K, counted tile after tile, so it may end a tile that another began. The
program that comes last to a tile adds the pieces up in their order, so equal inputs give equal bits.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from octavo_kernels.compat import is_interpreting
from octavo_kernels.skinny_launch import ROWS, SkinnyLaunch


@triton.jit
def skinny_product(
    x_ptr,
    weight_ptr,
    bias_ptr,
    residual_ptr,
    out_ptr,
    partial_ptr,
    arrivals_ptr,
    rows,
    columns,
    depth,
    stride_x,
    stride_weight,
    stride_residual,
    stride_out,
    GATED: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    ROWS: tl.constexpr,
    STAGES: tl.constexpr,
    EVEN: tl.constexpr,
    OVERLAP: tl.constexpr,
):
    """The weight is the left operand, so that its rows fill the matrix unit. Columns are those of out."""
    KINDS: tl.constexpr = 2 if GATED else 1
    SLOT: tl.constexpr = KINDS * BLOCK_N * ROWS
    program = tl.program_id(0)
    row = tl.arange(0, ROWS)
    lane = tl.arange(0, BLOCK_K)
    row_inside = row < rows
    within = tl.arange(0, BLOCK_N)[:, None] * ROWS + row[None, :]
    blocks = tl.cdiv(depth, BLOCK_K)
    # 64 bits: steps times programs is beyond 2³¹ for a large head.
    steps = tl.program_id(0).to(tl.int64) * 0 + tl.cdiv(columns, BLOCK_N) * blocks
    at = program * steps // tl.num_programs(0)
    end = (program + 1) * steps // tl.num_programs(0)
    if OVERLAP:
        # The launch before this one made x; those after it may take this one's place as it ends.
        tl.extra.cuda.gdc_wait()
        tl.extra.cuda.gdc_launch_dependents()
    while at < end:
        tile = at // blocks
        begin = tile * blocks
        first = at - begin
        last = tl.minimum(end - begin, blocks)
        column = tile * BLOCK_N + tl.arange(0, BLOCK_N)
        column_inside = column < columns
        base = weight_ptr + column[:, None] * stride_weight + lane[None, :]
        up_base = base + (tile * 0 + columns) * stride_weight
        x_base = x_ptr + row[None, :] * stride_x + lane[:, None]
        acc = tl.zeros([BLOCK_N, ROWS], tl.float32)
        acc_up = tl.zeros([BLOCK_N, ROWS], tl.float32)
        for block in tl.range(first.to(tl.int32), last.to(tl.int32), num_stages=STAGES):
            k = block * BLOCK_K
            if EVEN:
                w = tl.load(base + k)
                x = tl.load(x_base + k, mask=row_inside[None, :], other=0.0)
                acc = tl.dot(w, x, acc, input_precision="ieee")
                if GATED:
                    acc_up = tl.dot(tl.load(up_base + k), x, acc_up, input_precision="ieee")
            else:
                inside = k + lane < depth
                loaded = column_inside[:, None] & inside[None, :]
                w = tl.load(base + k, mask=loaded, other=0.0)
                x = tl.load(x_base + k, mask=row_inside[None, :] & inside[:, None], other=0.0)
                acc = tl.dot(w, x, acc, input_precision="ieee")
                if GATED:
                    up = tl.load(up_base + k, mask=loaded, other=0.0)
                    acc_up = tl.dot(up, x, acc_up, input_precision="ieee")

        whole = (first == 0) & (last == blocks)
        finished = whole
        if whole == 0:
            # A program leaves at most two pieces: of the tile that it ends, and of the one that it only begins.
            slot_ptr = partial_ptr + (program.to(tl.int64) * 2 + (first == 0).to(tl.int64)) * SLOT + within
            tl.store(slot_ptr, acc)
            if GATED:
                tl.store(slot_ptr + BLOCK_N * ROWS, acc_up)
            # The program whose part holds step s is ((s + 1) · programs − 1) ÷ steps.
            from_program = ((begin + 1) * tl.num_programs(0) - 1) // steps
            to_program = ((begin + blocks) * tl.num_programs(0) - 1) // steps
            # All threads have stored before one of them counts, and the count releases what they stored.
            tl.debug_barrier()
            arrived = tl.atomic_add(arrivals_ptr + tile, 1, sem="acq_rel", scope="gpu")
            finished = arrived == (to_program - from_program).to(tl.int32)
            if finished:
                tl.store(arrivals_ptr + tile, 0)
                acc = tl.zeros([BLOCK_N, ROWS], tl.float32)
                acc_up = tl.zeros([BLOCK_N, ROWS], tl.float32)
                for part in range(from_program.to(tl.int32), (to_program + 1).to(tl.int32)):
                    begins = (tile * 0 + part) * steps // tl.num_programs(0) <= begin
                    part_ptr = partial_ptr + ((tile * 0 + part) * 2 + begins.to(tl.int64)) * SLOT + within
                    acc += tl.load(part_ptr, cache_modifier=".cg")
                    if GATED:
                        acc_up += tl.load(part_ptr + BLOCK_N * ROWS, cache_modifier=".cg")
        if finished:
            if bias_ptr is not None:
                bias = tl.load(bias_ptr + column, mask=column_inside, other=0.0)
                acc += bias.to(tl.float32)[:, None]
                if GATED:
                    bias_up = tl.load(bias_ptr + columns + column, mask=column_inside, other=0.0)
                    acc_up += bias_up.to(tl.float32)[:, None]
            if GATED:
                acc = acc / (1.0 + tl.exp(-acc)) * acc_up
            stored = column_inside[:, None] & row_inside[None, :]
            if residual_ptr is not None:
                residual = residual_ptr + row[None, :] * stride_residual + column[:, None]
                acc += tl.load(residual, mask=stored, other=0.0).to(tl.float32)
            target = out_ptr + row[None, :] * stride_out + column[:, None]
            tl.store(target, acc.to(out_ptr.dtype.element_ty), mask=stored)
        at = begin + last


class SkinnyKernels:
    """Launches, and scratch memory that grows outside of graph capture: call once before capturing a shape."""

    def __init__(self, device: torch.device, processors: int, major: int) -> None:
        self._device = device
        self._processors = processors
        self._overlap = major >= 9 and not is_interpreting()
        self._partial = torch.empty(0, dtype=torch.float32, device=device)
        self._arrivals = torch.zeros(1 << 14, dtype=torch.int32, device=device)

    def product(
        self,
        x: torch.Tensor,
        weight: torch.Tensor,
        bias: torch.Tensor | None,
        residual: torch.Tensor | None,
        gated: bool,
        out: torch.Tensor,
        launch: SkinnyLaunch,
    ) -> None:
        """SkinnyProducts.product with checked arguments."""
        rows, depth = x.shape
        columns = out.shape[1]
        tiles = -(-columns // launch.block_n)
        programs = min(launch.programs * self._processors, tiles * -(-depth // launch.block_k))
        elements = 2 * programs * (2 if gated else 1) * launch.block_n * ROWS
        if elements > self._partial.numel():
            self._partial = torch.empty(elements, dtype=torch.float32, device=self._device)
        if tiles > self._arrivals.numel():
            self._arrivals = torch.zeros(2 * tiles, dtype=torch.int32, device=self._device)
        skinny_product[(programs,)](
            *(x, weight, bias, residual, out, self._partial, self._arrivals, rows, columns, depth),
            *(x.stride(0), weight.stride(0), 0 if residual is None else residual.stride(0), out.stride(0)),
            GATED=gated,
            BLOCK_N=launch.block_n,
            BLOCK_K=launch.block_k,
            ROWS=ROWS,
            STAGES=launch.stages,
            EVEN=columns % launch.block_n == 0 and depth % launch.block_k == 0,
            OVERLAP=self._overlap,
            num_warps=launch.warps,
            **({"launch_pdl": True} if self._overlap else {}),
        )
