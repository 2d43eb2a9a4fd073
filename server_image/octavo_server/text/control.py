"""Control tokens in what users write stay text.

A chat template puts roles and turns between control tokens, and its output is tokenised as one text. If a message holds
`<|im_end|>`, that must not end the turn. So each such place in a message, a name, a call or a tool's description is
broken by a mark before the template sees it; between the control tokens of the template itself, a stretch that holds
the mark is tokenised without control tokens, and the mark is taken out again. Texts without such a place, nearly all,
are tokenised as ever.

The mark is random for each prompt and stands between two code points that no text may use, so nobody can write it.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Iterable
from typing import Any

from octavo_server.text.tokenizer import TextTokenizer

_SAID_BY_MODEL = frozenset({"assistant"})


class ControlTokens:
    """What counts as a control token for one tokenizer and template."""

    def __init__(self, tokenizer: TextTokenizer, template: str) -> None:
        self._tokenizer = tokenizer
        special = [text for text in tokenizer.special_texts if len(text) > 1]
        # Tags of calls and reasoning are often plain added tokens. The model may have written them itself, and
        # templates look for them in its earlier turns; in anybody else's words they are text.
        tags = [text for text in tokenizer.added_texts if len(text) > 1 and text in template]
        self._special = _any_of(special)
        self._all = _any_of({*special, *tags})
        self._added = _any_of(text for text in tokenizer.added_texts if len(text) > 1)

    def guard(self) -> Guard:
        """The protection of one prompt."""
        return Guard(self._special, self._all)

    def encode(self, text: str, guard: Guard) -> list[int]:
        """Token ids of a rendered prompt, without the tokenizer's own beginning or end of a text."""
        tokenizer = self._tokenizer
        if not guard.used or self._added is None:
            return tokenizer.encode(text, add_special_tokens=False)
        ids: list[int] = []
        usual = ""
        for part in self._added.split(text):
            if guard.mark in part:
                ids += tokenizer.encode(usual, add_special_tokens=False) if usual else []
                ids += tokenizer.encode_plain(part.replace(guard.mark, ""))
                usual = ""
            else:
                usual += part
        return ids + (tokenizer.encode(usual, add_special_tokens=False) if usual else [])


class Guard:
    """Breaks control tokens in texts of one prompt; `used` says whether there were any."""

    def __init__(self, special: re.Pattern[str] | None, everything: re.Pattern[str] | None) -> None:
        self.mark = f"\ufdd0{secrets.token_hex(8)}\ufdd1"
        self.used = False
        self._special = special
        self._everything = everything

    def message(self, message: dict[str, Any]) -> dict[str, Any]:
        """A message whose texts hold no control token; its role is one of a few words."""
        pattern = self._special if message["role"] in _SAID_BY_MODEL else self._everything
        return {name: value if name == "role" else self._shield(value, pattern) for name, value in message.items()}

    def value(self, value: Any) -> Any:
        """Any JSON value whose texts hold no control token: tools, variables of the template."""
        return self._shield(value, self._everything)

    def _shield(self, value: Any, pattern: re.Pattern[str] | None) -> Any:
        if pattern is None:
            return value
        if isinstance(value, str):
            return pattern.sub(self._broken, value)
        if isinstance(value, list):
            return [self._shield(item, pattern) for item in value]
        if isinstance(value, dict):
            return {self._shield(name, pattern): self._shield(item, pattern) for name, item in value.items()}
        return value

    def _broken(self, found: re.Match[str]) -> str:
        self.used = True
        return found[0][0] + self.mark + found[0][1:]


def _any_of(texts: Iterable[str]) -> re.Pattern[str] | None:
    """The longest of the texts at each place, as a group, so that `split` keeps it."""
    ordered = sorted(set(texts), key=len, reverse=True)
    return re.compile("(" + "|".join(map(re.escape, ordered)) + ")") if ordered else None
