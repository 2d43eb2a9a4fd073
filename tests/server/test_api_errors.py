"""Bad requests: a 4xx in OpenAI's shape that names the field, and a server that goes on."""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from octavo_server.api.fields import HARMLESS, UNSUPPORTED
from octavo_server.api.wire import ChatRequest, CompletionRequest
from octavo_server.config import LimitsConfig

CHAT, TEXT = "/v1/chat/completions", "/v1/completions"
HELLO = [{"role": "user", "content": "hello"}]
LIMITS = LimitsConfig(
    max_body_bytes=20_000,
    max_choices=4,
    max_stop_strings=2,
    max_stop_characters=8,
    max_logit_bias=2,
    max_grammar_bytes=800,
    max_tools=2,
)

NAMED_G = {"type": "function", "function": {"name": "g"}}


def tool(name: str, **parameters: Any) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, "parameters": {"type": "object", **parameters}}}


CASES: list[tuple[str, dict[str, Any], str]] = [
    (TEXT, {"prompt": ""}, "prompt"),
    (TEXT, {"prompt": []}, "prompt"),
    (TEXT, {"prompt": ["a", ""]}, "prompt"),
    (TEXT, {"prompt": [[1], []]}, "prompt"),
    (TEXT, {"prompt": {"a": 1}}, "prompt"),
    (TEXT, {"prompt": [1, "a"]}, "prompt"),
    (TEXT, {"prompt": [True]}, "prompt"),
    (TEXT, {}, "prompt"),
    (TEXT, {"prompt": [49152]}, "prompt"),
    (TEXT, {"prompt": [-1]}, "prompt"),
    (TEXT, {"prompt": [2**70]}, "prompt"),
    (TEXT, {"prompt": [5] * 512}, "prompt"),
    (TEXT, {"prompt": ["a"] * 5}, "prompt"),
    (TEXT, {"prompt": "a", "n": 0}, "n"),
    (TEXT, {"prompt": "a", "n": 5}, "n"),
    (TEXT, {"prompt": "a", "max_tokens": -1}, "max_tokens"),
    (TEXT, {"prompt": "a", "max_tokens": 0}, "max_tokens"),
    (TEXT, {"prompt": "a", "max_tokens": 512}, "max_tokens"),
    (TEXT, {"prompt": "a", "max_tokens": "5"}, "max_tokens"),
    (TEXT, {"prompt": "a", "max_tokens": 2, "min_tokens": 3}, "min_tokens"),
    (TEXT, {"prompt": "a", "temperature": -0.1}, "temperature"),
    (TEXT, {"prompt": "a", "temperature": True}, "temperature"),
    (TEXT, {"prompt": "a", "top_p": 0}, "top_p"),
    (TEXT, {"prompt": "a", "top_p": 1.5}, "top_p"),
    (TEXT, {"prompt": "a", "top_k": -2}, "top_k"),
    (TEXT, {"prompt": "a", "min_p": 2}, "min_p"),
    (TEXT, {"prompt": "a", "presence_penalty": 3}, "presence_penalty"),
    (TEXT, {"prompt": "a", "repetition_penalty": 0}, "repetition_penalty"),
    (TEXT, {"prompt": "a", "seed": 2**64}, "seed"),
    (TEXT, {"prompt": "a", "stop": ["a", "b", "c"]}, "stop"),
    (TEXT, {"prompt": "a", "stop": "123456789"}, "stop"),
    (TEXT, {"prompt": "a", "stop": ""}, "stop"),
    (TEXT, {"prompt": "a", "stop": 5}, "stop"),
    (TEXT, {"prompt": "a", "stop_token_ids": [99999]}, "stop_token_ids"),
    (TEXT, {"prompt": "a", "logit_bias": {"49152": 1}}, "logit_bias"),
    (TEXT, {"prompt": "a", "logit_bias": {"x": 1}}, "logit_bias"),
    (TEXT, {"prompt": "a", "logit_bias": {"1": 101}}, "logit_bias"),
    (TEXT, {"prompt": "a", "logit_bias": {"1": 1, "2": 1, "3": 1}}, "logit_bias"),
    (TEXT, {"prompt": "a", "logprobs": 21}, "logprobs"),
    (TEXT, {"prompt": "a", "prompt_logprobs": 21}, "prompt_logprobs"),
    (TEXT, {"prompt": "a", "prompt_logprobs": 1, "stream": True}, "prompt_logprobs"),
    (TEXT, {"prompt": "a", "stream_options": {"include_usage": True}}, "stream_options"),
    (TEXT, {"prompt": "a", "stream": True, "stream_options": {"x": 1}}, "stream_options.x"),
    (TEXT, {"prompt": "a", "cache_salt": ""}, "cache_salt"),
    (TEXT, {"prompt": "a", "request_id": "a b"}, "request_id"),
    (TEXT, {"prompt": "a", "priority": 2**40}, "priority"),
    (TEXT, {"prompt": "a", "suffix": "b"}, "suffix"),
    (TEXT, {"prompt": "a", "allowed_token_ids": []}, "allowed_token_ids"),
    (TEXT, {"prompt": "a", "allowed_token_ids": [-1]}, "allowed_token_ids"),
    (TEXT, {"prompt": "a", "allowed_token_ids": [2], "min_tokens": 1}, "allowed_token_ids"),
    (TEXT, {"prompt": "a", "allowed_token_ids": [5], "guided_regex": "a"}, "allowed_token_ids"),
    (TEXT, {"prompt": "a", "bad_words": [" "]}, "bad_words"),
    (TEXT, {"prompt": "a", "truncate_prompt_tokens": 0}, "truncate_prompt_tokens"),
    (TEXT, {"prompt": "a", "truncate_prompt_tokens": 512}, "truncate_prompt_tokens"),
    (TEXT, {"prompt": "a", "truncate_prompt_tokens": 5, "echo": True}, "truncate_prompt_tokens"),
    (TEXT, {"prompt": "a", "best_of": 5}, "best_of"),
    (TEXT, {"prompt": "a", "max_tokenz": 2}, "max_tokenz"),
    (CHAT, {"messages": []}, "messages"),
    (CHAT, {}, "messages"),
    (CHAT, {"messages": [{"role": "robot", "content": "x"}]}, "messages.0.role"),
    (CHAT, {"messages": [{"role": "user"}]}, "messages.0.content"),
    (CHAT, {"messages": [{"role": "user", "content": 5}]}, "messages.0.content"),
    (
        CHAT,
        {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]},
        "messages.0.content.0.type",
    ),
    (CHAT, {"messages": [{"role": "assistant", "tool_calls": [{"id": "1"}]}]}, "messages.0.tool_calls.0.function"),
    (CHAT, {"messages": [{"role": "tool", "tool_call_id": "x"}]}, "messages.0.content"),
    (CHAT, {"messages": HELLO, "tools": [{"type": "function"}]}, "tools.0.function"),
    (CHAT, {"messages": HELLO, "tools": [{"type": "search", "function": {"name": "f"}}]}, "tools.0.type"),
    (CHAT, {"messages": HELLO, "tools": [tool("a b")]}, "tools.0.function.name"),
    (CHAT, {"messages": HELLO, "tools": [tool("f"), tool("f")]}, "tools"),
    (CHAT, {"messages": HELLO, "tools": [tool("f"), tool("g"), tool("h")]}, "tools"),
    (CHAT, {"messages": HELLO, "tool_choice": "required"}, "tool_choice"),
    (CHAT, {"messages": HELLO, "tools": [tool("f", type="strin")], "tool_choice": "required"}, "tools"),
    (CHAT, {"messages": HELLO, "tools": [tool("f")], "tool_choice": NAMED_G}, "tool_choice.function.name"),
    (CHAT, {"messages": HELLO, "tools": [tool("f")], "tool_choice": "required", "guided_regex": "a"}, "guided_regex"),
    (CHAT, {"messages": HELLO, "response_format": "json"}, "response_format"),
    (CHAT, {"messages": HELLO, "response_format": {"type": "yaml"}}, "response_format.type"),
    (CHAT, {"messages": HELLO, "response_format": {"type": "json_schema"}}, "response_format.json_schema"),
    (CHAT, {"messages": HELLO, "response_format": {"type": "regex"}}, "response_format.regex"),
    (CHAT, {"messages": HELLO, "response_format": {"type": "regex", "regex": "(a"}}, "response_format.regex"),
    (CHAT, {"messages": HELLO, "response_format": {"type": "text", "x": 1}}, "response_format.x"),
    (CHAT, {"messages": HELLO, "response_format": {"type": "text", "regex": "a"}}, "response_format.regex"),
    (
        CHAT,
        {"messages": HELLO, "response_format": {"type": "json_object", "json_schema": {"schema": {}}}},
        "response_format.json_schema",
    ),
    (TEXT, {"prompt": "a", "guided_json": {"type": "strin"}}, "guided_json"),
    (TEXT, {"prompt": "a", "guided_json": {"$ref": "http://127.0.0.1/x.json"}}, "guided_json"),
    (TEXT, {"prompt": "a", "guided_json": {"type": "array", "uniqueItems": True}}, "guided_json"),
    (TEXT, {"prompt": "a", "guided_json": "{"}, "guided_json"),
    (TEXT, {"prompt": "a", "guided_json": "[]"}, "guided_json"),
    (TEXT, {"prompt": "a", "guided_json": False}, "guided_json"),
    (TEXT, {"prompt": "a", "guided_json": {"$ref": "#"}}, "guided_json"),
    (TEXT, {"prompt": "a", "guided_regex": r"a[^\s\S]"}, "guided_regex"),
    (TEXT, {"prompt": "a", "guided_grammar": 'start: "a" start'}, "guided_grammar"),
    (TEXT, {"prompt": "a", "guided_regex": "a(?=b)"}, "guided_regex"),
    (TEXT, {"prompt": "a", "guided_regex": "x" * 900}, "guided_regex"),
    (TEXT, {"prompt": "a", "guided_regex": "a", "guided_choice": ["b"]}, "guided_choice"),
    (TEXT, {"prompt": "a", "guided_choice": []}, "guided_choice"),
    (TEXT, {"prompt": "a", "guided_choice": ["a", ""]}, "guided_choice"),
    (TEXT, {"prompt": "a", "guided_grammar": "start: ("}, "guided_grammar"),
    (TEXT, {"prompt": "a", "guided_grammar": "start: <nothing>"}, "guided_grammar"),
    (TEXT, {"prompt": "a", "guided_grammar": "root ::= ("}, "guided_grammar"),
    (TEXT, {"prompt": "a", "structured_outputs": {"regex": "a", "json": {}}}, "structured_outputs.regex"),
    (TEXT, {"prompt": "a", "structured_outputs": {"xml": 1}}, "structured_outputs.xml"),
    (CHAT, {"messages": HELLO, "top_logprobs": 2}, "top_logprobs"),
    (CHAT, {"messages": HELLO, "max_completion_tokens": 0}, "max_completion_tokens"),
    (CHAT, {"messages": HELLO, "max_completion_tokens": 600}, "max_completion_tokens"),
    (CHAT, {"messages": [{"role": "user", "content": "a " * 600}]}, "messages"),
    ("/detokenize", {"tokens": [49152]}, "tokens"),
    ("/tokenize", {}, "prompt"),
]


