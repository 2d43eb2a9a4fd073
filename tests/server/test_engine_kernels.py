"""The engine's part of compiling kernels ahead: what is rehearsed, and that no fault of it stops a start."""

from __future__ import annotations

import logging
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from octavo_server.config import CacheConfig, EngineConfig, ModelConfig, SchedulerConfig
from octavo_server.engine import kernels
from octavo_server.engine.graphs import buckets
from octavo_server.engine.messages import Progress
from octavo_server.engine.startup import start

pytestmark = pytest.mark.usefixtures("one_thread")


def test_a_rehearsal_goes_through_the_largest_step_and_all_graphs_and_leaves_the_model_whole(tiny_model: Path) -> None:
    config = EngineConfig(
        ModelConfig(str(tiny_model), max_length_tokens=64),
        CacheConfig(block_size_tokens=8, pool_bytes=1 << 20),
        SchedulerConfig(max_batched_tokens=96, max_sequences=32),
        device="CPU",
        cpu_threads=1,
    )
    stages: list[str] = []
    engine, _ = start(config, lambda progress: stages.append(progress.stage))
    assert "kernels" not in stages, "a CPU compiles nothing"
    runner = engine._runner
    whole = list(runner._decoder._layers)
    sizes: list[tuple[int, int]] = []
    forward = runner._forward

    def watched(tensors: Any, tokens: int, sequences: int, *rest: Any, **settings: Any) -> torch.Tensor:
        assert len(runner._decoder._layers) == min(2, len(whole))
        sizes.append((tokens, sequences))
        return forward(tensors, tokens, sequences, *rest, **settings)

    runner._forward = watched  # type: ignore[method-assign]
    runner.rehearse()
    assert sizes == [(96, 32), *((bucket.tokens, bucket.sequences) for bucket in buckets(96, 32))]
    assert runner._decoder._layers == whole


def test_a_fault_while_compiling_ahead_is_logged_and_leaves_it_to_the_launches(
    caplog: Any, tmp_path: Path, monkeypatch: Any
) -> None:
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))

    def rehearse() -> None:
        raise RuntimeError("the rehearsal is on fire")

    told: list[Progress] = []
    runner: Any = SimpleNamespace(device=torch.device("cuda"), rehearse=rehearse)
    with caplog.at_level(logging.INFO):
        kernels.compile_kernels(runner, told.append)
    assert [progress.stage for progress in told] == ["kernels"]
    assert "each is compiled at its first launch" in caplog.text
    assert "the rehearsal is on fire" in caplog.text
    kernels.compile_kernels(runner, told.append, processes=1)
    assert len(told) == 1
