"""Paged attention with torch's own CPU kernels, fast enough to serve a small model.

The pool is seen as rows of one (page, K or V, head): each row is a contiguous `[page_size, head_size]` block. `plan`
computes once per step which rows each sequence needs, in the order that makes them one contiguous
`[2, kv_heads, tokens, head_size]` after a single index_select; `run` then costs a gather and one
scaled_dot_product_attention per sequence.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F

from octavo_kernels.batch import Batch
from octavo_kernels.reference import dense_attention, visible_range
from octavo_kernels.shape import AttentionShape, AttentionVariant


@dataclass(frozen=True)
class _Sequence:
    first_row: int
    last_row: int
    kv_length: int
    # Pool rows in the order K of head 0, K of head 1, …, V of the last head; pages ascending within each.
    rows: torch.Tensor
    # First visible position, and its offset into the gathered tokens.
    low: int
    offset: int
    # None: no mask is needed (one new token), or the plain causal one (is_causal).
    mask: torch.Tensor | None
    is_causal: bool


class CpuBackend:
    """Backend for tensors in host memory; operands float32, bfloat16, float16 or float64."""

    name = "CPU"

    def __init__(self, shape: AttentionShape, variant: AttentionVariant) -> None:
        self._shape = shape
        self._variant = variant
        self._scale = variant.scale_for(shape.head_size)
        self._sequences: list[_Sequence] = []

    def plan(self, batch: Batch) -> None:
        """Computes each sequence's pool rows and mask; needs index tensors in host memory."""
        starts = batch.query_starts.tolist()
        self._sequences = [
            self._plan_sequence(starts[index], starts[index + 1], length, batch.page_table[slot])
            for index, (length, slot) in enumerate(zip(batch.kv_lengths.tolist(), batch.slots.tolist(), strict=True))
            if starts[index + 1] > starts[index]
        ]

    def _plan_sequence(self, first_row: int, last_row: int, kv_length: int, pages: torch.Tensor) -> _Sequence:
        shape, window = self._shape, self._variant.window
        new_tokens = last_row - first_row
        low, high = visible_range(new_tokens, kv_length, window)
        first_page, end_page = low // shape.page_size, -(-high // shape.page_size)
        needed = pages[first_page:end_page].long()
        kinds_and_heads = torch.arange(2 * shape.kv_heads)
        rows = (needed[None, :] * (2 * shape.kv_heads) + kinds_and_heads[:, None]).reshape(-1)
        offset = low - first_page * shape.page_size
        is_causal = new_tokens > 1 and new_tokens == kv_length and window is None
        mask = None
        if new_tokens > 1 and not is_causal:
            query_position = torch.arange(kv_length - new_tokens, kv_length)[:, None]
            key_position = torch.arange(low, high)[None, :]
            mask = key_position <= query_position
            if window is not None:
                mask &= key_position > query_position - window
        return _Sequence(first_row, last_row, kv_length, rows, low, offset, mask, is_causal)

    def run(self, q: torch.Tensor, kv: torch.Tensor, out: torch.Tensor, lse: torch.Tensor | None) -> None:
        """Writes out and, where given, lse; rows of no sequence stay as they are."""
        shape = self._shape
        pool_rows = kv.view(-1, shape.page_size * shape.head_size)
        for sequence in self._sequences:
            gathered = pool_rows.index_select(0, sequence.rows).view(2, shape.kv_heads, -1, shape.head_size)
            end = sequence.offset + sequence.kv_length - sequence.low
            k, v = gathered[:, :, sequence.offset : end].unbind(0)
            queries = q[sequence.first_row : sequence.last_row]
            result = out[sequence.first_row : sequence.last_row]
            new_tokens = sequence.last_row - sequence.first_row
            exact = lse is not None or self._variant.soft_cap is not None or new_tokens > sequence.kv_length
            if exact:
                dense, dense_lse = dense_attention(
                    queries,
                    k,
                    v,
                    self._variant,
                    kv_length=sequence.kv_length,
                    compute_dtype=torch.float64 if q.dtype == torch.float64 else torch.float32,
                    first_position=sequence.low,
                )
                result.copy_(dense)
                if lse is not None:
                    lse[sequence.first_row : sequence.last_row] = dense_lse.to(lse.dtype)
            else:
                self._attend(queries, k, v, sequence, result)

    def _attend(
        self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, sequence: _Sequence, out: torch.Tensor
    ) -> None:
        shape = self._shape
        new_tokens = q.shape[0]
        if k.dtype != q.dtype:
            k, v = k.to(q.dtype), v.to(q.dtype)
        if new_tokens == 1:
            # The query heads of one KV head become the rows of one product.
            packed = q.view(1, shape.kv_heads, shape.group_size, shape.head_size)
            attended = F.scaled_dot_product_attention(packed, k[None], v[None], scale=self._scale)
            out.copy_(attended.reshape(1, shape.query_heads, shape.head_size))
            return
        # The group becomes a batch dimension in which K and V repeat without a copy.
        grouped = q.view(new_tokens, shape.kv_heads, shape.group_size, shape.head_size).permute(2, 1, 0, 3)
        size = (shape.group_size, *k.shape)
        attended = F.scaled_dot_product_attention(
            grouped,
            k.expand(size),
            v.expand(size),
            attn_mask=sequence.mask,
            is_causal=sequence.is_causal,
            scale=self._scale,
        )
        out.view(new_tokens, shape.kv_heads, shape.group_size, shape.head_size).copy_(attended.permute(2, 1, 0, 3))