async def test_every_bad_request_is_a_4xx_that_names_its_field_and_the_server_goes_on(scripted: Any) -> None:
    async with scripted(limits=LIMITS) as running:
        wrong = []
        for path, body, field in CASES:
            response = await running.client.post(path, json=body)
            error = response.json().get("error", {})
            shaped = set(error) == {"message", "type", "param", "code"} and error["type"] == "invalid_request_error"
            if response.status_code != 400 or error["param"] != field or not shaped or field not in error["message"]:
                wrong.append((path, body, field, response.status_code, error))
        assert wrong == []
        good = await running.client.post(TEXT, json={"prompt": "a", "max_tokens": 2})
        assert good.status_code == 200
        assert running.server.state.client.living == 0


async def test_a_body_that_is_no_json_or_too_large_or_badly_encoded_is_refused(scripted: Any) -> None:
    async with scripted(limits=LIMITS) as running:
        for content in (b"", b"{", b"[1]", b'"x"', b'{"prompt": NaN}', b'{"prompt": "\\ud800"}', b"\xff\xfe"):
            response = await running.client.post(TEXT, content=content)
            assert response.status_code == 400, content
            assert response.json()["error"]["param"] in ("body", "prompt")
        deep = b'{"prompt": ' + b"[" * 9000 + b"]" * 9000 + b"}"
        assert (await running.client.post(TEXT, content=deep)).status_code == 400

        async def endless() -> AsyncIterator[bytes]:
            for _ in range(100):
                yield b"x" * 1000

        for body in (b"x" * 20_001, endless()):
            response = await running.client.post(TEXT, content=body)
            assert response.status_code == 413
            assert response.json()["error"]["param"] == "body"


