"""Attention on one GPU beside FlashInfer, in one run: correctness first, then times, written to benchmarks/results.

    PYTHONPATH=kernels python3 benchmarks/attention.py [--results FOLDER] [--only decode,prefill,…] [--no-peer]

With --only, what is not measured keeps its figure in the result file, and says which run that is from.

Each time is the median of replays of a CUDA graph of several layers; the plan is made before, once, as a model's step
makes it once for all its layers. Cells whose KV is under 64 MB run over 32 different page sets, larger ones over up to
four, so that the cache holds none of them; the same for the peer. Decoding is measured against the bandwidth of a large
device-to-device copy of this run (bytes read plus bytes written), prefill in operations of the causal half.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, replace
from itertools import pairwise
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from octavo_kernels import AttentionShape, AttentionVariant, PagedAttention, SharedPrefixes
from octavo_kernels.testing import random_case, relative_error

from benchmarks.attention_cases import DEVICE, Ceilings, Cell, Sequences, make_backend, seconds, token_bytes
from benchmarks.attention_peer import NAME, FlashInfer, installed
from benchmarks.attention_plot import draw_sweep
from benchmarks.attention_results import joined
from benchmarks.common import RESULTS, Row, write_result

SHAPE = AttentionShape(32, 8, 128, 16, torch.bfloat16)
COPY = "% of copy bandwidth"
ANCHORS = [(1, 8192), (1, 131072), (8, 32768), (64, 2048), (64, 8192), (256, 1024)]
ZIPF = [(1, max(200, 60000 // rank)) for rank in range(1, 65)]
SWEPT_BATCHES = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512)
RAGGED = [(length, length) for length in range(100, 4001, 260)]


class Suite:
    """The cells, each a method that yields rows."""

    def __init__(self, ceilings: Ceilings, peer: FlashInfer | None, plot: Path | None = None) -> None:
        self.ceilings = ceilings
        self.peer = peer
        self.plot = plot

    def decode(self) -> list[Row]:
        """The anchors' cells, for 4 and 8 query heads a KV head and for as many KV heads as query heads."""
        rows = []
        for heads in ((32, 8), (64, 8), (32, 32)):
            shape = replace(SHAPE, query_heads=heads[0], kv_heads=heads[1])
            for batch, length in ANCHORS:
                if heads[1] == 32 and batch * length > 300_000:
                    continue
                cell = Cell(self.ceilings, [(1, length)] * batch, shape)
                rows.append(self._anchor(f"decode {batch} × {length}, heads {heads[0]}:{heads[1]}", cell))
        return rows

    def _anchor(self, name: str, cell: Cell) -> Row:
        ours = self._share(cell, cell.run_seconds())
        theirs = None if self.peer is None else self._share(cell, self.peer.decode_seconds(cell))
        goals, why = [], []
        if theirs is not None:
            factor = 0.98 if theirs > 95 else 1.05
            goals.append(factor * theirs)
            why.append(f"{factor} × {NAME}")
        if sum(length for _, length in cell.sequences) >= 131072:
            goals.append(93.0)
            why.append("93 % from 128k tokens")
        return Row(
            name, COPY, ours, "higher", round(max(goals), 1) if goals else None, self._peer_name, theirs,
            f"{cell.kv_bytes / ours / self.ceilings.copy * 1e8:.1f} µs; goal: {', '.join(why)}",
        )  # fmt: skip

    def small(self) -> list[Row]:
        """Small batches and mixed lengths."""
        rows = []
        for batch, length, goal in ((1, 1024, 8.0), (1, 8192, 13.0)):
            cell = Cell(self.ceilings, [(1, length)] * batch, SHAPE)
            theirs = None if self.peer is None else round(self.peer.decode_seconds(cell) * 1e6, 1)
            ours = round(cell.run_seconds() * 1e6, 1)
            rows.append(Row(f"decode {batch} × {length}", "µs", ours, "lower", goal, self._peer_name, theirs))
        named: list[tuple[str, Sequences, float]] = [
            (f"decode {batch} × 4096", [(1, 4096)] * batch, goal) for batch, goal in ((4, 75.0), (8, 85.0), (16, 90.0))
        ]
        named.append(("decode 64 of Zipf lengths, 60000 ÷ rank, at least 200", ZIPF, 92.0))
        for name, sequences, goal in named:
            cell = Cell(self.ceilings, sequences, SHAPE)
            theirs = None if self.peer is None else self._share(cell, self.peer.decode_seconds(cell))
            took = cell.run_seconds()
            note = f"{took * 1e6:.1f} µs"
            rows.append(Row(name, COPY, self._share(cell, took), "higher", goal, self._peer_name, theirs, note))
        equal = Cell(self.ceilings, [(1, sum(length for _, length in ZIPF) // 64)] * 64, SHAPE)
        ratio = self._share(equal, equal.run_seconds()) / rows[-1].value
        rows.append(
            Row("bandwidth of 64 equal lengths ÷ of Zipf lengths, same tokens", "×", round(ratio, 3), "lower", 1.05)
        )
        return rows

    def prefill(self) -> list[Row]:
        """Causal prefill, beside the peer's kernels for Hopper GPUs."""
        cells: list[tuple[str, Sequences, float]] = [
            ("prefill 1 × 8192", [(8192, 8192)], 560),
            ("prefill 1 × 32768", [(32768, 32768)], 600),
            ("prefill 1 × 131072", [(131072, 131072)], 600),
            ("prefill 8192 new on 131072", [(8192, 131072)], 600),
            ("prefill 16 × 512 new on 2048", [(512, 2048)] * 16, 480),
            ("prefill ragged, 16 of 100 to 4000", RAGGED, 480),
        ]
        rows = []
        for name, sequences, goal in cells:
            cell = Cell(self.ceilings, sequences, SHAPE, sets=2)
            theirs = None if self.peer is None else self._rate(cell, self.peer.prefill_seconds(cell, "fa3"))
            took = cell.run_seconds()
            note = f"{took * 1e6:.0f} µs; peer: its kernels for Hopper GPUs"
            rows.append(Row(name, "TFLOP/s", self._rate(cell, took), "higher", goal, self._peer_name, theirs, note))
        cell = Cell(self.ceilings, [(8192, 8192)], SHAPE, sets=2)
        plain = self._rate(cell, cell.run_seconds(make_backend(SHAPE, hopper=False)))
        theirs = None if self.peer is None else self._rate(cell, self.peer.prefill_seconds(cell, "fa2"))
        goal = None if theirs is None else round(1.1 * theirs, 1)
        rows.append(
            Row(
                "prefill 1 × 8192, plain Triton", "TFLOP/s", plain, "higher", goal, self._peer_name, theirs,
                "peer: its kernels for all GPUs; goal: 1.1 × peer",
            )
        )  # fmt: skip
        return rows

    def mixed(self) -> list[Row]:
        """Chunks of prompts and decodes in one step, and a prefix that all sequences share."""
        chunks, decodes = [(512, 4096)] * 8, [(1, 4096)] * 128
        cell = Cell(self.ceilings, [*chunks, *decodes], SHAPE)
        theirs = None
        if self.peer is not None:
            first, second = Cell(self.ceilings, chunks, SHAPE), Cell(self.ceilings, decodes, SHAPE)
            theirs = round((self.peer.prefill_seconds(first, "fa3") + self.peer.decode_seconds(second)) * 1e6)
        ours = round(cell.run_seconds() * 1e6)
        rows = [
            Row(
                "mixed: 8 chunks of 512 on 4096 and 128 decodes at 4096", "µs", ours, "lower", 950, self._peer_name,
                theirs, "peer: its two calls, one after the other",
            )
        ]  # fmt: skip
        shared = Cell(self.ceilings, [(1, 8192 + 128)] * 64, SHAPE, sets=4)
        table = shared.table.clone()
        table[:, : 8192 // SHAPE.page_size] = table[0, : 8192 // SHAPE.page_size]
        shared.set_table(table)
        theirs = None if self.peer is None else round(self.peer.decode_seconds(shared) * 1e6, 1)
        flat = round(shared.run_seconds() * 1e6, 1)
        starts, lengths = torch.tensor([0, 64]).int().to(DEVICE), torch.tensor([8192]).int().to(DEVICE)
        shared.batch = replace(shared.batch, groups=SharedPrefixes(starts, lengths))
        expected = shared.out.clone()
        ours = round(shared.run_seconds() * 1e6, 1)
        if not relative_error(shared.out, expected) < 1e-2:
            raise SystemExit("wrong result: a shared prefix read once differs from the flat form")
        note = f"the flat form takes {flat} µs; peer: its flat form on the shared pages"
        name = "decode 64 with a shared prefix of 8192 and 128 own tokens"
        rows.append(Row(name, "µs", ours, "lower", 45, self._peer_name, theirs, note))
        few = Cell(self.ceilings, [(1, 4096)] * 64, SHAPE, sets=4)
        flat = few.run_seconds()
        few.batch = replace(few.batch, groups=SharedPrefixes(torch.tensor([0, 1]).int().to(DEVICE), lengths // 4))
        ratio = round(few.run_seconds() / flat, 3)
        name = "groups that do not pay: time ÷ flat form, 64 × 4096"
        return [*rows, Row(name, "×", ratio, "lower", 1.02)]

    def plan(self) -> list[Row]:
        """Planning a decode step: on the host, and as a launch in the step's graph."""
        rows = []
        for batch, goal in ((64, 40), (256, 80)):
            cell = Cell(self.ceilings, [(1, 1024)] * batch, SHAPE, sets=2)
            backend = make_backend(SHAPE)
            times = []
            for _ in range(40):
                torch.cuda.synchronize()
                begin = time.perf_counter()
                backend.plan(cell.batch, cell.tokens)
                times.append(time.perf_counter() - begin)
            host = round(statistics.median(times[10:]) * 1e6, 1)
            theirs = None if self.peer is None else round(self.peer.plan_seconds(cell) * 1e6, 1)
            rows.append(Row(f"host plan, {batch} sequences", "µs", host, "lower", goal, self._peer_name, theirs))
            device = round(seconds([lambda b=backend, c=cell: b.plan(c.batch, c.tokens)] * 8) * 1e6, 1)
            rows.append(Row(f"plan of {batch} sequences inside a graph", "µs", device, "lower"))
        return rows

    def pages(self) -> list[Row]:
        """How much slower the slowest of page sizes 16, 32 and 64 is than the fastest."""
        rows = []
        for name, sequences in (("decode 64 × 2048", [(1, 2048)] * 64), ("prefill 1 × 8192", [(8192, 8192)])):
            times = {}
            for page_size in (16, 32, 64):
                cell = Cell(self.ceilings, sequences, replace(SHAPE, page_size=page_size))
                times[page_size] = cell.run_seconds()
            note = ", ".join(f"{size}: {took * 1e6:.0f} µs" for size, took in times.items())
            ratio = round(max(times.values()) / min(times.values()), 3)
            rows.append(
                Row(f"{name}: slowest of page sizes 16, 32, 64 ÷ fastest", "×", ratio, "lower", 1.03, note=note)
            )
        return rows

    def fp8(self) -> list[Row]:
        """Decoding from a pool of eight-bit floats, by the plain Triton kernel: half of the bytes."""
        rows = []
        shape = replace(SHAPE, kv_dtype=torch.float8_e4m3fn)
        scales = torch.ones(2, shape.kv_heads, device=DEVICE)
        for batch, length in ((64, 2048), (64, 8192)):
            cell = Cell(self.ceilings, [(1, length)] * batch, SHAPE)
            sixteen = cell.run_seconds()
            pools = [pool.view(torch.uint8).flatten()[: pool.numel()].view(pool.shape) & 0x77 for pool in cell.pools]
            backend = make_backend(shape)
            backend.plan(cell.batch, cell.tokens)
            took = seconds(
                [
                    lambda kv=kv.view(shape.kv_dtype): backend.run(cell.q, kv, cell.out, None, scales)  # noqa: B023
                    for kv in pools
                ]
            )
            note = f"{took * 1e6:.1f} µs; a bfloat16 pool takes {sixteen * 1e6:.1f} µs"
            name = f"decode {batch} × {length}, eight-bit pool"
            rows.append(Row(name, COPY, round(50 * cell.kv_bytes / took / self.ceilings.copy, 1), "higher", note=note))
        return rows

    def shared(self) -> list[Row]:
        """Shared prefixes beside the flat form, over sizes of groups and lengths of prefixes."""
        worst, found, lines = 0.0, "", []
        for size in (2, 4, 16, 64):
            ratios = []
            for prefix in (256, 1024, 4096, 16384):
                cell = Cell(self.ceilings, [(1, prefix + 256)] * 64, SHAPE, sets=4)
                table = cell.table.clone()
                pages = prefix // SHAPE.page_size
                table[:, :pages] = table[::size, :pages].repeat_interleave(size, 0)
                cell.set_table(table)
                flat = cell.run_seconds()
                starts = torch.arange(0, 65, size, dtype=torch.int32, device=DEVICE)
                lengths = torch.full((64 // size,), prefix, dtype=torch.int32, device=DEVICE)
                cell.batch = replace(cell.batch, groups=SharedPrefixes(starts, lengths))
                ratios.append(cell.run_seconds() / flat)
                if ratios[-1] > worst:
                    worst, found = ratios[-1], f"groups of {size} with a prefix of {prefix}"
            lines.append(f"{size}: " + " ".join(f"{ratio:.2f}" for ratio in ratios))
        note = f"at {found}; by size for prefixes of 256, 1024, 4096, 16384: {'; '.join(lines)}"
        name = "shared prefixes of 64 sequences with 256 own tokens: largest time ÷ flat form"
        return [Row(name, "×", round(worst, 3), "lower", 1.02, note=note)]

    def sweep(self) -> list[Row]:
        """No cliffs: the largest loss of bandwidth from a batch size to the next larger one, lengths 128 to 128k."""
        worst, found, lines = 0.0, "", {}
        for length in (128, 512, 2048, 8192, 32768, 131072):
            rates = []
            for batch in SWEPT_BATCHES:
                cell_bytes = batch * length * token_bytes(SHAPE)
                if cell_bytes > 32e9 or 2 * cell_bytes > self.ceilings.memory.nbytes:
                    break
                cell = Cell(self.ceilings, [(1, length)] * batch, SHAPE)
                rates.append((batch, cell.kv_bytes / cell.run_seconds() / self.ceilings.copy))
            lines[length] = [100 * rate for _, rate in rates]
            for (fewer, before), (more, after) in pairwise(rates):
                if before / after > worst:
                    worst, found = before / after, f"{fewer} to {more} sequences of {length}"
        if self.plot is not None:
            self.plot.write_text(draw_sweep(SWEPT_BATCHES, lines), encoding="utf-8")
        text = "; ".join(f"{length}: " + " ".join(f"{rate:.0f}" for rate in rates) for length, rates in lines.items())
        note = f"at {found}; % of copy by length for batches of {', '.join(map(str, SWEPT_BATCHES))}: {text}"
        name = "decode sweep: largest loss of bandwidth between neighbouring batch sizes"
        return [Row(name, "×", round(worst, 3), "lower", note=note)]

    @property
    def _peer_name(self) -> str:
        return "" if self.peer is None else NAME

    def _share(self, cell: Cell, took: float) -> float:
        return round(100 * cell.kv_bytes / took / self.ceilings.copy, 1)

    @staticmethod
    def _rate(cell: Cell, took: float) -> float:
        return round(cell.operations / took / 1e12, 1)


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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--results", type=Path, default=RESULTS, help="folder for the result files")
    parser.add_argument(
        "--only", default="small,decode,prefill,mixed,plan,pages,fp8,shared,sweep", help="parts, by comma"
    )
    parser.add_argument("--no-peer", action="store_true", help="leave the peer out, also where it is installed")
    parser.add_argument("--plot", type=Path, help="file for the sweep's plot, an SVG image")
    parser.add_argument(
        "--pool-gib", type=int, default=62, help="device memory for the pools; the sweep takes all of it"
    )
    arguments = parser.parse_args()
    if not torch.cuda.is_available():
        raise SystemExit("attention needs a CUDA device; torch sees none")
    print(f"correct: worst relative error {check_correct():.1e}", flush=True)
    ceilings = Ceilings(arguments.pool_gib)
    print(ceilings, flush=True)
    suite = Suite(ceilings, FlashInfer() if installed() and not arguments.no_peer else None, arguments.plot)
    standing_file = RESULTS / "attention-h200.json"
    standing = json.loads(standing_file.read_text(encoding="utf-8")) if standing_file.exists() else None
    rows = [Row("ceiling: reading", COPY, round(100 * ceilings.read / ceilings.copy, 1), "higher", note=str(ceilings))]
    for part in arguments.only.split(","):
        measure: Callable[[], list[Row]] = getattr(suite, part)
        for row in measure():
            print(f"{row.name:70} {row.value:8} {row.unit:20} goal {row.goal} peer {row.peer_value} {row.note[:60]}")
            sys.stdout.flush()
            rows.append(row)
        path = write_result(
            "attention-h200", joined(standing, [asdict(row) for row in rows]), folder=arguments.results,
            command="PYTHONPATH=kernels python3 benchmarks/attention.py",
        )  # fmt: skip
    print(path)


if __name__ == "__main__":
    main()
