"""Grammars inside the engine: a tiny random model under full control, preemption, chunks, restarts, faults."""

from __future__ import annotations

import re
import struct
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from llguidance import LLTokenizer, TokenizerWrapper
from octavo_server.config import CacheConfig, EngineConfig, ModelConfig, SchedulerConfig
from octavo_server.engine import grammars as grammars_module
from octavo_server.engine.core import Engine
from octavo_server.engine.grammars import Grammars, apply_masks
from octavo_server.engine.messages import Abort, Finished, Outputs, SamplingParams, Submit
from octavo_server.engine.startup import start
from octavo_server.text.grammar import lark_grammar, regex_grammar

ALPHABET = b'abcdefghijklmnopqrstuvwxyz0123456789{}[]:," '
END = 50
TOKENS = [bytes([byte]) for byte in ALPHABET] + [b"ab", b'":', b"0000", b"zz", b"{}", b"]]", b"\xff<end>"]
VOCABULARY = len(TOKENS)
"""51 tokens; the model has 64 logits."""


class _Tokens:
    eos_token_id = END
    bos_token_id = None
    special_token_ids = [END]  # noqa: RUF012
    tokens = TOKENS

    def __call__(self, text: bytes) -> list[int]:
        return [ALPHABET.index(byte) for byte in text]


def text(tokens: list[int]) -> str:
    return b"".join(b"" if token == END else TOKENS[token] for token in tokens).decode()


@pytest.fixture
def engine(tiny_model: Path) -> Engine:
    assert TOKENS[END].endswith(b"<end>")
    config = EngineConfig(
        ModelConfig(str(tiny_model), served_name="tiny"),
        CacheConfig(block_size_tokens=8, pool_bytes=2 * 2 * 16 * 4 * 8 * 17),
        SchedulerConfig(max_batched_tokens=16, max_sequences=8),
        device="CPU",
        cpu_threads=1,
    )
    engine, _ = start(replace(config, model=replace(config.model, max_length_tokens=96)), lambda progress: None)
    engine._grammars = Grammars(lambda: LLTokenizer(TokenizerWrapper(_Tokens()), n_vocab=VOCABULARY, eos_token=END))
    return engine


def submit(number: int, grammar: str = "", new_tokens: int = 60, prompt: int = 20, **sampling: Any) -> Submit:
    params = SamplingParams(
        seed=number, stop_token_ids=[END], vocabulary_size=VOCABULARY, **{"temperature": 3.0, **sampling}
    )
    ids = [(number * 7 + place) % END for place in range(prompt)]
    return Submit(number, struct.pack(f"<{prompt}i", *ids), params, new_tokens, grammar=grammar)


def run(engine: Engine, *submits: Submit) -> tuple[dict[int, list[int]], dict[int, Finished]]:
    """Runs until all have ended: tokens and ends by request id."""
    tokens: dict[int, list[int]] = {one.request_id: [] for one in submits}
    ends: dict[int, Finished] = {}
    messages = [message for one in submits for message in engine.submit(0, one)]
    while engine.busy or messages:
        for _, message in messages:
            if isinstance(message, Outputs):
                for output in message.outputs:
                    tokens[output.request_id] += output.token_ids
            elif isinstance(message, Finished):
                assert message.request_id not in ends
                ends[message.request_id] = message
        messages = engine.step() if engine.busy else []
        engine.scheduler.check_integrity()
    return tokens, ends


PATTERNS = ["[a-f]{3,9}[0-9]{2}", "(ab|ba){4,20}", '\\{"k":[0-9]{1,30}\\}', "(0000|z){8,12}[,:]"]


def test_all_fit_their_grammar_through_chunks_and_preemptions_and_the_others_are_untouched(engine: Engine) -> None:
    plain = [submit(100 + number) for number in range(4)]
    alone = [run(engine, one)[0][one.request_id] for one in plain]
    formed = [submit(number, regex_grammar(PATTERNS[number % len(PATTERNS)])) for number in range(8)]
    tokens, ends = run(engine, *formed, *plain)
    assert engine.scheduler.preemptions > 0, "the pool is small so that requests are preempted"
    for number, one in enumerate(formed):
        written = text(tokens[one.request_id])
        assert ends[one.request_id].reason == "stop", written
        assert re.fullmatch(PATTERNS[number % len(PATTERNS)], written), written
    assert [tokens[one.request_id] for one in plain] == alone
    assert engine.stats([]).active_blocks == 0