async def test_a_head_without_end_is_refused_and_not_kept(scripted: Any) -> None:
    async with scripted() as running:
        host, port = running.url.removeprefix("http://").split(":")
        for part in (b"x" * 1000, b"x: y\r\n" * 200):
            reader, writer = await asyncio.open_connection(host, int(port))
            writer.write(b"GET /version HTTP/1.1\r\nhost: x\r\nlong: ")
            with contextlib.suppress(ConnectionError):
                for _ in range(10_000):
                    writer.write(part)
                    await writer.drain()
            with contextlib.suppress(ConnectionError):
                assert b"400" in await reader.readline()
            writer.close()
        big = await running.client.get("/version", headers={"x": "y" * 60_000})
        assert big.status_code == 200


async def test_nothing_in_a_request_makes_the_server_open_a_file_or_an_address(scripted: Any, tmp_path: Path) -> None:
    reached = []

    async def note(_reader: Any, writer: Any) -> None:
        reached.append(1)
        writer.close()

    listener = await asyncio.start_server(note, "127.0.0.1", 0)
    address = f"http://127.0.0.1:{listener.sockets[0].getsockname()[1]}"
    secret = tmp_path / "secret"
    secret.write_text("unheard-of")
    async with scripted() as running:
        for place in (f"{address}/x", f"file://{secret}", str(secret)):
            image = [{"type": "image_url", "image_url": {"url": place}}]
            form = {"type": "json_schema", "json_schema": {"schema": {"$ref": place}}}
            include = f"{{% include {place!r} %}}"
            tries = [
                (CHAT, {"messages": [{"role": "user", "content": image}]}, 400),
                (CHAT, {"messages": HELLO, "response_format": form}, 400),
                (CHAT, {"messages": HELLO, "chat_template": include}, 400),
                (TEXT, {"prompt": "x", "guided_json": {"$schema": place, "$ref": place}}, 400),
                (TEXT, {"prompt": "x", "guided_grammar": f"%import {place}\nstart: x"}, 400),
                (CHAT, {"messages": [{"role": "user", "content": include}], "max_tokens": 1}, 200),
            ]
            for path, body, status in tries:
                response = await running.client.post(path, json=body)
                assert response.status_code == status, (body, response.text)
                assert "unheard-of" not in response.text
    listener.close()
    assert reached == []


