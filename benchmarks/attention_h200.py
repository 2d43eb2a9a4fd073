"""Attention and fused kernels on one GPU: correctness first, then times, written to benchmarks/results.

    PYTHONPATH=kernels python3 benchmarks/attention_h200.py [--results FOLDER] [--tune]

Each time is the median of replays of a CUDA graph that runs several layers, each with its own pool, so that the cache
holds none of them. Decoding is measured against the bandwidth of a large device-to-device copy (bytes read plus bytes
written), prefill against a large bfloat16 product and, as the peer, torch's own attention over contiguous tensors.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from octavo_kernels import AttentionShape, AttentionVariant, PagedAttention, rms_norm, rope_append_kv, silu_mul
from octavo_kernels.batch import check_batch
from octavo_kernels.testing import random_case, relative_error
from octavo_kernels.triton_backend import Launch, TritonBackend

from benchmarks.common import RESULTS, Row, write_result

# Sizes of an 8-billion-parameter Llama: 32 query heads, 8 KV heads, heads of 128.
SHAPE = AttentionShape(32, 8, 128, 16, torch.bfloat16)
DEVICE = torch.device("cuda")
DECODE_LAUNCHES = [
    Launch(16, block_n, warps, stages) for block_n in (32, 64, 128) for warps in (2, 4) for stages in (2, 3, 4)
]
PREFILL_LAUNCHES = [
    Launch(block_m, block_n, warps, stages)
    for block_m in (64, 128)
    for block_n in (32, 64, 128)
    for warps in (4, 8)
    for stages in (2, 3)
]


def seconds(steps: Sequence[Callable[[], None]], *, replays: int = 15) -> float:
    """Median time of one step, from replays of a graph that runs all of them in turn."""
    for step in steps:
        step()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for step in steps:
            step()
    graph.replay()
    times = []
    for _ in range(replays):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        graph.replay()
        end.record()
        end.synchronize()
        times.append(begin.elapsed_time(end) / 1e3 / len(steps))
    return statistics.median(times)


def copy_bandwidth() -> float:
    """Bytes per second, read plus written, of a 4 GiB copy by a kernel (a graph's own copy node is slower)."""
    source = torch.randn(2**30, device=DEVICE)
    target = torch.empty_like(source)
    return 2 * source.numel() * 4 / seconds([lambda: torch.mul(source, 1.0, out=target)] * 4)


def matmul_rate() -> float:
    """Operations per second of an 8192³ bfloat16 product of random matrices."""
    a, b = torch.randn(2, 8192, 8192, device=DEVICE).bfloat16()
    c = torch.empty_like(a)
    return 2 * 8192**3 / seconds([lambda: torch.mm(a, b, out=c)] * 4)


class Bench:
    """One batch shape over several layers of random keys and values."""

    def __init__(self, sequences: Sequence[tuple[int, int]], backend: TritonBackend, shape: AttentionShape) -> None:
        self.shape = shape
        self.sequences = sequences
        pages_of = [-(-length // shape.page_size) for _, length in sequences]
        pages = sum(pages_of) + 1
        page_bytes = 2 * shape.kv_heads * shape.page_size * shape.head_size * 2
        # At least 512 MiB of pools, so that the second-level cache holds next to nothing of the layer that comes next.
        layers = min(64, max(2, 2**29 // (pages * page_bytes)))
        self.pools = [torch.randn(shape.pool_shape(pages), device=DEVICE, dtype=shape.dtype) for _ in range(layers)]
        free = (torch.randperm(pages - 1) + 1).int().split(pages_of)
        table = torch.zeros(len(sequences), max(pages_of), dtype=torch.int32)
        for row, own in enumerate(free):
            table[row, : own.shape[0]] = own
        starts = torch.tensor([0, *(new for new, _ in sequences)]).cumsum(0).int()
        self.tokens = int(starts[-1])
        lengths = torch.tensor([length for _, length in sequences]).int()
        self.batch = check_batch(
            starts.to(DEVICE), lengths.to(DEVICE), table.to(DEVICE), None, max_sequences=len(sequences)
        )
        self.q = torch.randn(self.tokens, shape.query_heads, shape.head_size, device=DEVICE).to(shape.dtype)
        self.out = torch.empty_like(self.q)
        self.backend = backend
        backend.plan(self.batch, self.tokens)

    @property
    def kv_bytes(self) -> int:
        """Bytes of keys and values that one layer must read."""
        token_bytes = 2 * self.shape.kv_heads * self.shape.head_size * self.shape.dtype.itemsize
        return sum(length for _, length in self.sequences) * token_bytes

    @property
    def operations(self) -> float:
        """Multiplications and additions of one causal layer."""
        pairs = sum(new * (length - new) + new * (new + 1) / 2 for new, length in self.sequences)
        return 4 * pairs * self.shape.query_heads * self.shape.head_size

    def run_seconds(self) -> float:
        return seconds([lambda kv=kv: self.backend.run(self.q, kv, self.out, None) for kv in self.pools])

    def plan_seconds(self) -> float:
        return seconds([lambda: self.backend.plan(self.batch, self.tokens)] * 4)


def check_correct() -> float:
    """Worst relative error over fresh random batches; raises SystemExit where one is beyond bfloat16's rounding."""
    worst = 0.0
    for seed, sequences in enumerate(
        ([(1, 3000), (1, 17), (1, 700)], [(1, 900), (200, 200), (65, 1000), (0, 5)], [(700, 700)])
    ):
        for variant in (AttentionVariant(), AttentionVariant(window=128, soft_cap=20.0)):
            case = random_case(SHAPE, sequences, variant=variant, device=DEVICE, seed=seed)
            out, _ = case.attend(PagedAttention(SHAPE, variant, device=DEVICE))
            error = relative_error(out, case.reference()[0])
            if not error < 1e-2:
                raise SystemExit(f"wrong result: relative error {error} for {sequences} with {variant}")
            worst = max(worst, error)
    return worst


def make_backend(decode: Launch | None = None, prefill: Launch | None = None) -> TritonBackend:
    return TritonBackend(
        SHAPE, AttentionVariant(), DEVICE, max_tokens=65536, decode_launch=decode, prefill_launch=prefill
    )


def decode_rows(copy: float) -> list[Row]:
    rows = []
    for batch, length in (
        (1, 1024),
        (1, 32768),
        (8, 2048),
        (12, 2048),
        (16, 2048),
        (64, 2048),
        (256, 1024),
        (64, 8192),
    ):
        bench = Bench([(1, length)] * batch, make_backend(), SHAPE)
        time = bench.run_seconds()
        rows.append(
            Row(
                name=f"decode {batch} × {length} tokens",
                unit="% of copy bandwidth",
                value=round(100 * bench.kv_bytes / time / copy, 1),
                better="higher",
                note=f"{time * 1e6:.1f} µs a layer",
            )
        )
    bench = Bench([(1, 2048)] * 64, make_backend(), SHAPE)
    rows.append(
        Row(
            name="plan 64 sequences, inside a graph",
            unit="µs",
            value=round(bench.plan_seconds() * 1e6, 1),
            better="lower",
        )
    )
    return rows


def sweep_row() -> Row:
    """Cliffs: the largest step in time between neighbouring batch sizes."""
    times = [Bench([(1, 2048)] * batch, make_backend(), SHAPE).run_seconds() for batch in range(1, 33)]
    jump = max(after / before for before, after in pairwise(times[3:]))
    return Row(
        name="decode 4…32 × 2048 tokens, largest step between neighbouring batch sizes",
        unit="ratio",
        value=round(jump, 2),
        better="lower",
        note="µs at 1, 4, 8, 12, 16, 24, 32: "
        + ", ".join(f"{times[n - 1] * 1e6:.0f}" for n in (1, 4, 8, 12, 16, 24, 32)),
    )


def torch_prefill_seconds(batch: int, length: int) -> float:
    """torch's attention over contiguous tensors, its best backend, as the peer."""
    q, k, v = (
        torch.randn(batch, heads, length, SHAPE.head_size, device=DEVICE, dtype=SHAPE.dtype)
        for heads in (SHAPE.query_heads, SHAPE.kv_heads, SHAPE.kv_heads)
    )
    attention = torch.nn.functional.scaled_dot_product_attention
    return seconds([lambda: attention(q, k, v, is_causal=True, enable_gqa=True)] * 2)


def prefill_rows(product: float) -> list[Row]:
    rows = []
    for batch, length in ((1, 2048), (1, 8192), (8, 2048), (64, 128)):
        bench = Bench([(length, length)] * batch, make_backend(), SHAPE)
        time = bench.run_seconds()
        rows.append(
            Row(
                name=f"prefill {batch} × {length} tokens",
                unit="TFLOP/s",
                value=round(bench.operations / time / 1e12, 1),
                better="higher",
                peer="torch scaled_dot_product_attention, contiguous",
                peer_value=round(bench.operations / torch_prefill_seconds(batch, length) / 1e12, 1),
                note=f"{time * 1e6:.0f} µs a layer; a large bfloat16 product runs at {product / 1e12:.0f} TFLOP/s",
            )
        )
    mixed = Bench([(2048, 4096), *[(1, 2048)] * 63], make_backend(), SHAPE)
    time = mixed.run_seconds()
    rows.append(
        Row(
            name="mixed: 63 decodes × 2048 and a chunk of 2048 at 4096",
            unit="µs",
            value=round(time * 1e6),
            better="lower",
        )
    )
    return rows


def fused_rows(copy: float) -> list[Row]:
    tokens, hidden, columns = 8192, 4096, 14336
    x, residual = torch.randn(2, tokens, hidden, device=DEVICE).bfloat16()
    weight, out = torch.rand(hidden, device=DEVICE).bfloat16(), torch.empty_like(x)
    gate_up = torch.randn(tokens, 2 * columns, device=DEVICE).bfloat16()
    gated = torch.empty(tokens, columns, device=DEVICE, dtype=torch.bfloat16)
    heads, head_size = SHAPE.query_heads + 2 * SHAPE.kv_heads, SHAPE.head_size
    merged = torch.randn(tokens, heads, head_size, device=DEVICE).bfloat16()
    q, k, v = merged.split([SHAPE.query_heads, SHAPE.kv_heads, SHAPE.kv_heads], dim=1)
    kv = torch.zeros(SHAPE.pool_shape(tokens // SHAPE.page_size + 1), device=DEVICE, dtype=torch.bfloat16)
    slots = torch.randperm(tokens, device=DEVICE) + SHAPE.page_size
    positions = torch.arange(tokens, device=DEVICE)
    cos_sin = torch.randn(tokens, head_size, device=DEVICE)
    kv_values = tokens * SHAPE.kv_heads * head_size
    measured: list[tuple[str, int, Callable[[], object]]] = [
        ("rms_norm with residual", 4 * x.numel() * 2, lambda: rms_norm(x, weight, 1e-5, residual, out)),
        ("silu_mul", 3 * gated.numel() * 2, lambda: silu_mul(gate_up, gated)),
        (
            "rope_append_kv",
            2 * (2 * q.numel() + 5 * kv_values),
            lambda: rope_append_kv(q, k, v, positions, cos_sin, kv, slots),
        ),
    ]
    rows = []
    for name, size, call in measured:
        time = seconds([lambda call=call: call()] * 8)
        rows.append(
            Row(
                name=f"{name}, {tokens} tokens",
                unit="% of copy bandwidth",
                value=round(100 * size / time / copy, 1),
                better="higher",
                note=f"{time * 1e6:.0f} µs",
            )
        )
    return rows


def tune() -> None:
    """Prints the time of each launch configuration; choose_launch holds what was chosen from it."""
    for kind, launches, sequences in (
        ("decode", DECODE_LAUNCHES, [(1, 2048)] * 64),
        ("prefill", PREFILL_LAUNCHES, [(2048, 2048)] * 4),
    ):
        found = []
        for launch in launches:
            backend = make_backend(launch, None) if kind == "decode" else make_backend(None, launch)
            try:
                found.append((Bench(sequences, backend, SHAPE).run_seconds(), launch))
            except Exception as error:  # noqa: BLE001 - a configuration that does not fit the device is a finding
                print(kind, launch, type(error).__name__, flush=True)
        for time, launch in sorted(found, key=lambda entry: entry[0])[:8]:
            print(f"{kind} {time * 1e6:8.1f} µs {launch}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--results", type=Path, default=RESULTS, help="folder for the result files")
    parser.add_argument("--tune", action="store_true", help="print the times of all launch configurations instead")
    arguments = parser.parse_args()
    if not torch.cuda.is_available():
        raise SystemExit("attention_h200 needs a CUDA device; torch sees none")
    print(f"correct: worst relative error {check_correct():.1e}", flush=True)
    if arguments.tune:
        tune()
        return
    copy, product = copy_bandwidth(), matmul_rate()
    print(f"copy {copy / 1e12:.2f} TB/s, product {product / 1e12:.0f} TFLOP/s", flush=True)
    attention = [*decode_rows(copy), sweep_row(), *prefill_rows(product)]
    fused = fused_rows(copy)
    ceiling = f"copy {copy / 1e12:.2f} TB/s in this run"
    for topic, rows in (("attention-h200", attention), ("fused-h200", fused)):
        rows = [replace(row, note=f"{row.note}; {ceiling}".strip("; ")) if "copy" in row.unit else row for row in rows]
        for row in rows:
            print(f"{row.name:75} {row.value:9} {row.unit} {row.peer_value or ''} {row.note}")
        write_result(
            topic, rows, command="PYTHONPATH=kernels python3 benchmarks/attention_h200.py", folder=arguments.results
        )


if __name__ == "__main__":
    main()
