"""What attention's benchmarks measure with: batches over several page sets, graph replays, the device's ceilings."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence

import torch
from octavo_kernels import AttentionShape, AttentionVariant
from octavo_kernels.batch import check_batch
from octavo_kernels.triton_backend import TritonBackend
from octavo_kernels.triton_launch import Launch

DEVICE = torch.device("cuda")
# Below this much KV, the second-level cache would hold a set: such cells run over 32 different sets.
SMALL_BYTES = 64_000_000
SMALL_SETS = 32
Sequences = Sequence[tuple[int, int]]
"""(new tokens, tokens in the cache) of each sequence."""


def seconds(steps: Sequence[Callable[[], object]], *, replays: int = 9) -> float:
    """Median time of one step, from replays of one CUDA graph that runs all of them in turn; fewer where it is long."""
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
        if sum(times) * len(steps) > 0.5:
            break
    return statistics.median(times)


class Ceilings:
    """The device's limits, measured in this run, and the memory that all cells take their pools from."""

    def __init__(self, pool_gib: int = 20) -> None:
        self.memory = torch.randn(pool_gib * 2**29, device=DEVICE, dtype=torch.bfloat16)
        source = self.memory[: 2**31].view(torch.float32)
        target = self.memory[2**31 : 2**32].view(torch.float32)
        self.copy = 2 * source.nbytes / seconds([lambda: torch.mul(source, 1.0, out=target)] * 4)
        words = self.memory[: 2**32].view(torch.float32)
        self.read = words.nbytes / seconds([lambda: torch.amax(words)] * 4)
        a, b = torch.randn(2, 8192, 8192, device=DEVICE).bfloat16()
        c = torch.empty_like(a)
        self.product = 2 * 8192**3 / seconds([lambda: torch.mm(a, b, out=c)] * 4)

    def __str__(self) -> str:
        return (
            f"copy {self.copy / 1e12:.2f} TB/s (read plus written), reading {self.read / 1e12:.2f} TB/s, "
            f"bfloat16 product of 8192³ {self.product / 1e12:.0f} TFLOP/s"
        )


class Cell:
    """A batch over several sets of random pages; the pages of a sequence lie in random order."""

    def __init__(self, ceilings: Ceilings, sequences: Sequences, shape: AttentionShape, *, sets: int | None = None):
        self.shape = shape
        self.sequences = sequences
        self.pages_of = [-(-length // shape.page_size) for _, length in sequences]
        self.pages = sum(self.pages_of) + 1
        elements = self.pages * 2 * shape.kv_heads * shape.page_size * shape.head_size
        fit = ceilings.memory.numel() // elements
        if fit < 2:
            raise ValueError(f"two sets of {2 * elements} bytes do not fit {ceilings.memory.nbytes} bytes of pools")
        wanted = sets or (SMALL_SETS if self.kv_bytes < SMALL_BYTES else 4)
        self.flat = [ceilings.memory[n * elements : (n + 1) * elements] for n in range(min(wanted, fit))]
        self.pools = [flat.view(shape.pool_shape(self.pages)) for flat in self.flat]
        generator = torch.Generator().manual_seed(self.pages)
        self.order = (torch.randperm(self.pages - 1, generator=generator) + 1).int()
        table = torch.zeros(len(sequences), max(self.pages_of), dtype=torch.int32)
        for row, own in enumerate(self.order.split(self.pages_of)):
            table[row, : own.shape[0]] = own
        starts = torch.tensor([0, *(new for new, _ in sequences)]).cumsum(0).int()
        self.tokens = int(starts[-1])
        self.lengths = torch.tensor([length for _, length in sequences]).int()
        self.starts = starts
        self.set_table(table)
        self.q = torch.randn(self.tokens, shape.query_heads, shape.head_size, device=DEVICE).to(shape.dtype)
        self.out = torch.empty_like(self.q)

    def set_table(self, table: torch.Tensor) -> None:
        """Another page table of the same lengths, for shared pages."""
        self.table = table
        tensors = (self.starts, self.lengths, table)
        self.batch = check_batch(*(tensor.to(DEVICE) for tensor in tensors), None, max_sequences=1 << 16)

    @property
    def kv_bytes(self) -> int:
        """Bytes of keys and values that a layer must read."""
        return sum(length for _, length in self.sequences) * token_bytes(self.shape)

    @property
    def operations(self) -> float:
        """Multiplications and additions of one causal layer."""
        pairs = sum(new * (length - new) + new * (new + 1) / 2 for new, length in self.sequences)
        return 4 * pairs * self.shape.query_heads * self.shape.head_size

    def run_seconds(self, backend: TritonBackend | None = None) -> float:
        """Time of a layer; the plan is made before, once for all sets, as a step makes it once for all layers."""
        backend = backend or make_backend(self.shape)
        backend.plan(self.batch, self.tokens)
        return seconds([lambda kv=kv: backend.run(self.q, kv, self.out, None) for kv in self.pools])


def token_bytes(shape: AttentionShape) -> int:
    """Bytes of one token's keys and values."""
    return 2 * shape.kv_heads * shape.head_size * shape.pool_dtype.itemsize


def make_backend(
    shape: AttentionShape,
    *,
    decode: Launch | None = None,
    prefill: Launch | None = None,
    hopper: bool | None = None,
) -> TritonBackend:
    """A backend for any batch of the benchmarks."""
    return TritonBackend(
        shape,
        AttentionVariant(),
        DEVICE,
        max_tokens=1 << 18,
        decode_launch=decode,
        prefill_launch=prefill,
        hopper=hopper,
    )