async def test_a_request_id_in_use_is_refused_and_free_again_afterwards(
    scripted: Any, tmp_path: Path, until: Any
) -> None:
    gate = tmp_path / "gate"
    async with scripted("--gate", str(gate)) as running:
        body = {"prompt": "a", "max_tokens": 2, "request_id": "mine"}
        first = asyncio.create_task(running.client.post(TEXT, json=body))
        await until(lambda: running.server.state.client.living == 1, "the first request runs")
        second = await running.client.post(TEXT, json=body)
        assert (second.status_code, second.json()["error"]["param"]) == (400, "request_id")
        gate.touch()
        assert (await first).json()["id"] == "cmpl-mine"
        assert (await running.client.post(TEXT, json=body)).status_code == 200


async def test_another_models_name_and_an_unknown_path_are_404(scripted: Any) -> None:
    async with scripted() as running:
        response = await running.client.post(TEXT, json={"prompt": "a", "model": "gpt-9"})
        assert (response.status_code, response.json()["error"]["param"]) == (404, "model")
        assert (await running.client.get("/v1/models/gpt-9")).status_code == 404
        assert (await running.client.get("/v1/models/scripted")).json()["max_model_len"] == 512
        assert (await running.client.get("/nothing")).json()["error"]["type"] == "not_found_error"


