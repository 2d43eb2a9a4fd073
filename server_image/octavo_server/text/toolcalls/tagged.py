"""Calls as JSON: between tags (Hermes, Qwen), alone (Llama 3), after a marker (Mistral, DeepSeek), as a list."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from octavo_server.text.toolcalls.json_text import raw_object, read_call, skip_blank
from octavo_server.text.toolcalls.parsed import Call, Parsed, closed, held_back, without_held


class HermesParser:
    """`<tool_call>{"name": …, "arguments": {…}}</tool_call>`, any number of times, with text around."""

    start = "<tool_call>"
    end = "</tool_call>"

    @property
    def markers(self) -> Sequence[str]:
        return (self.start, self.end)

    def parse(self, text: str, *, final: bool) -> Parsed:
        content, calls, position = "", [], 0
        while True:
            begin = text.find(self.start, position)
            if begin < 0:
                content += without_held(text[position:], self.markers, final=final)
                break
            content += text[position:begin]
            found = read_call(text, begin + len(self.start), self.end, final=final)
            if found.wrong:
                close = text.find(self.end, begin)
                if close < 0 and not final:
                    break
                position = len(text) if close < 0 else close + len(self.end)
                content += text[begin:position]
                continue
            content = content.rstrip()
            if found.call is not None:
                calls.append(found.call)
            if found.end < 0:
                break
            after = skip_blank(text, found.end)
            if text.startswith(self.end, after):
                position = after + len(self.end)
            elif not final and held_back(text[after:], [self.end]) == len(text) - after:
                break
            else:
                position = found.end
        return Parsed("", closed(content, final=final, calls=bool(calls)), tuple(calls))


class Llama3Parser:
    """`{"name": …, "parameters": {…}}` as the whole answer, several joined by `;`, perhaps after a marker.

    Nothing marks a call, so only objects that name one of the request's functions count.
    """

    tag = "<|python_tag|>"
    markers = (tag,)

    def __init__(self, names: Collection[str]) -> None:
        self._names = frozenset(names)

    def parse(self, text: str, *, final: bool) -> Parsed:
        position = skip_blank(text, 0)
        if text.startswith(self.tag, position):
            position = skip_blank(text, position + len(self.tag))
        elif not final and held_back(text[position:], self.markers) == len(text) - position:
            return Parsed()
        if not text.startswith("{", position):
            return Parsed("", "" if position >= len(text) and not final else text)
        calls: list[Call] = []
        while text.startswith("{", position):
            found = read_call(text, position, final=final)
            if found.wrong or (found.call is not None and found.call.name not in self._names):
                return Parsed("", text if not calls else text[position:], tuple(calls))
            if found.call is not None:
                calls.append(found.call)
            if found.end < 0:
                return Parsed("", "", tuple(calls))
            position = skip_blank(text, found.end)
            if text[position : position + 1] in (";", ","):
                position = skip_blank(text, position + 1)
        return Parsed("", text[position:].rstrip(), tuple(calls))


class MistralParser:
    """`[TOOL_CALLS]` and a list of objects, or `[TOOL_CALLS]name[ARGS]{…}` as often as there are calls."""

    start = "[TOOL_CALLS]"
    arguments = "[ARGS]"
    call_id = "[CALL_ID]"
    markers = (start, arguments, call_id)

    def parse(self, text: str, *, final: bool) -> Parsed:
        begin = text.find(self.start)
        if begin < 0:
            content = without_held(text, [self.start], final=final)
            return Parsed("", closed(content, final=final, calls=False))
        calls: list[Call] = []
        position = skip_blank(text, begin + len(self.start))
        if text.startswith("[", position) and not text.startswith((self.arguments, self.call_id), position):
            calls = read_list(text, position, final=final)
        else:
            while 0 <= position < len(text):
                call, position = self._named(text, position, final=final)
                if call is not None:
                    calls.append(call)
                if position >= 0:
                    position = skip_blank(text, position)
                    if not text.startswith(self.start, position):
                        break
                    position = skip_blank(text, position + len(self.start))
        return Parsed("", text[:begin].rstrip(), tuple(calls))

    def _named(self, text: str, at: int, *, final: bool) -> tuple[Call | None, int]:
        brace = text.find("{", at)
        if brace < 0:
            return None, -1
        name = text[at:brace].split(self.call_id)[0].split(self.arguments)[0].strip()
        if not name:
            return None, -1
        arguments, end = raw_object(text, brace, self.start, final=final)
        return Call(name, arguments), end


class DeepSeekParser:
    """V3: `function<｜tool▁sep｜>name`, then a fenced block of JSON; V3.1: `name<｜tool▁sep｜>{…}`; between markers."""

    calls_start = "<｜tool▁calls▁begin｜>"
    calls_end = "<｜tool▁calls▁end｜>"
    start = "<｜tool▁call▁begin｜>"
    separator = "<｜tool▁sep｜>"
    end = "<｜tool▁call▁end｜>"
    markers = (calls_start, calls_end, start, separator, end)

    def parse(self, text: str, *, final: bool) -> Parsed:
        begins = [place for mark in (self.calls_start, self.start) if (place := text.find(mark)) >= 0]
        if not begins:
            content = without_held(text, [self.calls_start, self.start], final=final)
            return Parsed("", closed(content, final=final, calls=False))
        calls: list[Call] = []
        position = text.find(self.start, min(begins))
        while position >= 0:
            head = position + len(self.start)
            separator = text.find(self.separator, head)
            brace = text.find("{", separator) if separator >= 0 else -1
            if brace < 0:
                break
            before = text[head:separator].strip()
            between = text[separator + len(self.separator) : brace].strip().splitlines()
            name = between[0].strip() if between else before
            if not name or self.end in text[separator:brace]:
                position = text.find(self.start, head)
                continue
            arguments, end = raw_object(text, brace, self.end, final=final)
            calls.append(Call(name, arguments))
            position = text.find(self.start, end) if end >= 0 else -1
        return Parsed("", text[: min(begins)].rstrip(), tuple(calls))


class ListParser:
    """A list of objects as the whole answer: the form that a grammar gives to families without one of their own."""

    markers: tuple[str, ...] = ()

    def parse(self, text: str, *, final: bool) -> Parsed:
        position = skip_blank(text, 0)
        if position >= len(text):
            return Parsed()
        if text[position] != "[":
            return Parsed("", text)
        return Parsed("", "", tuple(read_list(text, position, final=final)))


def read_list(text: str, at: int, *, final: bool) -> list[Call]:
    """The calls of a list that begins at `at`; ends at the first that is none."""
    calls: list[Call] = []
    position = skip_blank(text, at + 1)
    while text.startswith("{", position):
        found = read_call(text, position, final=final)
        if found.call is not None:
            calls.append(found.call)
        if found.wrong or found.end < 0:
            break
        position = skip_blank(text, found.end)
        if not text.startswith(",", position):
            break
        position = skip_blank(text, position + 1)
    return calls
