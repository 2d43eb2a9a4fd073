"""Request bodies of the HTTP interface. Types are strict: a number as text is an error, not a guess."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Literal, TypeVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError
from pydantic_core import PydanticCustomError

from octavo_server.api.errors import ApiError, from_validation
from octavo_server.api.fields import check_extra

MAX_SEED = 2**64 - 1
MAX_TOKENS_LIMIT = 2**31 - 1
Prompt = str | list[str] | list[int] | list[list[int]]


def _strings(value: Any) -> Any:
    """A text or a list of texts, as a list."""
    if value is None:
        return []
    items = [value] if isinstance(value, str) else value
    if not isinstance(items, list) or not all(isinstance(item, str) for item in items):
        raise PydanticCustomError("strings", "must be a text or a list of texts")
    return items


def _prompt(value: Any) -> Any:
    if isinstance(value, str):
        return value
    if isinstance(value, list) and value:
        if all(isinstance(item, str) for item in value) or _all_ids(value):
            return value
        if all(isinstance(item, list) and _all_ids(item) for item in value):
            return value
    if value in ([], None):
        raise PydanticCustomError("prompt", "is empty; send a text or at least one token id")
    raise PydanticCustomError("prompt", "must be a text, a list of texts, a list of token ids or a list of such lists")


def _all_ids(items: Sequence[Any]) -> bool:
    return all(type(item) is int for item in items)


class _Body(BaseModel):
    model_config = ConfigDict(extra="allow", strict=True, allow_inf_nan=False, use_attribute_docstrings=True)


B = TypeVar("B", bound=_Body)


class StreamOptions(_Body):
    """How a stream is sent."""

    model_config = ConfigDict(extra="forbid", strict=True)
    include_usage: bool = False


class JsonSchemaFormat(_Body):
    """OpenAI's wrapper of a JSON schema; the name and the description do not reach the model."""

    model_config = ConfigDict(extra="forbid", strict=True)
    name: Annotated[str, Field(max_length=256)] | None = None
    description: str | None = None
    strict: bool | None = None
    schema_: Annotated[dict[str, Any] | bool | None, Field(alias="schema")] = None


class ResponseFormat(_Body):
    """The form of the answer: text, any JSON object, a JSON schema, a regular expression, or a grammar."""

    model_config = ConfigDict(extra="forbid", strict=True)
    type: Literal["text", "json_object", "json_schema", "regex", "grammar"]
    json_schema: JsonSchemaFormat | None = None
    regex: str | None = None
    grammar: str | None = None


class StructuredOutputs(_Body):
    """vLLM's spelling of the same; one of its fields may be set."""

    model_config = ConfigDict(extra="forbid", strict=True)
    json_: Annotated[dict[str, Any] | bool | str | None, Field(alias="json")] = None
    regex: str | None = None
    choice: list[str] | None = None
    grammar: str | None = None
    json_object: bool | None = None


