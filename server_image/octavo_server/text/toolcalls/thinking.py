"""Reasoning between think tags, apart from the answer."""

from __future__ import annotations

from collections.abc import Sequence

from octavo_server.text.toolcalls.parsed import Parsed, Parser, held_back, without_held

START = "<think>"
END = "</think>"


class ThinkParser:
    """Splits the reasoning off and hands the rest to another parser.

    `opened`: the prompt ends with the opening tag, so the answer begins as reasoning.
    """

    def __init__(self, inner: Parser, *, opened: bool) -> None:
        self._inner = inner
        self._opened = opened

    @property
    def markers(self) -> Sequence[str]:
        return (START, END, *self._inner.markers)

    def parse(self, text: str, *, final: bool) -> Parsed:
        begin = len(text) - len(text.lstrip())
        if text.startswith(START, begin):
            begin += len(START)
        elif not self._opened:
            if not final and held_back(text[begin:], [START]) == len(text) - begin:
                return Parsed()
            return self._inner.parse(text, final=final)
        elif not final and held_back(text[begin:], [START]) == len(text) - begin:
            return Parsed()
        end = text.find(END, begin)
        if end < 0:
            thought = without_held(text[begin:], [END], final=final)
            return Parsed(reasoning=thought.strip())
        rest = self._inner.parse(text[end + len(END) :].lstrip(), final=final)
        return Parsed(text[begin:end].strip() + rest.reasoning, rest.content, rest.calls)
