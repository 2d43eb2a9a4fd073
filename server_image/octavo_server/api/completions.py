"""POST /v1/chat/completions and POST /v1/completions."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from octavo_server.api.answers import (
    AnswerReader,
    chat_plan,
    ends_in_thought,
    shown_tools,
    visible_piece,
    whole_message,
)
from octavo_server.api.choice import Choice, Delta
from octavo_server.api.errors import bad_field, json_response
from octavo_server.api.generation import Generation, PromptJob
from octavo_server.api.identity import new_id, request_id
from octavo_server.api.prompts import chat_prompt, completion_prompts
from octavo_server.api.render import Renderer
from octavo_server.api.sampling import choices_wanted, max_new_tokens, sampling_params, truncated
from octavo_server.api.state import ServerState
from octavo_server.api.streams import EventStream, event_bytes, unless_gone
from octavo_server.api.structured import wanted_form
from octavo_server.api.wire import ChatRequest, CompletionRequest, SamplingFields
from octavo_server.text.toolcalls.parsed import PlainParser

ChoiceBody = Callable[[Choice, Delta, bool], dict[str, Any]]
"""(choice, what is new, is it the first of a stream) → the choice's JSON."""
ChunkBody = Callable[[Choice, Delta, bool], dict[str, Any] | None]
"""The same for a stream; None = nothing to send yet."""


async def chat(state: ServerState, request: Request, body: ChatRequest) -> Response:
    """One conversation to its next message. Raises ApiError."""
    await state.turns.take()
    state.check_model(body.model)
    tokenizer, ready = state.serving()
    logprobs = _chat_logprobs(body)
    sampling = sampling_params(
        body, ready=ready, tokenizer=tokenizer, limits=state.config.api.limits, logprobs=logprobs
    )
    n, _ = choices_wanted(body, 1, state.config.api.limits)
    plan = chat_plan(state, body)
    tools = shown_tools(body.tools) if plan.tools else []
    token_ids = await chat_prompt(state, body, tools)
    token_ids = truncated(token_ids, body, ready)
    opened = plan.thinks and ends_in_thought(tokenizer, token_ids)
    parser = plan.parser(opened=opened)
    form = plan.form(wanted_form(body, state.config.api.limits), tokenizer, opened=opened)
    grammar = "" if form is None else await state.grammars.grammar(form, tokenizer)
    most = max_new_tokens(body, len(token_ids), ready, "messages")
    job = PromptJob(token_ids, sampling, most, grammar, "" if form is None else form.field)
    piece = None if parser is None else visible_piece(tokenizer, parser)
    generation, renderer = _prepare(state, request, body, [job], n, chat=True, piece=piece)
    readers = [
        AnswerReader(parser or PlainParser(), most_calls=plan.most_calls, short_ids=plan.family == "Mistral")
        for _ in range(n)
    ]

    def read(choice: Choice, delta: Delta) -> tuple[dict[str, Any], str | None]:
        """News of the message, and how it ended."""
        reader = readers[choice.index]
        if parser is None:
            return {"content": delta.text} if delta.text else {}, delta.finish_reason
        news = reader.feed(delta.text, final=delta.finish_reason is not None)
        called = delta.finish_reason == "stop" and reader.called
        return news, "tool_calls" if called else delta.finish_reason

    def chunk(choice: Choice, delta: Delta, first: bool) -> dict[str, Any] | None:
        news, finish_reason = read(choice, delta)
        shown = renderer.chat_logprobs(delta.entries) if logprobs >= 0 and delta.entries else None
        if first:
            news = {"role": "assistant", "content": "", **news}
        if not news and shown is None and finish_reason is None:
            return None
        return {"index": choice.index, "delta": news, "logprobs": shown, "finish_reason": finish_reason}

    def whole(choice: Choice, delta: Delta, _first: bool) -> dict[str, Any]:
        news, finish_reason = read(choice, delta)
        shown = renderer.chat_logprobs(delta.entries) if logprobs >= 0 else None
        result = {
            "index": choice.index,
            "message": whole_message(news),
            "logprobs": shown,
            "finish_reason": finish_reason,
        }
        return _with_prompt_logprobs(result, body, choice, renderer)

    return await _answer(request, body, generation, renderer, chunk, whole, plain=parser is None)