class SamplingFields(_Body):
    """What chat and text completions have in common."""

    model: str | None = None
    """The served name; left out, the one model there is."""
    n: Annotated[int, Field(ge=1)] | None = None
    """Choices per prompt."""
    stream: bool | None = None
    """Server-sent events in place of one body."""
    stream_options: StreamOptions | None = None
    """`include_usage`: a last chunk with the usage."""
    max_tokens: Annotated[int, Field(ge=1, le=MAX_TOKENS_LIMIT)] | None = None
    """Most tokens of an answer."""
    min_tokens: Annotated[int, Field(ge=0, le=MAX_TOKENS_LIMIT)] | None = None
    """No end before that many tokens."""
    temperature: Annotated[float, Field(ge=0, le=10)] | None = None
    """0 = greedy."""
    top_p: Annotated[float, Field(gt=0, le=1)] | None = None
    """Only the most likely tokens that together have this probability."""
    top_k: Annotated[int, Field(ge=-1, le=MAX_TOKENS_LIMIT)] | None = None
    """Only that many of the most likely tokens; 0 or −1 = all."""
    min_p: Annotated[float, Field(ge=0, le=1)] | None = None
    """Only tokens at least this likely, relative to the most likely one."""
    presence_penalty: Annotated[float, Field(ge=-2, le=2)] | None = None
    """Against tokens that were written before."""
    frequency_penalty: Annotated[float, Field(ge=-2, le=2)] | None = None
    """The same, for each time."""
    repetition_penalty: Annotated[float, Field(gt=0, le=10)] | None = None
    """Divides logits of tokens of prompt and answer; 1 = none."""
    seed: Annotated[int, Field(ge=-(2**63), le=MAX_SEED)] | None = None
    """Same random numbers for the same seed."""
    stop: Annotated[list[str], BeforeValidator(_strings, json_schema_input_type=str | list[str] | None)] = []
    """Texts that end the answer after `min_tokens` tokens; they are not part of it."""
    stop_token_ids: list[int] | None = None
    """Token ids that end the answer."""
    ignore_eos: bool | None = None
    """Goes on after the end-of-sequence token."""
    logit_bias: dict[str, float] | None = None
    """Token id → −100 … 100, added to its logit."""
    prompt_logprobs: Annotated[int, Field(ge=0)] | None = None
    """Log-probabilities of the prompt, with that many alternatives; not with `stream`."""
    priority: Annotated[int, Field(ge=-(2**31), le=2**31 - 1)] | None = None
    """Lower runs first."""
    cache_salt: Annotated[str, Field(min_length=1, max_length=1024)] | None = None
    """Cached prompts are shared only with requests of the same salt."""
    allowed_token_ids: Annotated[list[int], Field(max_length=4096)] | None = None
    """Nothing else is drawn."""
    bad_words: list[str] | None = None
    """Texts that are not written; a word is known by its tokens."""
    truncate_prompt_tokens: Annotated[int, Field(ge=-1, le=MAX_TOKENS_LIMIT)] | None = None
    """Keeps the last tokens of the prompt; −1 = as many as leave room for the answer."""
    skip_special_tokens: bool | None = None
    """false: control tokens are part of the text."""
    include_stop_str_in_output: bool | None = None
    """The stop string is part of the answer."""
    response_format: ResponseFormat | None = None
    """The form of the answer."""
    structured_outputs: StructuredOutputs | None = None
    """The same in vLLM's spelling."""
    guided_json: dict[str, Any] | bool | str | None = None
    """The same in an older spelling: a JSON schema."""
    guided_regex: str | None = None
    """A regular expression."""
    guided_choice: list[str] | None = None
    """One of these texts."""
    guided_grammar: str | None = None
    """Lark or GBNF."""
    request_id: Annotated[str, Field(min_length=1, max_length=256, pattern=r"^[\x21-\x7e]+$")] | None = None
    """Becomes part of `id`; refused while another request has it."""


class ContentPart(_Body):
    """A part of a message; only text parts are understood."""

    type: str
    text: str | None = None


class CalledFunction(_Body):
    """The function of a call, with its arguments as JSON in a text."""

    name: Annotated[str, Field(min_length=1, max_length=256)]
    arguments: str = ""


class ToolCall(_Body):
    """A call that the assistant made in an earlier turn."""

    id: str | None = None
    type: Literal["function"] = "function"
    index: int | None = None
    function: CalledFunction


class ChatMessage(_Body):
    """One message of a conversation."""

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: str | list[ContentPart] | None = None
    name: str | None = None
    tool_calls: list[ToolCall] | None = None
    tool_call_id: str | None = None
    reasoning_content: str | None = None


class ToolFunction(_Body):
    """A function that the model may call."""

    model_config = ConfigDict(extra="forbid", strict=True)
    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9_.-]{1,128}$")]
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class ToolField(_Body):
    """An entry of `tools`."""

    model_config = ConfigDict(extra="forbid", strict=True)
    type: Literal["function"]
    function: ToolFunction


class NamedFunction(_Body):
    """The name of a function."""

    model_config = ConfigDict(extra="forbid", strict=True)
    name: str


class NamedToolChoice(_Body):
    """The one function that must be called."""

    model_config = ConfigDict(extra="forbid", strict=True)
    type: Literal["function"]
    function: NamedFunction


