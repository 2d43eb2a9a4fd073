"""Prompts of requests as token ids; long ones are rendered and tokenised in a thread, so that streams go on."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from octavo_server.api.answers import plain_calls
from octavo_server.api.errors import ApiError, bad_field
from octavo_server.api.sampling import check_ids
from octavo_server.api.state import ServerState
from octavo_server.api.wire import ChatMessage, Conversation, Prompt
from octavo_server.text.control import Guard
from octavo_server.text.detokenizer import Detokenizer, unfinished_tail
from octavo_server.text.template import ChatTemplate, TemplateError
from octavo_server.text.tokenizer import TextTokenizer
from octavo_server.text.tool_prompt import described, knows_tools

_LARGE_CHARACTERS = 4096
_NORMALISATION = 4
"""Unicode normalisation before tokenisation can make one character of this many."""
T = TypeVar("T")


@dataclass(frozen=True)
class TextPrompt:
    """A prompt of /v1/completions."""

    token_ids: list[int]
    text: str
    """What `echo` gives back: the text as it was sent, or that of the ids without an unfinished last character."""

    def offsets(self, tokenizer: TextTokenizer) -> list[int]:
        """Where each token begins in `text`, in characters."""
        detokenizer = Detokenizer(tokenizer.text_bytes, strip_first_space=tokenizer.strips_first_space)
        offsets: list[int] = []
        position = 0
        for token_id in self.token_ids:
            offsets.append(position)
            position += len(detokenizer.feed(token_id))
        return offsets


async def completion_prompts(state: ServerState, prompt: Prompt) -> list[TextPrompt]:
    """All prompts of a request. Raises the 400 for empty, too long or impossible ones."""
    tokenizer, ready = state.serving()
    items: list[Any] = prompt if isinstance(prompt, list) and not isinstance(prompt[0], int) else [prompt]
    prompts: list[TextPrompt] = []
    for item in items:
        if not item:
            raise bad_field("prompt", "is empty; send a text or at least one token id")
        if isinstance(item, str):
            ids = await encode(state, item, "prompt", add_special_tokens=True)
            prompts.append(TextPrompt(ids, item))
        else:
            check_ids(item, "prompt", ready.vocabulary_size)
            data = b"".join(map(tokenizer.text_bytes, item))
            whole = data[: len(data) - len(unfinished_tail(data))]
            text = whole.decode("utf-8", "replace")
            prompts.append(TextPrompt(item, text.removeprefix(" ") if tokenizer.strips_first_space else text))
        if not prompts[-1].token_ids:
            raise bad_field("prompt", "is empty; send a text or at least one token id")
    return prompts


async def chat_prompt(state: ServerState, body: Conversation, tools: Sequence[dict[str, Any]] = ()) -> list[int]:
    """Token ids of a conversation. Raises the 400 when there is no template or it refuses the messages."""
    template, control = state.template, state.control
    if template is None or control is None:
        raise ApiError(
            400,
            "messages: this model has no chat template; use /v1/completions, or start the server with --chat-template",
            param="messages",
            code="no_chat_template",
        )
    messages = body.messages or []
    limit = state.config.api.limits.max_messages
    if len(messages) > limit:
        raise bad_field("messages", f"holds {len(messages)} messages, the limit is {limit}")
    goes_on = bool(body.continue_final_message)
    if goes_on and body.add_generation_prompt:
        raise bad_field("continue_final_message", "can't be combined with add_generation_prompt = true")
    if goes_on and messages[-1].role != "assistant":
        raise bad_field("continue_final_message", f"the last message's role is {messages[-1].role}, not assistant")
    opens = not goes_on if body.add_generation_prompt is None else body.add_generation_prompt
    plain = [_plain(message) for message in messages]
    variables = {**(body.chat_template_kwargs or {}), **effort_variables(template.source, body.reasoning_effort)}
    size = sum(len(message["content"]) for message in plain) + sum(len(str(tool)) for tool in tools)

    def rendered() -> tuple[str, Guard]:
        guard = control.guard()
        safe = [guard.message(message) for message in plain]
        end = ""
        if goes_on:
            # Whatever the template writes after the last message is cut off at this mark.
            end = f"{guard.mark}{len(safe)}"
            safe[-1] = {**safe[-1], "content": safe[-1]["content"] + end}
        shown = [guard.value(tool) for tool in tools]
        if not knows_tools(template.source):
            safe, shown = described(safe, shown), []
        text = _render(template, safe, opens, guard.value(variables), shown)
        if end:
            text, found, _ = text.partition(end)
            if not found:
                raise bad_field("continue_final_message", "the chat template does not show the last message's content")
        return text, guard

    text, guard = await off_loop(size, rendered)
    check_characters(state, text, "messages")
    ids = await off_loop(len(text), lambda: control.encode(text, guard))
    if not ids:
        raise bad_field("messages", "make an empty prompt; send at least one message with content")
    return ids


def effort_variables(template: str, effort: str | None) -> dict[str, Any]:
    """reasoning_effort as the template's own variable. Raises the 400 where the model knows no such thing."""
    if effort is None:
        return {}
    if "reasoning_effort" in template:
        return {"reasoning_effort": effort}
    if "enable_thinking" in template:
        return {"enable_thinking": effort != "none"}
    if effort == "none":
        return {}
    raise ApiError(
        400, "reasoning_effort: this model's chat template knows no effort of reasoning; leave it out or send 'none'",
        param="reasoning_effort", code="unsupported_field",
    )  # fmt: skip


async def encode(state: ServerState, text: str, field: str, *, add_special_tokens: bool) -> list[int]:
    """Token ids of a text; a text too long for any tokenisation to fit is refused before it is tokenised."""
    tokenizer, _ = state.serving()
    check_characters(state, text, field)
    return await off_loop(len(text), lambda: tokenizer.encode(text, add_special_tokens=add_special_tokens))


def check_characters(state: ServerState, text: str, field: str) -> None:
    """Raises the 400 for a text that is too long for any tokenisation to fit."""
    tokenizer, ready = state.serving()
    most = ready.max_length_tokens * tokenizer.longest_token_characters * _NORMALISATION
    if len(text) > most:
        raise bad_field(
            field,
            f"has {len(text)} characters and therefore more than the {ready.max_length_tokens} tokens of this model",
        )


async def off_loop(characters: int, work: Callable[[], T]) -> T:
    """Runs short work at once and long work in a thread."""
    return work() if characters <= _LARGE_CHARACTERS else await asyncio.to_thread(work)


def _render(
    template: ChatTemplate,
    messages: list[dict[str, Any]],
    prompt: bool,
    variables: dict[str, Any] | None,
    tools: Sequence[dict[str, Any]],
) -> str:
    try:
        return template.render(messages, add_generation_prompt=prompt, variables=variables, tools=tools)
    except TemplateError as error:
        raise ApiError(400, f"messages: {error}", param="messages", code="chat_template_error") from error


def _plain(message: ChatMessage) -> dict[str, Any]:
    """The message as templates expect it: content is one text, parts are joined by line breaks."""
    content = message.content
    text = "\n".join(part.text or "" for part in content) if isinstance(content, list) else content or ""
    plain: dict[str, Any] = {"role": message.role, "content": text}
    if message.name is not None:
        plain["name"] = message.name
    if message.tool_calls:
        plain["tool_calls"] = plain_calls(message.tool_calls)
    if message.tool_call_id is not None:
        plain["tool_call_id"] = message.tool_call_id
    if message.reasoning_content is not None:
        plain["reasoning_content"] = message.reasoning_content
    return plain
