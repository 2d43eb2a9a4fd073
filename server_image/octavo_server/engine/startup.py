"""From a config to an engine that has generated a token, or to a refusal that names the way out."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from octavo_server.compatibility import fallbacks_here, unusable_accelerator
from octavo_server.config import BLOCK_SIZES_TOKENS, EngineConfig
from octavo_server.engine.blocks import BlockPool
from octavo_server.engine.core import Engine
from octavo_server.engine.grammars import Grammars
from octavo_server.engine.kernels import compile_kernels
from octavo_server.engine.launches import read_launches
from octavo_server.engine.machine import available_memory_bytes
from octavo_server.engine.messages import Finished, Progress, Ready, SamplingParams, Submit
from octavo_server.engine.runner import Runner
from octavo_server.engine.scheduler import Scheduler, SchedulerLimits
from octavo_server.engine.sizes import CachePlan, Refusal, cache_plan, plan_length, weight_bytes
from octavo_server.models.decoder import load_decoder
from octavo_server.weights import ModelSource, open_model
from octavo_server.weights.device_reader import DeviceReader
from octavo_server.weights.dummy import DummyModel
from octavo_server.weights.safetensors_model import SafetensorsModel

if TYPE_CHECKING:
    from llguidance import LLTokenizer

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
_NAMES = {torch.float32: "Float32", torch.bfloat16: "BFloat16", torch.float16: "Float16"}
_WARM_UP_CONNECTION = -1
_PROVISIONAL_BLOCKS = 64
_MARGIN_BYTES = 512 << 20
"""Left free for what was not measured: smaller graphs' own records, kernels loaded later, fragmentation."""


