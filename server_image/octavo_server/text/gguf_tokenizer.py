"""A `tokenizers` tokenizer built from the vocabulary that a GGUF file carries.

GGUF names the way text is cut before BPE (`tokenizer.ggml.pre`); the patterns below are those that the models were
trained with, as published in their tokenizer.json files. An unknown name is refused: a wrong pattern would give other
tokens than the model knows, and worse answers without any error.
"""

from __future__ import annotations

from typing import Any

from tokenizers import AddedToken, Regex, Tokenizer, decoders, normalizers, pre_tokenizers, processors
from tokenizers.models import BPE

_CONTROL = 3
_USER_DEFINED = 4
_UNKNOWN = 2
_LETTERS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+"
_REST = r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_LLAMA3 = rf"{_LETTERS}|\p{{N}}{{1,3}}|{_REST}"
_QWEN2 = rf"{_LETTERS}|\p{{N}}|{_REST}"
_SPLITS = {"llama-bpe": _LLAMA3, "llama3": _LLAMA3, "llama-v3": _LLAMA3, "qwen2": _QWEN2}
_SINGLE_DIGITS = frozenset({"smollm", "starcoder", "refact", "command-r"})
_PLAIN = frozenset({"gpt-2", "default", "olmo"})


class VocabularyError(ValueError):
    """The file's vocabulary can't be turned into a tokenizer; the message names the metadata key."""


def build_tokenizer(header: dict[str, Any]) -> Tokenizer:
    """The tokenizer of a GGUF header (byte-level BPE and SentencePiece BPE). Raises VocabularyError."""
    kind = header.get("tokenizer.ggml.model")
    tokens = header.get("tokenizer.ggml.tokens")
    if not isinstance(tokens, list) or not tokens:
        raise VocabularyError("tokenizer.ggml.tokens is missing: the file carries no vocabulary")
    if kind == "gpt2":
        tokenizer = _byte_level(header, tokens)
    elif kind == "llama":
        tokenizer = _sentencepiece(header, tokens)
    else:
        raise VocabularyError(f"tokenizer.ggml.model is {kind!r}; supported are 'gpt2' and 'llama' (both BPE)")
    _add_tokens(tokenizer, tokens, header.get("tokenizer.ggml.token_type") or [])
    _add_bos(tokenizer, header, tokens, default=kind == "llama")
    return tokenizer


def _byte_level(header: dict[str, Any], tokens: list[str]) -> Tokenizer:
    merges = [tuple(merge.split(" ", 1)) for merge in header.get("tokenizer.ggml.merges") or []]
    vocabulary = {token: index for index, token in enumerate(tokens)}
    pre = header.get("tokenizer.ggml.pre", "default")
    ignore_merges = pre in _SPLITS and _SPLITS[pre] is _LLAMA3
    tokenizer = Tokenizer(BPE(vocab=vocabulary, merges=merges, ignore_merges=ignore_merges))
    tokenizer.pre_tokenizer = _pre_tokenizer(pre)
    if pre == "qwen2":
        tokenizer.normalizer = normalizers.NFC()
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def _pre_tokenizer(pre: str) -> pre_tokenizers.PreTokenizer:
    if pre in _PLAIN:
        return pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    if pre in _SINGLE_DIGITS:
        return pre_tokenizers.Sequence(
            [
                pre_tokenizers.Digits(individual_digits=True),
                pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True),
            ]
        )
    if pre in _SPLITS:
        return pre_tokenizers.Sequence(
            [
                pre_tokenizers.Split(Regex(_SPLITS[pre]), behavior="isolated"),
                pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
            ]
        )
    known = ", ".join(sorted([*_PLAIN, *_SINGLE_DIGITS, *_SPLITS]))
    raise VocabularyError(
        f"tokenizer.ggml.pre is {pre!r}; supported are {known}. Use the model's folder with tokenizer.json instead"
    )


def _sentencepiece(header: dict[str, Any], tokens: list[str]) -> Tokenizer:
    scores = header.get("tokenizer.ggml.scores")
    if not isinstance(scores, list) or len(scores) != len(tokens):
        raise VocabularyError("tokenizer.ggml.scores must hold one score per token for tokenizer.ggml.model 'llama'")
    vocabulary = {token: index for index, token in enumerate(tokens)}
    unknown = int(header.get("tokenizer.ggml.unknown_token_id", 0))
    tokenizer = Tokenizer(
        BPE(
            vocab=vocabulary,
            merges=_merges_by_score(vocabulary, scores),
            unk_token=tokens[unknown] if unknown < len(tokens) else None,
            fuse_unk=True,
            byte_fallback=True,
        )
    )
    prefix = bool(header.get("tokenizer.ggml.add_space_prefix", True))
    steps: list[normalizers.Normalizer] = [normalizers.Prepend("▁")] if prefix else []
    tokenizer.normalizer = normalizers.Sequence([*steps, normalizers.Replace(" ", "▁")])
    parts: list[decoders.Decoder] = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    if prefix:
        parts.append(decoders.Strip(" ", 1, 0))
    tokenizer.decoder = decoders.Sequence(parts)
    return tokenizer


def _merges_by_score(vocabulary: dict[str, int], scores: list[float]) -> list[tuple[str, str]]:
    """Merges of a SentencePiece model: every split of a piece into two pieces, best score of the whole first."""
    merges: list[tuple[float, int, int, str, str]] = []
    for piece, index in vocabulary.items():
        for cut in range(1, len(piece)):
            left, right = piece[:cut], piece[cut:]
            if left in vocabulary and right in vocabulary:
                merges.append((-scores[index], vocabulary[left], vocabulary[right], left, right))
    merges.sort(key=lambda merge: merge[:3])
    return [(left, right) for _, _, _, left, right in merges]


def _add_tokens(tokenizer: Tokenizer, tokens: list[str], types: list[int]) -> None:
    control = [tokens[index] for index, kind in enumerate(types) if kind in (_CONTROL, _UNKNOWN)]
    own = [tokens[index] for index, kind in enumerate(types) if kind == _USER_DEFINED]
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in control])
    tokenizer.add_tokens([AddedToken(token, special=False, normalized=False) for token in own])


def _add_bos(tokenizer: Tokenizer, header: dict[str, Any], tokens: list[str], *, default: bool) -> None:
    bos = header.get("tokenizer.ggml.bos_token_id")
    if bos is None or not 0 <= bos < len(tokens) or not header.get("tokenizer.ggml.add_bos_token", default):
        return
    token = tokens[bos]
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{token} $A", pair=f"{token} $A $B", special_tokens=[(token, bos)]
    )
