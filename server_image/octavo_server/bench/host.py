"""What a step costs the host: the whole engine on a device that computes nothing.

Scheduling, building the batch, page-table updates, delivery and encoding are the real ones; model, attention and
sampling answer at once with token 1.
"""

from __future__ import annotations

import statistics
import time
from dataclasses import dataclass
from typing import Any

import torch

from octavo_server.engine.blocks import BlockPool
from octavo_server.engine.codec import encode
from octavo_server.engine.core import Engine
from octavo_server.engine.messages import SamplingParams, Submit
from octavo_server.engine.runner import Runner
from octavo_server.engine.scheduler import Scheduler, SchedulerLimits
from octavo_server.models.decoder import StepTensors
from octavo_server.weights import ModelSpec, RopeSpec

_VOCABULARY = 8
_BLOCK_SIZE = 16


class _NoModel:
    """A decoder whose logits always prefer token 1."""

    dtype = torch.float32
    spec = ModelSpec("none", "GGUF", "none", 1, 16, 16, 1, 1, 16, _VOCABULARY, 1 << 20, 1e-5, RopeSpec(1e4), True, 0)

    def __init__(self, rows: int) -> None:
        self._logits = torch.zeros(rows, _VOCABULARY)
        self._logits[:, 1] = 1.0

    def forward(self, step: StepTensors, attention: Any, pool: list[torch.Tensor]) -> torch.Tensor:
        rows = step.tokens if step.logit_rows is None else step.logit_rows
        return self._logits[: rows.shape[0]]


class _NoAttention:
    """Plans nothing."""

    backend = "none"

    def plan(self, *tensors: Any, **settings: Any) -> None:
        """Does nothing."""


@dataclass(frozen=True)
class HostCost:
    """Seconds of the host per step, by what it does."""

    total: float
    encode: float
    parts: dict[str, float]


def idle_engine(sequences: int, *, length: int = 4096) -> Engine:
    """An engine on a device that computes nothing, with room for so many requests of so many tokens."""
    blocks = sequences * (length // _BLOCK_SIZE) + 2
    limits = SchedulerLimits(8192, sequences, _BLOCK_SIZE)
    runner = Runner(
        _NoModel(8192),  # type: ignore[arg-type]
        blocks=2,
        block_size=_BLOCK_SIZE,
        kv_dtype=torch.float32,
        device=torch.device("cpu"),
        max_sequences=sequences,
        max_batched_tokens=limits.max_batched_tokens,
        max_length=length,
    )
    runner._attention = _NoAttention()  # type: ignore[assignment]
    runner.overlaps = True
    return Engine(runner, Scheduler(BlockPool(blocks), limits), max_length=length, vocabulary=_VOCABULARY)


def measure(sequences: int, steps: int) -> HostCost:
    """Medians over so many steps in which all requests generate."""
    engine = idle_engine(sequences)
    for number in range(sequences):
        # Prompts of different lengths, so that each step gives some of the requests a new block.
        prompt = (number % _VOCABULARY).to_bytes(4, "little") * (100 + number % _BLOCK_SIZE)
        assert engine.submit(0, Submit(number, prompt, SamplingParams(temperature=0.0), steps + 100)) == []
    traces: list[Any] = []
    engine.observer = traces.append
    totals: list[float] = []
    encodes: list[float] = []
    while len(totals) < steps:
        begun = time.perf_counter()
        messages = engine.step()
        done = time.perf_counter()
        for _, message in messages:
            encode(message)
        if traces and traces[-1].rows == traces[-1].tokens == sequences:
            totals.append(done - begun)
            encodes.append(time.perf_counter() - done)
    engine.drop_connection(0)
    names = ("plan", "launch", "wait", "deliver", "sample")
    parts = {name: statistics.median(getattr(one, f"{name}_seconds") for one in traces[-steps:]) for name in names}
    return HostCost(statistics.median(totals), statistics.median(encodes), parts)
