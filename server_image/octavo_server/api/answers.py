"""Chat answers with calls and reasoning: what a request wants of them, and what is new in one while it grows."""

from __future__ import annotations

import json
import secrets
import string
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from octavo_server.api.errors import bad_field
from octavo_server.api.state import ServerState
from octavo_server.api.structured import Wanted
from octavo_server.api.wire import ChatRequest, NamedToolChoice, ToolField
from octavo_server.text.tokenizer import TextTokenizer
from octavo_server.text.tool_prompt import knows_tools
from octavo_server.text.toolcalls.families import (
    MAX_CALLS,
    Tool,
    call_rules,
    family_of,
    forced_family,
    has_form,
    parser_for,
)
from octavo_server.text.toolcalls.forms import answer_grammar
from octavo_server.text.toolcalls.parsed import Parsed, Parser, PlainParser
from octavo_server.text.toolcalls.thinking import START, ThinkParser

_ID_ALPHABET = string.ascii_letters + string.digits
_NO_ARGUMENTS = {"type": "object", "properties": {}, "additionalProperties": False}


@dataclass(frozen=True)
class ChatPlan:
    """What is to be found in the answer. `tools` are those that may be called; `forced` when one must be."""

    family: str
    tools: tuple[Tool, ...]
    forced: bool
    most_calls: int
    thinks: bool

    def parser(self, *, opened: bool) -> Parser | None:
        """The parser of the answer; None when all of it is content."""
        inner: Parser = PlainParser()
        if self.tools or self.family == "GptOss":
            family = forced_family(self.family) if self.forced else self.family
            inner = parser_for(family, [tool.name for tool in self.tools])
        if self.thinks:
            return ThinkParser(inner, opened=opened)
        return None if isinstance(inner, PlainParser) else inner

    def form(self, wanted: Wanted | None, tokenizer: TextTokenizer, *, opened: bool) -> Wanted | None:
        """The form of the whole answer: the wanted one, required calls, or either, after reasoning if there is any.

        Raises the 400 for a form together with required calls.
        """
        if wanted is not None and self.forced:
            raise bad_field(wanted.field, "can't be combined with a tool_choice that requires a call; send one of them")
        harmony = self.family == "GptOss"
        rule = wanted.rule if wanted is not None else None
        calls = self.forced or (rule is not None and bool(self.tools) and has_form(self.family))
        if not calls and (rule is None or not (self.thinks or harmony)):
            return wanted
        special = tokenizer.special_texts
        grammar = answer_grammar(
            form=rule,
            calls=call_rules(self.family, self.tools, most=self.most_calls, special=special) if calls else None,
            thinking="No" if not self.thinks else "Opened" if opened else "Free",
            harmony=harmony,
            special=special,
        )
        return Wanted("lark", grammar, "tools" if wanted is None else wanted.field)


def chat_plan(state: ServerState, body: ChatRequest) -> ChatPlan:
    """Reads tools and tool_choice. Raises the 400 that names the field."""
    api = state.config.api
    template = state.template.source if state.template is not None else ""
    if api.tool_parser != "Auto":
        family = api.tool_parser
    else:
        family = family_of(template) if knows_tools(template) or "<|channel|>" in template else "Hermes"
    thinks = api.reasoning_parser == "ThinkTags" or (api.reasoning_parser == "Auto" and START in template)
    given = body.tools or []
    if len(given) > api.limits.max_tools:
        raise bad_field("tools", f"holds {len(given)} functions, the limit is {api.limits.max_tools}")
    tools = tuple(map(_tool, given))
    if len({tool.name for tool in tools}) < len(tools):
        raise bad_field("tools", "two functions have the same name")
    choice = body.tool_choice
    if isinstance(choice, NamedToolChoice):
        tools = tuple(tool for tool in tools if tool.name == choice.function.name)
        if not tools:
            raise bad_field("tool_choice.function.name", f"{choice.function.name!r} is no function of tools")
    elif choice == "required" and not tools:
        raise bad_field("tool_choice", "requires a call, and tools holds no function")
    elif choice == "none":
        tools = ()
    forced = choice == "required" or isinstance(choice, NamedToolChoice)
    one = isinstance(choice, NamedToolChoice) or body.parallel_tool_calls is False or (forced and family == "GptOss")
    return ChatPlan(family, tools, forced, 1 if one else MAX_CALLS, thinks and family != "GptOss")


