"""From the fields of a request to the engine's sampling parameters, with every limit checked on the way."""

from __future__ import annotations

import random
from collections.abc import Sequence

from octavo_server.api.errors import bad_field
from octavo_server.api.wire import ChatRequest, CompletionRequest, SamplingFields
from octavo_server.config import LimitsConfig
from octavo_server.engine.messages import Ready, SamplingParams
from octavo_server.text.tokenizer import TextTokenizer

COMPLETION_DEFAULT_TOKENS = 16
"""OpenAI's default of max_tokens for text completions."""


def sampling_params(
    request: SamplingFields, *, ready: Ready, tokenizer: TextTokenizer, limits: LimitsConfig, logprobs: int
) -> SamplingParams:
    """Parameters of every choice (choice_index 0). Raises the 400 that names the field."""
    _check_stops(request.stop, limits)
    if logprobs > limits.max_logprobs:
        name = "top_logprobs" if isinstance(request, ChatRequest) else "logprobs"
        raise bad_field(name, f"must be at most {limits.max_logprobs}, not {logprobs}")
    prompt_logprobs = -1 if request.prompt_logprobs is None else request.prompt_logprobs
    if prompt_logprobs > limits.max_logprobs:
        raise bad_field("prompt_logprobs", f"must be at most {limits.max_logprobs}, not {prompt_logprobs}")
    stop_ids = list(request.stop_token_ids or [])
    if len(stop_ids) > limits.max_stop_strings:
        raise bad_field("stop_token_ids", f"has {len(stop_ids)} entries, the limit is {limits.max_stop_strings}")
    check_ids(stop_ids, "stop_token_ids", ready.vocabulary_size)
    if not request.ignore_eos:
        stop_ids.extend(sorted(tokenizer.eos_ids - set(stop_ids)))
    return SamplingParams(
        temperature=_or(request.temperature, 1.0),
        top_k=max(0, request.top_k or 0),
        top_p=_or(request.top_p, 1.0),
        min_p=_or(request.min_p, 0.0),
        presence_penalty=_or(request.presence_penalty, 0.0),
        frequency_penalty=_or(request.frequency_penalty, 0.0),
        repetition_penalty=_or(request.repetition_penalty, 1.0),
        seed=random.getrandbits(64) if request.seed is None else request.seed % 2**64,
        logprobs=logprobs,
        prompt_logprobs=prompt_logprobs,
        logit_bias=_logit_bias(request.logit_bias or {}, ready.vocabulary_size, limits),
        stop_token_ids=stop_ids,
        min_tokens=request.min_tokens or 0,
        allowed_token_ids=_allowed_ids(request, tokenizer, stop_ids),
        bad_words=_bad_words(request.bad_words, tokenizer, limits),
        vocabulary_size=tokenizer.vocabulary_size,
    )


def max_new_tokens(request: SamplingFields, prompt_tokens: int, ready: Ready, prompt_field: str) -> int:
    """How many tokens may be generated. Raises the 400 when prompt and answer don't fit the model's length."""
    room = ready.max_length_tokens - prompt_tokens
    if room < 1:
        raise bad_field(
            prompt_field,
            f"has {prompt_tokens} tokens; this model takes at most {ready.max_length_tokens} for prompt and answer, "
            "so the prompt must be shorter than that",
        )
    field, wanted = "max_tokens", request.max_tokens
    if isinstance(request, ChatRequest) and request.max_completion_tokens is not None:
        field, wanted = "max_completion_tokens", request.max_completion_tokens
    if wanted is None:
        wanted = min(room, COMPLETION_DEFAULT_TOKENS) if isinstance(request, CompletionRequest) else room
    if wanted > room:
        raise bad_field(
            field,
            f"{wanted} does not fit: the prompt has {prompt_tokens} tokens and the model takes "
            f"{ready.max_length_tokens} for both, so at most {room} are left",
        )
    if wanted == 0:
        wanted = 1  # the engine makes no less; what it makes is not shown
    if (request.min_tokens or 0) > wanted:
        raise bad_field("min_tokens", f"{request.min_tokens} is more than the {wanted} tokens that may be generated")
    return wanted


def check_ids(ids: Sequence[int], field: str, vocabulary_size: int) -> None:
    """Raises the 400 for the first id outside of the model's vocabulary."""
    for token_id in ids:
        if not 0 <= token_id < vocabulary_size:
            raise bad_field(field, f"token id {token_id} is outside of the vocabulary, 0 to {vocabulary_size - 1}")


