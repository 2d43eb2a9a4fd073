"""Bytes of tokens to text, piece by piece: a character is given out once all its bytes are there, never before."""

from __future__ import annotations

import codecs
from collections.abc import Callable, Iterable

_LONGEST_CHARACTER_BYTES = 4
_DECODER = codecs.getincrementaldecoder("utf-8")


def decode_bytes(data: bytes) -> str:
    """A whole byte string as text; what is no UTF-8 becomes U+FFFD."""
    return data.decode("utf-8", "replace")


def unfinished_tail(data: bytes) -> bytes:
    """The bytes at the end of `data` that begin a character whose rest is missing; empty when there are none."""
    decoder = _DECODER("replace")
    decoder.decode(data[-_LONGEST_CHARACTER_BYTES * 2 :])
    return decoder.getstate()[0]


class Detokenizer:
    """Text of one choice. `feed` returns what a token completes; an unfinished character waits for its last byte.

    A prompt that ends inside a character hands its last bytes over as `pending`: the first generated token completes
    that character, and the whole character belongs to the answer.
    """

    def __init__(self, piece: Callable[[int], bytes], *, pending: bytes = b"", strip_first_space: bool = False) -> None:
        self._piece = piece
        self._decoder = _DECODER("replace")
        self._decoder.decode(pending)
        self._strip = strip_first_space

    def feed(self, token_id: int) -> str:
        """The text that one more token completes; may be empty."""
        data = self._piece(token_id)
        if self._strip and data:
            self._strip = False
            data = data.removeprefix(b" ")
        return self._decoder.decode(data)

    def feed_all(self, token_ids: Iterable[int]) -> str:
        """The text that several tokens complete together."""
        return "".join(map(self.feed, token_ids))
