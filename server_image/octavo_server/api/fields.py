"""Which request fields beyond the supported ones are accepted, and which are refused because they would have an effect.

docs/reference/api.md is generated from these tables and from the models in wire.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from octavo_server.api.errors import ApiError, shortened

HARMLESS: Mapping[str, str] = {
    "metadata": "for the client's own records",
    "prediction": "a hint that never changes the answer",
    "prompt_cache_key": "every prompt's cache is found by its tokens",
    "prompt_cache_options": "the cache keeps what it has room for",
    "prompt_cache_retention": "the cache keeps what it has room for",
    "safety_identifier": "for the client's own records",
    "service_tier": "there is one",
    "user": "for the client's own records",
}
"""Accepted and without effect on the answer, with the reason."""


class Refusal(NamedTuple):
    """Values that have no effect and are therefore accepted beside null, and why others are not."""

    neutral: tuple[Any, ...]
    why: str


UNSUPPORTED: Mapping[str, Refusal] = {
    "audio": Refusal((), "the models write text"),
    "best_of": Refusal((1,), "a field of text completions alone"),
    "chat_template": Refusal((), "the server's --chat-template sets it: a request brings no code"),
    "continue_final_message": Refusal((False,), "a field of chat alone"),
    "documents": Refusal(([],), "put them into a message"),
    "function_call": Refusal(("none", "auto"), "superseded by tool_choice"),
    "functions": Refusal(([],), "superseded by tools"),
    "length_penalty": Refusal((1.0, 1), "part of beam search"),
    "mm_processor_kwargs": Refusal(({},), "the models read text"),
    "moderation": Refusal((), "the server judges no text"),
    "modalities": Refusal((["text"],), "the models write text"),
    "reasoning_effort": Refusal((), "a field of chat alone"),
    "spaces_between_special_tokens": Refusal((True,), "tokens are written as they are"),
    "store": Refusal((False,), "nothing is kept after the answer"),
    "suffix": Refusal(("",), "this model can't insert text before a suffix"),
    "use_beam_search": Refusal((False,), "answers are drawn, not searched; best_of draws several"),
    "verbosity": Refusal((), "say it in a message"),
    "web_search_options": Refusal((), "the server reaches nothing outside"),
}
"""Refused unless null or a neutral value. A name that is a field of one route is listed for the other."""


def check_extra(extra: Mapping[str, Any] | None, prefix: str = "") -> None:
    """Raises the 400 for the first field that is unsupported or unknown."""
    for name, value in (extra or {}).items():
        if name in HARMLESS or value is None:
            continue
        param = f"{prefix}{name}"
        if name not in UNSUPPORTED:
            shown = shortened(param)
            raise ApiError(400, f"{shown}: unknown field; leave it out", param=shown, code="unknown_field")
        neutral, why = UNSUPPORTED[name]
        if not any(type(value) is type(item) and value == item for item in neutral):
            allowed = " or ".join(map(repr, neutral))
            way_out = f"leave it out or send {allowed}" if allowed else "leave it out"
            raise ApiError(
                400, f"{param}: not supported here ({why}); {way_out}", param=param, code="unsupported_field"
            )


EXTENSIONS: frozenset[str] = frozenset(
    {
        "add_generation_prompt", "allowed_token_ids", "bad_words", "cache_salt", "chat_template_kwargs",
        "continue_final_message", "guided_choice", "guided_grammar", "guided_json", "guided_regex", "ignore_eos",
        "include_stop_str_in_output", "min_p", "min_tokens", "priority", "prompt_logprobs", "repetition_penalty",
        "request_id", "skip_special_tokens", "stop_token_ids", "structured_outputs", "top_k", "truncate_prompt_tokens",
    }
)  # fmt: skip
"""Supported fields that OpenAI's interface does not have; most bear vLLM's names."""
