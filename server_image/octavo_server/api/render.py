"""Response bodies of chat and text completions, whole and in chunks."""

from __future__ import annotations

from collections.abc import Sequence
from json.encoder import encode_basestring
from typing import Any

from octavo_server.api.choice import TokenEntry
from octavo_server.api.errors import dump_json
from octavo_server.engine.messages import TokenLogprobs
from octavo_server.text.tokenizer import TextTokenizer

_LOWEST_LOGPROB = -9999.0
"""JSON has no infinity."""


class Renderer:
    """Bodies of one request: its id, time and model in each."""

    def __init__(self, tokenizer: TextTokenizer, response_id: str, created: int, model: str, *, chat: bool) -> None:
        self._tokenizer = tokenizer
        self._chat = chat
        name = "chat.completion" if chat else "text_completion"
        self._head = {"id": response_id, "object": name, "created": created, "model": model}
        self._chunk_head = {**self._head, "object": "chat.completion.chunk" if chat else name}
        self._text_ends: dict[tuple[int, bool], tuple[bytes, bytes]] = {}

    def whole(self, choices: Sequence[dict[str, Any]], usage: dict[str, object]) -> dict[str, Any]:
        """The body of a response that is no stream."""
        return {**self._head, "choices": list(choices), "usage": usage}

    def chunk(self, choice: dict[str, Any], *, with_usage: bool) -> dict[str, Any]:
        """One event of a stream; with include_usage every chunk but the last has `usage: null`."""
        body = {**self._chunk_head, "choices": [choice]}
        return {**body, "usage": None} if with_usage else body

    def text_event(self, index: int, text: str, *, with_usage: bool) -> bytes:
        """The event of a chunk that brings text and nothing else: what `chunk` makes of it, put together from parts
        that are the same for all chunks of a choice."""
        ends = self._text_ends.get((index, with_usage))
        if ends is None:
            ends = self._text_ends[index, with_usage] = self._ends(index, with_usage)
        return ends[0] + encode_basestring(text).encode("utf-8", "replace") + ends[1]

    def _ends(self, index: int, with_usage: bool) -> tuple[bytes, bytes]:
        text = {"delta": {"content": ""}} if self._chat else {"text": ""}
        choice = {"index": index, **text, "logprobs": None, "finish_reason": None}
        whole = b"data: " + dump_json(self.chunk(choice, with_usage=with_usage)) + b"\n\n"
        mark = b'"content":""' if self._chat else b'"text":""'
        begin, end = whole.rsplit(mark, 1)
        return begin + mark[:-2], end

    def usage_chunk(self, usage: dict[str, object]) -> dict[str, Any]:
        """The last event of a stream with include_usage."""
        return {**self._chunk_head, "choices": [], "usage": usage}

    def chat_logprobs(self, entries: Sequence[TokenEntry]) -> dict[str, Any]:
        """The logprobs object of a chat choice."""
        return {"content": [self._chat_entry(entry.logprobs) for entry in entries], "refusal": None}

    def completion_logprobs(
        self, prompt: Sequence[tuple[TokenLogprobs | None, int, int]], entries: Sequence[TokenEntry], shift: int
    ) -> dict[str, Any]:
        """The logprobs object of a text completion: prompt entries (entry, token id, offset) first, if echoed."""
        tokens: list[str] = []
        own: list[float | None] = []
        top: list[dict[str, float] | None] = []
        offsets: list[int] = []
        for known, token_id, offset in prompt:
            tokens.append(self.token_text(token_id))
            own.append(None if known is None else _finite(known.logprob))
            top.append(None if known is None else self._top(known))
            offsets.append(offset)
        for entry in entries:
            tokens.append(self.token_text(entry.logprobs.token_id))
            own.append(_finite(entry.logprobs.logprob))
            top.append(self._top(entry.logprobs))
            offsets.append(entry.offset + shift)
        return {"tokens": tokens, "token_logprobs": own, "top_logprobs": top, "text_offset": offsets}

    def prompt_logprobs(self, entries: Sequence[TokenLogprobs | None]) -> list[dict[str, Any] | None]:
        """vLLM's prompt_logprobs: per position a map of token id to logprob, rank and text."""
        return [None if entry is None else self._prompt_entry(entry) for entry in entries]

    def token_text(self, token_id: int) -> str:
        """A token as text; part of a character is written as its bytes, in OpenAI's spelling."""
        data = self._tokenizer.token_bytes(token_id)
        try:
            return data.decode()
        except UnicodeDecodeError:
            return "bytes:" + "".join(f"\\x{byte:02x}" for byte in data)

    def _chat_entry(self, entry: TokenLogprobs) -> dict[str, Any]:
        top = [self._pair(*pair) for pair in zip(entry.top_ids, entry.top_logprobs, strict=True)]
        return {**self._pair(entry.token_id, entry.logprob), "top_logprobs": top}

    def _pair(self, token_id: int, logprob: float) -> dict[str, Any]:
        data = self._tokenizer.token_bytes(token_id)
        return {"token": self.token_text(token_id), "logprob": _finite(logprob), "bytes": list(data)}

    def _top(self, entry: TokenLogprobs) -> dict[str, float]:
        """The most likely tokens, and the token itself where it is none of them, as OpenAI has it."""
        top = {
            self.token_text(token_id): _finite(logprob)
            for token_id, logprob in zip(entry.top_ids, entry.top_logprobs, strict=True)
        }
        top.setdefault(self.token_text(entry.token_id), _finite(entry.logprob))
        return top

    def _prompt_entry(self, entry: TokenLogprobs) -> dict[str, Any]:
        own = {entry.token_id: (entry.logprob, entry.rank)}
        top = {
            token_id: (logprob, rank)
            for rank, (token_id, logprob) in enumerate(zip(entry.top_ids, entry.top_logprobs, strict=True), 1)
        }
        return {
            str(token_id): {"logprob": _finite(logprob), "rank": rank, "decoded_token": self.token_text(token_id)}
            for token_id, (logprob, rank) in {**own, **top}.items()
        }


def _finite(logprob: float) -> float:
    return max(logprob, _LOWEST_LOGPROB)
