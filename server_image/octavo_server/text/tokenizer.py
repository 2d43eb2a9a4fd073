"""Text to token ids and token ids to bytes, from a GGUF file or a folder with tokenizer.json.

Encoding is the `tokenizers` library's; decoding goes through the bytes of each token, so that text can be put together
piece by piece and a character that spans tokens is never broken.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

from tokenizers import Tokenizer

from octavo_server.text.detokenizer import decode_bytes
from octavo_server.text.gguf_header import GgufError, read_header
from octavo_server.text.gguf_tokenizer import VocabularyError, build_tokenizer

_BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>\Z")
_SPECIAL_NAMES = ("bos_token", "eos_token", "unk_token", "pad_token", "sep_token", "cls_token")


class TokenizerError(ValueError):
    """No usable tokenizer at the model's place; the message names the file and the way out."""


@dataclass
class TextTokenizer:
    """A tokenizer with what the rest of the server asks about it. Safe for use from several threads."""

    inner: Tokenizer
    eos_ids: frozenset[int]
    special_tokens: dict[str, str] = field(default_factory=dict)
    """bos_token, eos_token … as text, for chat templates."""
    chat_template: str | None = None

    def __post_init__(self) -> None:
        self._kind = _decoder_kind(self.inner)
        added = self.inner.get_added_tokens_decoder()
        self.special_ids = frozenset(index for index, token in added.items() if token.special)
        self._added = {index: token.content.encode() for index, token in added.items()}
        self.vocabulary_size = max(self.inner.get_vocab(with_added_tokens=True).values(), default=-1) + 1
        self._bytes: dict[int, bytes] = {}

    def encode(self, text: str, *, add_special_tokens: bool) -> list[int]:
        """Token ids of one text. Uses the library's batch call, which leaves other threads running."""
        ids: list[int] = self.inner.encode_batch([text], add_special_tokens=add_special_tokens)[0].ids
        return ids

    def encode_plain(self, text: str) -> list[int]:
        """Token ids of a text in which nothing is a control token, whatever it looks like."""
        ids: list[int] = self._without_added.encode_batch([text], add_special_tokens=False)[0].ids
        return ids

    @cached_property
    def _without_added(self) -> Tokenizer:
        """A second tokenizer that knows no added tokens; made when a text first asks for it."""
        content = json.loads(self.inner.to_str())
        return Tokenizer.from_str(json.dumps({**content, "added_tokens": [], "post_processor": None}))

    def token_bytes(self, token_id: int) -> bytes:
        """The bytes that a token stands for, special tokens included; empty for an id without a token."""
        found = self._bytes.get(token_id)
        if found is None:
            found = self._bytes[token_id] = self._compute_bytes(token_id)
        return found

    def text_bytes(self, token_id: int) -> bytes:
        """The bytes that a token adds to an answer: as `token_bytes`, and nothing for special tokens."""
        return b"" if token_id in self.special_ids else self.token_bytes(token_id)

    @cached_property
    def special_texts(self) -> dict[str, int]:
        """Ids of special tokens by their text."""
        return {self._added[index].decode(): index for index in self.special_ids}

    @cached_property
    def added_texts(self) -> dict[str, int]:
        """Ids of all tokens that are found in a text before anything else, by their text; special ones included."""
        return {text.decode(): index for index, text in self._added.items()}

    @cached_property
    def longest_token_characters(self) -> int:
        """An upper bound of the characters that one token can stand for (at least 1)."""
        pieces = self.inner.get_vocab(with_added_tokens=True)
        return max(1, *map(len, pieces)) if pieces else 1

    @property
    def strips_first_space(self) -> bool:
        """SentencePiece puts a space in front of a text; decoding a whole text takes it off."""
        return self._kind == "SentencePieceStripped"

    def decode(self, token_ids: Iterable[int], *, skip_special_tokens: bool = True) -> str:
        """The text of a whole sequence; bytes that are no UTF-8 become U+FFFD."""
        piece = self.text_bytes if skip_special_tokens else self.token_bytes
        data = b"".join(map(piece, token_ids))
        if self.strips_first_space and data.startswith(b" "):
            data = data[1:]
        return decode_bytes(data)

    def _compute_bytes(self, token_id: int) -> bytes:
        if token_id in self._added:
            return self._added[token_id]
        piece = self.inner.id_to_token(token_id)
        if piece is None:
            return b""
        if self._kind == "ByteLevel":
            table = _byte_alphabet()
            return b"".join(table[c] if c in table else c.encode() for c in piece)
        byte = _BYTE_TOKEN.match(piece)
        return bytes([int(byte.group(1), 16)]) if byte else piece.replace("▁", " ").encode()