async def test_the_key_is_asked_for_on_every_route_but_health_and_metrics(scripted: Any) -> None:
    async with scripted(api_key="s3cret") as running:
        client = running.client
        for path in ("/health", "/ready", "/metrics"):
            assert (await client.get(path)).status_code == 200
        for headers in ({}, {"authorization": "Bearer wrong"}, {"authorization": "Basic s3cret"}):
            for path in ("/v1/models", "/version"):
                response = await client.get(path, headers=headers)
                assert response.status_code == 401
                assert response.json()["error"]["code"] == "invalid_api_key"
            assert (await client.post(TEXT, json={"prompt": "a"}, headers=headers)).status_code == 401
        assert (await client.get("/v1/models", headers={"authorization": "Bearer s3cret"})).status_code == 200


async def test_fields_without_effect_are_accepted(scripted: Any) -> None:
    async with scripted() as running:
        harmless = {name: "x" for name in HARMLESS if name != "metadata"} | {"metadata": {"a": "b"}}
        neutral = {name: refusal.neutral[0] for name, refusal in UNSUPPORTED.items() if refusal.neutral}
        nothing = dict.fromkeys(UNSUPPORTED)
        for extra in (harmless, neutral, nothing):
            response = await running.client.post(CHAT, json={"messages": HELLO, "max_tokens": 1, **extra})
            assert response.status_code == 200, response.text


def test_the_page_of_fields_is_made_from_the_code_and_lists_every_one() -> None:
    text = (Path(__file__).parents[2] / "docs/reference/api.md").read_text()
    rows = set(re.findall(r"^\| `(\w+)` \|", text, re.M))
    fields = {name for model in (ChatRequest, CompletionRequest) for name in model.model_fields}
    assert {*HARMLESS, *UNSUPPORTED, *fields} <= rows


async def test_a_model_without_template_or_with_a_template_that_objects_is_a_400(scripted: Any, tmp_path: Path) -> None:
    template = tmp_path / "strict.jinja"
    template.write_text(
        "{% if messages|length > 1 %}{{ raise_exception('one at a time') }}{% endif %}{{ messages[0].content }}"
    )
    async with scripted(chat_template=str(template)) as running:
        response = await running.client.post(CHAT, json={"messages": HELLO * 2})
        assert response.status_code == 400
        assert "one at a time" in response.json()["error"]["message"]
        assert (await running.client.post(CHAT, json={"messages": HELLO, "max_tokens": 1})).status_code == 200
        running.server.state.template = None
        response = await running.client.post(CHAT, json={"messages": HELLO})
        assert response.json()["error"]["code"] == "no_chat_template"


async def test_tokenize_and_detokenize_are_inverse(scripted: Any) -> None:
    async with scripted() as running:
        text = "Grüße 世界 🦙"
        tokens = (await running.client.post("/tokenize", json={"prompt": text})).json()
        assert tokens["count"] == len(tokens["tokens"])
        back = await running.client.post("/detokenize", json={"tokens": tokens["tokens"]})
        assert back.json() == {"prompt": text}
        chat = (await running.client.post("/tokenize", json={"messages": HELLO})).json()
        assert chat["count"] > tokens["count"]
