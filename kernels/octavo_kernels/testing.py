"""Random paged batches with poisoned free slots, and how to compare with the reference: for tests and benchmarks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from octavo_kernels.append import append_kv
from octavo_kernels.attention import PagedAttention
from octavo_kernels.shape import AttentionShape, AttentionVariant


@dataclass(frozen=True)
class PagedCase:
    """A batch in the paged layout, as PagedAttention takes it; every pool slot that holds no token is NaN."""

    shape: AttentionShape
    variant: AttentionVariant
    query_starts: torch.Tensor
    kv_lengths: torch.Tensor
    page_table: torch.Tensor
    slots: torch.Tensor
    q: torch.Tensor
    kv: torch.Tensor

    def attend(self, attention: PagedAttention, *, want_lse: bool = True) -> tuple[torch.Tensor, torch.Tensor]:
        """Plans and runs into outputs poisoned with NaN; returns out and lse (NaN where not wanted)."""
        out = torch.full_like(self.q, float("nan"), memory_format=torch.contiguous_format)
        lse = torch.full(self.q.shape[:2], float("nan"), device=self.q.device)
        attention.plan(self.query_starts, self.kv_lengths, self.page_table, self.slots, tokens=self.q.shape[0])
        attention.run(self.q, self.kv, out, lse if want_lse else None)
        return out, lse

    def reference(self) -> tuple[torch.Tensor, torch.Tensor]:
        """out and lse by the reference in float64 on the CPU, from the operands as they are."""
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
            kv=self.kv.cpu().double(),
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
    """
    variant = variant or AttentionVariant()
    generator = torch.Generator().manual_seed(seed)
    pages_of = [-(-length // shape.page_size) for _, length in sequences]
    pages = sum(pages_of) + 2
    free = (torch.randperm(pages - 1, generator=generator) + 1).tolist()
    kv = torch.full(shape.pool_shape(pages), float("nan"), dtype=shape.pool_dtype)
    rows = len(sequences) + 2
    table = torch.zeros(rows, max(pages_of, default=0) + 1, dtype=torch.int32)
    slots = torch.randperm(rows, generator=generator)[: len(sequences)].int()
    for (new_tokens, length), slot, count in zip(sequences, slots.tolist(), pages_of, strict=True):
        own = torch.tensor([free.pop() for _ in range(count)], dtype=torch.int64)
        table[slot, :count] = own.int()
        position = torch.arange(length)
        if variant.window is not None and hide_beyond_window:
            position = position[position > length - max(new_tokens, 1) - variant.window]
        keys, values = torch.randn(2, position.shape[0], shape.kv_heads, shape.head_size, generator=generator).to(
            shape.pool_dtype
        )
        append_kv(keys, values, kv, own[position // shape.page_size] * shape.page_size + position % shape.page_size)
    new = torch.tensor([0, *(new_tokens for new_tokens, _ in sequences)])
    query_starts = new.cumsum(0).int()
    q = torch.randn(int(query_starts[-1]), shape.query_heads, shape.head_size, generator=generator).to(shape.dtype)
    lengths = torch.tensor([length for _, length in sequences], dtype=torch.int32)
    return PagedCase(shape, variant, *(tensor.to(device) for tensor in (query_starts, lengths, table, slots, q, kv)))


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
