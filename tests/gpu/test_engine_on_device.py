"""The engine as it starts on an accelerator: the same answers as transformers on that device, whatever the batch.

Runs on the CPU as well, so that the test itself is tried where there is no GPU; `make test-gpu` runs it on one. It
needs torch and transformers alone.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from octavo_server.config import CacheConfig, EngineConfig, ModelConfig, SchedulerConfig
from octavo_server.engine.core import Engine
from octavo_server.engine.messages import Finished, Outputs, Ready, SamplingParams, Submit
from octavo_server.engine.startup import start

DEVICES = ["CPU", pytest.param("CUDA", marks=pytest.mark.gpu)]
NEW_TOKENS = 24
VOCABULARY = 1000


@pytest.fixture(scope="module")
def model_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Llama of 9 query and 3 KV heads with random weights, wide enough that its logits differ clearly."""
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(3)
    config = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=576,
        intermediate_size=640,
        num_hidden_layers=3,
        num_attention_heads=9,
        num_key_value_heads=3,
        max_position_embeddings=512,
        initializer_range=0.08,
        tie_word_embeddings=False,
        bos_token_id=None,
        eos_token_id=None,
    )
    folder = tmp_path_factory.mktemp("model")
    LlamaForCausalLM(config).save_pretrained(folder)
    return folder


def begin(folder: Path, device: str, dtype: str, **cache: Any) -> tuple[Engine, Ready]:
    if device == "CUDA" and not torch.cuda.is_available():
        pytest.skip("needs a CUDA device")
    config = EngineConfig(
        ModelConfig(str(folder), dtype=dtype),
        CacheConfig(**{"pool_bytes": 1 << 26, **cache}),
        SchedulerConfig(max_batched_tokens=256, max_sequences=16),
        device=device,
        cpu_threads=1,
    )
    return start(config, lambda progress: None)


def prompts() -> list[list[int]]:
    generator = torch.Generator().manual_seed(7)
    lengths = (1, 2, 15, 16, 17, 31, 64, 100, 150, 200, 3, 5, 8, 48, 90, 120)
    return [torch.randint(0, VOCABULARY, (length,), generator=generator).tolist() for length in lengths]


def generate(engine: Engine, asked: Sequence[list[int]], sampling: SamplingParams) -> list[list[int]]:
    """All prompts at once; every request must end by its length."""
    answers: list[list[int]] = [[] for _ in asked]
    for number, prompt in enumerate(asked):
        data = struct.pack(f"<{len(prompt)}i", *prompt)
        assert engine.submit(0, Submit(number, data, sampling, NEW_TOKENS)) == []
    reasons = {}
    while engine.busy:
        for _, message in engine.step():
            if isinstance(message, Outputs):
                for output in message.outputs:
                    answers[output.request_id] += output.token_ids
            elif isinstance(message, Finished):
                reasons[message.request_id] = message.reason
    assert set(reasons.values()) == {"length"}, reasons
    return answers


def greedy_margins(folder: Path, device: str, asked: Sequence[list[int]], answers: Sequence[list[int]]) -> float:
    """How far below its step's best logit, at most, transformers finds a generated token (0: always its own choice)."""
    from transformers import LlamaForCausalLM

    model = LlamaForCausalLM.from_pretrained(folder, dtype=torch.float32).to(device.lower()).eval()
    worst = 0.0
    with torch.inference_mode():
        for prompt, answer in zip(asked, answers, strict=True):
            ids = torch.tensor([prompt + answer], device=device.lower())
            logits = model(ids).logits[0, len(prompt) - 1 : -1]
            chosen = logits.gather(1, ids[0, len(prompt) :, None])[:, 0]
            worst = max(worst, (logits.amax(dim=1) - chosen).max().item())
    return worst


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("block_size", [8, 16, 64])
def test_float32_answers_are_transformers_own_alone_together_and_from_the_prefix_cache(
    model_folder: Path, device: str, block_size: int
) -> None:
    engine, ready = begin(model_folder, device, "Float32", block_size_tokens=block_size)
    assert ready.attention_backend == ("Triton" if device == "CUDA" else "CPU")
    greedy = SamplingParams(temperature=0.0)
    asked = prompts()
    together = generate(engine, asked, greedy)
    assert greedy_margins(model_folder, device, asked, together) < 2e-3
    hits = engine.stats([]).prefix_hit_tokens_total
    assert greedy_margins(model_folder, device, asked, generate(engine, asked, greedy)) < 2e-3
    assert engine.stats([]).prefix_hit_tokens_total > hits, "the second time prompts come from the cache"
    for number in (0, 4, 9):
        alone = generate(engine, [asked[number]], greedy)
        assert greedy_margins(model_folder, device, [asked[number]], alone) < 2e-3


@pytest.mark.parametrize("device", DEVICES)
def test_a_pool_too_small_for_all_preempts_and_still_answers_rightly(model_folder: Path, device: str) -> None:
    bytes_per_block = 3 * 2 * 3 * 16 * 64 * 4
    engine, _ = begin(model_folder, device, "Float32", pool_bytes=24 * bytes_per_block)
    asked = prompts()
    answers = generate(engine, asked, SamplingParams(temperature=0.0))
    assert engine.stats([]).preemptions_total > 0
    assert greedy_margins(model_folder, device, asked, answers) < 2e-3


@pytest.mark.parametrize("device", DEVICES)
def test_bfloat16_chooses_near_the_best_and_a_seed_repeats_its_draws(model_folder: Path, device: str) -> None:
    engine, _ = begin(model_folder, device, "BFloat16")
    asked = prompts()
    assert greedy_margins(model_folder, device, asked, generate(engine, asked, SamplingParams(temperature=0.0))) < 1.0
    drawn = SamplingParams(temperature=0.8, top_k=50, top_p=0.95, min_p=0.01, seed=11)
    assert generate(engine, [asked[7]], drawn) == generate(engine, [asked[7]], drawn)
    assert generate(engine, [asked[7]], drawn) != generate(engine, [asked[7]], SamplingParams(temperature=0.8, seed=12))


@pytest.mark.parametrize("device", [DEVICES[1]])
def test_memory_percent_bounds_what_the_pool_takes(model_folder: Path, device: str) -> None:
    before = torch.cuda.mem_get_info()[0] if torch.cuda.is_available() else 0
    engine, ready = begin(model_folder, device, "BFloat16", pool_bytes=0, memory_percent=10)
    free, total = torch.cuda.mem_get_info()
    assert before - free < 0.11 * total
    assert ready.capacity_tokens > 100_000
    assert generate(engine, prompts()[:2], SamplingParams(temperature=0.0))