def choices_wanted(request: SamplingFields, prompts: int, limits: LimitsConfig) -> tuple[int, int]:
    """n and how many are drawn for it, once it is known to stay under the limit together with the number of prompts."""
    n, field, drawn = request.n or 1, "n", request.n or 1
    if isinstance(request, CompletionRequest) and request.best_of is not None:
        drawn = request.best_of
        if drawn < n:
            raise bad_field("best_of", f"must be at least n, {n}, not {drawn}")
        if drawn > n:
            field = "best_of"
            if request.stream:
                raise bad_field("best_of", f"{drawn} can't be streamed: the best of them is known at their end alone")
    if drawn * prompts > limits.max_choices:
        if prompts > limits.max_choices:
            raise bad_field("prompt", f"holds {prompts} prompts, the limit is {limits.max_choices}")
        message = f"{drawn} for {prompts} prompt(s) is more than the limit of {limits.max_choices} choices"
        raise bad_field(field, message)
    return n, drawn


def _check_stops(stops: Sequence[str], limits: LimitsConfig) -> None:
    if len(stops) > limits.max_stop_strings:
        raise bad_field("stop", f"has {len(stops)} entries, the limit is {limits.max_stop_strings}")
    for stop in stops:
        if not 1 <= len(stop) <= limits.max_stop_characters:
            raise bad_field(
                "stop", f"an entry has {len(stop)} characters; each must have 1 to {limits.max_stop_characters}"
            )


def truncated(token_ids: list[int], request: SamplingFields, ready: Ready) -> list[int]:
    """The last tokens of a prompt, as truncate_prompt_tokens says; -1 = as many as leave room for the answer."""
    wanted = request.truncate_prompt_tokens
    if wanted is None:
        return token_ids
    if wanted == 0 or wanted >= ready.max_length_tokens:
        raise bad_field("truncate_prompt_tokens", f"must be -1 or 1 to {ready.max_length_tokens - 1}, not {wanted}")
    answer = request.max_tokens or getattr(request, "max_completion_tokens", None) or COMPLETION_DEFAULT_TOKENS
    return token_ids[-(wanted if wanted > 0 else max(1, ready.max_length_tokens - answer)) :]


def _allowed_ids(request: SamplingFields, tokenizer: TextTokenizer, stop_ids: Sequence[int]) -> list[int]:
    allowed = list(dict.fromkeys(request.allowed_token_ids or []))
    if request.allowed_token_ids is not None and not allowed:
        raise bad_field("allowed_token_ids", "is empty; nothing could be generated")
    check_ids(allowed, "allowed_token_ids", tokenizer.vocabulary_size)
    if allowed and request.min_tokens and set(allowed) <= set(stop_ids):
        raise bad_field("allowed_token_ids", "holds stop tokens only, which min_tokens forbids")
    return allowed


def _bad_words(words: Sequence[str] | None, tokenizer: TextTokenizer, limits: LimitsConfig) -> list[list[int]]:
    """Each word as tokens, at the beginning of a text and after a blank."""
    words = words or []
    if len(words) > limits.max_bad_words:
        raise bad_field("bad_words", f"has {len(words)} entries, the limit is {limits.max_bad_words}")
    found: list[list[int]] = []
    for word in words:
        if not 1 <= len(word.strip()) <= limits.max_stop_characters:
            raise bad_field(
                "bad_words", f"each must have 1 to {limits.max_stop_characters} characters, not {len(word)}"
            )
        for spelling in (word.lstrip(), " " + word.lstrip()):
            ids = tokenizer.encode(spelling, add_special_tokens=False)
            if ids and ids not in found:
                found.append(ids)
    return found


def _logit_bias(bias: dict[str, float], vocabulary_size: int, limits: LimitsConfig) -> dict[int, float]:
    if len(bias) > limits.max_logit_bias:
        raise bad_field("logit_bias", f"has {len(bias)} entries, the limit is {limits.max_logit_bias}")
    checked: dict[int, float] = {}
    for key, value in bias.items():
        if not (key.isascii() and key.isdigit()) or len(key) > 10:
            raise bad_field("logit_bias", f"keys must be token ids, not {key[:40]!r}")
        if not -100 <= value <= 100:
            raise bad_field("logit_bias", f"the bias of token {key} must be -100 to 100, not {value}")
        checked[int(key)] = value
    check_ids(list(checked), "logit_bias", vocabulary_size)
    return checked


def _or(value: float | None, default: float) -> float:
    return default if value is None else float(value)
