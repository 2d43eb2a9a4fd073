"""Structured output with the real model: what comes out fits, whatever runs beside it."""

from __future__ import annotations

import json
import os
import re
import signal
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import jsonschema
import openai
import pydantic
import pytest

from tests.server.schemas import SCHEMAS

ASK = [{"role": "user", "content": "Answer in JSON."}]


def post(server: Any, path: str, body: dict[str, Any]) -> dict[str, Any]:
    response = httpx.post(f"{server.url}{path}", json=body, timeout=120)
    assert response.status_code == 200, response.text
    answer: dict[str, Any] = response.json()
    return answer


def chat(server: Any, **body: Any) -> dict[str, Any]:
    return post(server, "/v1/chat/completions", {"messages": ASK, "max_tokens": 400, **body})


def test_every_answer_at_temperature_1_fits_its_schema_also_beside_requests_without_one(server: Any) -> None:
    def structured(item: tuple[str, Any]) -> list[str]:
        name, schema = item
        form = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema, "strict": True}}
        answer = chat(server, response_format=form, temperature=1, n=2, seed=len(name))
        wrong = []
        for choice in answer["choices"]:
            text = choice["message"]["content"]
            try:
                value = json.loads(text)
                jsonschema.validate(value, schema, format_checker=jsonschema.FormatChecker())
                fits = choice["finish_reason"] == "stop"
            except (ValueError, jsonschema.ValidationError):
                fits = False
            if not fits:
                wrong.append(f"{name}: {choice['finish_reason']}: {text!r}")
        return wrong

    plain = {"prompt": "The capital of France is", "temperature": 0, "max_tokens": 24}
    alone = post(server, "/v1/completions", plain)["choices"][0]["text"]
    with ThreadPoolExecutor(12) as pool:
        beside = [pool.submit(post, server, "/v1/completions", plain) for _ in range(2)]
        wrong = [line for lines in pool.map(structured, SCHEMAS.items()) for line in lines]
        assert wrong == []
        assert [one.result()["choices"][0]["text"] for one in beside] == [alone, alone]


@pytest.mark.parametrize(
    ("form", "fits"),
    [
        ({"response_format": {"type": "json_object"}, "top_k": 20}, None),
        ({"response_format": {"type": "regex", "regex": "(ab|c){2,4}"}}, "(ab|c){2,4}"),
        ({"guided_regex": "[0-9]{3}-[äß🦙]"}, "[0-9]{3}-[äß🦙]"),
        ({"guided_choice": ["left", "right hand", 'quo"te']}, 'left|right hand|quo"te'),
        ({"structured_outputs": {"choice": ["日本", "日光"]}}, "日本|日光"),
        ({"response_format": {"type": "grammar", "grammar": 'start: "x" /[0-9]{1,4}/ "y"'}}, "x[0-9]{1,4}y"),
        ({"guided_grammar": 'root ::= "(" [a-c]+ ")"'}, r"\([a-c]+\)"),
        ({"guided_json": '{"type": "boolean"}'}, "true|false"),
    ],
    ids=lambda value: str(value)[:40] if isinstance(value, dict) else "",
)
def test_every_kind_of_form_and_every_spelling_of_it_is_kept_to(
    server: Any, form: dict[str, Any], fits: str | None
) -> None:
    answer = chat(server, temperature=1, seed=3, ignore_eos=True, **form)["choices"][0]
    text = answer["message"]["content"]
    if answer["finish_reason"] == "length":
        assert fits is None or not fits.endswith("{2,4}"), text
    elif fits is None:
        assert isinstance(json.loads(text), dict)
    else:
        assert re.fullmatch(fits, text), text


def test_a_stream_goes_on_in_its_schema_after_the_engine_was_killed(server: Any) -> None:
    schema = {"type": "array", "items": {"enum": ["north", "south"]}, "minItems": 9, "maxItems": 9}
    body = {"messages": ASK, "guided_json": schema, "stream": True, "temperature": 1, "seed": 5, "max_tokens": 400}
    whole = chat(server, **{**body, "stream": False})["choices"][0]["message"]["content"]
    (engine,) = server.engine_processes()
    text, pieces = "", 0
    with httpx.stream("POST", f"{server.url}/v1/chat/completions", json=body, timeout=120) as response:
        for line in response.iter_lines():
            if line.startswith("data: {"):
                text += json.loads(line.removeprefix("data: "))["choices"][0]["delta"].get("content") or ""
                pieces += 1
                if pieces == 8:
                    os.kill(engine, signal.SIGKILL)
    assert pieces > 8
    assert text == whole
    jsonschema.validate(json.loads(text), schema)


class Event(pydantic.BaseModel):
    day: int = pydantic.Field(ge=1, le=31)
    guests: list[bool] = pydantic.Field(max_length=3)


def test_the_official_client_parses_an_answer_into_a_model(server: Any) -> None:
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", timeout=120, max_retries=0) as client:
        answer = client.chat.completions.parse(model="smollm2", messages=ASK, response_format=Event, max_tokens=200)  # type: ignore[arg-type]
        parsed = answer.choices[0].message.parsed
        assert isinstance(parsed, Event)
