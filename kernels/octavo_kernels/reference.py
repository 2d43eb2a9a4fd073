"""Paged attention in plain torch: slow, obvious, and the truth that every other backend is tested against."""

from __future__ import annotations

import torch

from octavo_kernels.batch import Batch, PackedMask
from octavo_kernels.shape import FP8, AttentionShape, AttentionVariant


def dense_attention(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    variant: AttentionVariant,
    *,
    kv_length: int,
    compute_dtype: torch.dtype,
    first_position: int = 0,
    mask: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Attention of one sequence's new tokens over its keys and values.

    q: `[n, query_heads, head_size]`, the last n tokens of a sequence of kv_length tokens.
    k, v: `[kv_heads, m, head_size]`, the positions first_position … first_position + m − 1; all of them finite.
    mask: bool `[n, m]`, what each query sees, in place of the causal rule and the window; None for these.
    Returns out `[n, query_heads, head_size]` in compute_dtype and lse `[n, query_heads]` (natural logarithm).
    A query that sees no position gives 0 and −inf, or its sink.
    """
    new_tokens, query_heads, head_size = q.shape
    kv_heads, positions_kept, _ = k.shape
    group = query_heads // kv_heads
    queries = q.to(compute_dtype).view(new_tokens, kv_heads, group, head_size).permute(1, 2, 0, 3)
    keys = k.to(compute_dtype)[:, None]
    values = v.to(compute_dtype)[:, None]
    scores = queries @ keys.transpose(-1, -2) * variant.scale_for(head_size)
    if variant.soft_cap is not None:
        scores = torch.tanh(scores / variant.soft_cap) * variant.soft_cap
    query_position = torch.arange(kv_length - new_tokens, kv_length, device=q.device)[:, None]
    key_position = torch.arange(first_position, first_position + positions_kept, device=q.device)[None, :]
    if variant.transform is not None:
        query_head = torch.arange(query_heads, device=q.device).view(kv_heads, group, 1, 1)
        values_given = variant.transform.values
        scores = variant.transform.reference(scores, query_position, key_position, query_head, values_given)
    visible = key_position <= query_position
    if variant.window is not None:
        visible &= key_position > query_position - variant.window
    if mask is not None:
        visible = mask
    scores = scores.masked_fill(~visible, float("-inf"))
    if positions_kept == 0:
        scores = torch.full((*scores.shape[:-1], 1), float("-inf"), dtype=compute_dtype, device=q.device)
        values = values.new_zeros(kv_heads, 1, 1, head_size)
    # The largest score is taken out first: beside very large scores the logarithm of the sum would be rounded away.
    largest = scores.amax(-1, keepdim=True)
    if variant.sinks is not None:
        sink = variant.sinks.to(q.device, compute_dtype).view(kv_heads, group, 1, 1)
        largest = torch.maximum(largest, sink)
    weights = torch.exp(scores - largest.masked_fill(torch.isneginf(largest), 0.0))
    total = weights.sum(-1, keepdim=True)
    if variant.sinks is not None:
        total = total + torch.exp(sink - largest.masked_fill(torch.isneginf(largest), 0.0))
    lse = (largest + total.log()).squeeze(-1)
    weights = weights / total.masked_fill(total == 0, 1.0)
    out = weights @ values
    return out.permute(2, 0, 1, 3).reshape(new_tokens, query_heads, head_size), lse.permute(2, 0, 1).reshape(
        new_tokens, query_heads
    )


def visible_range(new_tokens: int, kv_length: int, window: int | None) -> tuple[int, int]:
    """Positions that at least one of the new tokens sees: from (included) and to (excluded)."""
    if window is None:
        return 0, kv_length
    return max(0, kv_length - new_tokens + 1 - window), kv_length


class ReferenceBackend:
    """Works in float64 when the operands are float64, else in compute_dtype; reads only slots that hold a token."""

    name = "Reference"
    fallback_reason: str | None = None
    launch_reason: str | None = None

    def __init__(
        self, shape: AttentionShape, variant: AttentionVariant, compute_dtype: torch.dtype = torch.float32
    ) -> None:
        self._shape = shape
        self._variant = variant
        self._compute_dtype = torch.float64 if shape.dtype == torch.float64 else compute_dtype
        self._sequences: list[tuple[int, int, int, torch.Tensor]] = []
        self._mask: PackedMask | None = None

    def plan(self, batch: Batch, tokens: int | None = None) -> None:
        """Reads the batch on the host: (first row, last row, kv length, pages) of each sequence."""
        starts = batch.query_starts.tolist()
        self._mask = batch.mask
        table = batch.page_table.cpu()
        self._sequences = [
            (starts[index], starts[index + 1], length, table[slot].long())
            for index, (length, slot) in enumerate(zip(batch.kv_lengths.tolist(), batch.slots.tolist(), strict=True))
        ]

    def run(
        self,
        q: torch.Tensor,
        kv: torch.Tensor,
        out: torch.Tensor,
        lse: torch.Tensor | None,
        scales: torch.Tensor | None = None,
    ) -> None:
        """Writes out and, where given, lse; rows of no sequence stay as they are."""
        page_size = self._shape.page_size
        factors = None if scales is None else scales.to(self._compute_dtype)[:, :, None, None]
        for sequence, (first_row, last_row, kv_length, pages) in enumerate(self._sequences):
            new_tokens = last_row - first_row
            if new_tokens == 0:
                continue
            low, high = visible_range(new_tokens, kv_length, self._variant.window)
            position = torch.arange(low, high)
            page, offset = pages[position // page_size].to(kv.device), (position % page_size).to(kv.device)
            # Not every device indexes eight-bit floats: their bytes are taken.
            stored = kv.view(torch.uint8) if kv.dtype == FP8 else kv
            tokens = stored[page, :, :, offset].view(kv.dtype)
            k, v = tokens[:, 0].transpose(0, 1), tokens[:, 1].transpose(0, 1)
            if kv.dtype == FP8:
                k, v = k.to(self._compute_dtype), v.to(self._compute_dtype)
            if factors is not None:
                k, v = k * factors[0], v * factors[1]
            result, result_lse = dense_attention(
                q[first_row:last_row],
                k,
                v,
                self._variant,
                kv_length=kv_length,
                compute_dtype=self._compute_dtype,
                first_position=low,
                mask=None if self._mask is None else self._mask.unpack(sequence, new_tokens, kv_length).to(q.device),
            )
            out[first_row:last_row] = result.to(out.dtype)
            if lse is not None:
                lse[first_row:last_row] = result_lse.to(lse.dtype)
