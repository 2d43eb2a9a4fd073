"""The server in the pods, and `LLM`: the same engine inside a program of one's own."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from octavo_server.llm import LLM, Generation, GenerationParams

__all__ = ["LLM", "Generation", "GenerationParams"]


def __getattr__(name: str) -> Any:
    """`LLM` and its companions load torch, so they are imported when they are asked for."""
    if name in __all__:
        from octavo_server import llm

        return getattr(llm, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
