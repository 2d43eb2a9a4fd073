"""Whether a launch is right, and how long it takes: what the tuner asks of a device."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from octavo_kernels.attention import PagedAttention
from octavo_kernels.launch_table import LaunchTable
from octavo_kernels.shape import FP8, AttentionShape
from octavo_kernels.testing import PagedCase, random_case, relative_error

# Pools are so large that no cache holds what the next measurement reads.
GPU_BYTES, CPU_BYTES = 1 << 29, 1 << 27
TOLERANCE = {torch.float64: 1e-5, torch.float32: 1e-4, torch.float16: 5e-3, torch.bfloat16: 2e-2}
CHECKED = [(1, 300), (3, 77), (1, 1), (40, 200), (1, 2100)]
Sequences = Sequence[tuple[int, int]]


@dataclass(frozen=True)
class Reference:
    """A random batch with what the float64 reference gives for it: made once, compared with every launch."""

    case: PagedCase
    expected: torch.Tensor

    @classmethod
    def of(cls, shape: AttentionShape, device: torch.device) -> Reference:
        case = random_case(shape, CHECKED, device=device)
        return cls(case, case.reference()[0])

    def agrees(self, attention: PagedAttention) -> bool:
        """Whether this attention's output is the reference's up to the rounding of the shape's dtype; NaN is not."""
        out, _ = self.case.attend(attention, want_lse=False)
        return relative_error(out, self.expected) < TOLERANCE[self.case.shape.dtype]


def attention_with(shape: AttentionShape, device: torch.device, table: LaunchTable, tokens: int) -> PagedAttention:
    """Attention that takes its launches from this table."""
    return PagedAttention(shape, device=device, max_tokens=tokens, max_sequences=1024, launch_table=table)


class Workload:
    """A batch over random pages whose layers are timed."""

    def __init__(self, shape: AttentionShape, sequences: Sequences, device: torch.device) -> None:
        self.shape = shape
        self.device = device
        pages_of = [-(-length // shape.page_size) for _, length in sequences]
        pages = sum(pages_of) + 1
        pool = shape.pool_shape(pages)
        elements = pages * pool[1] * pool[2] * pool[3] * pool[4]
        wanted = (GPU_BYTES if device.type == "cuda" else CPU_BYTES) // (elements * shape.pool_dtype.itemsize)
        sets = max(1, min(16, wanted))
        generator = torch.Generator(device=device).manual_seed(0)
        if shape.pool_dtype == FP8:
            bits = torch.randint(0, 0x70, (sets, *pool), generator=generator, device=device, dtype=torch.uint8)
            self.pools = bits.view(FP8)
        else:
            values = torch.randn((sets, *pool), generator=generator, device=device, dtype=torch.float32)
            self.pools = values.to(shape.pool_dtype)
        order = (torch.randperm(pages - 1, generator=torch.Generator().manual_seed(1)) + 1).int()
        table = torch.zeros(len(sequences), max(pages_of), dtype=torch.int32)
        for row, own in enumerate(torch.split(order, pages_of)):
            table[row, : own.shape[0]] = own
        starts = torch.tensor([0, *(new for new, _ in sequences)]).cumsum(0).int()
        self.tokens = int(starts[-1])
        lengths = torch.tensor([length for _, length in sequences]).int()
        self.index = [tensor.to(device) for tensor in (starts, lengths, table)]
        q = torch.randn(self.tokens, shape.query_heads, shape.head_size, generator=generator, device=device)
        self.q = q.to(shape.dtype)
        self.out = torch.empty_like(self.q)

    def seconds(self, table: LaunchTable) -> float:
        """Median time of one layer with this table's launches."""
        attention = attention_with(self.shape, self.device, table, self.tokens)
        attention.plan(*self.index, tokens=self.tokens)
        steps = [lambda kv=kv: attention.run(self.q, kv, self.out) for kv in self.pools]
        return graph_seconds(steps) if self.device.type == "cuda" else _host_seconds(steps)


def _host_seconds(steps: Sequence[Callable[[], object]]) -> float:
    times = []
    for _ in range(3):
        begin = time.perf_counter()
        for step in steps:
            step()
        times.append((time.perf_counter() - begin) / len(steps))
    return statistics.median(times)


def graph_seconds(steps: Sequence[Callable[[], object]]) -> float:
    """Replays of one CUDA graph that runs all steps: the gaps between launches are a served model's."""
    for step in steps:
        step()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(max(1, 8 // len(steps))):
            for step in steps:
                step()
    count = max(1, 8 // len(steps)) * len(steps)
    graph.replay()
    times = []
    for _ in range(7):
        begin = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        end = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        begin.record()
        graph.replay()
        end.record()
        end.synchronize()
        times.append(float(begin.elapsed_time(end)) / 1e3 / count)
    return statistics.median(times)
