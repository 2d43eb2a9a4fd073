"""Fields beyond the usual ones: what they do, and that every field of OpenAI's has its place in the tables."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from octavo_server.api import wire
from octavo_server.api.fields import EXTENSIONS, HARMLESS, UNSUPPORTED
from openai.types import completion_create_params as text_params
from openai.types.chat import completion_create_params as chat_params

TEXT, CHAT = "/v1/completions", "/v1/chat/completions"
THINKS = "{% for m in messages %}{{ m.content }}{% endfor %}[{{ enable_thinking }}]"
EFFORT = "{% for m in messages %}{{ m.content }}{% endfor %}[{{ reasoning_effort }}]"


@pytest.mark.parametrize(
    ("model", "theirs"),
    [
        (wire.ChatRequest, chat_params.CompletionCreateParamsBase),
        (wire.CompletionRequest, text_params.CompletionCreateParamsBase),
    ],
)
def test_every_field_of_the_official_client_is_supported_accepted_or_refused(model: Any, theirs: Any) -> None:
    known = set(model.model_fields) | set(HARMLESS) | set(UNSUPPORTED)
    assert set(theirs.__annotations__) | {"stream"} <= known


def test_extensions_are_fields_and_none_of_openais() -> None:
    fields = set(wire.ChatRequest.model_fields) | set(wire.CompletionRequest.model_fields)
    theirs = set(chat_params.CompletionCreateParamsBase.__annotations__)
    theirs |= set(text_params.CompletionCreateParamsBase.__annotations__) | {"stream"}
    assert set(EXTENSIONS) == fields - theirs


async def prompt_text(running: Any, **body: Any) -> str:
    """The prompt that a chat request makes."""
    response = await running.client.post("/tokenize", json=body)
    assert response.status_code == 200, response.text
    return str(running.server.state.tokenizer.decode(response.json()["tokens"], skip_special_tokens=False))


async def test_an_answer_goes_on_in_the_last_message_or_begins_a_new_one_or_neither(scripted: Any) -> None:
    messages = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "Well, "}]
    async with scripted() as running:
        goes_on = await prompt_text(running, messages=messages, continue_final_message=True)
        opened = await prompt_text(running, messages=messages)
        neither = await prompt_text(running, messages=messages, add_generation_prompt=False)
        assert goes_on.endswith("<|im_start|>assistant\nWell, ")
        assert opened.endswith("Well, <|im_end|>\n<|im_start|>assistant\n")
        assert neither.endswith("Well, <|im_end|>\n")
        body = {"messages": messages, "continue_final_message": True, "max_tokens": 2}
        answer = await running.client.post(CHAT, json=body)
        assert answer.json()["choices"][0]["message"]["content"] == " one two"
        for wrong in (
            {"messages": messages, "continue_final_message": True, "add_generation_prompt": True},
            {"messages": messages[:1], "continue_final_message": True},
        ):
            refused = await running.client.post(CHAT, json=wrong)
            assert (refused.status_code, refused.json()["error"]["param"]) == (400, "continue_final_message")


@pytest.mark.parametrize(
    ("template", "effort", "shown"),
    [
        (EFFORT, "high", "[high]"), (THINKS, "none", "[False]"), (THINKS, "low", "[True]"),
        ("{{ messages[0].content }}", "none", "hi"), ("{{ messages[0].content }}", "low", None),
    ],
)  # fmt: skip
async def test_effort_of_reasoning_reaches_the_template_or_is_refused(
    scripted: Any, tmp_path: Path, template: str, effort: str, shown: str | None
) -> None:
    file = tmp_path / "template.jinja"
    file.write_text(template)
    body = {"messages": [{"role": "user", "content": "hi"}], "reasoning_effort": effort}
    async with scripted(chat_template=str(file)) as running:
        if shown is not None:
            assert (await prompt_text(running, **body)).endswith(shown)
        else:
            refused = await running.client.post(CHAT, json=body)
            assert (refused.status_code, refused.json()["error"]["param"]) == (400, "reasoning_effort")


async def test_a_suffix_is_refused_with_the_reason(scripted: Any) -> None:
    async with scripted() as running:
        refused = await running.client.post(TEXT, json={"prompt": "a", "suffix": "b"})
        error = refused.json()["error"]
        assert (refused.status_code, error["param"], error["code"]) == (400, "suffix", "unsupported_field")
        assert "can't insert" in error["message"]


async def test_echo_without_tokens_gives_the_prompt_back_and_generates_nothing(scripted: Any) -> None:
    async with scripted() as running:
        body = {"prompt": "two words", "max_tokens": 0, "echo": True}
        answer = (await running.client.post(TEXT, json=body)).json()
        assert answer["choices"][0]["text"] == "two words"
        assert answer["choices"][0]["finish_reason"] == "length"
        assert answer["usage"]["completion_tokens"] == 0
        assert answer["usage"]["total_tokens"] == answer["usage"]["prompt_tokens"]
        refused = await running.client.post(TEXT, json={"prompt": "a", "max_tokens": 0})
        assert refused.json()["error"]["param"] == "max_tokens"


def test_log_probabilities_of_a_prompt_can_be_had_without_an_answer(server: Any) -> None:
    import httpx

    body = {"prompt": "The capital of France is Paris", "max_tokens": 0, "echo": True, "logprobs": 1, "temperature": 0}
    answer = httpx.post(f"{server.url}/v1/completions", json=body, timeout=60).json()
    logprobs = answer["choices"][0]["logprobs"]
    assert "".join(logprobs["tokens"]) == body["prompt"]
    assert logprobs["token_logprobs"][0] is None
    assert all(value < 0 for value in logprobs["token_logprobs"][1:])
    # The last word is likelier than a wrong one in its place.
    wrong = {**body, "prompt": "The capital of France is Berlin"}
    other = httpx.post(f"{server.url}/v1/completions", json=wrong, timeout=60).json()["choices"][0]["logprobs"]
    assert logprobs["token_logprobs"][-1] > other["token_logprobs"][-1]


def test_the_token_itself_is_among_the_alternatives_of_a_text_completion_also_when_it_is_unlikely(server: Any) -> None:
    import httpx

    body = {"prompt": "The capital of France is", "max_tokens": 2, "echo": True, "allowed_token_ids": [20000]}
    for count in (0, 2):
        answer = httpx.post(f"{server.url}/v1/completions", json={**body, "logprobs": count}, timeout=60).json()
        logprobs = answer["choices"][0]["logprobs"]
        given = zip(logprobs["tokens"], logprobs["token_logprobs"], logprobs["top_logprobs"], strict=True)
        rows = list(given)[1:]
        assert all(top[token] == own for token, own, top in rows)
        assert [len(top) for *_, top in rows[-2:]] == [count + 1] * 2, "no likely token was allowed"


def test_the_best_of_several_is_the_likeliest_and_comes_first(server: Any) -> None:
    import httpx

    body = {"prompt": "Once upon a time", "max_tokens": 6, "seed": 3, "temperature": 1.5, "logprobs": 0}

    def ask(**fields: Any) -> list[Any]:
        answer = httpx.post(f"{server.url}/v1/completions", json={**body, **fields}, timeout=60)
        assert answer.status_code == 200, answer.text
        return list(answer.json()["choices"])

    def mean(choice: Any) -> float:
        values = choice["logprobs"]["token_logprobs"]
        return float(sum(values) / len(values))

    drawn = ask(n=4)
    best = ask(n=2, best_of=4)
    assert [choice["index"] for choice in best] == [0, 1]
    assert [choice["text"] for choice in best] == [one["text"] for one in sorted(drawn, key=mean, reverse=True)[:2]]


@pytest.mark.parametrize(
    "fields", [{"n": 3, "best_of": 2}, {"best_of": 2, "stream": True}, {"best_of": 100}, {"best_of": 0}]
)
async def test_a_best_of_that_can_not_be_is_a_400(scripted: Any, fields: dict[str, Any]) -> None:
    async with scripted() as running:
        refused = await running.client.post(TEXT, json={"prompt": "a", **fields})
        assert (refused.status_code, refused.json()["error"]["param"]) == (400, "best_of")
        assert (await running.client.post(TEXT, json={"prompt": "a", "best_of": 1})).status_code == 200


async def test_events_of_a_stream_are_the_same_the_short_and_the_long_way(scripted: Any) -> None:
    text = ' a"b\\c é世🦙 <|im_end|>'
    async with scripted("--text", text) as running:
        for path, body in ((TEXT, {"prompt": "x", "n": 2}), (CHAT, {"messages": [{"role": "user", "content": "x"}]})):
            found = []
            for fields in ({}, {"stop": ["never comes"]}, {"stream_options": {"include_usage": True}}):
                ask = {**body, **fields, "max_tokens": 12, "stream": True}
                response = await running.client.post(path, json=ask)
                events = [line[6:] for line in response.text.splitlines() if line][:-1]
                joined: dict[int, str] = {}
                for event in map(json.loads, events):
                    assert set(event) - {"usage"} == {"id", "object", "created", "model", "choices"}
                    for choice in event["choices"]:
                        piece = choice["text"] if path == TEXT else choice["delta"].get("content", "")
                        joined[choice["index"]] = joined.get(choice["index"], "") + piece
                found.append(joined)
                if "stream_options" in fields:
                    assert all(json.loads(event)["usage"] is None for event in events[:-1])
            assert found[0] == found[1] == found[2]
            assert set(found[0].values()) == {text.removesuffix("<|im_end|>")}
