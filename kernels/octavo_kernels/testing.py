"""Random paged batches with poisoned free slots, and how to compare with the reference: for tests and benchmarks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from octavo_kernels.attention import PagedAttention
from octavo_kernels.batch import Batch, PackedMask, SharedPrefixes, check_batch
from octavo_kernels.shape import FP8, AttentionShape, AttentionVariant


@dataclass(frozen=True)
class PagedCase:
    """A batch in the paged layout, as PagedAttention takes it; every pool slot that holds no token is NaN.

    mask: for variants with custom_mask. scales: for float8 pools, float32 `[2, kv_heads]`.
    """

    shape: AttentionShape
    variant: AttentionVariant
    query_starts: torch.Tensor
    kv_lengths: torch.Tensor
    page_table: torch.Tensor
    slots: torch.Tensor
    q: torch.Tensor
    kv: torch.Tensor
    mask: PackedMask | None = None
    scales: torch.Tensor | None = None

    def batch(self, groups: SharedPrefixes | None = None) -> Batch:
        """What backends plan from."""
        index = (self.query_starts, self.kv_lengths, self.page_table, self.slots)
        return check_batch(*index, groups, self.mask, max_sequences=1 << 20)

    def attend(self, attention: PagedAttention, *, want_lse: bool = True) -> tuple[torch.Tensor, torch.Tensor]:
        """Plans and runs into outputs poisoned with NaN; returns out and lse (NaN where not wanted)."""
        out = torch.full_like(self.q, float("nan"), memory_format=torch.contiguous_format)
        lse = torch.full(self.q.shape[:2], float("nan"), device=self.q.device)
        index = (self.query_starts, self.kv_lengths, self.page_table, self.slots)
        attention.plan(*index, tokens=self.q.shape[0], mask=self.mask)
        attention.run(self.q, self.kv, out, lse if want_lse else None, scales=self.scales)
        return out, lse

    def reference(self) -> tuple[torch.Tensor, torch.Tensor]:
        """out and lse by the reference in float64 on the CPU, from the operands as they are."""
        kv = self.kv.cpu().double()
        if self.scales is not None:
            kv = kv * self.scales.cpu().double()[:, :, None, None]
        wide = AttentionShape(
            self.shape.query_heads,
            self.shape.kv_heads,
            self.shape.head_size,
            self.shape.page_size,
            torch.float64,
        )
        case = PagedCase(
            shape=wide,
            variant=self.variant,
            query_starts=self.query_starts.cpu(),
            kv_lengths=self.kv_lengths.cpu(),
            page_table=self.page_table.cpu(),
            slots=self.slots.cpu(),
            q=self.q.cpu().double(),
            kv=kv,
            mask=None if self.mask is None else PackedMask(self.mask.bits.cpu(), self.mask.starts.cpu()),
        )
        attention = PagedAttention(
            wide, self.variant, backend="Reference", max_tokens=max(1, self.q.shape[0]), max_sequences=1 << 20
        )
        return case.attend(attention)


def random_case(
    shape: AttentionShape,
    sequences: Sequence[tuple[int, int]],
    *,
    variant: AttentionVariant | None = None,
    device: torch.device | str = "cpu",
    seed: int = 0,
    hide_beyond_window: bool = True,
) -> PagedCase:
    """A batch of (new tokens, tokens in the cache) sequences on randomly ordered pages and page-table rows.

    hide_beyond_window: with a window, positions that no query sees hold NaN as well, as freed pages would.
    A variant with custom_mask gets a random one, some rows of which see nothing; a float8 pool gets random scales.
    """
    variant = variant or AttentionVariant()
    generator = torch.Generator().manual_seed(seed)
    pages_of = [-(-length // shape.page_size) for _, length in sequences]
    pages = sum(pages_of) + 2
    free = (torch.randperm(pages - 1, generator=generator) + 1).tolist()
    kv = torch.full(shape.pool_shape(pages), float("nan")).to(shape.pool_dtype)
    scales = None
    if shape.pool_dtype == FP8:
        scales = torch.rand(2, shape.kv_heads, generator=generator) * 0.1 + 0.01
    rows = len(sequences) + 2
    table = torch.zeros(rows, max(pages_of, default=0) + 1, dtype=torch.int32)
    slots = torch.randperm(rows, generator=generator)[: len(sequences)].int()
    for (new_tokens, length), slot, count in zip(sequences, slots.tolist(), pages_of, strict=True):
        own = torch.tensor([free.pop() for _ in range(count)], dtype=torch.int64)
        table[slot, :count] = own.int()
        position = torch.arange(length)
        if variant.window is not None and hide_beyond_window:
            position = position[position > length - max(new_tokens, 1) - variant.window]
        tokens = torch.randn(2, position.shape[0], shape.kv_heads, shape.head_size, generator=generator)
        if scales is not None:
            tokens = tokens / scales[:, None, :, None]
        tokens = tokens.to(shape.pool_dtype)
        page, offset = own[position // shape.page_size], position % shape.page_size
        # Not every operation takes eight-bit floats: their bytes are moved.
        pool, tokens = (kv, tokens) if scales is None else (kv.view(torch.uint8), tokens.view(torch.uint8))
        pool[page, :, :, offset] = tokens.transpose(0, 1)
    new = torch.tensor([0, *(new_tokens for new_tokens, _ in sequences)])
    query_starts = new.cumsum(0).int()
    q = torch.randn(int(query_starts[-1]), shape.query_heads, shape.head_size, generator=generator).to(shape.dtype)
    lengths = torch.tensor([length for _, length in sequences], dtype=torch.int32)
    mask = None
    if variant.custom_mask:
        seen = [torch.rand(new, length, generator=generator) for new, length in sequences]
        mask = PackedMask.pack([(row < 0.5) & (torch.rand(row.shape[0], 1, generator=generator) < 0.9) for row in seen])
        mask = PackedMask(mask.bits.to(device), mask.starts.to(device))
    scales = None if scales is None else scales.to(device)
    tensors = {
        "query_starts": query_starts,
        "kv_lengths": lengths,
        "page_table": table,
        "slots": slots,
        "q": q,
        "kv": kv,
    }
    there = {name: tensor.to(device) for name, tensor in tensors.items()}
    return PagedCase(shape=shape, variant=variant, mask=mask, scales=scales, **there)


def relative_error(result: torch.Tensor, expected: torch.Tensor) -> float:
    """‖result − expected‖ / ‖expected‖ in float64; NaN stays NaN, and 0 / 0 is 0."""
    wanted = expected.double().cpu()
    difference = float((result.double().cpu() - wanted).norm())
    size = float(wanted.norm())
    return difference if size == 0 else difference / size


def lse_error(result: torch.Tensor, expected: torch.Tensor) -> float:
    """Largest absolute difference; infinite unless −inf stands in exactly the same places."""
    result, expected = result.double().cpu(), expected.double().cpu()
    if not torch.equal(torch.isneginf(result), torch.isneginf(expected)):
        return float("inf")
    finite = ~torch.isneginf(expected)
    return float((result - expected)[finite].abs().max()) if bool(finite.any()) else 0.0