def start(config: EngineConfig, progress: Callable[[Progress], None]) -> tuple[Engine, Ready]:
    """Loads the model, allocates the pool and generates one token. Raises ModelError or Refusal."""
    progress(Progress("model", 0))
    device = choose_device(config.device)
    if config.tensor_parallel != 1:
        raise Refusal("ParallelismUnsupported", f"tensor_parallel is {config.tensor_parallel}; this engine runs on 1")
    if config.cache.block_size_tokens not in BLOCK_SIZES_TOKENS:
        allowed = ", ".join(map(str, BLOCK_SIZES_TOKENS))
        raise Refusal("BlockSizeUnsupported", f"block size {config.cache.block_size_tokens} is not one of {allowed}")
    if device.type == "cpu":
        # One while loading (engine/threads.py says why); the loop takes more when nobody else needs them.
        torch.set_num_threads(config.cpu_threads or 1)
    # Before the weights: what is wrong with it is told at once.
    launches = read_launches(config.launch_table)
    source = _open(config, device)
    spec = source.spec
    dtype = choose_dtype(config.model.dtype, spec.stored_dtype, device)
    quantization = choose_quantization(config.model.quantization, device)
    kv_dtype = dtype
    if config.cache.dtype.lower() != "auto":
        kv_dtype = choose_dtype(config.cache.dtype, "", device, flag="--kv-dtype")
    weights = weight_bytes(spec, dtype.itemsize, quantization)
    limits = SchedulerLimits(
        max_batched_tokens=config.scheduler.max_batched_tokens,
        max_sequences=config.scheduler.max_sequences,
        block_size=config.cache.block_size_tokens,
    )

    def plan_for(pool_bytes: int) -> CachePlan:
        return cache_plan(spec, block_size=limits.block_size, element_bytes=kv_dtype.itemsize, pool_bytes=pool_bytes)

    # On an accelerator what graphs and steps take is measured once the weights are there, and the pool gets the rest:
    # this plan is the largest that can come of it, and refuses early what it can't hold.
    plan = plan_for(config.cache.pool_bytes or default_pool_bytes(config, device, weights))
    max_length = plan_length(spec, plan, config.model.max_length_tokens)
    _check_memory(device, weights, plan)
    reader = DeviceReader(device) if device.type == "cuda" and isinstance(source, SafetensorsModel) else None
    if reader is not None and isinstance(source, SafetensorsModel):
        source.read_into(reader)
    try:
        decoder = load_decoder(
            source,
            device=device,
            dtype=dtype,
            quantization=quantization,
            max_length=max_length,
            progress=lambda percent: progress(Progress("weights", percent)),
        )
    finally:
        if reader is not None:
            reader.close()
    progress(Progress("pool", 0))
    measured = device.type == "cuda"
    runner = Runner(
        decoder,
        blocks=_PROVISIONAL_BLOCKS if measured else plan.blocks,
        block_size=limits.block_size,
        kv_dtype=kv_dtype,
        device=device,
        max_sequences=limits.max_sequences,
        max_batched_tokens=limits.max_batched_tokens,
        max_length=max_length,
        launches=launches,
    )
    compile_kernels(runner, progress, processes=config.compile_processes)
    if measured:
        working = working_memory_bytes(runner, device)
        if not config.cache.pool_bytes:
            plan = plan_for(default_pool_bytes(config, device, working + _MARGIN_BYTES))
            max_length = plan_length(spec, plan, config.model.max_length_tokens)
        runner.make_pool(plan.blocks)
        progress(Progress("graphs", 0))
        runner.capture()
    progress(Progress("first token", 0))
    generate_one_token(runner, limits, min(plan.blocks, 64), max_length, spec.vocabulary_size)
    scheduler = Scheduler(BlockPool(plan.blocks, prefix_caching=config.cache.prefix_caching), limits)
    grammars = Grammars(lambda: _grammar_tokenizer(Path(config.model.path)))
    engine = Engine(
        runner,
        scheduler,
        max_length=max_length,
        vocabulary=spec.vocabulary_size,
        grammars=grammars,
        step_seconds=config.scheduler.max_step_milliseconds / 1000,
    )
    ready = Ready(
        model_name=config.model.served_name or Path(config.model.path).name,
        vocabulary_size=spec.vocabulary_size,
        max_length_tokens=max_length,
        block_size_tokens=limits.block_size,
        capacity_tokens=plan.capacity_tokens,
        device=str(device),
        dtype=_NAMES[dtype],
        quantization=quantization,
        attention_backend=runner.attention_backend,
        fallback_reasons=[item.reason for item in fallbacks_here(device.type)],
        launch_source=runner.launches.source,
        launch_message=runner.launches.message,
    )
    return engine, ready


def _open(config: EngineConfig, device: torch.device) -> ModelSource:
    if config.model.load_format.lower() == "dummy":
        return DummyModel(Path(config.model.path), device)
    return open_model(config.model.path, config.model.format)


def _grammar_tokenizer(path: Path) -> LLTokenizer:
    """Loaded when the first grammar comes."""
    from octavo_server.text.grammar import grammar_tokenizer
    from octavo_server.text.tokenizer import load_tokenizer

    return grammar_tokenizer(load_tokenizer(path))


def choose_device(name: str) -> torch.device:
    """Auto takes a CUDA device where there is one."""
    wanted = name.lower()
    if wanted not in ("auto", "cpu", "cuda"):
        raise Refusal("DeviceUnsupported", f"device {name} is not one of Auto, CPU, CUDA")
    if wanted == "cuda" and not torch.cuda.is_available():
        raise Refusal("DeviceNotFound", "--device CUDA: no usable CUDA device; use --device CPU or mend the driver")
    if wanted == "auto" and (fault := unusable_accelerator()):
        raise Refusal("DeviceNotFound", fault)
    return torch.device("cuda" if wanted != "cpu" and torch.cuda.is_available() else "cpu")


def choose_dtype(name: str, stored: str, device: torch.device, *, flag: str = "--dtype") -> torch.dtype:
    """Auto means float32 on a CPU (exact, and as fast as any for small batches), else the dtype of the files."""
    wanted = name.lower()
    if wanted == "auto":
        wanted = "float32" if device.type == "cpu" else stored.lower()
    if wanted not in DTYPES:
        known = ", ".join(_NAMES[dtype] for dtype in DTYPES.values())
        raise Refusal("DtypeUnsupported", f"{flag} {name} has no path on {device.type}; use Auto or one of {known}")
    return DTYPES[wanted]


