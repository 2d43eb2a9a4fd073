"""Fused kernels on one GPU: bandwidth of large ones, time of small ones in a graph, written to benchmarks/results.

PYTHONPATH=kernels python3 benchmarks/fused.py [--results FOLDER]
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from octavo_kernels import AttentionShape, gelu_mul, rms_norm, rope_append_kv, silu_mul

from benchmarks.attention_cases import DEVICE, Ceilings, seconds
from benchmarks.common import RESULTS, Row, write_result
from benchmarks.fused_cases import product_cases, sampling_cases

SHAPE = AttentionShape(32, 8, 128, 16, torch.bfloat16)
HIDDEN, COLUMNS = 4096, 14336


def calls(tokens: int) -> list[tuple[str, int, Callable[[], object]]]:
    """Name, bytes read and written, and the call of each fused function on an 8-billion-parameter Llama's sizes."""
    x, residual = torch.randn(2, tokens, HIDDEN, device=DEVICE).bfloat16()
    weight, out = torch.rand(HIDDEN, device=DEVICE).bfloat16(), torch.empty_like(x)
    gate_up = torch.randn(tokens, 2 * COLUMNS, device=DEVICE).bfloat16()
    gated = torch.empty(tokens, COLUMNS, device=DEVICE, dtype=torch.bfloat16)
    heads, head_size = SHAPE.query_heads + 2 * SHAPE.kv_heads, SHAPE.head_size
    merged = torch.randn(tokens, heads, head_size, device=DEVICE).bfloat16()
    q, k, v = merged.split([SHAPE.query_heads, SHAPE.kv_heads, SHAPE.kv_heads], dim=1)
    norm = torch.rand(head_size, device=DEVICE).bfloat16()
    pool = SHAPE.pool_shape(tokens // SHAPE.page_size + 1)
    kv = torch.zeros(pool, device=DEVICE, dtype=torch.bfloat16)
    kv_in_bytes = torch.zeros(pool, device=DEVICE, dtype=torch.uint8).view(torch.float8_e4m3fn)
    slots = torch.randperm(tokens, device=DEVICE) + SHAPE.page_size
    positions = torch.arange(tokens, device=DEVICE)
    cos_sin = torch.randn(tokens, head_size, device=DEVICE)
    appended = 2 * (2 * q.numel() + 5 * tokens * SHAPE.kv_heads * head_size)
    return [
        ("rms_norm with residual", 8 * x.numel(), lambda: rms_norm(x, weight, 1e-5, residual, out)),
        ("silu_mul", 6 * gated.numel(), lambda: silu_mul(gate_up, gated)),
        ("gelu_mul", 6 * gated.numel(), lambda: gelu_mul(gate_up, gated)),
        ("rope_append_kv", appended, lambda: rope_append_kv(q, k, v, positions, cos_sin, kv, slots)),
        (
            "rope_append_kv with head norms",
            appended,
            lambda: rope_append_kv(q, k, v, positions, cos_sin, kv, slots, q_norm=norm, k_norm=norm),
        ),
        (
            "rope_append_kv into FP8",
            appended - 2 * tokens * SHAPE.kv_heads * head_size,
            lambda: rope_append_kv(q, k, v, positions, cos_sin, kv_in_bytes, slots),
        ),
    ]


def products(ceilings: Ceilings) -> list[Row]:
    """Products of few rows beside cuBLAS."""
    rows = []
    for count in (1, 4, 8, 16):
        for case in product_cases(ceilings.memory, count):
            repeats = max(1, 16 // len(case.ours))
            ours, theirs = (seconds(calls * repeats) for calls in (case.ours, case.torch))
            share, peer = (round(100 * case.size / taken / ceilings.copy, 1) for taken in (ours, theirs))
            taken = "the kernel" if case.kernel else "cuBLAS"
            note = f"{ours * 1e6:.1f} and {theirs * 1e6:.1f} µs; the table takes {taken}"
            rows.append(Row(case.name, "% of copy bandwidth", share, "higher", 90, "cuBLAS", peer, note))
    return rows


def sampling() -> list[Row]:
    """Flat logits and peaked ones."""
    rows = []
    for spread in (1.0, 4.0):
        for case in sampling_cases(spread):
            taken = round(seconds([case.ours] * 16) * 1e6, 1)
            peer = None if case.torch is None else round(seconds([case.torch] * 4) * 1e6, 1)
            rows.append(Row(case.name, "µs", taken, "lower", case.goal, "torch" if peer else "", peer, "in a graph"))
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--results", type=Path, default=RESULTS, help="folder for the result file")
    arguments = parser.parse_args()
    if not torch.cuda.is_available():
        raise SystemExit("fused needs a CUDA device; torch sees none")
    ceilings = Ceilings(pool_gib=9)
    rows = []
    for name, size, call in calls(8192):
        share = round(100 * size / seconds([call] * 8) / ceilings.copy, 1)
        note = f"{size / 1e6:.0f} MB; {ceilings}"
        rows.append(Row(f"{name}, 8192 tokens", "% of copy bandwidth", share, "higher", 80, note=note))
    for name, _, call in calls(64):
        rows.append(
            Row(f"{name}, 64 tokens", "µs", round(seconds([call] * 32) * 1e6, 2), "lower", 3, note="in a graph")
        )
    rows += products(ceilings)
    rows += sampling()
    for row in rows:
        print(f"{row.name:40} {row.value:8} {row.unit} goal {row.goal}")
    print(write_result("fused-h200", rows, command="PYTHONPATH=kernels python3 benchmarks/fused.py",
                       folder=arguments.results))  # fmt: skip


if __name__ == "__main__":
    main()
