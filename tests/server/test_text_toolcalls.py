"""Tool calls and reasoning out of text: every family's form, and the same calls for every way of cutting the text."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from octavo_server.text.toolcalls.gemma import GemmaParser
from octavo_server.text.toolcalls.harmony import HarmonyParser
from octavo_server.text.toolcalls.parsed import Call, Parsed, Parser
from octavo_server.text.toolcalls.tagged import (
    DeepSeekParser,
    HermesParser,
    ListParser,
    Llama3Parser,
    MistralParser,
)
from octavo_server.text.toolcalls.thinking import ThinkParser

QUOTE = '<|"|>'
NAMES = ["get_weather", "f", "search-web"]
PARSERS: dict[str, Callable[[], Parser]] = {
    "hermes": HermesParser,
    "llama3": lambda: Llama3Parser(NAMES),
    "mistral": MistralParser,
    "deepseek": DeepSeekParser,
    "gemma": GemmaParser,
    "gpt-oss": HarmonyParser,
    "list": ListParser,
    "think": lambda: ThinkParser(HermesParser(), opened=False),
    "think opened": lambda: ThinkParser(HermesParser(), opened=True),
}


def gemma_value(value: Any, quote: str) -> str:
    if isinstance(value, str):
        return f"{quote}{value}{quote}"
    if isinstance(value, dict):
        return "{" + ",".join(f"{key}:{gemma_value(item, quote)}" for key, item in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ",".join(gemma_value(item, quote) for item in value) + "]"
    return json.dumps(value)


def dump(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


WRITERS: dict[str, tuple[str, Callable[[list[tuple[str, dict[str, Any]]]], str]]] = {
    "hermes": (
        "hermes",
        lambda calls: "\n".join(
            f'<tool_call>\n{{"name": "{name}", "arguments": {dump(arguments)}}}\n</tool_call>'
            for name, arguments in calls
        ),
    ),
    "llama 3": (
        "llama3",
        lambda calls: "; ".join(dump({"name": name, "parameters": arguments}) for name, arguments in calls),
    ),
    "llama 3 with a marker": (
        "llama3",
        lambda calls: (
            "<|python_tag|>" + ";".join(dump({"name": name, "parameters": arguments}) for name, arguments in calls)
        ),
    ),
    "mistral, a list": (
        "mistral",
        lambda calls: "[TOOL_CALLS]" + dump([{"name": name, "arguments": arguments} for name, arguments in calls]),
    ),
    "mistral, named": (
        "mistral",
        lambda calls: "".join(f"[TOOL_CALLS]{name}[ARGS]{dump(arguments)}" for name, arguments in calls),
    ),
    "deepseek v3": (
        "deepseek",
        lambda calls: (
            "<｜tool▁calls▁begin｜>"
            + "\n".join(
                f"<｜tool▁call▁begin｜>function<｜tool▁sep｜>{name}\n```json\n{dump(arguments)}\n```<｜tool▁call▁end｜>"
                for name, arguments in calls
            )
            + "<｜tool▁calls▁end｜>"
        ),
    ),
    "deepseek v3.1": (
        "deepseek",
        lambda calls: (
            "<｜tool▁calls▁begin｜>"
            + "".join(
                f"<｜tool▁call▁begin｜>{name}<｜tool▁sep｜>{dump(arguments)}<｜tool▁call▁end｜>"
                for name, arguments in calls
            )
            + "<｜tool▁calls▁end｜>"
        ),
    ),
    "functiongemma": (
        "gemma",
        lambda calls: "".join(
            f"<start_function_call>call:{name}{gemma_value(arguments, '<escape>')}<end_function_call>"
            for name, arguments in calls
        ),
    ),
    "gemma 4": (
        "gemma",
        lambda calls: "".join(
            f"<|tool_call>call:{name}{gemma_value(arguments, QUOTE)}<tool_call|>" for name, arguments in calls
        ),
    ),
    "gpt-oss": (
        "gpt-oss",
        lambda calls: "<|start|>assistant".join(
            f"<|channel|>commentary to=functions.{name} <|constrain|>json<|message|>{dump(arguments)}<|call|>"
            for name, arguments in calls
        ),
    ),
    "a list": (
        "list",
        lambda calls: dump([{"name": name, "arguments": arguments} for name, arguments in calls]),
    ),
}

texts = st.text(alphabet='ab "\\{}[],:;ü🦙\n<>/', max_size=12)
values = st.recursive(
    st.none() | st.booleans() | st.integers(-99, 99) | texts,
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.sampled_from(["x", "y"]), inner, max_size=2),
    max_leaves=4,
)
calls_strategy = st.lists(
    st.tuples(st.sampled_from(NAMES), st.dictionaries(st.sampled_from(["city", "n", "q"]), values, max_size=3)),
    min_size=1,
    max_size=3,
)


def begins(part: Parsed, whole: Parsed) -> bool:
    calls = zip(part.calls, whole.calls, strict=False)
    return (
        whole.reasoning.startswith(part.reasoning)
        and whole.content.startswith(part.content)
        and len(part.calls) <= len(whole.calls)
        and all(one.name == two.name and two.arguments.startswith(one.arguments) for one, two in calls)
    )


@pytest.mark.parametrize("writer", WRITERS)
@settings(max_examples=40, deadline=None, derandomize=True)
@given(calls=calls_strategy)
def test_calls_come_out_as_they_were_written_whatever_the_chunks(
    writer: str, calls: list[tuple[str, dict[str, Any]]]
) -> None:
    family, write = WRITERS[writer]
    text = write(calls)
    parser = PARSERS[family]()
    whole = parser.parse(text, final=True)
    assert [(call.name, json.loads(call.arguments)) for call in whole.calls] == calls
    assert whole.content == ""
    parts = [parser.parse(text[:end], final=False) for end in range(len(text) + 1)]
    for part, longer in zip(parts, [*parts[1:], whole], strict=True):
        assert begins(part, longer), (part, longer)


PIECES = [
    "Hello", " ", "\n", "{", "}", "[", "]", '"', ",", ":", ";", '{"name": "f", "arguments": {"a": 1}}',
    '"name": "f"',
    '"arguments": ', '"parameters": {}', "<tool_call>", "</tool_call>", "[TOOL_CALLS]", "[ARGS]", "<|python_tag|>",
    "<think>", "</think>", "<｜tool▁calls▁begin｜>", "<｜tool▁call▁begin｜>", "<｜tool▁sep｜>", "<｜tool▁call▁end｜>",
    "f",
    "<start_function_call>call:f{", "<end_function_call>", "<escape>", "<|tool_call>", "call:f{", '<|"|>',
    "<tool_call|>",
    "<|channel|>analysis<|message|>", "<|channel|>final", "<|message|>", "<|end|>", "<|start|>assistant", "<|call|>",
    " to=functions.f", "null", "\\", "<",
]  # fmt: skip


@pytest.mark.parametrize("family", PARSERS)
@settings(max_examples=150, deadline=None, derandomize=True)
@given(pieces=st.lists(st.sampled_from(PIECES), max_size=12))
def test_reading_on_never_takes_back_what_was_sent_also_in_nonsense(family: str, pieces: list[str]) -> None:
    text = "".join(pieces)
    parser = PARSERS[family]()
    parts = [parser.parse(text[:end], final=False) for end in range(len(text) + 1)]
    parts.append(parser.parse(text, final=True))
    for end, (part, longer) in enumerate(itertools.pairwise(parts)):
        assert begins(part, longer), (text[:end], part, longer)


CUT = Parsed("", "", (Call("f", '{"a": "</tool_call>'),))
SHORT = Parsed("", "", (Call("f", '{"a": 1'),))
THOUGHT = "<|channel|>analysis<|message|>Hm<|end|>"


@pytest.mark.parametrize(
    ("family", "text", "expected"),
    [
        ("hermes", "Just text", Parsed("", "Just text")),
        ("hermes", 'Ok.\n<tool_call>{"name": "f", "arguments": {}}</tool_call>', Parsed("", "Ok.", (Call("f", "{}"),))),
        ("hermes", '<tool_call>{"name": "f"}</tool_call>', Parsed("", "", (Call("f", "{}"),))),
        ("hermes", '<tool_call>{"name": "f", "arguments": null}', Parsed("", "", (Call("f", "{}"),))),
        ("hermes", '<tool_call>{"arguments": "{\\"a\\": 1}", "name": "f"}', Parsed("", "", (Call("f", '{"a": 1}'),))),
        ("hermes", '<tool_call>{"name": "f", "arguments": {"a": "</tool_call>', CUT),
        ("hermes", '<tool_call>{"name": "f", "arguments": {"a": 1 </tool_call>', SHORT),
        ("hermes", "<tool_call>nothing</tool_call>", Parsed("", "<tool_call>nothing</tool_call>")),
        ("llama3", '{"name": "Bob", "age": 3}', Parsed("", '{"name": "Bob", "age": 3}')),
        ("llama3", "{}", Parsed("", "{}")),
        ("mistral", 'So: [TOOL_CALLS]f{"a": {}}', Parsed("", "So:", (Call("f", '{"a": {}}'),))),
        ("gpt-oss", f"{THOUGHT}<|start|>assistant<|channel|>final<|message|>Yes", Parsed("Hm", "Yes")),
        ("gpt-oss", "plain", Parsed("", "plain")),
        ("think", "<think>\nHm.\n</think>\n\nYes.", Parsed("Hm.", "Yes.")),
        ("think", "Yes.", Parsed("", "Yes.")),
        ("think opened", "Hm.</think>Yes.", Parsed("Hm.", "Yes.")),
        ("think opened", "Hm", Parsed("Hm")),
    ],
)  # fmt: skip
def test_particular_texts(family: str, text: str, expected: Parsed) -> None:
    assert PARSERS[family]().parse(text, final=True) == expected
