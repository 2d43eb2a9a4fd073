"""Reading JSON that is still being written: where values end, and how far a call of a function is."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from functools import lru_cache

from octavo_server.text.toolcalls.parsed import Call, without_held

_BLANK = re.compile(r"\s*")
_STRING = re.compile(r'"(?:[^"\\]|\\.)*"', re.S)
_SCALAR = re.compile(r"[^\s,\]}]+")
_ARGUMENTS = ("arguments", "parameters")


@dataclass(frozen=True)
class Value:
    """A JSON value in a text. `end` is -1 while it is open; `cut` when a stop marker came before its end."""

    start: int
    end: int
    cut: bool = False


@dataclass(frozen=True)
class CallText:
    """A call in a text. `call` is None while its name is unknown; `wrong` when it is no call."""

    call: Call | None
    end: int
    wrong: bool = False


def skip_blank(text: str, at: int) -> int:
    """The next position that is no white space."""
    found = _BLANK.match(text, at)
    return found.end() if found else at


def read_value(text: str, at: int, stop: str = "") -> Value:
    """The value that begins at `at` (not white space). A stop marker outside of strings ends it early."""
    if text.startswith('"', at):
        found = _STRING.match(text, at)
        return Value(at, found.end() if found else -1)
    if text[at : at + 1] not in ("{", "["):
        scalar = _SCALAR.match(text, at)
        end = scalar.end() if scalar else at
        return Value(at, end if end < len(text) else -1)
    depth = 0
    for piece in _pieces(stop).finditer(text, at):
        found_text = piece.group()
        if found_text in "{[":
            depth += 1
        elif found_text in "}]":
            depth -= 1
            if depth == 0:
                return Value(at, piece.end())
        elif found_text == '"':
            break
        elif stop and found_text == stop:
            return Value(at, piece.start(), cut=True)
    return Value(at, -1)


def raw_object(text: str, at: int, stop: str, *, final: bool) -> tuple[str, int]:
    """An object as it is written and its end (-1 while open): all that may be sent of it."""
    value = read_value(text, at, stop)
    if value.end >= 0:
        return text[at : value.end].rstrip() if value.cut else text[at : value.end], value.end
    return without_held(text[at:], [stop] if stop else [], final=final), -1


def read_call(text: str, at: int, stop: str = "", *, final: bool) -> CallText:
    """The object with a name and arguments (or parameters) that begins at `at`."""
    name: str | None = None
    arguments: str | None = None
    position = skip_blank(text, at)
    if position >= len(text):
        return CallText(None, -1, wrong=final)
    if text[position] != "{":
        return CallText(None, position, wrong=True)
    position = skip_blank(text, position + 1)
    while position < len(text) and text[position] != "}":
        key = read_value(text, position, stop)
        if text[position] != '"':
            return CallText(None, position, wrong=True)
        if key.end < 0:
            return _open(name, arguments, final=final)
        position = skip_blank(text, key.end)
        if position >= len(text):
            return _open(name, arguments, final=final)
        if text[position] != ":":
            return CallText(None, position, wrong=True)
        position = skip_blank(text, position + 1)
        if position >= len(text):
            return _open(name, arguments, final=final)
        value = read_value(text, position, stop)
        field = _loads(text[key.start : key.end])
        if field == "name" and value.end >= 0 and not value.cut:
            found = _loads(text[position : value.end])
            if not isinstance(found, str) or not found:
                return CallText(None, position, wrong=True)
            name = found
        elif field in _ARGUMENTS:
            if text[position] in "{[":
                arguments, _ = raw_object(text, position, stop, final=final)
            elif value.end >= 0:
                arguments = _unwrapped(text[position : value.end])
        if value.end < 0 or value.cut:
            opened = _open(name, arguments, final=final)
            return CallText(opened.call, value.end, wrong=value.cut and opened.call is None) if value.cut else opened
        position = skip_blank(text, value.end)
        if text.startswith(",", position):
            position = skip_blank(text, position + 1)
        elif position < len(text) and text[position] != "}":
            return _ended(name, arguments, position)
    if position >= len(text):
        return _open(name, arguments, final=final)
    return _ended(name, arguments, position + 1)


def _open(name: str | None, arguments: str | None, *, final: bool) -> CallText:
    """A call whose text goes on, or breaks off here."""
    if name is None:
        return CallText(None, -1, wrong=final)
    return CallText(Call(name, arguments or ""), -1)


def _ended(name: str | None, arguments: str | None, end: int) -> CallText:
    if name is None:
        return CallText(None, end, wrong=True)
    return CallText(Call(name, "{}" if arguments is None else arguments), end)


def _unwrapped(text: str) -> str:
    """Arguments that are no object: none at all, or JSON inside of a string."""
    value = _loads(text)
    if value is None:
        return "{}"
    return value if isinstance(value, str) else text


def _loads(text: str) -> object:
    try:
        return json.loads(text, strict=False)
    except ValueError:
        return text


@lru_cache(maxsize=16)
def _pieces(stop: str) -> re.Pattern[str]:
    end = f"|{re.escape(stop)}" if stop else ""
    return re.compile(rf'"(?:[^"\\]|\\.)*"|[{{}}\[\]]|"{end}', re.S)