def test_a_request_taken_up_after_a_restart_goes_on_where_its_grammar_was(engine: Engine) -> None:
    one = submit(1, regex_grammar("[a-d]{30}[0-9]{10}"))
    whole = run(engine, one)[0][1]
    for cut in (1, 17, len(whole) - 1):
        resumed = replace(one, resume_token_ids=struct.pack(f"<{cut}i", *whole[:cut]))
        assert run(engine, resumed)[0][1] == whole[cut:]
    over = replace(one, resume_token_ids=struct.pack(f"<{len(whole)}i", *whole))
    tokens, ends = run(engine, over)
    assert (tokens[1], ends[1].reason) == ([], "stop")


def test_ids_without_a_token_are_never_drawn_with_and_without_a_grammar(engine: Engine) -> None:
    hot = [submit(number, temperature=100.0) for number in range(3)]
    formed = [submit(number, lark_grammar("start: /(?s:.){50}/"), temperature=100.0) for number in range(3, 6)]
    tokens, _ = run(engine, *hot, *formed)
    drawn = [token for answer in tokens.values() for token in answer]
    assert len(drawn) > 50
    assert max(drawn) < VOCABULARY
    free = run(engine, replace(hot[0], sampling=replace(hot[0].sampling, vocabulary_size=0)))[0][0]
    assert max(free) >= VOCABULARY, "without the limit this model draws such ids"


def test_min_tokens_and_ignored_ends_never_leave_a_grammar_without_a_way_on(engine: Engine) -> None:
    short = submit(1, regex_grammar("ab"), min_tokens=40)
    endless = submit(2, regex_grammar("(z|a){3}"))
    endless = replace(endless, sampling=replace(endless.sampling, stop_token_ids=[]))
    tokens, ends = run(engine, short, endless)
    assert text(tokens[1]) == "ab"
    assert ends[1].reason == ends[2].reason == "stop"


def test_a_wrong_grammar_ends_its_request_with_the_reason_and_nothing_else(engine: Engine) -> None:
    tokens, ends = run(engine, submit(1, "start: ("), submit(2, regex_grammar("a{3}")), submit(3, lark_grammar("x")))
    assert {number: end.reason for number, end in ends.items()} == {1: "grammar", 2: "stop", 3: "grammar"}
    assert ends[1].message
    assert text(tokens[2]) == "aaa"


def test_a_grammar_that_needs_more_than_the_limits_ends_with_an_error_beside_one_that_does_not(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    from llguidance import LLParserLimits

    monkeypatch.setattr(grammars_module, "LIMITS", LLParserLimits(max_lexer_states=20, verbose_errors=False))
    tokens, ends = run(engine, submit(1, regex_grammar("(a|b)*a(a|b){12}")), submit(2, regex_grammar("z{4}")))
    assert ends[1].reason == "grammar"
    assert ends[1].message
    assert text(tokens[2]) == "zz" * 2 or text(tokens[2]) == "zzzz"


def test_an_abort_while_a_grammar_is_compiled_ends_the_request(engine: Engine) -> None:
    assert engine.submit(0, submit(1, regex_grammar("a{900}b{17}"))) == []
    ended = engine.abort(0, Abort(1, 0))
    assert next(message for _, message in ended if isinstance(message, Finished)).reason == "abort"
    assert not engine.busy
    assert run(engine, submit(2, regex_grammar("a{2}")))[1][2].reason == "stop"


def test_masks_touch_their_rows_alone() -> None:
    import numpy as np

    logits = torch.zeros(3, 70)
    masks = np.array([[1 << 5, 1 << 1], [-1, -1]], dtype=np.int32)
    apply_masks(logits, [2, 0], masks)
    assert torch.isfinite(logits[2]).nonzero().flatten().tolist() == [5, 33]
    assert torch.isfinite(logits[0]).nonzero().flatten().tolist() == list(range(64))
    assert (logits[1] == 0).all()
