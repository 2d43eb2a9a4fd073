"""Forms that can't be kept to are refused before the answer begins, and never are a fault of the server."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
from llguidance import LLMatcher
from octavo_server.text.grammar import (
    GrammarError,
    choice_grammar,
    embedded_regex,
    grammar_tokenizer,
    json_schema_grammar,
    lark_grammar,
    plain_lark_grammar,
    regex_grammar,
)
from octavo_server.text.grammar_check import GrammarCheck, reason

from tests.server.schemas import SCHEMAS

MANY = {f"p{number}": {"type": "string"} for number in range(2000)}


@pytest.fixture(scope="module")
def check(tokenizer: Any) -> GrammarCheck:
    return GrammarCheck(tokenizer)


@pytest.mark.parametrize(
    ("grammar", "why"),
    [
        (lambda: json_schema_grammar({"$ref": "#"}), "no text fits"),
        (lambda: json_schema_grammar(False), "false"),
        (lambda: regex_grammar(r"a[^\s\S]"), "no text fits"),
        (lambda: lark_grammar("root ::= root"), "no text fits"),
        (lambda: lark_grammar('start: "a" x\nx: "b" x'), "limit"),
        (lambda: choice_grammar([f"c{number}" for number in range(5000)]), "max is 2000"),
        (lambda: json_schema_grammar({"type": "object", "properties": MANY}), "max is 2000"),
        (
            lambda: json_schema_grammar(
                {"type": "object", "required": ["a"], "properties": {"a": {"type": "object", "properties": MANY}}}
            ),
            "max is 2000",
        ),
        (lambda: lark_grammar("start: <[99999999]>"), "too large"),
    ],
)
def test_a_form_that_no_text_fits_or_that_is_too_large_is_found_out(
    check: GrammarCheck, grammar: Callable[[], str], why: str
) -> None:
    with pytest.raises(GrammarError, match=why):
        check.check(grammar())


@pytest.mark.parametrize("name", SCHEMAS)
def test_every_schema_that_can_be_kept_to_passes(check: GrammarCheck, name: str) -> None:
    check.check(json_schema_grammar(SCHEMAS[name]))


def test_what_is_odd_and_right_passes(check: GrammarCheck) -> None:
    for grammar in (
        json_schema_grammar(True), json_schema_grammar({}), json_schema_grammar({"const": "é日🎉\u0000"}),
        regex_grammar(""), regex_grammar("[ab]*a[ab]{40}x"), choice_grammar([f"c{number}" for number in range(1900)]),
        lark_grammar("start: <|im_end|>"), lark_grammar('start: <|im_start|> "a"+'), lark_grammar('start: "a"*'),
    ):  # fmt: skip
        check.check(grammar)


def test_the_check_of_a_model_is_made_without_holding_the_interpreter(tokenizer: Any) -> None:
    """The whole vocabulary in llguidance's form held it for 0.4 s, and with it every stream."""
    longest, over = 0.0, threading.Event()

    def look() -> None:
        nonlocal longest
        last = time.perf_counter()
        while not over.is_set():
            time.sleep(0.001)
            longest, last = max(longest, time.perf_counter() - last), time.perf_counter()

    watcher = threading.Thread(target=look)
    watcher.start()
    try:
        used = time.thread_time()
        GrammarCheck(tokenizer)
        used = time.thread_time() - used
    finally:
        over.set()
        watcher.join()
    assert min(longest, used) < 0.15, "on a crowded machine the thread's own time counts"


@pytest.mark.parametrize("pattern", [r"\d{3}", r"[\d]{3}", r"\w\d\d", r"(?i)[\w]\d\d"])
def test_digits_and_letters_of_an_expression_are_those_of_ascii(tokenizer: Any, pattern: str) -> None:
    vocabulary = grammar_tokenizer(tokenizer)
    for grammar in (regex_grammar(pattern), plain_lark_grammar(f"start: {embedded_regex(pattern)}")):
        for text, fits in (("123", True), ("٣٤٥", False), ("🯸🯸🯸", False)):
            matcher = LLMatcher(vocabulary, grammar)
            ids = tokenizer.encode(text, add_special_tokens=False)
            assert (matcher.try_consume_tokens(ids) == len(ids)) is fits, (pattern, text)


def test_an_escaped_backslash_before_a_letter_stays_what_it_is() -> None:
    assert r"\\\\d[^0-9]" in regex_grammar(r"\\d\D")


def test_reasons_are_one_short_line_and_name_no_setting_that_a_user_does_not_have(check: GrammarCheck) -> None:
    assert reason("NoExtensionBias\n<non-verbose/>") == "no text fits it"
    assert len(reason("(" * 20_000)) == 300
    overlapping = {"oneOf": [{"type": "string"}, {"const": "a"}]}
    with pytest.raises(GrammarError, match="Use anyOf") as caught:
        check.check(json_schema_grammar(overlapping))
    assert "coerce" not in str(caught.value)


async def test_a_form_that_leads_nowhere_in_the_middle_is_the_requests_fault(scripted: Any) -> None:
    end = ("--end", "grammar", "lexer error: too many expressions constructed\n<non-verbose/>")
    body = {"prompt": "a", "max_tokens": 9, "guided_regex": "[a-z ]{30}"}
    async with scripted(*end) as running:
        whole = await running.client.post("/v1/completions", json=body)
        assert whole.status_code == 400
        error = whole.json()["error"]
        assert (error["param"], error["type"]) == ("guided_regex", "invalid_request_error")
        assert "too many expressions" in error["message"]
        assert "<" not in error["message"]
        stream = await running.client.post("/v1/completions", json={**body, "stream": True})
        *_, last, done = [line.removeprefix("data: ") for line in stream.text.split("\n\n") if line]
        assert done == "[DONE]"
        assert json.loads(last)["error"]["param"] == "guided_regex"