class Conversation(_Body):
    """What a chat template makes a prompt of."""

    messages: Annotated[list[ChatMessage], Field(min_length=1)] | None = None
    tools: list[ToolField] | None = None
    """Functions that may be called."""
    add_generation_prompt: bool | None = None
    """Whether the prompt ends with the beginning of an answer; left out, it does."""
    continue_final_message: bool | None = None
    """Whether the answer goes on in the last message, which must be the assistant's."""
    chat_template_kwargs: dict[str, Any] | None = None
    """Variables for the chat template."""
    reasoning_effort: Literal["none", "minimal", "low", "medium", "high", "xhigh"] | None = None
    """A variable of the chat template; refused where the template knows none of the kind."""


class ChatRequest(SamplingFields, Conversation):
    """Body of POST /v1/chat/completions."""

    messages: Annotated[list[ChatMessage], Field(min_length=1)]
    """Roles system, developer, user, assistant, tool; content is a text or a list of text parts."""
    max_completion_tokens: Annotated[int, Field(ge=1, le=MAX_TOKENS_LIMIT)] | None = None
    """Most tokens of an answer; left out, the model's length."""
    logprobs: bool | None = None
    """Log-probabilities of the answer's tokens: of the model's logits before bias, penalties, temperature and masks."""
    top_logprobs: Annotated[int, Field(ge=0)] | None = None
    """That many alternatives for each."""
    tool_choice: Literal["none", "auto", "required"] | NamedToolChoice | None = None
    """`auto`, `none`, `required` or one function."""
    parallel_tool_calls: bool | None = None
    """false = at most one call."""


class CompletionRequest(SamplingFields):
    """Body of POST /v1/completions."""

    prompt: Annotated[Prompt, BeforeValidator(_prompt)]
    """A text, token ids, or a list of either."""
    echo: bool | None = None
    """The answer begins with the prompt."""
    logprobs: Annotated[int, Field(ge=0)] | None = None
    """Log-probabilities of the answer's tokens: of the model's logits before bias, penalties, temperature and masks."""
    max_tokens: Annotated[int, Field(ge=0, le=MAX_TOKENS_LIMIT)] | None = None
    """Most tokens of an answer, 16 if left out; 0 with `echo` gives the prompt back, for its `logprobs`."""
    best_of: Annotated[int, Field(ge=1)] | None = None
    """Draws that many and answers the `n` with the highest log-probability per token; not with `stream`."""


class TokenizeRequest(Conversation):
    """Body of POST /tokenize: a prompt, or messages for the chat template."""

    model: str | None = None
    """The served name."""
    prompt: str | None = None
    """The text."""
    add_special_tokens: bool | None = None
    """Whether the tokenizer adds its beginning of a text."""


class DetokenizeRequest(_Body):
    """Body of POST /detokenize."""

    model: str | None = None
    """The served name."""
    tokens: list[int]
    """Token ids."""


def parse(kind: type[B], body: bytes) -> B:
    """The checked body. Raises ApiError (400) naming the first field at fault."""
    try:
        parsed = kind.model_validate_json(body)
    except ValidationError as error:
        raise from_validation(error.errors(include_url=False)) from None
    check_extra(parsed.model_extra)
    for position, message in enumerate(getattr(parsed, "messages", None) or []):
        _check_message(message, f"messages.{position}.")
    return parsed


def _check_message(message: ChatMessage, prefix: str) -> None:
    for name, value in (message.model_extra or {}).items():
        if value not in (None, [], ""):
            raise ApiError(
                400, f"{prefix}{name}: not supported by this server; leave it out", param=prefix + name,
                code="unsupported_field",
            )  # fmt: skip
    if isinstance(message.content, list):
        for position, part in enumerate(message.content):
            place = f"{prefix}content.{position}."
            if part.type != "text":
                raise ApiError(
                    400, f"{place}type: {part.type!r} is not supported; this model reads text parts only",
                    param=f"{place}type", code="unsupported_content",
                )  # fmt: skip
            if part.text is None:
                raise ApiError(400, f"{place}text: is missing", param=f"{place}text", code="invalid_value")
    elif message.content is None and message.role != "assistant":
        raise ApiError(400, f"{prefix}content: is missing", param=f"{prefix}content", code="invalid_value")
