"""Clients that people have: the official one in its asynchronous form, LangChain, LiteLLM, and a load by Locust."""

from __future__ import annotations

import asyncio
import csv
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from openai import AsyncOpenAI
from pydantic import BaseModel

os.environ.setdefault("LITELLM_LOCAL_MODEL_COST_MAP", "True")  # it asks the network for prices when it is imported
CALL = ' sure<tool_call>\n{"name": "weather", "arguments": {"city": "Rom"}}\n</tool_call><|im_end|>'
ASK: list[Any] = [{"role": "user", "content": "What is the weather in Rom?"}]
SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
TOOL: Any = {"type": "function", "function": {"name": "weather", "description": "the weather", "parameters": SCHEMA}}
WORDS = " one two three four five six"


class Colour(BaseModel):
    """A form for answers."""

    name: str


async def test_the_asynchronous_client_streams_text_usage_and_calls(scripted: Any) -> None:
    async with scripted("--text", CALL) as running, AsyncOpenAI(base_url=f"{running.url}/v1", api_key="x") as client:
        stream = await client.chat.completions.create(
            model="scripted", messages=ASK, tools=[TOOL], stream=True, stream_options={"include_usage": True}
        )
        text = name = arguments = ""
        usage, reasons = None, []
        async for chunk in stream:
            usage = chunk.usage or usage
            for choice in chunk.choices:
                text += choice.delta.content or ""
                reasons += [choice.finish_reason] if choice.finish_reason else []
                for call in choice.delta.tool_calls or []:
                    assert call.function
                    name += call.function.name or ""
                    arguments += call.function.arguments or ""
        assert (text.strip(), name, arguments, reasons) == ("sure", "weather", '{"city": "Rom"}', ["tool_calls"])
        assert usage is not None
        assert usage.completion_tokens > 10


async def test_the_asynchronous_clients_helper_puts_a_stream_together(scripted: Any) -> None:
    async with (
        scripted("--text", f"{WORDS}<|im_end|>") as running,
        AsyncOpenAI(base_url=f"{running.url}/v1", api_key="x") as client,
        client.chat.completions.stream(model="scripted", messages=ASK) as stream,
    ):
        events = [event.type async for event in stream]
        final = await stream.get_final_completion()
    assert "content.delta" in events
    assert final.choices[0].message.content == WORDS
    assert final.choices[0].finish_reason == "stop"


async def test_the_asynchronous_client_parses_a_form_and_leaves_a_stream_early(scripted: Any, until: Any) -> None:
    async with (
        scripted("--text", '{"name": "red"}<|im_end|>') as running,
        AsyncOpenAI(base_url=f"{running.url}/v1", api_key="x") as client,
    ):
        parsed = await client.chat.completions.parse(model="scripted", messages=ASK, response_format=Colour)
        assert parsed.choices[0].message.parsed == Colour(name="red")
    async with (
        scripted("--stall-after", "3") as running,
        AsyncOpenAI(base_url=f"{running.url}/v1", api_key="x") as client,
    ):
        stream = await client.completions.create(model="scripted", prompt="x", max_tokens=50, stream=True)
        async for _ in stream:
            break
        await stream.close()
        await until(lambda: running.server.state.client.living == 0, "the request was given up")


async def test_langchain_invokes_streams_binds_tools_and_asks_for_forms(scripted: Any) -> None:
    from langchain_core.messages import ToolMessage
    from langchain_openai import ChatOpenAI

    def model(url: str, **settings: Any) -> Any:
        return ChatOpenAI(base_url=f"{url}/v1", api_key="x", model="scripted", max_retries=0, **settings)  # type: ignore[arg-type]

    async with scripted("--text", WORDS) as running:
        chat = model(running.url, max_tokens=6)
        assert (await chat.ainvoke("hi")).content == WORDS
        assert "".join([str(part.content) async for part in chat.astream("hi")]) == WORDS
        many = await asyncio.to_thread(chat.batch, ["a", "b", "c"])
        assert [answer.content for answer in many] == [WORDS] * 3
    async with scripted("--text", CALL) as running:
        bound = model(running.url).bind_tools([TOOL])
        answer = await bound.ainvoke("weather?")
        assert [(call["name"], call["args"]) for call in answer.tool_calls] == [("weather", {"city": "Rom"})]
        back = ToolMessage("sunny", tool_call_id=answer.tool_calls[0]["id"])
        again = await bound.ainvoke([("user", "weather?"), answer, back])
        assert again.tool_calls
    async with scripted("--text", '{"name": "red"}<|im_end|>') as running:
        formed = model(running.url).with_structured_output(Colour, method="json_schema")
        assert await formed.ainvoke("colour?") == Colour(name="red")


async def test_litellm_completes_streams_and_calls(scripted: Any) -> None:
    import litellm

    def settings(running: Any) -> dict[str, Any]:
        return {"model": "openai/scripted", "api_base": f"{running.url}/v1", "api_key": "x", "messages": ASK}

    async with scripted("--text", WORDS) as running:
        whole = await litellm.acompletion(**settings(running), max_tokens=6)
        assert whole.choices[0].message.content == WORDS
        stream = await litellm.acompletion(**settings(running), max_tokens=6, stream=True)
        assert "".join([part.choices[0].delta.content or "" async for part in stream]) == WORDS
        with pytest.raises(litellm.exceptions.BadRequestError, match="max_tokens"):
            await litellm.acompletion(**settings(running), max_tokens=100_000)
    async with scripted("--text", CALL) as running:
        called = await litellm.acompletion(**settings(running), tools=[TOOL])
        assert called.choices[0].message.tool_calls[0].function.name == "weather"


LOCUSTFILE = """
from locust import constant, events, task
from locust.contrib.oai import OpenAIUser

asked = []

@events.request.add_listener
def count(**facts):
    asked.append(facts)
    if len(asked) == 40:
        Chatter.running.quit()

class Chatter(OpenAIUser):
    wait_time = constant(0)

    def __init__(self, environment):
        super().__init__(environment)
        self.client.base_url = environment.host + "/v1"
        Chatter.running = environment.runner

    @task
    def chat(self):
        self.client.chat.completions.create(
            model="scripted", max_tokens=8, messages=[{"role": "user", "content": "hi"}]
        )
"""


async def test_locusts_own_openai_users_put_a_load_on_the_server_without_a_failure(dummy: Any, tmp_path: Path) -> None:
    file = tmp_path / "locustfile.py"
    file.write_text(LOCUSTFILE)
    async with dummy() as running:
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "locust", "-f", str(file), "--headless", "--host", running.url, "--users", "10",
            "--spawn-rate", "10", "--run-time", "80s", "--csv", str(tmp_path / "found"), "--only-summary",
            env={**os.environ, "OPENAI_API_KEY": "x"}, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        )  # fmt: skip
        output, _ = await asyncio.wait_for(process.communicate(), 90)
        assert process.returncode == 0, output.decode()
        assert running.server.state.metrics.finished["length"].total >= 40
    with (tmp_path / "found_stats.csv").open() as table:
        rows = {row["Name"]: row for row in csv.DictReader(table)}
    assert int(rows["Aggregated"]["Request Count"]) >= 30
    assert int(rows["Aggregated"]["Failure Count"]) == 0
