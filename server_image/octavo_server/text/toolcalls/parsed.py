"""What a parser gives, and the rule that makes streaming simple.

A parser reads the whole text so far, again and again; what is new is sent. That is right if reading a longer text only
ever adds: `parse(begin)` must be a beginning of `parse(begin + rest)` in its reasoning, its content, the list of calls,
and each call's arguments. So a parser holds back what it can't know yet: half a marker, a name, white space before a
call. Then the calls are the same for every way in which the text is cut into pieces.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True)
class Call:
    """A call of a function: its whole name, and the text of its arguments as far as it is known."""

    name: str
    arguments: str


@dataclass(frozen=True)
class Parsed:
    """An answer's parts."""

    reasoning: str = ""
    content: str = ""
    calls: tuple[Call, ...] = ()


class Parser(Protocol):
    """Reads one family's way of writing. Stateless."""

    @property
    def markers(self) -> Sequence[str]:
        """Special tokens whose text the parser needs; all others are left out of the text."""

    def parse(self, text: str, *, final: bool) -> Parsed:
        """The parts of a text; `final` when no more comes."""


class PlainParser:
    """All is content."""

    markers: tuple[str, ...] = ()

    def parse(self, text: str, *, final: bool) -> Parsed:
        """The text as content."""
        return Parsed(content=text)


def held_back(text: str, markers: Sequence[str]) -> int:
    """Length of the longest end of `text` that begins a marker and is not all of it."""
    longest = max(map(len, markers), default=0)
    for size in range(min(longest - 1, len(text)), 0, -1):
        tail = text[-size:]
        if any(len(marker) > size and marker.startswith(tail) for marker in markers):
            return size
    return 0


def without_held(text: str, markers: Sequence[str], *, final: bool) -> str:
    """The text less what may be the beginning of a marker."""
    return text if final else text[: len(text) - held_back(text, markers)]


def closed(content: str, *, final: bool, calls: bool) -> str:
    """Content less the white space at its end, which belongs to the answer only if no call and no text follows."""
    return content if final and not calls else content.rstrip()
