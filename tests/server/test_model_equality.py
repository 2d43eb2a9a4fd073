"""The real model's numbers: the same as transformers' on the same weights, in every configuration of the engine.

transformers reads each of our answers once (prompt and 64 generated tokens in one pass) and must find every generated
token to be its own greedy choice: by induction that is its own greedy answer. All configurations of the engine are then
compared with those answers token by token. Everything is float32 (quantization None).
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch
from octavo_server.engine.blocks import BlockPool
from octavo_server.engine.core import Engine
from octavo_server.engine.messages import Finished, Outputs, SamplingParams, Submit, TokenLogprobs
from octavo_server.engine.runner import Runner
from octavo_server.engine.scheduler import Scheduler, SchedulerLimits
from octavo_server.models.decoder import Decoder, load_decoder
from octavo_server.weights import open_model

NEW_TOKENS = 64
LOGIT_TOLERANCE = 1e-3
"""Largest difference of a logit (their scale is about 30): float32 sums in another order."""
GREEDY = SamplingParams(temperature=0.0)
TEXT = (
    "A sheet folded three times is an octavo. The printer folds it, cuts it and binds it with others into a book. "
    "In 1455 a workshop in Mainz printed a Bible of 1,286 pages; each took a day to set. Later books grew smaller: "
    "a traveller wanted one that fits into a pocket, and a student wanted one that he could pay for. "
)


@dataclass
class Answer:
    """What the engine sent for one request."""

    tokens: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprobs] = field(default_factory=list)
    prompt_logprobs: list[TokenLogprobs | None] = field(default_factory=list)
    cached_tokens: int = -1
    reason: str = ""


def make_engine(
    decoder: Decoder, *, block_size: int = 16, blocks: int = 600, batched_tokens: int = 2048, sequences: int = 16
) -> Engine:
    runner = Runner(
        decoder,
        blocks=blocks,
        block_size=block_size,
        kv_dtype=torch.float32,
        device=torch.device("cpu"),
        max_sequences=sequences,
        max_batched_tokens=batched_tokens,
        max_length=min(1024, (blocks - 1) * block_size),
    )
    for layer in runner.pool:
        layer.fill_(float("nan"))
    scheduler = Scheduler(BlockPool(blocks), SchedulerLimits(batched_tokens, sequences, block_size))
    vocabulary = decoder.spec.vocabulary_size
    return Engine(runner, scheduler, max_length=min(1024, (blocks - 1) * block_size), vocabulary=vocabulary)


def answer(
    engine: Engine, prompts: Sequence[list[int]], sampling: SamplingParams = GREEDY, new_tokens: int = NEW_TOKENS
) -> list[Answer]:
    """Submits all prompts at once and runs the engine until all have ended."""
    answers = [Answer() for _ in prompts]
    for number, prompt in enumerate(prompts):
        data = struct.pack(f"<{len(prompt)}i", *prompt)
        assert engine.submit(0, Submit(number, data, sampling, new_tokens)) == []
    while engine.busy:
        for _, message in engine.step():
            if isinstance(message, Outputs):
                for output in message.outputs:
                    one = answers[output.request_id]
                    one.tokens += output.token_ids
                    one.logprobs += output.logprobs
                    one.prompt_logprobs += output.prompt_logprobs or []
                    one.cached_tokens = max(one.cached_tokens, output.cached_tokens)
            elif isinstance(message, Finished):
                assert not answers[message.request_id].reason, "finished twice"
                answers[message.request_id].reason = message.reason
        engine.scheduler.check_integrity()
    assert all(one.reason == "length" for one in answers)
    return answers


def tokens_of(answers: Sequence[Answer]) -> list[list[int]]:
    return [one.tokens for one in answers]


pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(scope="module")
def decoder(model_path: Path) -> Decoder:
    source = open_model(str(model_path))
    cpu = torch.device("cpu")
    return load_decoder(source, device=cpu, dtype=torch.float32, quantization="None", max_length=1024)


@pytest.fixture(scope="module")
def reference(model_path: Path) -> Any:
    """transformers' model with the weights as transformers itself reads them from the file."""
    from transformers import LlamaConfig, LlamaForCausalLM
    from transformers.modeling_gguf_pytorch_utils import load_gguf_checkpoint

    config = LlamaConfig(
        vocab_size=49152,
        hidden_size=576,
        intermediate_size=1536,
        num_hidden_layers=30,
        num_attention_heads=9,
        num_key_value_heads=3,
        max_position_embeddings=8192,
        rms_norm_eps=9.999999747378752e-06,
        rope_parameters={"rope_type": "default", "rope_theta": 100000.0},
        tie_word_embeddings=True,
    )
    model = LlamaForCausalLM(config).eval()
    tensors = load_gguf_checkpoint(str(model_path), return_tensors=True, model_to_load=model)["tensors"]
    missing, unexpected = model.load_state_dict(tensors, strict=False)
    assert not unexpected
    assert set(missing) <= {"lm_head.weight"}
    model.tie_weights()
    return model


@pytest.fixture(scope="module")
def prompts(tokenizer: Any) -> list[list[int]]:
    """16 prompts of 1 to 256 tokens; some share long prefixes."""
    ids: list[int] = tokenizer.encode(TEXT * 4, add_special_tokens=False)
    lengths = (1, 2, 5, 7, 8, 16, 17, 31, 32, 33, 48, 64, 65, 100, 129, 256)
    return [list(ids[:length] if length % 2 else ids[3 : 3 + length]) for length in lengths]