def choose_quantization(name: str, device: torch.device) -> str:
    """`None` or `Int8`; refuses what this device has no path for."""
    wanted = {"none": "None", "int8": "Int8", "fp8": "FP8"}.get(name.lower())
    if wanted is None:
        raise Refusal("QuantizationUnsupported", f"--quantization {name} is not one of None, Int8, FP8")
    instead = "None or Int8" if device.type == "cpu" else "None"
    if wanted == "FP8" or (wanted == "Int8" and device.type != "cpu"):
        raise Refusal("QuantizationUnsupported", f"--quantization {wanted} has no path on {device.type}; use {instead}")
    return wanted


def default_pool_bytes(config: EngineConfig, device: torch.device, needed_bytes: int) -> int:
    """1 GiB or a quarter of free memory on a CPU; memory_percent of the whole minus what is in use on a GPU.

    needed_bytes: what a GPU must hold beside the pool and does not hold yet.
    """
    if device.type == "cpu":
        free = available_memory_bytes()
        return min(1 << 30, free // 4) if free else 1 << 30
    free, total = torch.cuda.mem_get_info(device)
    return max(0, free - total * (100 - config.cache.memory_percent) // 100 - needed_bytes)


def working_memory_bytes(runner: Runner, device: torch.device) -> int:
    """What graphs and the largest step take beside weights and pool: tried on a pool of a few pages, then dropped."""
    torch.cuda.synchronize(device)
    torch.cuda.empty_cache()
    before = torch.cuda.mem_get_info(device)[0]
    runner.run_largest()
    runner.capture_largest()
    torch.cuda.synchronize(device)
    taken = before - torch.cuda.mem_get_info(device)[0]
    runner.make_pool(2)
    torch.cuda.empty_cache()
    # What stays (workspaces, loaded kernels) is no longer free and must not be counted twice.
    stays = before - torch.cuda.mem_get_info(device)[0]
    return max(0, taken - max(0, stays))


def generate_one_token(runner: Runner, limits: SchedulerLimits, blocks: int, max_length: int, vocabulary: int) -> None:
    """Runs a prompt and a following step through everything that a request uses; its blocks are forgotten after."""
    max_length = min(max_length, (blocks - 1) * limits.block_size)
    scheduler = Scheduler(BlockPool(blocks, prefix_caching=False), limits)
    engine = Engine(runner, scheduler, max_length=max_length, vocabulary=vocabulary)
    prompt = (1).to_bytes(4, "little") * min(8, max_length - 1)
    submit = Submit(0, prompt, SamplingParams(temperature=0.0), max_new_tokens=2)
    messages = engine.submit(_WARM_UP_CONNECTION, submit)
    deadline = time.monotonic() + 600
    while engine.busy and time.monotonic() < deadline:
        messages += engine.step()
    reasons = [message for _, message in messages if isinstance(message, Finished)]
    if len(reasons) != 1 or reasons[0].reason != "length":
        detail = reasons[0].message if reasons else "it did not end"
        raise RuntimeError(f"the first token could not be generated: {detail}")
    runner.forget_pages()


def _check_memory(device: torch.device, weights: int, plan: CachePlan) -> None:
    free = available_memory_bytes() if device.type == "cpu" else torch.cuda.mem_get_info(device)[0]
    needed = weights + plan.pool_bytes
    if free and needed > free:
        raise Refusal(
            "MemoryTooSmall",
            f"weights ({weights / 2**30:.2f} GiB) and KV pool ({plan.pool_bytes / 2**30:.2f} GiB) need "
            f"{needed / 2**30:.2f} GiB, free are {free / 2**30:.2f} GiB; use a smaller pool, Int8 or more memory",
        )
