"""Grammars that hold an answer to a form: JSON schema, regular expression, choice, or a grammar in Lark or GBNF.

A grammar travels as one text in llguidance's own notation. The API process checks it before anything runs
(grammar_check.py); the engine process compiles it anew and keeps its state (engine/grammars.py). Both use the limits
below, so that what passes the check compiles, and neither can take long: llguidance counts its work and gives up at
these counts.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any

from llguidance import LLMatcher, LLParserLimits, LLTokenizer, TokenizerWrapper, regex_to_lark
from llguidance.gbnf_to_lark import GbnfToLarkError, gbnf_to_lark

from octavo_server.text.tokenizer import TextTokenizer

LIMITS = LLParserLimits(
    max_items_in_row=2000,
    initial_lexer_fuel=1_000_000,  # about 20 ms of building the lexer
    step_lexer_fuel=200_000,  # about 15 ms in one step
    step_max_items=50_000,
    max_lexer_states=50_000,  # 1 to 2 kB each
    max_grammar_size=500_000,
    verbose_errors=False,
)
WHITESPACE = r"[ ]|\n[ ]{0,32}"
"""Between parts of a JSON text: a blank, or a line break and its indentation. Without a bound, a small model at a high
temperature may write white space until its limit of tokens."""
_GBNF_SIGN = "::="
_ESCAPE = re.compile(r"\\.", re.DOTALL)
_ASCII_CLASSES = {
    r"\d": "[0-9]", r"\D": "[^0-9]", r"\w": "[0-9A-Za-z_]", r"\W": "[^0-9A-Za-z_]",
}  # fmt: skip
_JSON_OPTIONS: dict[str, Any] = {"whitespace_pattern": WHITESPACE, "lenient": False, "coerce_one_of": False}


class GrammarError(ValueError):
    """The grammar is wrong, can't be enforced, or needs more than the limits allow; the message says which."""


def json_schema_grammar(schema: Any) -> str:
    """The grammar of a JSON schema (object or boolean)."""
    try:
        if isinstance(schema, bool):
            schema = {"allOf": [schema]}  # options need an object to stand in
        return LLMatcher.grammar_from_json_schema(json.dumps(schema), overrides=_JSON_OPTIONS)  # type: ignore[arg-type]
    except ValueError as error:
        raise GrammarError(str(error)) from error


def embedded_schema(schema: Any, *, lenient: bool = False) -> str:
    """A JSON schema as part of a Lark grammar. `lenient`: keywords that can't be enforced are left out."""
    options = {"x-guidance": {**_JSON_OPTIONS, "lenient": lenient, "coerce_one_of": lenient}}
    if isinstance(schema, dict):
        return f"%json {json.dumps({**schema, **options})}"
    return f"%json {json.dumps({'allOf': [schema], **options})}"


def regex_grammar(pattern: str) -> str:
    """The grammar of a regular expression that the whole answer fits."""
    return LLMatcher.grammar_from_regex(_ascii_classes(pattern))


def choice_grammar(choices: Sequence[str]) -> str:
    """The grammar of one out of several texts."""
    return LLMatcher.grammar_from_lark(f"start: {' | '.join(map(lark_text, choices))}")


def lark_grammar(text: str) -> str:
    """A grammar as a user writes it: Lark in llguidance's dialect, or GBNF, which is known by its `::=`."""
    if _GBNF_SIGN in text:
        try:
            text = gbnf_to_lark(text)
        except (GbnfToLarkError, ValueError, IndexError, KeyError, AssertionError, RecursionError) as error:
            raise GrammarError(f"no GBNF that can be read: {error}") from error
    return LLMatcher.grammar_from_lark(text)


def plain_lark_grammar(text: str) -> str:
    """A Lark grammar that this server wrote."""
    return LLMatcher.grammar_from_lark(text)


def embedded_regex(pattern: str) -> str:
    """A regular expression as part of a Lark grammar."""
    return f"/{regex_to_lark(_ascii_classes(pattern), '')}/"


def _ascii_classes(pattern: str) -> str:
    r"""`\d` and `\w` as they are in JSON schema patterns: a model that is asked for digits must not find 🯸."""
    return _ESCAPE.sub(lambda escape: _ASCII_CLASSES.get(escape[0], escape[0]), pattern)


def lark_text(text: str) -> str:
    """A literal of a Lark grammar."""
    return json.dumps(text, ensure_ascii=False)


def grammar_tokenizer(tokenizer: TextTokenizer) -> LLTokenizer:
    """The tokenizer in llguidance's form; takes about 6 µs per token of the vocabulary."""
    return LLTokenizer(
        TokenizerWrapper(_Vocabulary(tokenizer)),
        n_vocab=tokenizer.vocabulary_size,
        eos_token=sorted(tokenizer.eos_ids) or None,
    )


class _Vocabulary:
    """What TokenizerWrapper asks for. Special tokens are marked by a byte that no text contains."""

    def __init__(self, tokenizer: TextTokenizer) -> None:
        self._tokenizer = tokenizer
        self.special_token_ids = sorted(tokenizer.special_ids)
        self.eos_token_id = min(tokenizer.eos_ids, default=0)
        self.bos_token_id = None
        special = tokenizer.special_ids
        self.tokens = [
            b"\xff" * (index in special) + tokenizer.token_bytes(index) for index in range(tokenizer.vocabulary_size)
        ]

    def __call__(self, text: str | bytes) -> list[int]:
        plain = text.decode("utf-8", "replace") if isinstance(text, bytes) else text
        return self._tokenizer.encode(plain, add_special_tokens=False)
