"""Tools and reasoning over HTTP: a scripted engine for every family, the real model where calls are required."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import openai
import pytest

CHAT = "/v1/chat/completions"
WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Weather of a city",
        "parameters": {
            "type": "object",
            "properties": {"city": {"enum": ["Oslo", "Łódź", "東京"]}, "days": {"type": "integer", "maximum": 9}},
            "required": ["city"],
            "additionalProperties": False,
        },
    },
}
TIME = {"type": "function", "function": {"name": "get_time"}}
QUESTION = [{"role": "user", "content": "How is the weather in Oslo?"}]
CALL = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Oslo"}}\n</tool_call>'
TIME_CALL = '<tool_call>\n{"name": "get_time", "arguments": {}}\n</tool_call>'
END = "<|im_end|>"


def ask(**body: Any) -> dict[str, Any]:
    return {"messages": QUESTION, "tools": [WEATHER, TIME], "max_tokens": 200, **body}


async def streamed(running: Any, body: dict[str, Any]) -> tuple[dict[str, Any], str]:
    """The message that the pieces of a stream make together, and how it ended."""
    message: dict[str, Any] = {"content": "", "reasoning_content": "", "tool_calls": {}}
    finish = ""
    async with running.client.stream("POST", CHAT, json={**body, "stream": True}) as response:
        assert response.status_code == 200
        async for line in response.aiter_lines():
            if not line.startswith("data: {"):
                continue
            choice = json.loads(line.removeprefix("data: "))["choices"][0]
            delta = choice["delta"]
            finish = choice["finish_reason"] or finish
            for key in ("content", "reasoning_content"):
                message[key] += delta.get(key) or ""
            for call in delta.get("tool_calls", []):
                known = message["tool_calls"].setdefault(call["index"], {"id": call.get("id"), "name": "", "text": ""})
                known["name"] += call["function"].get("name", "")
                known["text"] += call["function"].get("arguments", "")
    return message, finish


async def test_calls_come_whole_and_in_pieces_with_ids_and_the_text_before_them(scripted: Any) -> None:
    async with scripted("--text", f"Let me see.\n{CALL}\n{TIME_CALL}{END}") as running:
        answer = (await running.client.post(CHAT, json=ask())).json()["choices"][0]
        assert answer["finish_reason"] == "tool_calls"
        assert answer["message"]["content"] == "Let me see."
        calls = answer["message"]["tool_calls"]
        assert [call["function"] for call in calls] == [
            {"name": "get_weather", "arguments": '{"city": "Oslo"}'}, {"name": "get_time", "arguments": "{}"},
        ]  # fmt: skip
        assert len({call["id"] for call in calls}) == 2
        message, finish = await streamed(running, ask())
        assert (message["content"], finish) == ("Let me see.", "tool_calls")
        assert [(call["name"], call["text"]) for call in message["tool_calls"].values()] == [
            ("get_weather", '{"city": "Oslo"}'), ("get_time", "{}"),
        ]  # fmt: skip
        assert all(call["id"].startswith("call_") for call in message["tool_calls"].values())

        one = (await running.client.post(CHAT, json=ask(parallel_tool_calls=False))).json()["choices"][0]
        assert len(one["message"]["tool_calls"]) == 1
        none = (await running.client.post(CHAT, json=ask(tool_choice="none"))).json()["choices"][0]
        assert none["finish_reason"] == "stop"
        assert none["message"]["content"].startswith(f"Let me see.\n{CALL}")
        assert "tool_calls" not in none["message"]


async def test_an_answer_without_a_call_is_content_and_one_that_is_cut_off_ends_with_length(scripted: Any) -> None:
    async with scripted("--text", f"No idea. {END}") as running:
        answer = (await running.client.post(CHAT, json=ask())).json()["choices"][0]
        assert (answer["message"]["content"], answer["finish_reason"]) == ("No idea. ", "stop")
        message, finish = await streamed(running, ask())
        assert (message["content"], message["tool_calls"], finish) == ("No idea. ", {}, "stop")
    async with scripted("--text", CALL) as running:
        answer = (await running.client.post(CHAT, json=ask(max_tokens=12))).json()["choices"][0]
        assert answer["finish_reason"] == "length"


TEMPLATE = "{% if tools %}TOOLS {{ tools|tojson }}{% endif %}{% for m in messages %}[{{ m.role }}] {{ m.content }}"
TEMPLATE += "{% for c in m.tool_calls %} CALLS {{ c.function.arguments.city }}{% endfor %}{% endfor %}"


@pytest.mark.parametrize(
    ("sign", "text"),
    [
        ("[TOOL_CALLS]", '[TOOL_CALLS][{"name": "get_weather", "arguments": {"city": "Oslo"}}]'),
        ("<|python_tag|>", '{"name": "get_weather", "parameters": {"city": "Oslo"}}'),
        ("<|tool_call>", '<|tool_call>call:get_weather{city:<|"|>Oslo<|"|>}<tool_call|>'),
        (
            "<｜tool▁calls▁begin｜>",
            '<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>get_weather<｜tool▁sep｜>{"city": "Oslo"}<｜tool▁call▁end｜>',
        ),
        (
            "<|channel|>",
            "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>commentary to=functions.get_weather "
            '<|constrain|>json<|message|>{"city": "Oslo"}',
        ),
        ("<think>", f"<think>\nHm.\n</think>\n\n{CALL}"),
    ],
)
async def test_a_familys_calls_are_read_as_its_chat_template_tells(
    scripted: Any, tmp_path: Path, sign: str, text: str
) -> None:
    template = tmp_path / "template.jinja"
    template.write_text(TEMPLATE + "{# " + sign + " #}" + ("{# <tool_call> #}" if sign == "<think>" else ""))
    async with scripted("--text", text + END, chat_template=str(template)) as running:
        whole = (await running.client.post(CHAT, json=ask())).json()["choices"][0]
        (call,) = whole["message"]["tool_calls"]
        assert call["function"]["name"] == "get_weather"
        assert json.loads(call["function"]["arguments"]) == {"city": "Oslo"}
        assert whole["finish_reason"] == "tool_calls"
        thought = "Hm." if "Hm." in text else ""
        assert whole["message"].get("reasoning_content", "") == thought
        message, _ = await streamed(running, ask())
        (piece,) = message["tool_calls"].values()
        assert (piece["name"], json.loads(piece["text"])) == ("get_weather", {"city": "Oslo"})
        assert (message["reasoning_content"], message["content"]) == (thought, "")


async def test_templates_get_tools_and_earlier_calls_and_others_get_them_as_text(scripted: Any, tmp_path: Path) -> None:
    turns = [
        *QUESTION,
        {
            "role": "assistant",
            "tool_calls": [
                {"id": "a", "type": "function", "function": {"name": "get_weather", "arguments": '{"city": "Łódź"}'}}
            ],
        },
        {"role": "tool", "tool_call_id": "a", "content": "rain"},
    ]
    body = {"messages": turns, "tools": [WEATHER]}
    template = tmp_path / "template.jinja"
    template.write_text(TEMPLATE)
    for settings in ({"chat_template": str(template)}, {}):
        async with scripted(**settings) as running:
            tokens = (await running.client.post("/tokenize", json=body)).json()["tokens"]
            prompt = (await running.client.post("/detokenize", json={"tokens": tokens})).json()["prompt"]
            assert '"name": "get_weather"' in prompt
            assert "Łódź" in prompt.split("weather in Oslo")[1]
            assert prompt.index("Łódź") < prompt.rindex("rain")


@pytest.fixture(scope="module")
def client(server: Any) -> Any:
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", timeout=120, max_retries=0) as client:
        yield client


@pytest.mark.parametrize("choice", ["required", {"type": "function", "function": {"name": "get_weather"}}])
def test_a_required_call_comes_from_any_model_with_arguments_that_fit(client: Any, choice: Any) -> None:
    answer = client.chat.completions.create(
        model="smollm2", messages=QUESTION, tools=[WEATHER, TIME], tool_choice=choice, parallel_tool_calls=False,
        max_tokens=120, seed=1,
    ).choices[0]  # fmt: skip
    (call,) = answer.message.tool_calls
    assert answer.finish_reason == "tool_calls"
    assert answer.message.content is None
    arguments = json.loads(call.function.arguments)
    if call.function.name == "get_weather":
        assert arguments["city"] in ("Oslo", "Łódź", "東京")
    else:
        assert choice == "required"
        assert arguments == {}
