"""What the pages show, taken apart: fenced blocks, inline code, and command lines."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
PAGES = sorted([*DOCS.rglob("*.md"), ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "charts/octavo/README.md"])
SHELLS = ("sh", "bash", "")
_FENCE = re.compile(r"^ {0,3}(`{3,})\s*(\w*)\s*$")
_CODE = re.compile(r"(?<!`)`([^`\n]+)`(?!`)")


@dataclass(frozen=True)
class Block:
    """A fenced block of a page."""

    page: Path
    line: int
    language: str
    text: str

    @property
    def where(self) -> str:
        return f"{self.page.relative_to(ROOT)}:{self.line}"


def blocks(page: Path) -> Iterator[Block]:
    """Fenced blocks in order."""
    fence, language, start, kept = "", "", 0, []
    for number, line in enumerate(page.read_text(encoding="utf-8").splitlines(), 1):
        found = _FENCE.match(line)
        if not fence and found:
            fence, language, start, kept = found[1], found[2], number, []
        elif fence and line.strip() == fence:
            yield Block(page, start, language, "\n".join(kept) + "\n")
            fence = ""
        elif fence:
            kept.append(line)
    assert not fence, f"{page}: a block is not closed"


def prose(page: Path) -> str:
    """The page without its blocks."""
    text = page.read_text(encoding="utf-8")
    for block in blocks(page):
        text = text.replace(block.text, "", 1)
    return text


def inline_code(page: Path) -> list[str]:
    """Texts between backticks; a line break inside counts as a blank."""
    joined = re.sub(r"(?<=\S)\n(?=\S)", " ", prose(page))
    return _CODE.findall(joined)


def commands(text: str) -> Iterator[list[str]]:
    """Simple commands of a shell text, as words: continued lines joined, comments and prompts left out, split at
    pipes and the like. What is no shell (a drawing, a formula) gives nothing."""
    for line in re.sub(r"\\\n\s*", " ", text).splitlines():
        bare = line.strip().removeprefix("$ ")
        bare = re.sub(r'^\w+="?\$\((.*?)\)"?.*$', r"\1", bare)
        lexer = shlex.shlex(bare, posix=True, punctuation_chars="|&;")
        lexer.whitespace_split = True
        try:
            words = list(lexer)
        except ValueError:
            continue
        found: list[str] = []
        for word in [*words, ";"]:
            if set(word) <= set("|&;"):
                while found and re.fullmatch(r"\w+=.*", found[0]):
                    found = found[1:]
                if found:
                    yield found
                found = []
            else:
                found.append(word)
