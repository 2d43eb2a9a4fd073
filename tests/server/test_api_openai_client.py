"""The official client against the real server process with the real model."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

QUESTION = [{"role": "user", "content": "Name three colours."}]
GREEDY: dict[str, Any] = {"temperature": 0, "max_tokens": 16}


@pytest.fixture(scope="module")
def client(server: Any) -> Any:
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", timeout=120, max_retries=0) as client:
        yield client


def test_a_chat_answer_is_the_same_whole_and_streamed_and_says_what_it_used(client: Any) -> None:
    whole = client.chat.completions.create(model="smollm2", messages=QUESTION, **GREEDY)
    chunks = list(
        client.chat.completions.create(
            model="smollm2", messages=QUESTION, stream=True, stream_options={"include_usage": True}, **GREEDY
        )
    )
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    assert text == whole.choices[0].message.content
    assert len(text) > 10
    assert chunks[0].choices[0].delta.role == "assistant"
    assert chunks[-1].usage.completion_tokens == whole.usage.completion_tokens <= 16
    assert whole.usage.total_tokens == whole.usage.prompt_tokens + whole.usage.completion_tokens
    assert whole.choices[0].finish_reason in ("stop", "length")


def test_a_text_completion_continues_the_prompt_with_log_probabilities(client: Any) -> None:
    answer = client.completions.create(
        model="smollm2", prompt="The capital of France is", logprobs=2, echo=True, temperature=0, max_tokens=3
    )
    choice = answer.choices[0]
    assert choice.text.startswith("The capital of France is Paris")
    assert choice.logprobs.token_logprobs[0] is None
    assert "".join(choice.logprobs.tokens) == choice.text
    assert all(value < 0 for value in choice.logprobs.token_logprobs[1:])
    for token, offset in zip(choice.logprobs.tokens, choice.logprobs.text_offset, strict=True):
        assert choice.text[offset : offset + len(token)] == token


def test_chat_log_probabilities_arrive_with_alternatives(client: Any) -> None:
    answer = client.chat.completions.create(
        model="smollm2", messages=QUESTION, logprobs=True, top_logprobs=3, temperature=0, max_tokens=4
    )
    content = answer.choices[0].logprobs.content
    assert "".join(entry.token for entry in content) == answer.choices[0].message.content
    assert all(len(entry.top_logprobs) == 3 for entry in content)
    assert all(entry.logprob == pytest.approx(entry.top_logprobs[0].logprob) for entry in content)


def test_a_seed_repeats_an_answer_and_choices_differ(client: Any) -> None:
    settings: dict[str, Any] = {"model": "smollm2", "messages": QUESTION, "max_tokens": 8, "temperature": 1.5}
    first, second = (client.chat.completions.create(seed=11, n=2, **settings) for _ in range(2))
    texts = [choice.message.content for choice in first.choices]
    assert texts == [choice.message.content for choice in second.choices]
    assert texts[0] != texts[1]


def test_the_models_list_and_errors_are_understood_by_the_client(client: Any) -> None:
    assert [model.id for model in client.models.list()] == ["smollm2"]
    with pytest.raises(openai.NotFoundError, match="gpt-9"):
        client.chat.completions.create(model="gpt-9", messages=QUESTION)
    with pytest.raises(openai.BadRequestError) as caught:
        client.chat.completions.create(model="smollm2", messages=QUESTION, max_tokens=10**6)
    assert caught.value.param == "max_tokens"


def test_sixteen_streams_at_once_each_get_their_own_whole_answer(client: Any) -> None:
    def ask(number: int) -> str:
        stream = client.completions.create(
            model="smollm2", prompt=f"Count from {number}: {number},", max_tokens=8, temperature=0, stream=True
        )
        return "".join(chunk.choices[0].text for chunk in stream)

    with ThreadPoolExecutor(16) as pool:
        answers = list(pool.map(ask, range(1, 17)))
    assert all(len(answer) > 0 for answer in answers)
    assert len(set(answers)) > 8


def test_a_client_that_leaves_frees_its_blocks(server: Any, client: Any, until_sync: Any) -> None:
    active = 'octavo_kv_cache_blocks{state="active"}'
    until_sync(lambda: server.metric(active) == 0, "the server is idle")
    stream = client.completions.create(
        model="smollm2", prompt="Once upon a time", max_tokens=1500, stream=True, extra_body={"ignore_eos": True}
    )
    next(iter(stream))
    until_sync(lambda: server.metric(active) > 0, "blocks are in use")
    stream.close()
    until_sync(lambda: server.metric(active) == 0, "the blocks are free again", 20)


def test_a_killed_engine_loses_nothing_of_a_greedy_stream(server: Any, client: Any) -> None:
    settings: dict[str, Any] = {
        "model": "smollm2", "prompt": "A story about a fox:", "max_tokens": 24, "temperature": 0,
        "extra_body": {"ignore_eos": True},
    }  # fmt: skip
    undisturbed = client.completions.create(**settings)
    (engine,) = server.engine_processes()
    pieces: list[str] = []
    for chunk in client.completions.create(**settings, stream=True):
        pieces.append(chunk.choices[0].text)
        if len(pieces) == 8:
            os.kill(engine, signal.SIGKILL)
    assert "".join(pieces) == undisturbed.choices[0].text
    assert server.engine_processes() != [engine]
    assert httpx.get(f"{server.url}/ready").status_code == 200


def test_the_server_is_ready_in_time_and_its_api_process_never_imports_torch(server: Any) -> None:
    assert server.seconds_to_ready < 60, "the goal is 12 s on an idle machine; this catches a hang, not a busy core"
    maps = Path(f"/proc/{server.process.pid}/maps").read_text()
    assert "libtorch" not in maps
    (engine,) = server.engine_processes()
    assert "libtorch" in Path(f"/proc/{engine}/maps").read_text()


def test_importing_all_of_the_api_process_imports_no_torch() -> None:
    code = "import sys, octavo_server.__main__, octavo_server.serve, octavo_server.fetching.command; "
    code += "import octavo_server.fetching.remote; sys.exit('torch' in sys.modules or 'transformers' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