@pytest.fixture(scope="module")
def expected(decoder: Decoder, reference: Any, prompts: list[list[int]]) -> list[list[int]]:
    """Our answers from a cold batch, each proven to be transformers' greedy answer."""
    answers = tokens_of(answer(make_engine(decoder), prompts))
    for prompt, tokens in zip(prompts, answers, strict=True):
        with torch.inference_mode():
            logits = reference(torch.tensor([prompt + tokens])).logits[0]
        assert logits[len(prompt) - 1 : -1].argmax(dim=1).tolist() == tokens
    return answers


def test_all_logits_equal_those_of_transformers(decoder: Decoder, reference: Any, prompts: list[list[int]]) -> None:
    prompt = prompts[-1]
    engine = make_engine(decoder, batched_tokens=100)
    everything = SamplingParams(temperature=0.0, prompt_logprobs=20, logprobs=20)
    one = answer(engine, [prompt], everything, new_tokens=2)[0]
    with torch.inference_mode():
        logprobs = reference(torch.tensor([prompt + one.tokens[:1]])).logits[0].log_softmax(dim=1)
    entries = [*one.prompt_logprobs[1:], *one.logprobs]
    assert one.prompt_logprobs[0] is None
    assert len(entries) == len(logprobs)
    for row, entry in zip(logprobs, entries, strict=True):
        assert entry is not None
        assert abs(entry.logprob - row[entry.token_id].item()) < LOGIT_TOLERANCE
        theirs = row[torch.tensor(entry.top_ids)]
        assert (theirs - torch.tensor(entry.top_logprobs)).abs().max().item() < LOGIT_TOLERANCE
        assert abs(row.max().item() - entry.top_logprobs[0]) < LOGIT_TOLERANCE


def test_prompt_logprobs_with_a_warm_cache_and_chunks_equal_those_of_one_pass(
    decoder: Decoder, prompts: list[list[int]]
) -> None:
    asked = SamplingParams(temperature=0.0, prompt_logprobs=2)
    whole = answer(make_engine(decoder), [prompts[-2]], asked, new_tokens=1)[0]
    chunked = make_engine(decoder, batched_tokens=24)
    answer(chunked, [prompts[-2]], new_tokens=1)
    parts = answer(chunked, [prompts[-2], prompts[-3]], asked, new_tokens=1)[0]
    assert len(whole.prompt_logprobs) == len(parts.prompt_logprobs) == len(prompts[-2])
    for one, other in zip(whole.prompt_logprobs[1:], parts.prompt_logprobs[1:], strict=True):
        assert one is not None
        assert other is not None
        assert (one.token_id, one.rank) == (other.token_id, other.rank)
        assert abs(one.logprob - other.logprob) < LOGIT_TOLERANCE


def test_greedy_tokens_alone_equal_those_in_a_batch_cold_and_from_the_prefix_cache(
    decoder: Decoder, prompts: list[list[int]], expected: list[list[int]]
) -> None:
    engine = make_engine(decoder)
    for number in (0, 6, 13, 15):
        cold = answer(engine, [prompts[number]])[0]
        warm = answer(engine, [prompts[number]])[0]
        assert cold.tokens == warm.tokens == expected[number]
        assert warm.cached_tokens == (len(prompts[number]) - 1) // 16 * 16


@pytest.mark.parametrize("block_size", [8, 32, 64])
def test_greedy_tokens_are_the_same_with_any_block_size_cold_and_warm(
    decoder: Decoder, prompts: list[list[int]], expected: list[list[int]], block_size: int
) -> None:
    engine = make_engine(decoder, block_size=block_size, blocks=8192 // block_size, batched_tokens=300)
    assert tokens_of(answer(engine, prompts)) == expected
    warm = answer(engine, prompts[-4:], new_tokens=16)
    assert [one.tokens for one in warm] == [tokens[:16] for tokens in expected[-4:]]
    assert all(one.cached_tokens >= 64 for one in warm)


def test_greedy_tokens_are_the_same_when_the_pool_is_so_small_that_requests_are_preempted(
    decoder: Decoder, prompts: list[list[int]], expected: list[list[int]]
) -> None:
    engine = make_engine(decoder, blocks=1 + 28, batched_tokens=300)
    assert tokens_of(answer(engine, prompts)) == expected
    assert engine.scheduler.preemptions > 0


def test_seeded_sampling_gives_the_same_tokens_alone_in_a_batch_and_after_preemption(
    decoder: Decoder, prompts: list[list[int]]
) -> None:
    sampling = SamplingParams(temperature=0.9, top_p=0.95, top_k=50, min_p=0.01, seed=2**63 + 5, presence_penalty=0.3)
    chosen = prompts[2:10]
    alone = [answer(make_engine(decoder), [prompt], sampling, 40)[0].tokens for prompt in chosen[::3]]
    batch = tokens_of(answer(make_engine(decoder), chosen, sampling, 40))
    tight = make_engine(decoder, blocks=1 + 14)
    assert tokens_of(answer(tight, chosen, sampling, 40)) == batch
    assert tight.scheduler.preemptions > 0
    assert batch[::3] == alone
    other = SamplingParams(temperature=0.9, seed=1)
    assert answer(make_engine(decoder), chosen[:1], other, 40)[0].tokens != batch[0]
