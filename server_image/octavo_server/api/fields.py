"""Which request fields beyond the supported ones are accepted, and which are refused because they would have an effect.

docs/reference/http-api.md shows these tables; tests hold them together.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from octavo_server.api.errors import ApiError

HARMLESS = frozenset(
    {
        "metadata",
        "prediction",
        "prompt_cache_key",
        "prompt_cache_retention",
        "safety_identifier",
        "service_tier",
        "user",
    }
)
"""Accepted and without effect on the answer."""

UNSUPPORTED: Mapping[str, tuple[Any, ...]] = {
    "audio": (),
    "best_of": (1,),
    "chat_template": (),
    "continue_final_message": (False,),
    "documents": ([],),
    "function_call": ("none", "auto"),
    "functions": ([],),
    "length_penalty": (1.0,),
    "mm_processor_kwargs": ({},),
    "modalities": (["text"],),
    "reasoning_effort": (),
    "spaces_between_special_tokens": (True,),
    "store": (False,),
    "suffix": ("",),
    "use_beam_search": (False,),
    "verbosity": (),
    "web_search_options": (),
}
"""Refused unless null or one of these values, which have no effect."""


def check_extra(extra: Mapping[str, Any] | None, prefix: str = "") -> None:
    """Raises the 400 for the first field that is unsupported or unknown."""
    for name, value in (extra or {}).items():
        if name in HARMLESS or value is None:
            continue
        param = f"{prefix}{name}"
        if name not in UNSUPPORTED:
            raise ApiError(400, f"{param}: unknown field; leave it out", param=param, code="unknown_field")
        neutral = UNSUPPORTED[name]
        if not any(type(value) is type(item) and value == item for item in neutral):
            allowed = " or ".join(map(repr, neutral))
            way_out = f"leave it out or send {allowed}" if allowed else "leave it out"
            raise ApiError(
                400, f"{param}: not supported by this server; {way_out}", param=param, code="unsupported_field"
            )
