"""Text from tokens: whole characters, nothing else, whatever the tokens."""

from __future__ import annotations

from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from octavo_server.text.detokenizer import Detokenizer, unfinished_tail

# The model's vocabulary lacks tokens for control characters and for the bytes that begin characters above U+3FFFF.
TEXTS = st.text(st.characters(exclude_categories=["Cs", "Cc"], max_codepoint=0x3FFFF), max_size=60)
CHECKS = settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


@CHECKS
@given(text=TEXTS)
def test_pieces_join_to_the_text_and_no_piece_holds_a_replacement(tokenizer: Any, text: str) -> None:
    detokenizer = Detokenizer(tokenizer.text_bytes)
    pieces = [detokenizer.feed(token) for token in tokenizer.encode(text, add_special_tokens=False)]
    assert "".join(pieces) == text
    assert "\ufffd" in text or not any("\ufffd" in piece for piece in pieces)


@CHECKS
@given(text=TEXTS, cut=st.integers(0, 60))
def test_a_prompt_cut_anywhere_and_its_rest_make_the_text(tokenizer: Any, text: str, cut: int) -> None:
    ids = tokenizer.encode(text, add_special_tokens=False)
    prompt, rest = ids[:cut], ids[cut:]
    data = b"".join(map(tokenizer.text_bytes, prompt))
    pending = unfinished_tail(data)
    shown = data[: len(data) - len(pending)].decode()
    assert shown + Detokenizer(tokenizer.text_bytes, pending=pending).feed_all(rest) == text


def test_bytes_that_can_never_become_a_character_are_replaced_once_known() -> None:
    pieces = {0: b"\xf0\x9f", 1: b"a"}
    detokenizer = Detokenizer(pieces.__getitem__)
    assert detokenizer.feed(0) == ""
    assert detokenizer.feed(1) == "\ufffda"


def test_special_tokens_add_no_text(tokenizer: Any) -> None:
    ids = tokenizer.encode("<|im_start|>user", add_special_tokens=False)
    assert len(ids) == 2
    assert Detokenizer(tokenizer.text_bytes).feed_all(ids) == "user"
