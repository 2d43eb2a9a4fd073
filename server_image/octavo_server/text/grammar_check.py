"""Whether a grammar can be used at all, found out before an answer begins and without the model's vocabulary.

llguidance's own validation reads a grammar; that nothing fits it, or that its first symbols need more than the limits,
shows only when a text walks through it. The walk takes single bytes, so the tokens it needs are the 256 bytes and the
special tokens that a grammar may name: building that holds the interpreter for milliseconds, the whole vocabulary for
half a second and more.
"""

from __future__ import annotations

import re

from llguidance import LLMatcher, LLTokenizer, TokenizerWrapper

from octavo_server.text.grammar import LIMITS, GrammarError
from octavo_server.text.tokenizer import TextTokenizer

_WALKED_BYTES = 64
_SHOWN_CHARACTERS = 300
_NOTHING_FITS = "no text fits it"
_OTHER_PATH = "doesn't satisfy the grammar"
"""llguidance's word for a byte that it allowed and then, for bytes that are forced, wants as part of another token."""
_WORDS = (
    (re.compile(r"<non-verbose/>"), ""),
    (re.compile(r".*NoExtensionBias.*", re.DOTALL), _NOTHING_FITS),
    (re.compile(r"Enable 'coerce_one_of' option[^.]*"), "Use anyOf"),
    (re.compile(r"; consider making your grammar left-recursive if it's right-recursive"), "; make it smaller"),
)


def reason(message: str) -> str:
    """llguidance's message in words for the user, in one line of bounded length."""
    for pattern, words in _WORDS:
        message = pattern.sub(words, message)
    message = " ".join(message.split())
    return message if len(message) <= _SHOWN_CHARACTERS else f"{message[: _SHOWN_CHARACTERS - 1]}…"


class GrammarCheck:
    """Checks grammars for one model. Made once; `check` may run in any thread."""

    def __init__(self, tokenizer: TextTokenizer) -> None:
        vocabulary = _Bytes(tokenizer)
        # Ends strings where it may and writes no white space where it must not: that leads furthest into a grammar.
        first = [ord('"'), *(byte for byte in range(0x21, 0x7F) if byte != ord('"'))]
        order = [*first, *(byte for byte in range(256) if byte not in first)]
        self._bytes = [vocabulary.ids[byte] for byte in order]
        self._tokenizer = LLTokenizer(
            TokenizerWrapper(vocabulary),
            n_vocab=len(vocabulary.tokens),
            eos_token=sorted(tokenizer.eos_ids) or None,
        )

    def check(self, grammar: str) -> None:
        """Raises GrammarError for a grammar that is wrong, that no text fits, or whose beginning exceeds the limits."""
        wrong, messages = LLMatcher.validate_grammar_with_warnings(grammar, self._tokenizer, limits=LIMITS)
        if wrong:
            raise GrammarError(reason(messages[0]) if messages else "it can't be used")
        matcher = LLMatcher(self._tokenizer, grammar, limits=LIMITS, log_level=0)
        for _ in range(_WALKED_BYTES):
            mask = int.from_bytes(matcher.compute_bitmask(), "little")
            if matcher.is_error() or matcher.is_stopped():
                break
            if not mask and not matcher.is_accepting():
                raise GrammarError(_NOTHING_FITS)
            byte = next((index for index in self._bytes if mask >> index & 1), None)
            if byte is None:  # the end, or a special token
                break
            matcher.consume_token(byte)
        if matcher.is_error() and _OTHER_PATH not in matcher.get_error():
            raise GrammarError(reason(matcher.get_error()))


class _Bytes:
    """What TokenizerWrapper asks for: the special tokens under their own ids, each byte under another one."""

    def __init__(self, tokenizer: TextTokenizer) -> None:
        special = tokenizer.special_ids
        size = max(tokenizer.vocabulary_size, 256 + len(special))
        self.special_token_ids = sorted(special)
        self.eos_token_id = min(tokenizer.eos_ids, default=0)
        self.bos_token_id = None
        self.ids = [index for index in range(size) if index not in special][:256]
        self.tokens = [b""] * size
        for byte, index in enumerate(self.ids):
            self.tokens[index] = bytes([byte])
        for index in special:
            self.tokens[index] = b"\xff" + tokenizer.token_bytes(index)

    def __call__(self, text: str | bytes) -> list[int]:
        return [self.ids[byte] for byte in (text.encode() if isinstance(text, str) else text)]