def ends_in_thought(tokenizer: TextTokenizer, token_ids: list[int]) -> bool:
    """Whether a prompt ends with the tag that opens the reasoning."""
    end = b"".join(map(tokenizer.token_bytes, token_ids[-8:]))
    return end.rstrip().endswith(START.encode())


def shown_tools(body_tools: list[ToolField] | None) -> list[dict[str, Any]]:
    """The functions as templates expect them."""
    return [tool.model_dump(exclude_none=True) for tool in body_tools or []]


def visible_piece(tokenizer: TextTokenizer, parser: Parser) -> Callable[[int], bytes]:
    """Text of tokens for a parser: special tokens only where it needs them."""
    needed = {tokenizer.special_texts[mark] for mark in parser.markers if mark in tokenizer.special_texts}
    return lambda index: tokenizer.token_bytes(index) if index in needed else tokenizer.text_bytes(index)


class AnswerReader:
    """One choice's text, read as a whole each time; `feed` gives what is new as fields of a message."""

    def __init__(self, parser: Parser, *, most_calls: int, short_ids: bool) -> None:
        self._parser = parser
        self._most_calls = most_calls
        self._short_ids = short_ids
        self._text = ""
        self._sent = Parsed()

    @property
    def called(self) -> bool:
        """Whether there is a call so far."""
        return bool(self._sent.calls)

    def feed(self, text: str, *, final: bool) -> dict[str, Any]:
        """New `content`, `reasoning_content` and `tool_calls`; keys without news are left out."""
        self._text += text
        read = self._parser.parse(self._text, final=final)
        read = Parsed(read.reasoning, read.content, read.calls[: self._most_calls])
        sent, self._sent = self._sent, read
        news: dict[str, Any] = {}
        if len(read.reasoning) > len(sent.reasoning):
            news["reasoning_content"] = read.reasoning[len(sent.reasoning) :]
        if len(read.content) > len(sent.content):
            news["content"] = read.content[len(sent.content) :]
        calls: list[dict[str, Any]] = []
        for index, call in enumerate(read.calls):
            known = sent.calls[index].arguments if index < len(sent.calls) else None
            if known is None:
                function = {"name": call.name, "arguments": call.arguments}
                calls.append({"index": index, "id": self._new_id(), "type": "function", "function": function})
            elif len(call.arguments) > len(known):
                calls.append({"index": index, "function": {"arguments": call.arguments[len(known) :]}})
        if calls:
            news["tool_calls"] = calls
        return news

    def _new_id(self) -> str:
        # Mistral's templates accept ids of exactly nine letters and digits.
        length = 9 if self._short_ids else 24
        name = "".join(secrets.choice(_ID_ALPHABET) for _ in range(length))
        return name if self._short_ids else f"call_{name}"


def whole_message(news: dict[str, Any]) -> dict[str, Any]:
    """The message of an answer that is no stream, from the only `feed` of its reader."""
    message: dict[str, Any] = {"role": "assistant", "content": news.get("content"), "refusal": None}
    if "reasoning_content" in news:
        message["reasoning_content"] = news["reasoning_content"]
    if "tool_calls" in news:
        message["tool_calls"] = [
            {key: value for key, value in call.items() if key != "index"} for call in news["tool_calls"]
        ]
    elif message["content"] is None:
        message["content"] = ""
    return message


def plain_calls(calls: list[Any]) -> list[dict[str, Any]]:
    """Calls of an earlier turn as templates expect them: arguments as an object where they are one."""
    plain = []
    for call in calls:
        arguments: Any = call.function.arguments
        try:
            value = json.loads(arguments or "{}")
            arguments = value if isinstance(value, dict) else arguments
        except (ValueError, RecursionError):
            pass  # templates can print a text as well
        function = {"name": call.function.name, "arguments": arguments}
        plain.append({"id": call.id, "type": "function", "function": function})
    return plain


def _tool(given: ToolField) -> Tool:
    function = given.function
    return Tool(function.name, function.parameters or _NO_ARGUMENTS, bool(function.strict))
