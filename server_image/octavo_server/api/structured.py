"""Structured output: from the request's fields to one grammar, checked off the event loop before anything runs."""

from __future__ import annotations

import asyncio
import json
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from octavo_server.api.errors import ApiError, bad_field
from octavo_server.api.wire import ResponseFormat, SamplingFields, StructuredOutputs
from octavo_server.config import LimitsConfig
from octavo_server.text.grammar import (
    GrammarError,
    choice_grammar,
    embedded_regex,
    embedded_schema,
    json_schema_grammar,
    lark_grammar,
    lark_text,
    plain_lark_grammar,
    regex_grammar,
)
from octavo_server.text.grammar_check import GrammarCheck, reason
from octavo_server.text.tokenizer import TextTokenizer

_CHECKED_GRAMMARS = 256
_CHECKS_AT_ONCE = 2
_CHECK_SECONDS = 10.0
_KINDS: dict[str, Callable[[Any], str]] = {
    "json": json_schema_grammar,
    "regex": regex_grammar,
    "choice": choice_grammar,
    "grammar": lark_grammar,
}
_COMPILERS = {**_KINDS, "lark": plain_lark_grammar}


@dataclass(frozen=True)
class Wanted:
    """The form that a request asks for: its kind, what it is, and the field's name.

    Kinds are json, regex, choice, grammar as the user wrote it, and lark (a grammar of ours).
    """

    kind: str
    value: Any
    field: str

    @property
    def rule(self) -> str | None:
        """The form as the right side of a Lark rule, to be part of a larger grammar; None where that can't be."""
        if self.kind == "json":
            return embedded_schema(self.value)
        if self.kind == "choice":
            return " | ".join(map(lark_text, self.value))
        return embedded_regex(self.value) if self.kind == "regex" else None


def wanted_form(body: SamplingFields, limits: LimitsConfig) -> Wanted | None:
    """What the request asks for, or None. Raises the 400 for two forms at once and for one that is too large."""
    found = [*_of_response_format(body.response_format), *_of_structured(body.structured_outputs)]
    for kind in _KINDS:
        value = getattr(body, f"guided_{kind}")
        if value is not None:
            found.append(Wanted(kind, value, f"guided_{kind}"))
    if not found:
        return None
    if body.allowed_token_ids is not None:
        raise bad_field("allowed_token_ids", f"can't be combined with {found[0].field}")
    if len(found) > 1:
        raise bad_field(found[1].field, f"asks for a second form of the answer beside {found[0].field}; send one")
    return _checked(found[0], limits)


class GrammarChecks:
    """Grammars that were checked, and the threads that check: two at once, so that tokenisation goes on beside."""

    def __init__(self) -> None:
        self._known: OrderedDict[tuple[str, str], str | GrammarError] = OrderedDict()
        self._slots = asyncio.Semaphore(_CHECKS_AT_ONCE)
        self._check: GrammarCheck | None = None

    async def grammar(self, wanted: Wanted, tokenizer: TextTokenizer) -> str:
        """The grammar in llguidance's notation. Raises the 400 for one that is wrong or can't be enforced."""
        key = (wanted.kind, json.dumps(wanted.value))
        found = self._known.get(key)
        if found is None:
            async with self._slots:
                try:
                    async with asyncio.timeout(_CHECK_SECONDS):
                        found = await asyncio.to_thread(self._checked, wanted, tokenizer)
                except TimeoutError:
                    raise bad_field(
                        wanted.field, f"took more than {_CHECK_SECONDS:g} s to compile; simplify it"
                    ) from None
            self._known[key] = found
            if len(self._known) > _CHECKED_GRAMMARS:
                self._known.popitem(last=False)
        self._known.move_to_end(key)
        if isinstance(found, GrammarError):
            raise ApiError(400, f"{wanted.field}: {found}", param=wanted.field, code="invalid_grammar")
        return found

    def _checked(self, wanted: Wanted, tokenizer: TextTokenizer) -> str | GrammarError:
        try:
            grammar = _COMPILERS[wanted.kind](wanted.value)
            if self._check is None:
                self._check = GrammarCheck(tokenizer)
            self._check.check(grammar)
        except GrammarError as error:
            return GrammarError(reason(str(error)))
        return grammar


def _of_response_format(given: ResponseFormat | None) -> list[Wanted]:
    if given is None:
        return []
    for name in ("json_schema", "regex", "grammar"):
        if name != given.type and getattr(given, name) is not None:
            raise bad_field(f"response_format.{name}", f"has no meaning with the type {given.type}; leave it out")
    if given.type == "text":
        return []
    if given.type == "json_object":
        return [Wanted("json", {"type": "object"}, "response_format")]
    if given.type == "json_schema":
        if given.json_schema is None:
            raise bad_field("response_format.json_schema", "is missing")
        schema = given.json_schema.schema_
        return [Wanted("json", {"type": "object"} if schema is None else schema, "response_format.json_schema.schema")]
    value = getattr(given, given.type)
    if value is None:
        raise bad_field(f"response_format.{given.type}", "is missing")
    return [Wanted(given.type, value, f"response_format.{given.type}")]


def _of_structured(given: StructuredOutputs | None) -> list[Wanted]:
    if given is None:
        return []
    found = [
        Wanted(kind, value, f"structured_outputs.{kind}")
        for kind in _KINDS
        if (value := getattr(given, "json_" if kind == "json" else kind)) is not None
    ]
    if given.json_object:
        found.append(Wanted("json", {"type": "object"}, "structured_outputs.json_object"))
    return found


def _checked(wanted: Wanted, limits: LimitsConfig) -> Wanted:
    value = wanted.value
    if wanted.kind == "json":
        if isinstance(value, str):
            try:
                value = json.loads(value)
            except (ValueError, RecursionError):
                raise bad_field(wanted.field, "is no JSON schema: the text can't be read as JSON") from None
        if not isinstance(value, dict | bool):
            raise bad_field(wanted.field, "must be a JSON schema: an object, true or false")
    elif wanted.kind == "choice" and not all(value or [""]):
        raise bad_field(wanted.field, "must hold at least one text, and no empty one")
    size = len(json.dumps(value))
    if size > limits.max_grammar_bytes:
        raise bad_field(wanted.field, f"has {size} bytes as JSON, the limit is {limits.max_grammar_bytes}")
    return Wanted(wanted.kind, value, wanted.field)
