"""Stream one chat answer over HTTP and time it, with the standard library alone: what any client would do."""

from __future__ import annotations

import http.client
import json
import time
import urllib.parse
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any


class ChatFailed(Exception):
    """The server refused or broke off; the message holds status and body."""


@dataclass(frozen=True)
class Answer:
    """One streamed answer and its times, measured at the client."""

    text: str
    prompt_tokens: int
    completion_tokens: int
    finish_reason: str
    first_token_seconds: float
    total_seconds: float

    @property
    def tokens_per_second(self) -> float:
        """Tokens after the first one over the time after it; 0 for an answer of one token."""
        rest = self.total_seconds - self.first_token_seconds
        return (self.completion_tokens - 1) / rest if self.completion_tokens > 1 and rest > 0 else 0.0


def stream_chat(
    address: str,
    model: str,
    question: str,
    *,
    max_tokens: int = 96,
    temperature: float = 0.0,
    timeout_seconds: float = 120.0,
    on_text: Callable[[str], object] = lambda text: None,
) -> Answer:
    """Ask `question` at the base `address` (`http://host:port`); `on_text` gets each piece as it arrives.

    Raises ChatFailed for any status but 200 and for a stream that ends without its end mark, OSError when there is no
    connection.
    """
    body = {
        "model": model,
        "messages": [{"role": "user", "content": question}],
        "max_tokens": max_tokens,
        "temperature": temperature,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    pieces: list[str] = []
    usage: dict[str, Any] = {}
    finish_reason = ""
    first = 0.0
    started = time.monotonic()
    for chunk in events(address, "/v1/chat/completions", body, timeout_seconds):
        usage = chunk.get("usage") or usage
        for choice in chunk.get("choices", []):
            text = choice.get("delta", {}).get("content") or ""
            if text:
                first = first or time.monotonic() - started
                pieces.append(text)
                on_text(text)
            finish_reason = choice.get("finish_reason") or finish_reason
    return Answer(
        text="".join(pieces),
        prompt_tokens=int(usage.get("prompt_tokens", 0)),
        completion_tokens=int(usage.get("completion_tokens", 0)),
        finish_reason=finish_reason,
        first_token_seconds=first,
        total_seconds=time.monotonic() - started,
    )


def events(address: str, path: str, body: dict[str, Any], timeout_seconds: float) -> Iterator[dict[str, Any]]:
    """The JSON objects of a server-sent event stream, until its `[DONE]`."""
    url = urllib.parse.urlsplit(address)
    connection = http.client.HTTPConnection(url.hostname or "", url.port or 80, timeout=timeout_seconds)
    try:
        headers = {"Content-Type": "application/json", "Accept": "text/event-stream"}
        connection.request("POST", path, json.dumps(body), headers)
        response = connection.getresponse()
        if response.status != 200:
            raise ChatFailed(f"POST {path} answered {response.status}: {response.read(2000).decode(errors='replace')}")
        for line in response:
            if not line.startswith(b"data:"):
                continue
            data = line[5:].strip()
            if data == b"[DONE]":
                return
            event = json.loads(data)
            if "error" in event:
                raise ChatFailed(f"the stream ended with an error: {event['error']}")
            yield event
    finally:
        connection.close()
    raise ChatFailed("the stream ended without [DONE]")