def load_tokenizer(path: Path, *, chat_template_file: Path | None = None) -> TextTokenizer:
    """The tokenizer of a GGUF file or of a folder with tokenizer.json. Raises TokenizerError."""
    try:
        tokenizer = _from_folder(path) if path.is_dir() else _from_gguf(path)
        if chat_template_file is not None:
            tokenizer.chat_template = chat_template_file.read_text(encoding="utf-8")
    except (GgufError, VocabularyError, UnicodeDecodeError, json.JSONDecodeError) as error:
        raise TokenizerError(f"the tokenizer of {path} can't be used: {error}") from error
    except OSError as error:
        raise TokenizerError(f"{error.filename or path} can't be read: {error.strerror or error}") from error
    return tokenizer


def _from_gguf(path: Path) -> TextTokenizer:
    header = read_header(path)
    inner = build_tokenizer(header)
    tokens = header["tokenizer.ggml.tokens"]
    special: dict[str, str] = {}
    for name, key in (("bos_token", "bos"), ("eos_token", "eos"), ("unk_token", "unknown"), ("pad_token", "padding")):
        index = header.get(f"tokenizer.ggml.{key}_token_id")
        if index is not None and 0 <= index < len(tokens):
            special[name] = tokens[index]
    ends = {header.get(f"tokenizer.ggml.{key}_token_id") for key in ("eos", "eot", "eom")}
    eos_ids = frozenset(index for index in ends if index is not None)
    return TextTokenizer(inner, eos_ids, special, header.get("tokenizer.chat_template"))


def _from_folder(path: Path) -> TextTokenizer:
    file = path / "tokenizer.json"
    if not file.is_file():
        raise TokenizerError(f"{path} holds no tokenizer.json; put the model's tokenizer.json there or use a GGUF file")
    try:
        inner = Tokenizer.from_file(str(file))
    except Exception as error:  # the library raises bare Exception for a file that it can't parse
        raise TokenizerError(f"{file} can't be used: {error}") from error
    settings = _read_json(path / "tokenizer_config.json")
    special = {
        name: value if isinstance(value, str) else str(value.get("content", ""))
        for name in _SPECIAL_NAMES
        if isinstance(value := settings.get(name), str | dict)
    }
    eos: set[int] = set()
    for name in ("config.json", "generation_config.json"):
        value = _read_json(path / name).get("eos_token_id")
        eos.update(value if isinstance(value, list) else [value] if isinstance(value, int) else [])
    own = inner.token_to_id(special["eos_token"]) if "eos_token" in special else None
    if own is not None:
        eos.add(own)
    return TextTokenizer(inner, frozenset(eos), special, _folder_template(path, settings))


def _folder_template(path: Path, settings: dict[str, Any]) -> str | None:
    file = path / "chat_template.jinja"
    if file.is_file():
        return file.read_text(encoding="utf-8")
    template = _read_json(path / "chat_template.json").get("chat_template") or settings.get("chat_template")
    if isinstance(template, list):
        named = {item["name"]: item["template"] for item in template if "name" in item and "template" in item}
        template = named.get("default")
    return template if isinstance(template, str) else None


def _read_json(path: Path) -> dict[str, Any]:
    if not path.is_file():
        return {}
    value = json.loads(path.read_text(encoding="utf-8"))
    return value if isinstance(value, dict) else {}


def _decoder_kind(inner: Tokenizer) -> str:
    """How pieces stand for bytes. Raises TokenizerError for a kind that no language model of ours uses."""
    decoder = json.loads(inner.to_str()).get("decoder") if inner.decoder is not None else None
    parts = [decoder, *(decoder or {}).get("decoders", [])] if decoder else []
    names = {part["type"] for part in parts}
    if "ByteLevel" in names:
        return "ByteLevel"
    if "ByteFallback" in names or "Metaspace" in names:
        strips = "Strip" in names or any(part.get("prepend_scheme") in ("always", "first") for part in parts)
        return "SentencePieceStripped" if strips else "SentencePiece"
    raise TokenizerError(
        f"tokenizer.json has a decoder of kind {sorted(names) or 'none'}; "
        "supported are ByteLevel and SentencePiece with byte fallback"
    )


@lru_cache(maxsize=1)
def _byte_alphabet() -> dict[str, bytes]:
    """The printable characters that byte-level BPE writes for the 256 bytes (GPT-2's table)."""
    printable = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    table = {chr(byte): bytes([byte]) for byte in printable}
    rest = [byte for byte in range(256) if byte not in set(printable)]
    table.update({chr(256 + position): bytes([byte]) for position, byte in enumerate(rest)})
    return table
