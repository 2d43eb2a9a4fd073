"""POST /tokenize and POST /detokenize."""

from __future__ import annotations

from starlette.responses import Response

from octavo_server.api.answers import shown_tools
from octavo_server.api.errors import ApiError, bad_field, json_response
from octavo_server.api.prompts import chat_prompt, encode, off_loop
from octavo_server.api.sampling import check_ids
from octavo_server.api.state import ServerState
from octavo_server.api.wire import DetokenizeRequest, TokenizeRequest


async def tokenize(state: ServerState, body: TokenizeRequest) -> Response:
    """Token ids of a prompt or of a conversation. Raises ApiError."""
    await state.turns.take()
    state.check_model(body.model)
    _, ready = state.serving()
    if (body.prompt is None) == (body.messages is None):
        raise ApiError(400, "prompt: send either prompt or messages", param="prompt", code="invalid_value")
    if body.messages is not None:
        ids = await chat_prompt(state, body, shown_tools(body.tools))
    else:
        special = body.add_special_tokens is not False
        ids = await encode(state, body.prompt or "", "prompt", add_special_tokens=special)
    return json_response({"tokens": ids, "count": len(ids), "max_model_len": ready.max_length_tokens})


async def detokenize(state: ServerState, body: DetokenizeRequest) -> Response:
    """The text of token ids, special tokens included. Raises ApiError."""
    state.check_model(body.model)
    tokenizer, ready = state.serving()
    limit = 4 * ready.max_length_tokens
    if len(body.tokens) > limit:
        raise bad_field("tokens", f"has {len(body.tokens)} entries, the limit is {limit}")
    check_ids(body.tokens, "tokens", ready.vocabulary_size)
    text = await off_loop(len(body.tokens), lambda: tokenizer.decode(body.tokens, skip_special_tokens=False))
    return json_response({"prompt": text})
