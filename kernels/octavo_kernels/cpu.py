"""Paged attention with torch's own CPU kernels, fast enough to serve a small model.

`plan` decides once per step what to gather (cpu_plan); `run` costs, for each group of sequences, one gather of pages
into a buffer that stays in cache and one scaled_dot_product_attention.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F

from octavo_kernels.batch import Batch
from octavo_kernels.cpu_plan import Group, group_bytes_of, plan_groups
from octavo_kernels.launch_table import LaunchTable, table_for
from octavo_kernels.reference import dense_attention
from octavo_kernels.shape import AttentionShape, AttentionVariant


@dataclass(frozen=True)
class _Gather:
    """A group with its part of the shared buffer, shaped for each use."""

    group: Group
    # [pool rows, page_size · head_size], what index_select fills.
    rows: torch.Tensor
    # [2 · sequences · kv_heads · width, head_size], where stale positions are cleared.
    positions: torch.Tensor
    # [sequences, kv_heads, visible positions, head_size].
    k: torch.Tensor
    v: torch.Tensor


class CpuBackend:
    """Backend for tensors in host memory; operands float32, bfloat16, float16 or float64.

    Products are made in the pool's dtype with float32 sums: a bfloat16 pool halves the memory traffic of decoding, a
    float32 pool is exact to float32 rounding. A launch table may say which groups of sequences are attended by one
    call: the bytes of their keys and values at most (`attention.cpu`, group_bytes).
    """

    name = "CPU"
    fallback_reason: str | None = None

    def __init__(
        self, shape: AttentionShape, variant: AttentionVariant, launch_table: LaunchTable | None = None
    ) -> None:
        table = table_for(torch.device("cpu"), launch_table)
        self.launch_reason = table.reason
        self._group_bytes = group_bytes_of(table, shape)
        self._shape = shape
        self._variant = variant
        self._scale = variant.scale_for(shape.head_size)
        self._buffer = torch.empty(0, dtype=shape.pool_dtype)
        self._gathers: list[_Gather] = []

    def plan(self, batch: Batch, tokens: int | None = None) -> None:
        """Computes what each group gathers; needs index tensors in host memory."""
        if batch.kv_lengths.device.type != "cpu":
            raise ValueError(f"kv_lengths is on {batch.kv_lengths.device}; the CPU backend plans from host memory")
        groups = plan_groups(batch, self._shape, self._variant.window, self._group_bytes)
        row_elements = self._shape.page_size * self._shape.head_size
        needed = max((group.pool_rows.shape[0] * row_elements for group in groups), default=0)
        if self._buffer.numel() < needed:
            self._buffer = torch.empty(needed, dtype=self._shape.pool_dtype)
        self._gathers = [self._gather(group) for group in groups]

    def _gather(self, group: Group) -> _Gather:
        shape = self._shape
        count, row_elements = group.pool_rows.shape[0], shape.page_size * shape.head_size
        rows = self._buffer[: count * row_elements].view(count, row_elements)
        positions = rows.view(-1, shape.head_size)
        size = (2, len(group.spans), shape.kv_heads, group.width, shape.head_size)
        k, v = positions.view(size).unbind(0)
        if len(group.spans) == 1:
            span = group.spans[0]
            start = span.low - span.first_page * shape.page_size
            end = start + span.kv_length - span.low
            k, v = k[:, :, start:end], v[:, :, start:end]
        return _Gather(group, rows, positions, k, v)

    def run(
        self,
        q: torch.Tensor,
        kv: torch.Tensor,
        out: torch.Tensor,
        lse: torch.Tensor | None,
        scales: torch.Tensor | None = None,
    ) -> None:
        """Writes out and, where given, lse; rows of no sequence stay as they are."""
        shape = self._shape
        pool = kv.view(-1, shape.page_size * shape.head_size)
        queries = q if q.dtype == shape.pool_dtype else q.to(shape.pool_dtype)
        for gather in self._gathers:
            group = gather.group
            torch.index_select(pool, 0, group.pool_rows, out=gather.rows)
            if group.stale is not None:
                gather.positions.index_fill_(0, group.stale, 0)
            starved = any(span.new_tokens > span.kv_length for span in group.spans)
            if lse is not None or starved or self._variant.soft_cap is not None:
                self._attend_densely(q, gather, out, lse)
            elif group.spans[0].new_tokens == 1:
                self._attend_one_token(queries, gather, out)
            else:
                self._attend_many_tokens(queries, gather, out)

    def _attend_one_token(self, q: torch.Tensor, gather: _Gather, out: torch.Tensor) -> None:
        shape, group = self._shape, gather.group
        first, count = group.spans[0].first_row, len(group.spans)
        rows = q[first : first + count] if group.query_rows is None else q.index_select(0, group.query_rows)
        # The query heads of one KV head become the rows of one product.
        packed = rows.reshape(count, shape.kv_heads, shape.group_size, shape.head_size)
        attended = F.scaled_dot_product_attention(
            packed, gather.k, gather.v, attn_mask=group.mask, scale=self._scale
        ).reshape(count, shape.query_heads, shape.head_size)
        if group.query_rows is None:
            out[first : first + count] = attended
        else:
            out.index_copy_(0, group.query_rows, attended.to(out.dtype))

    def _attend_many_tokens(self, q: torch.Tensor, gather: _Gather, out: torch.Tensor) -> None:
        shape, group = self._shape, gather.group
        span = group.spans[0]
        # The group becomes a batch dimension in which K and V repeat without a copy.
        split = (span.new_tokens, shape.kv_heads, shape.group_size, shape.head_size)
        queries = q[span.first_row : span.last_row].reshape(split).permute(2, 1, 0, 3)
        repeated = (shape.group_size, *gather.k.shape[1:])
        attended = F.scaled_dot_product_attention(
            queries,
            gather.k.expand(repeated),
            gather.v.expand(repeated),
            attn_mask=group.mask,
            is_causal=group.is_causal,
            scale=self._scale,
        )
        out[span.first_row : span.last_row].view(split).copy_(attended.permute(2, 1, 0, 3))

    def _attend_densely(self, q: torch.Tensor, gather: _Gather, out: torch.Tensor, lse: torch.Tensor | None) -> None:
        """The reference's formula on the gathered tokens: for lse, a soft cap, and rows that see nothing."""
        for index, span in enumerate(gather.group.spans):
            start = span.low - span.first_page * self._shape.page_size if len(gather.group.spans) > 1 else 0
            seen = slice(start, start + span.kv_length - span.low)
            rows = slice(span.first_row, span.last_row)
            result, result_lse = dense_attention(
                q[rows],
                gather.k[index, :, seen],
                gather.v[index, :, seen],
                self._variant,
                kv_length=span.kv_length,
                compute_dtype=torch.float64 if q.dtype == torch.float64 else torch.float32,
                first_position=span.low,
            )
            out[rows] = result.to(out.dtype)
            if lse is not None:
                lse[rows] = result_lse.to(lse.dtype)
