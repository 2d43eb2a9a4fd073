"""Families of models: how each is known by its chat template, read, and held to a call when one is required."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from octavo_server.text.grammar import embedded_schema, lark_text
from octavo_server.text.toolcalls.gemma import GemmaParser
from octavo_server.text.toolcalls.harmony import HarmonyParser
from octavo_server.text.toolcalls.parsed import Parser
from octavo_server.text.toolcalls.tagged import (
    DeepSeekParser,
    HermesParser,
    ListParser,
    Llama3Parser,
    MistralParser,
)

MAX_CALLS = 16
"""Calls of one answer when calls are required."""
_SIGNS = (
    ("GptOss", "<|channel|>"),
    ("Gemma", "<|tool_call>"),
    ("Gemma", "<start_function_call>"),
    ("Mistral", "[TOOL_CALLS]"),
    ("DeepSeek", "<｜tool▁call"),
    ("Hermes", "<tool_call>"),
    ("Llama3", "<|python_tag|>"),
    ("Llama3", "Environment: ipython"),
)


@dataclass(frozen=True)
class Tool:
    """A function that may be called. `parameters` is a JSON schema of an object."""

    name: str
    parameters: dict[str, Any]
    strict: bool


@dataclass(frozen=True)
class CallForm:
    """How a family writes calls, as a grammar: text before the first, before and after each one's arguments, between,
    after the last. `{name}` in `before` is the function's name."""

    before: str
    after: str = ""
    between: str = ""
    begin: str = ""
    end: str = ""


_FORMS = {
    "Hermes": CallForm('<tool_call>\n{"name": "{name}", "arguments": ', "}\n</tool_call>", "\n"),
    "Llama3": CallForm('{"name": "{name}", "parameters": ', "}", "; "),
    "Mistral": CallForm('{"name": "{name}", "arguments": ', "}", ", ", "[TOOL_CALLS][", "]"),
    "DeepSeek": CallForm(
        "<｜tool▁call▁begin｜>{name}<｜tool▁sep｜>",
        "<｜tool▁call▁end｜>",
        "",
        "<｜tool▁calls▁begin｜>",
        "<｜tool▁calls▁end｜>",
    ),
    "GptOss": CallForm(
        "<|channel|>commentary to=functions.{name} <|constrain|>json<|message|>", "", "<|call|><|start|>assistant"
    ),
    "List": CallForm('{"name": "{name}", "arguments": ', "}", ", ", "[", "]"),
}


def family_of(template: str | None) -> str:
    """The family that a chat template is written for; Hermes when nothing tells."""
    return next((family for family, sign in _SIGNS if template is not None and sign in template), "Hermes")


def has_form(family: str) -> bool:
    """Whether the family's own notation can be required by a grammar."""
    return family in _FORMS


def forced_family(family: str) -> str:
    """The form that required calls are held to: Gemma's notation is no JSON, so its calls are a plain list then."""
    return family if family in _FORMS else "List"


def parser_for(family: str, names: Collection[str]) -> Parser:
    """The parser of a family for a request with these functions."""
    makers: dict[str, Callable[[], Parser]] = {
        "Hermes": HermesParser,
        "Llama3": lambda: Llama3Parser(names),
        "Mistral": MistralParser,
        "DeepSeek": DeepSeekParser,
        "Gemma": GemmaParser,
        "GptOss": HarmonyParser,
        "List": ListParser,
    }
    return makers[family]()


def call_rules(family: str, tools: Sequence[Tool], *, most: int, special: Mapping[str, int]) -> str:
    """Lark rules with `calls` at their top: 1 to `most` calls of these functions, each with arguments that fit.

    special: ids of the model's special tokens, which text never becomes; where a form has one, the rule names its id.
    """
    form = _FORMS[forced_family(family)]
    rules = [f"calls: {literals(form.begin, special)} call {_more(form, most, special)} {literals(form.end, special)}"]
    rules.append("call: " + " | ".join(f"call_{index}" for index in range(len(tools))))
    for index, tool in enumerate(tools):
        before = form.before.replace("{name}", _inner(tool.name, form.before))
        rules.append(f"call_{index}: {literals(before, special)} args_{index} {literals(form.after, special)}")
        rules.append(f"args_{index}: {embedded_schema(tool.parameters, lenient=not tool.strict)}")
    return "\n".join(rules)


def _more(form: CallForm, most: int, special: Mapping[str, int]) -> str:
    return f"({literals(form.between, special)} call){{0,{most - 1}}}" if most > 1 else ""


def _inner(name: str, form: str) -> str:
    """The name as it stands in the form: inside of a JSON string, or bare."""
    return json.dumps(name, ensure_ascii=False)[1:-1] if '"{name}"' in form else name


def literals(text: str, special: Mapping[str, int]) -> str:
    """A text as a sequence of literals and special tokens."""
    parts: list[str] = []
    while text:
        found = [(place, -len(token), token) for token in special if (place := text.find(token)) >= 0]
        if not found:
            parts.append(lark_text(text))
            break
        place, _, token = min(found)
        if place:
            parts.append(lark_text(text[:place]))
        parts.append(f"<[{special[token]}]>")
        text = text[place + len(token) :]
    return " ".join(parts)
