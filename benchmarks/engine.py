"""The engine on one GPU with dummy weights of Llama-3-8B's shape, beside vLLM's stored figures.

PYTHONPATH=kernels:server_image python3 benchmarks/engine.py [--only WORD …] [--start] [--profile] [--results FOLDER]

Workloads are those of the stored vLLM run: greedy, random prompts, one process. Each has a time limit of its own, and
the result file is written anew after each, so that a run that is cut off leaves what it measured.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import statistics
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

STARTED = time.monotonic()

import torch  # noqa: E402 - its import belongs to the start

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from octavo_server.engine.core import StepTrace  # noqa: E402
from octavo_server.engine.messages import Outputs, SamplingParams, Submit  # noqa: E402
from octavo_server.llm import LLM, GenerationParams  # noqa: E402

from benchmarks.common import RESULTS, Row, write_result  # noqa: E402
from benchmarks.engine_load import forget_files, load_seconds, read_file, write_weights  # noqa: E402

LLAMA_8B = {
    "architectures": ["LlamaForCausalLM"],
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "vocab_size": 128256,
    "max_position_embeddings": 131072,
    "rope_theta": 500000.0,
    "rms_norm_eps": 1e-5,
    "torch_dtype": "bfloat16",
    "tie_word_embeddings": False,
}
SMALL = {**LLAMA_8B, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4,
         "num_key_value_heads": 2, "vocab_size": 1000, "max_position_embeddings": 4096,
         "torch_dtype": "float32"}  # fmt: skip
"""For a try without a GPU."""
PEER = "vLLM 0.22.0 (stored run)"
COMMAND = "PYTHONPATH=kernels:server_image python3 benchmarks/engine.py"


@dataclass
class Bench:
    """A loaded model and what was measured so far."""

    llm: LLM
    vocabulary: int
    scale: int
    """Prompt lengths are divided by it: 1, or more for a try without a GPU."""
    results: Path
    ceilings: str
    rows: list[Row] = field(default_factory=list)
    random: random.Random = field(default_factory=lambda: random.Random(0))

    def prompt(self, length: int) -> list[int]:
        """Random token ids."""
        return [self.random.randrange(10, self.vocabulary - 300) for _ in range(max(1, length // self.scale))]

    def generate(self, prompts: Sequence[list[int]], new_tokens: int) -> tuple[float, int]:
        """Seconds and generated tokens of one greedy call."""
        params = GenerationParams(max_tokens=new_tokens, temperature=0.0, ignore_eos=True)
        begun = time.monotonic()
        answers = self.llm.generate(prompts, params, progress=False, detokenize=False)
        seconds = time.monotonic() - begun
        assert all(len(answer.token_ids) == new_tokens for answer in answers), answers[0].message
        return seconds, sum(len(answer.token_ids) for answer in answers)

    def add(self, name: str, unit: str, value: float, goal: float | None, peer: float | None = None,
            note: str = "", better: str = "higher") -> None:  # fmt: skip
        """Keeps a figure, prints it and writes the file anew."""
        row = Row(name, unit, float(f"{value:.5g}"), better, goal, PEER if peer else "", peer, note)  # type: ignore[arg-type]
        self.rows.append(row)
        print(f"{time.monotonic() - STARTED:6.1f} s  {name}: {row.value} {unit} (goal {goal}, peer {peer}) {note}",
              flush=True)  # fmt: skip
        write_result("engine-h200", self.rows, command=COMMAND, folder=self.results)


@contextmanager
def time_limit(seconds: float) -> Iterator[None]:
    """Raises TimeoutError inside the block once its time is over."""

    def over(number: int, frame: object) -> None:
        raise TimeoutError(f"not done in {seconds:.0f} s")

    before = signal.signal(signal.SIGALRM, over)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def one_stream(bench: Bench) -> None:
    seconds, tokens = bench.generate([bench.prompt(128)], 256)
    bench.add("one stream, 128 in, 256 out", "tok/s", tokens / seconds, 225, 159, "stretch 245")


def sixty_four(bench: Bench) -> None:
    seconds, tokens = bench.generate([bench.prompt(128) for _ in range(64)], 256)
    bench.add("64 × (128 in, 256 out)", "tok/s", tokens / seconds, 11000, 9386, "stretch 12,000")


def decode_heavy(bench: Bench) -> None:
    seconds, tokens = bench.generate([bench.prompt(128) for _ in range(256)], 512)
    bench.add("256 × (128 in, 512 out)", "tok/s", tokens / seconds, 20500, 18865, "stretch 22,000")


def throughput(bench: Bench) -> None:
    prompts = [bench.prompt(1024) for _ in range(512)]
    seconds, tokens = bench.generate(prompts, 128)
    total = tokens + sum(map(len, prompts))
    bench.add("512 × (1024 in, 128 out), in and out", "tok/s", total / seconds, 37000, 35623)


def first_token_32k(bench: Bench) -> None:
    seconds, _ = bench.generate([bench.prompt(32768)], 1)
    bench.add("time to first token, 32k prompt", "s", seconds, 1.15, 1.18, "stretch 1.10", better="lower")


def first_token_130k(bench: Bench) -> None:
    seconds, _ = bench.generate([bench.prompt(130000)], 1)
    bench.add("time to first token, 130k prompt", "s", seconds, 9.9, 10.09, "stretch 9.5", better="lower")


def shared_prefix(bench: Bench) -> None:
    prefix = bench.prompt(8192)
    for name, goal, peer in (("first run", 6500, 3230), ("second run", 9500, 3511)):
        before = bench.llm.engine.stats([]).shared_read_tokens_total
        seconds, tokens = bench.generate([prefix + bench.prompt(128) for _ in range(64)], 128)
        saved = bench.llm.engine.stats([]).shared_read_tokens_total - before
        note = f"{saved / 1e6:.0f} M reads of cached tokens saved"
        bench.add(f"64 sharing an 8k prefix, 128 out: {name}", "tok/s", tokens / seconds, goal, peer, note)


def arrivals(bench: Bench, *, seconds: float = 10.0, limit_seconds: float = 0.025) -> None:
    """64 requests decode; each second a prompt of 8k tokens comes."""
    engine = bench.llm.engine
    engine.limit_steps(limit_seconds)
    greedy = SamplingParams(temperature=0.0)

    def submit(prompt: list[int], new_tokens: int) -> int:
        number = bench.llm.take_id()
        data = b"".join(token.to_bytes(4, "little") for token in prompt)
        assert engine.submit(0, Submit(number, data, greedy, new_tokens)) == []
        return number

    slowest: list[StepTrace] = []
    engine.observer = slowest.append
    last = {submit(bench.prompt(128), 3500): 0.0 for _ in range(64)}
    waiting = [bench.prompt(8192) for _ in range(int(seconds))]
    gaps: list[float] = []
    sent: dict[int, float] = {}
    first: dict[int, float] = {}
    begun = time.monotonic() + 1.0
    try:
        while len(first) < int(seconds):
            now = time.monotonic()
            if waiting and now >= begun + len(sent):
                sent[submit(waiting.pop(), 16)] = now
            for _, message in engine.step():
                at = time.monotonic()
                for output in message.outputs if isinstance(message, Outputs) else ():
                    if output.request_id in last:
                        before, last[output.request_id] = last[output.request_id], at
                        if before and at > begun:
                            gaps.append(at - before)
                    elif output.request_id not in first:
                        first[output.request_id] = at - sent[output.request_id]
    finally:
        engine.drop_connection(0)
        while engine.busy:
            engine.step()
        engine.limit_steps(float("inf"))
        engine.observer = None
    for step in sorted((step for step in slowest if step.rows >= 64), key=lambda step: -step.device_seconds)[:4]:
        print(f"slow step: {step}", flush=True)
    gaps.sort()
    waits = sorted(first.values())
    name = "64 decoding, an 8k prompt each second: "
    note = f"p99 {1000 * gaps[int(0.99 * len(gaps))]:.1f} ms; steps are limited to {1000 * limit_seconds:.0f} ms"
    bench.add(name + "largest gap", "ms", 1000 * gaps[-1], 30, note=note, better="lower")
    bench.add(name + "median gap", "ms", 1000 * statistics.median(gaps), 7, better="lower")
    bench.add(name + "TTFT p95 of the prompts", "s", waits[int(0.95 * (len(waits) - 1) + 0.5)], 0.6, better="lower")


def trace(bench: Bench) -> None:
    """Where the time of a decode step goes, by number of requests: device, and the host beside it."""
    for count in (1, 64, 256):
        steps: list[StepTrace] = []
        bench.llm.engine.observer = steps.append
        bench.generate([bench.prompt(128) for _ in range(count)], 64)
        bench.llm.engine.observer = None
        decode = [step for step in steps if step.rows == step.tokens == count][2:]
        if not decode:
            continue
        device = statistics.median(step.device_seconds for step in decode)
        host = statistics.median(step.host_seconds for step in decode)
        parts = {
            name: 1e6 * statistics.median(getattr(step, f"{name}_seconds") for step in decode)
            for name in ("plan", "launch", "wait", "deliver", "sample")
        }
        note = ", ".join(f"{name} {value:.0f}" for name, value in parts.items()) + " µs of the host's"
        bench.add(f"decode step of {count}: device", "ms", 1000 * device, None, note=note, better="lower")
        bench.add(f"decode step of {count}: host", "ms", 1000 * host, 0.3 if count == 256 else None, better="lower")


KINDS = (
    ("plan of attention", ("plan_short", "plan_long", "plan_merge", "plan_rows")),
    ("attention", ("attend", "merge_lists", "_merge")),
    ("products", ("gemm", "cutlass", "gemv", "nvjet", "skinny", "splitK", "xmma")),
    ("norms", ("rms_norm",)),
    ("rotary embedding and append", ("rope_append",)),
    ("SiLU·mul", ("silu",)),
    ("sampling", ("argmax", "reduce_kernel", "sample", "ArgMax")),
)


@contextmanager
def decode_steps(bench: Bench, prompts: Sequence[list[int]], steps: int) -> Iterator[Callable[[], None]]:
    """Brings requests to where all of them generate, gives what runs some more steps, and ends them."""
    engine = bench.llm.engine
    greedy = SamplingParams(temperature=0.0)
    for prompt in prompts:
        data = b"".join(token.to_bytes(4, "little") for token in prompt)
        engine.submit(0, Submit(bench.llm.take_id(), data, greedy, 4 * steps + 100))
    traces: list[StepTrace] = []
    engine.observer = traces.append
    while not (traces and traces[-1].rows == traces[-1].tokens == len(prompts)):
        engine.step()
    engine.observer = None
    for _ in range(4):
        engine.step()

    def run() -> None:
        for _ in range(steps):
            engine.step()
        torch.cuda.synchronize()

    try:
        yield run
    finally:
        engine.drop_connection(0)
        while engine.busy:
            engine.step()


def profile(bench: Bench) -> None:
    """Device time by kind of kernel over some steps in which all requests generate, from the profiler's trace."""
    from torch.profiler import ProfilerActivity
    from torch.profiler import profile as profiler

    prefix = bench.prompt(8192)
    cases = (
        ("1", [bench.prompt(128)]),
        ("64", [bench.prompt(128) for _ in range(64)]),
        ("256 with 384 cached tokens", [bench.prompt(384) for _ in range(256)]),
        ("64 that share an 8k prefix", [prefix + bench.prompt(128) for _ in range(64)]),
    )
    steps = 16
    for name, prompts in cases:
        with decode_steps(bench, prompts, steps) as run, profiler(activities=[ProfilerActivity.CUDA]) as found:
            run()
        times: dict[str, float] = defaultdict(float)
        for event in found.key_averages():
            kind = next((kind for kind, words in KINDS if any(word in event.key for word in words)), "other")
            times[kind] += event.self_device_time_total
        total = sum(times.values())
        by_time = sorted(times.items(), key=lambda item: -item[1])
        note = ", ".join(f"{kind} {one / steps / 1000:.3f} ms ({100 * one / total:.1f} %)" for kind, one in by_time)
        longest = sorted(found.key_averages(), key=lambda event: -event.self_device_time_total)[:14]
        shown = [(one.key[:50], f"{one.self_device_time_total / steps:.0f} µs", one.count // steps) for one in longest]
        print(f"profile {name}", shown, flush=True)
        bench.add(f"kernels of a step of {name}", "ms", total / steps / 1000, None, note=note, better="lower")


def load_rate(bench: Bench) -> None:
    """Weights from a file into the GPU, beside what bus and disk give: 5.5 GB in the shape of an 8B model's tensors."""
    shape = {**LLAMA_8B, "num_hidden_layers": 8}
    with tempfile.TemporaryDirectory() as folder:
        size = write_weights(Path(folder), shape)
        pinned = torch.empty(1 << 28, dtype=torch.uint8, pin_memory=True)
        target = torch.empty_like(pinned, device="cuda")
        target.copy_(pinned)
        torch.cuda.synchronize()
        begun = time.monotonic()
        for _ in range(8):
            target.copy_(pinned, non_blocking=True)
        torch.cuda.synchronize()
        bus = 8 * pinned.nbytes / (time.monotonic() - begun)
        del target
        cached = size / load_seconds(Path(folder))
        note = (
            f"file in the page cache; {cached / 1e9:.1f} of {bus / 1e9:.1f} GB/s that copies from pinned memory reach"
        )
        bench.add("weights from a file: share of the bus's rate", "%", 100 * cached / bus, 80, note=note)
        if forget_files():
            begun = time.monotonic()
            read_file(Path(folder) / "model.safetensors")
            disk = size / (time.monotonic() - begun)
            forget_files()
            cold = size / load_seconds(Path(folder))
            note = f"file not in the page cache; {cold / 1e9:.2f} of {disk / 1e9:.2f} GB/s that 8 readers reach"
            bench.add("weights from a file: share of the disk's rate", "%", 100 * cold / disk, 80, note=note)


def profile_prompt(bench: Bench) -> None:
    """Device time by kind of kernel while a long prompt is computed."""
    from torch.profiler import ProfilerActivity
    from torch.profiler import profile as profiler

    for length in (8192, 32768):
        with profiler(activities=[ProfilerActivity.CUDA]) as found:
            seconds, _ = bench.generate([bench.prompt(length)], 1)
        events = sorted(found.key_averages(), key=lambda event: -event.self_device_time_total)
        shown = [(event.key[:60], round(event.self_device_time_total / 1000, 1), event.count) for event in events[:14]]
        total = sum(event.self_device_time_total for event in events) / 1e6
        print(f"profile of {length}: kernels {total:.3f} s of {seconds:.3f} s; ms and launches: {shown}", flush=True)


def products(bench: Bench) -> None:
    """Each product of a step as torch calls cuBLAS, by number of rows."""
    shapes = {"qkv": (6144, 4096), "o": (4096, 4096), "gate_up": (28672, 4096), "down": (4096, 14336),
              "head": (128256, 4096)}  # fmt: skip
    for rows in (1, 4, 16, 64, 128, 256):
        line = []
        for name, (out, depth) in shapes.items():
            # Together beyond the L2 cache, so that each call reads its weight from memory.
            count = max(2, (1 << 28) // (2 * out * depth))
            weights = [torch.randn(out, depth, device="cuda", dtype=torch.bfloat16) for _ in range(count)]
            x = torch.randn(rows, depth, device="cuda", dtype=torch.bfloat16)
            linear = graph_seconds([partial(torch.nn.functional.linear, x, w) for w in weights])
            line.append(f"{name} {2e-12 * out * depth / linear:.2f}")
        print(f"products of {rows} rows, TB/s of the weight: {', '.join(line)}", flush=True)


def graph_seconds(calls: Sequence[Callable[[], object]], repeats: int = 10) -> float:
    """Seconds of a call, measured in a graph of several."""
    for call in calls:
        call()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(repeats):
            for call in calls:
                call()
    times = []
    for _ in range(5):
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        graph.replay()
        end.record()
        end.synchronize()
        times.append(begin.elapsed_time(end) / 1000 / repeats / len(calls))
    return statistics.median(times)


def ceilings() -> str:
    """Copy bandwidth and bf16 product rate of this GPU, now."""
    if not torch.cuda.is_available():
        return "no GPU"
    source = torch.randn(1 << 29, device="cuda")
    target = torch.empty_like(source)
    copy = 8 * source.numel() / graph_seconds([lambda: torch.add(source, 0.0, out=target)], 3)
    a, b = torch.randn(2, 8192, 8192, device="cuda", dtype=torch.bfloat16)
    product = 2 * 8192**3 / graph_seconds([lambda: a @ b], 5)
    return f"this run: copy {copy / 1e12:.2f} TB/s, bf16 8192³ {product / 1e12:.0f} TFLOP/s; vLLM's run: 4.28, 737"


WORKLOADS: tuple[tuple[Callable[[Bench], None], float], ...] = (
    (one_stream, 15),
    (sixty_four, 20),
    (decode_heavy, 30),
    (shared_prefix, 25),
    (first_token_32k, 10),
    (throughput, 40),
    (arrivals, 30),
    (first_token_130k, 25),
    (trace, 20),
    (load_rate, 60),
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="*", default=[], help="workloads whose name holds one of these words")
    parser.add_argument("--start", action="store_true", help="only load, and say how long it took")
    parser.add_argument("--profile", action="store_true", help="also the profiler's times by kind of kernel")
    parser.add_argument("--products", action="store_true", help="also the products of a step by number of rows")
    parser.add_argument("--results", type=Path, default=RESULTS, help="folder for the result file")
    parser.add_argument("--cache", default="as found", help="what to say of the kernel cache: warm, cold")
    parser.add_argument("--small", action="store_true", help="a tiny model and short prompts: a try without a GPU")
    arguments = parser.parse_args()
    if not torch.cuda.is_available() and not arguments.small:
        raise SystemExit("this benchmark needs a CUDA device; --small tries it without one")
    shape = SMALL if arguments.small else LLAMA_8B
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "config.json").write_text(json.dumps(shape))
        settings: dict[str, Any] = {"cpu_threads": 1} if arguments.small else {}
        # 1 = each kernel at its first launch, for the comparison.
        settings["compile_processes"] = int(os.environ.get("OCTAVO_COMPILE_PROCESSES", "0"))
        llm = LLM(folder, load_format="dummy", memory_percent=90, **settings)
    start = time.monotonic() - STARTED
    stages = ", ".join(f"{name} {seconds:.1f}" for name, seconds in llm.start_seconds.items())
    print(f"stages in s: {stages}", flush=True)
    print(f"ready {start:.1f} s after the program's start; {llm.ready.capacity_tokens} tokens of cache", flush=True)
    if arguments.start:
        if arguments.cache in ("cold", "serial"):
            Path(arguments.results / f"{arguments.cache}-start.txt").write_text(f"{start:.1f}")
        return
    limits = "" if arguments.small else ceilings()
    print(limits, flush=True)
    bench = Bench(llm, int(str(shape["vocab_size"])), 100 if arguments.small else 1, arguments.results, limits)
    bench.generate([bench.prompt(128) for _ in range(8)], 16)
    bench.add(
        "start to Ready, dummy weights", "s", start, 25, 79, f"kernel cache {arguments.cache}; {limits}", better="lower"
    )
    cold = arguments.results / "cold-start.txt"
    if cold.exists():
        note = "no kernel compiled before; a run of its own before this one"
        bench.add("start to Ready, no compiled kernels", "s", float(cold.read_text()), 60, note=note, better="lower")
    serial = arguments.results / "serial-start.txt"
    if serial.exists():
        note = "kernels compiled one by one, each at its first launch; a run of its own"
        name = "start to Ready, no compiled kernels, one process"
        bench.add(name, "s", float(serial.read_text()), None, note=note, better="lower")
    extra = [(profile, 60.0), (profile_prompt, 20.0)] * arguments.profile + [(products, 60.0)] * arguments.products
    for workload, seconds in (*extra, *WORKLOADS):
        if (
            (workload, seconds) not in extra
            and arguments.only
            and not any(word in workload.__name__ for word in arguments.only)
        ):
            continue
        try:
            with time_limit(seconds):
                workload(bench)
        except Exception as error:  # noqa: BLE001 - the other workloads are to be measured
            print(f"{workload.__name__}: {type(error).__name__}: {error}", flush=True)


if __name__ == "__main__":
    main()
