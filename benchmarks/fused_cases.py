"""What the fused benchmark measures beside the small fused functions: sampling and products of few rows, with torch."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from octavo_kernels.sampling import Sampler, SamplingRows
from octavo_kernels.skinny import SkinnyProducts

DEVICE = torch.device("cuda")
VOCABULARY = 128_256
Call = Callable[[], object]
LAYER_SHAPES = {
    "qkv 6144 × 4096": (6144, 4096, False),
    "out 4096 × 4096, residual": (4096, 4096, False),
    "gate-up 28672 × 4096, SiLU·mul": (28672, 4096, True),
    "down 4096 × 14336, residual": (4096, 14336, False),
    "head 128256 × 4096, float32 out": (VOCABULARY, 4096, False),
}
"""(rows of the weight, depth, gated) of an 8-billion-parameter Llama."""


@dataclass(frozen=True)
class SamplingCase:
    """name, goal in µs or None, our call, torch's call or None."""

    name: str
    goal: float | None
    ours: Call
    torch: Call | None


def sampling_cases(spread: float) -> Iterator[SamplingCase]:
    """Logits of a standard deviation: 1 is nearly flat (half of the vocabulary holds 0.9), 4 is peaked as text is."""
    many = torch.randn(256, VOCABULARY, device=DEVICE) * spread
    few = [torch.randn(1, VOCABULARY, device=DEVICE) * spread for _ in range(16)]
    about = f"standard deviation {spread:g}"
    for rows, tensors, goals in ((256, [many], (45, 45, 150)), (1, few, (20, 20, 20))):
        sampler = Sampler(VOCABULARY, rows, DEVICE)
        out = torch.empty(rows, dtype=torch.int64, device=DEVICE)
        turn = _turns(tensors)
        logits = f"{rows} × {VOCABULARY} logits, {about}"
        greedy, plain = sampling_rows(rows, 0.0), sampling_rows(rows, 1.0)
        every = sampling_rows(rows, 0.9, top_k=50, top_p=0.9, min_p=0.02)
        top_p = sampling_rows(rows, 1.0, top_p=0.9)
        yield SamplingCase(
            f"sample greedy, {logits}",
            goals[0],
            lambda s=sampler, t=turn, r=greedy, o=out: s.sample(t(), r, out=o),
            lambda t=turn: t().argmax(dim=1),
        )
        yield SamplingCase(
            f"sample temperature, {logits}",
            goals[1],
            lambda s=sampler, t=turn, r=plain, o=out: s.sample(t(), r, out=o),
            lambda t=turn: torch.multinomial(t().softmax(dim=1), 1),
        )
        yield SamplingCase(
            f"sample top-k 50, top-p 0.9, min-p 0.02, {logits}",
            goals[2],
            lambda s=sampler, t=turn, r=every, o=out: s.sample(t(), r, out=o),
            None,
        )
        yield SamplingCase(
            f"sample top-p 0.9, {logits}",
            goals[2],
            lambda s=sampler, t=turn, r=top_p, o=out: s.sample(t(), r, out=o),
            (lambda t=turn: _sorted_top_p(t(), 0.9)) if rows == 256 else None,
        )


def sampling_rows(
    count: int, temperature: float, top_k: int | None = None, top_p: float | None = None, min_p: float | None = None
) -> SamplingRows:
    """Every row asks for the same."""

    def filled(value: float | None, dtype: torch.dtype) -> torch.Tensor | None:
        return None if value is None else torch.full((count,), value, dtype=dtype, device=DEVICE)

    numbers = torch.arange(count, device=DEVICE)
    heat = torch.full((count,), temperature, device=DEVICE)
    limits = filled(top_k, torch.int32), filled(top_p, torch.float32), filled(min_p, torch.float32)
    return SamplingRows(heat, numbers * 977, torch.zeros_like(numbers), numbers + 5, *limits)


@dataclass(frozen=True)
class ProductCase:
    """name, bytes that must move, our calls and cuBLAS's over different weights."""

    name: str
    size: int
    kernel: bool
    ours: list[Call]
    torch: list[Call]


def product_cases(memory: torch.Tensor, rows: int) -> Iterator[ProductCase]:
    """The four products of a layer and the head; each call takes another weight, so that none lies in the cache."""
    products = SkinnyProducts(DEVICE)
    for name, (columns, depth, gated) in LAYER_SHAPES.items():
        sets = max(2, min(16, (2 << 30) // (2 * columns * depth)))
        weights = [memory[n * columns * depth : (n + 1) * columns * depth].view(columns, depth) for n in range(sets)]
        x = torch.randn(rows, depth, device=DEVICE).bfloat16() / 64
        width = columns // 2 if gated else columns
        residual = torch.randn(rows, width, device=DEVICE).bfloat16() if "residual" in name else None
        out = torch.empty(rows, width, device=DEVICE, dtype=torch.float32 if "float32" in name else torch.bfloat16)

        def ours(weight: torch.Tensor, x=x, residual=residual, gated=gated, out=out) -> Call:  # type: ignore[no-untyped-def]
            return lambda: products.product(x, weight, None, residual, gated=gated, out=out)

        def theirs(weight: torch.Tensor, x=x, residual=residual, gated=gated, out=out) -> Call:  # type: ignore[no-untyped-def]
            def call() -> None:
                y = F.linear(x, weight)
                if gated:
                    gate, up = y.chunk(2, dim=1)
                    y = F.silu(gate) * up
                if residual is not None:
                    y = y + residual
                out.copy_(y)

            return call

        size = 2 * columns * depth + 2 * x.numel() + out.nbytes
        yield ProductCase(
            f"{name}, {rows} {'row' if rows == 1 else 'rows'}",
            size,
            products.uses_kernel(x, weights[0], gated=gated),
            [ours(weight) for weight in weights],
            [theirs(weight) for weight in weights],
        )


def _turns(tensors: list[torch.Tensor]) -> Callable[[], torch.Tensor]:
    """Gives one after the other, so that calls recorded in a graph take different memory."""
    state = {"next": 0}

    def turn() -> torch.Tensor:
        state["next"] += 1
        return tensors[state["next"] % len(tensors)]

    return turn


def _sorted_top_p(logits: torch.Tensor, p: float) -> torch.Tensor:
    ordered = logits.sort(dim=1, descending=True)
    probabilities = ordered.values.softmax(dim=1)
    kept = probabilities.cumsum(dim=1) - probabilities < p
    place = torch.multinomial(probabilities * kept, 1)
    return ordered.indices.gather(1, place)
