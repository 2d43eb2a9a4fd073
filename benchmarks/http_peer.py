"""llama.cpp's server (`llama-cpp-python[server]`) with a stand-in for the model that has each chunk at once.

Runs in the peer's own environment: `python http_peer.py PORT`. Its HTTP side is untouched; what the model would compute
is replaced by ready-made chunks of the same form, one token each.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from typing import Any

import llama_cpp
import uvicorn
from llama_cpp.server.app import create_app
from llama_cpp.server.model import LlamaProxy
from llama_cpp.server.settings import ModelSettings, ServerSettings

WORDS = ("one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten")


class Model:
    """Takes the place of a loaded model."""

    def close(self) -> None:
        """Nothing is open."""


def chunks(_model: Model, *, max_tokens: int = 16, **_fields: Any) -> Iterator[dict[str, Any]]:
    """One chunk per token, as Llama.create_chat_completion gives them."""
    head = {"id": "chatcmpl-1", "model": "dummy", "created": int(time.time()), "object": "chat.completion.chunk"}
    first = {"index": 0, "delta": {"role": "assistant"}, "logprobs": None, "finish_reason": None}
    yield {**head, "choices": [first]}
    for number in range(max_tokens):
        delta = {"content": " " + WORDS[number % len(WORDS)]}
        yield {**head, "choices": [{"index": 0, "delta": delta, "logprobs": None, "finish_reason": None}]}
    yield {**head, "choices": [{"index": 0, "delta": {}, "logprobs": None, "finish_reason": "length"}]}


def main() -> None:
    """Serves on the loopback address."""
    llama_cpp.Llama.create_chat_completion = chunks
    LlamaProxy.load_llama_from_model_settings = staticmethod(lambda settings: Model())
    app = create_app(
        server_settings=ServerSettings(interrupt_requests=False),
        model_settings=[ModelSettings(model="dummy", model_alias="dummy")],
    )
    print(llama_cpp.__version__, flush=True)
    uvicorn.run(app, host="127.0.0.1", port=int(sys.argv[1]), log_level="warning")


if __name__ == "__main__":
    main()
