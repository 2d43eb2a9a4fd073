"""Gemma's calls: `call:name{key:value,…}` between markers, strings between quote markers, keys without quotes."""

from __future__ import annotations

import json
import re
from typing import Any

from octavo_server.text.toolcalls.json_text import skip_blank
from octavo_server.text.toolcalls.parsed import Call, Parsed, closed, without_held

_HEAD = re.compile(r"\s*call:\s*([^\s{]+)\s*\{")
_KEY = re.compile(r"\s*([^\s:{}\[\],]+)\s*:")
_SCALAR = re.compile(r"[^,}\]]+")


class _BrokenOff(Exception):
    """The text ends inside of a value."""


class GemmaParser:
    """FunctionGemma (`<start_function_call>`, `<escape>`) and Gemma 4 (`<|tool_call>`, `<|"|>`).

    Arguments become JSON and are sent once they are complete: their notation is not the one that clients read.
    """

    forms = (
        ("<start_function_call>", "<end_function_call>", "<escape>"),
        ("<|tool_call>", "<tool_call|>", '<|"|>'),
    )
    markers = tuple(mark for form in forms for mark in form)

    def parse(self, text: str, *, final: bool) -> Parsed:
        found = [(place, form) for form in self.forms if (place := text.find(form[0])) >= 0]
        if not found:
            content = without_held(text, [form[0] for form in self.forms], final=final)
            return Parsed("", closed(content, final=final, calls=False))
        begin, (start, end, quote) = min(found)
        calls: list[Call] = []
        position = begin
        while position >= 0:
            head = _HEAD.match(text, position + len(start))
            if head is None:
                break
            try:
                arguments, after = _object(text, head.end(), quote)
            except _BrokenOff:
                break
            calls.append(Call(head.group(1), json.dumps(arguments, ensure_ascii=False)))
            after = skip_blank(text, after)
            after += len(end) if text.startswith(end, after) else 0
            position = text.find(start, after)
        return Parsed("", text[:begin].rstrip(), tuple(calls))


def _object(text: str, at: int, quote: str) -> tuple[dict[str, Any], int]:
    """The members after an opening brace, and the position after the closing one."""
    values: dict[str, Any] = {}
    while True:
        at = skip_blank(text, at)
        if at >= len(text):
            raise _BrokenOff
        if text[at] == "}":
            return values, at + 1
        if text[at] == ",":
            at += 1
            continue
        if text.startswith(quote, at):
            key, at = _string(text, at, quote)
            at = skip_blank(text, at)
            if not text.startswith(":", at):
                raise _BrokenOff
            at += 1
        else:
            found = _KEY.match(text, at)
            if found is None:
                raise _BrokenOff
            key, at = found.group(1), found.end()
        values[key], at = _value(text, at, quote)


def _value(text: str, at: int, quote: str) -> tuple[Any, int]:
    at = skip_blank(text, at)
    if at >= len(text):
        raise _BrokenOff
    if text.startswith(quote, at):
        return _string(text, at, quote)
    if text[at] == "{":
        return _object(text, at + 1, quote)
    if text[at] == "[":
        items: list[Any] = []
        at += 1
        while True:
            at = skip_blank(text, at)
            if at >= len(text):
                raise _BrokenOff
            if text[at] == "]":
                return items, at + 1
            if text[at] == ",":
                at += 1
                continue
            item, at = _value(text, at, quote)
            items.append(item)
    found = _SCALAR.match(text, at)
    if found is None or found.end() >= len(text):
        raise _BrokenOff
    return _scalar(found.group().strip()), found.end()


def _string(text: str, at: int, quote: str) -> tuple[str, int]:
    end = text.find(quote, at + len(quote))
    if end < 0:
        raise _BrokenOff
    return text[at + len(quote) : end], end + len(quote)


def _scalar(text: str) -> Any:
    """A number, true, false or null; any other bare word is taken as text."""
    try:
        value = json.loads(text, parse_constant=lambda name: name)
    except ValueError:
        return text
    return value