async def complete(state: ServerState, request: Request, body: CompletionRequest) -> Response:
    """Texts to their continuations. Raises ApiError."""
    await state.turns.take()
    state.check_model(body.model)
    tokenizer, ready = state.serving()
    limits = state.config.api.limits
    logprobs = -1 if body.logprobs is None else body.logprobs
    sampling = sampling_params(body, ready=ready, tokenizer=tokenizer, limits=limits, logprobs=logprobs)
    if body.echo and logprobs >= 0:
        sampling = replace(sampling, prompt_logprobs=max(logprobs, sampling.prompt_logprobs))
    if body.max_tokens == 0 and not body.echo:
        raise bad_field("max_tokens", "0 generates nothing; send at least 1, or echo = true to get the prompt back")
    many = isinstance(body.prompt, list) and not isinstance(body.prompt[0], int)
    n, drawn = choices_wanted(body, len(body.prompt) if many else 1, limits)
    if drawn > n:
        sampling = replace(sampling, logprobs=max(0, logprobs))
    prompts = await completion_prompts(state, body.prompt)
    if body.truncate_prompt_tokens is not None:
        if body.echo:
            raise bad_field("truncate_prompt_tokens", "can't be combined with echo")
        prompts = [replace(prompt, token_ids=truncated(prompt.token_ids, body, ready)) for prompt in prompts]
    form = wanted_form(body, limits)
    grammar = "" if form is None else await state.grammars.grammar(form, tokenizer)
    jobs = [
        PromptJob(
            prompt.token_ids,
            sampling,
            max_new_tokens(body, len(prompt.token_ids), ready, "prompt"),
            grammar,
            "" if form is None else form.field,
            hidden=body.max_tokens == 0,
        )
        for prompt in prompts
    ]
    generation, renderer = _prepare(state, request, body, jobs, drawn, chat=False)

    def choice_body(choice: Choice, delta: Delta, first: bool) -> dict[str, Any]:
        prompt = prompts[choice.index // drawn]
        text, shift, known = delta.text, 0, []
        if body.echo:
            shift = len(prompt.text)
            if first:
                text = prompt.text + text
                entries = choice.prompt_logprobs or []
                known = list(zip(entries, prompt.token_ids, prompt.offsets(tokenizer), strict=False))
        shown = None
        if logprobs >= 0 and (known or delta.entries or first):
            shown = renderer.completion_logprobs(known, delta.entries, shift)
        result = {"index": choice.index, "text": text, "logprobs": shown, "finish_reason": delta.finish_reason}
        return _with_prompt_logprobs(result, body, choice, renderer)

    return await _answer(
        request, body, generation, renderer, choice_body, choice_body, plain=logprobs < 0, kept=n, drawn=drawn
    )


def _prepare(
    state: ServerState,
    request: Request,
    body: SamplingFields,
    jobs: list[PromptJob],
    n: int,
    *,
    chat: bool,
    piece: Callable[[int], bytes] | None = None,
) -> tuple[Generation, Renderer]:
    if body.prompt_logprobs is not None and body.stream:
        raise bad_field("prompt_logprobs", "can't be streamed; leave out stream or prompt_logprobs")
    if body.stream_options is not None and not body.stream:
        raise bad_field("stream_options", "needs stream = true")
    name = body.request_id or new_id()
    tokenizer, _ = state.serving()
    generation = Generation(
        state,
        name,
        jobs,
        n=n,
        stops=body.stop,
        priority=body.priority or 0,
        cache_salt=body.cache_salt or "",
        piece=piece or (tokenizer.token_bytes if body.skip_special_tokens is False else None),
        include_stop=bool(body.include_stop_str_in_output),
        streams=bool(body.stream),
        logged_name=f"{name} ({request_id(request.scope)})",
    )
    prefix = "chatcmpl-" if chat else "cmpl-"
    renderer = Renderer(tokenizer, prefix + name, int(time.time()), state.served_name, chat=chat)
    return generation, renderer


async def _answer(
    request: Request,
    body: SamplingFields,
    generation: Generation,
    renderer: Renderer,
    chunk: ChunkBody,
    whole: ChoiceBody,
    *,
    plain: bool,
    kept: int = 1,
    drawn: int = 1,
) -> Response:
    """The response. plain: a chunk with text and no more needs no look of `chunk`. Of each `drawn` choices the `kept`
    most likely ones are answered."""
    await generation.start()
    if body.stream:
        include_usage = body.stream_options is not None and body.stream_options.include_usage
        events = _events(generation, renderer, chunk, include_usage=include_usage, plain=plain)
        return EventStream(events, generation.close, request_id(request.scope))
    try:
        deltas = await unless_gone(request, generation.collect())
    finally:
        generation.close()
    answers = list(zip(generation.choices, deltas, strict=True))
    if drawn > kept:
        answers = likeliest(answers, kept, drawn)
    choices = [whole(choice, delta, True) for choice, delta in answers]
    if drawn > kept:
        choices = [{**choice, "index": index} for index, choice in enumerate(choices)]
    return json_response(renderer.whole(choices, generation.usage()))


def likeliest(answers: list[tuple[Choice, Delta]], kept: int, drawn: int) -> list[tuple[Choice, Delta]]:
    """Of each group of `drawn` answers the `kept` with the highest log-probability per token, the best first."""

    def score(answer: tuple[Choice, Delta]) -> float:
        entries = answer[1].entries
        return sum(entry.logprobs.logprob for entry in entries) / len(entries) if entries else 0.0

    groups = [answers[start : start + drawn] for start in range(0, len(answers), drawn)]
    return [answer for group in groups for answer in sorted(group, key=score, reverse=True)[:kept]]


async def _events(
    generation: Generation, renderer: Renderer, chunk: ChunkBody, *, include_usage: bool, plain: bool
) -> AsyncIterator[bytes]:
    """The events of a stream, those of one moment together."""
    begun: set[int] = set()
    async for news in generation.stream():
        events = []
        for choice, delta in news:
            index = choice.index
            if plain and index in begun and delta.finish_reason is None and not delta.entries:
                events.append(renderer.text_event(index, delta.text, with_usage=include_usage))
                continue
            part = chunk(choice, delta, index not in begun)
            begun.add(index)
            if part is not None:
                events.append(event_bytes(renderer.chunk(part, with_usage=include_usage)))
        if events:
            yield b"".join(events)
    if include_usage:
        yield event_bytes(renderer.usage_chunk(generation.usage()))


def _with_prompt_logprobs(
    result: dict[str, Any], body: SamplingFields, choice: Choice, renderer: Renderer
) -> dict[str, Any]:
    if body.prompt_logprobs is None or choice.prompt_logprobs is None:
        return result
    return {**result, "prompt_logprobs": renderer.prompt_logprobs(choice.prompt_logprobs)}


def _chat_logprobs(body: ChatRequest) -> int:
    if body.top_logprobs and not body.logprobs:
        raise bad_field("top_logprobs", "needs logprobs = true")
    return (body.top_logprobs or 0) if body.logprobs else -1
