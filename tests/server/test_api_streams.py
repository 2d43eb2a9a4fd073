"""Answers on their way to the client: stop strings, characters, choices, clients that leave or dawdle."""

from __future__ import annotations

import asyncio
import json
import socket
from pathlib import Path
from typing import Any

import httpx


def records(path: Path, kind: str) -> list[dict[str, Any]]:
    """What the scripted engine got, of one kind."""
    lines = path.read_text().splitlines() if path.exists() else []
    return [entry for entry in map(json.loads, lines) if entry["kind"] == kind]


async def events(response: httpx.Response) -> list[Any]:
    """The JSON of a stream's events; the last must be [DONE]."""
    found = [line.removeprefix("data: ") async for line in response.aiter_lines() if line]
    assert found[-1] == "[DONE]"
    return [json.loads(event) for event in found[:-1]]


async def stream(client: httpx.AsyncClient, path: str, body: dict[str, Any]) -> list[Any]:
    async with client.stream("POST", path, json={**body, "stream": True}) as response:
        assert response.status_code == 200
        assert response.headers["content-type"].startswith("text/event-stream")
        return await events(response)


async def test_a_stop_string_across_tokens_is_cut_and_the_engine_hears_how_many_tokens_count(
    scripted: Any, tmp_path: Path, until: Any
) -> None:
    record = tmp_path / "record"
    async with scripted("--text", " one two three four five six", "--record", str(record)) as running:
        body = {"prompt": "count", "max_tokens": 40, "stop": ["ree fo"]}
        whole = (await running.client.post("/v1/completions", json=body)).json()
        chunks = await stream(running.client, "/v1/completions", body)
        assert whole["choices"][0]["text"] == " one two th"
        assert whole["choices"][0]["finish_reason"] == "stop"
        assert "".join(chunk["choices"][0]["text"] for chunk in chunks) == " one two th"
        assert whole["usage"]["completion_tokens"] == 4
        await until(lambda: len(records(record, "Abort")) == 2, "the engine heard of both")
        assert [entry["kept"] for entry in records(record, "Abort")] == [4, 4]


async def test_a_stop_string_ends_nothing_before_min_tokens(scripted: Any) -> None:
    async with scripted("--text", " one two three one two three") as running:
        for logprobs in (None, 1):
            body = {"prompt": "count", "max_tokens": 9, "stop": [" one", " three"], "logprobs": logprobs}
            for least, text in ((0, ""), (1, " one two"), (3, " one two three"), (4, " one two three one two")):
                answer = (await running.client.post("/v1/completions", json={**body, "min_tokens": least})).json()
                assert answer["choices"][0]["text"] == text, least
                assert answer["choices"][0]["finish_reason"] == "stop"
                assert answer["usage"]["completion_tokens"] > least


async def test_text_that_only_began_like_a_stop_string_arrives_whole(scripted: Any) -> None:
    async with scripted("--text", " one two three") as running:
        body = {"prompt": "count", "max_tokens": 3, "stop": ["three four"]}
        chunks = await stream(running.client, "/v1/completions", body)
        assert "".join(chunk["choices"][0]["text"] for chunk in chunks) == " one two three"
        assert chunks[-1]["choices"][0]["finish_reason"] == "length"


async def test_characters_that_span_tokens_are_never_replaced(scripted: Any, tokenizer: Any) -> None:
    text = "🦙 世界 é👩‍👩‍👧 ☃"
    count = len(tokenizer.encode(text, add_special_tokens=False))
    async with scripted("--text", text) as running:
        chunks = await stream(running.client, "/v1/completions", {"prompt": "x", "max_tokens": count})
        pieces = [chunk["choices"][0]["text"] for chunk in chunks]
        assert "".join(pieces) == text
        assert all("�" not in piece for piece in pieces)
        cut = (await running.client.post("/v1/completions", json={"prompt": "x", "max_tokens": 1})).json()
        assert cut["choices"][0]["text"] == "", "one token is only a part of the first character"


async def test_a_prompt_that_ends_inside_a_character_is_completed_by_the_answer(scripted: Any, tokenizer: Any) -> None:
    ids = tokenizer.encode("🦙", add_special_tokens=False)
    assert len(ids) > 1
    async with scripted("--ids", ",".join(map(str, ids[1:]))) as running:
        body = {"prompt": ids[:1], "max_tokens": len(ids) - 1, "echo": True}
        answer = (await running.client.post("/v1/completions", json=body)).json()
        assert answer["choices"][0]["text"] == "🦙"


async def test_the_end_of_sequence_token_counts_and_is_not_shown(scripted: Any) -> None:
    async with scripted("--text", " one two<|im_end|>") as running:
        body = {"messages": [{"role": "user", "content": "x"}], "max_tokens": 20}
        answer = (await running.client.post("/v1/chat/completions", json=body)).json()
        assert answer["choices"][0]["message"]["content"] == " one two"
        assert answer["choices"][0]["finish_reason"] == "stop"
        assert answer["usage"]["completion_tokens"] == 3


async def test_choices_and_prompts_are_told_apart_by_index_and_keep_their_seed(scripted: Any, tmp_path: Path) -> None:
    record = tmp_path / "record"
    async with scripted("--record", str(record)) as running:
        body = {"prompt": ["a", "b"], "n": 2, "max_tokens": 3, "seed": 5, "echo": True}
        answer = (await running.client.post("/v1/completions", json=body)).json()
        assert [choice["index"] for choice in answer["choices"]] == [0, 1, 2, 3]
        assert [choice["text"][0] for choice in answer["choices"]] == ["a", "a", "b", "b"]
        assert answer["usage"]["completion_tokens"] == 12
        submits = records(record, "Submit")
        assert [(entry["seed"], entry["choice"]) for entry in submits] == [(5, 0), (5, 1), (5, 0), (5, 1)]
        chunks = await stream(running.client, "/v1/completions", {**body, "stream_options": {"include_usage": True}})
        assert {chunk["choices"][0]["index"] for chunk in chunks[:-1]} == {0, 1, 2, 3}
        assert all(chunk["usage"] is None for chunk in chunks[:-1])
        assert chunks[-1]["choices"] == []
        assert chunks[-1]["usage"] == answer["usage"]


async def test_unseeded_requests_get_different_seeds(scripted: Any, tmp_path: Path) -> None:
    record = tmp_path / "record"
    async with scripted("--record", str(record)) as running:
        for _ in range(2):
            await running.client.post("/v1/completions", json={"prompt": "a", "max_tokens": 1})
        first, second = records(record, "Submit")
        assert first["seed"] != second["seed"]


async def test_log_probabilities_come_with_the_text_of_their_tokens(scripted: Any) -> None:
    async with scripted("--text", " one two three four") as running:
        body = {"messages": [{"role": "user", "content": "x"}], "max_tokens": 4, "logprobs": True, "top_logprobs": 1}
        answer = (await running.client.post("/v1/chat/completions", json={**body, "stop": [" three"]})).json()
        content = answer["choices"][0]["logprobs"]["content"]
        assert [entry["token"] for entry in content] == [" one", " two"]
        assert content[0]["bytes"] == list(b" one")
        assert content[0]["top_logprobs"][0]["logprob"] == -0.5


async def test_a_client_that_leaves_frees_its_request_whether_it_streams_or_not(
    scripted: Any, tmp_path: Path, until: Any
) -> None:
    record = tmp_path / "record"
    async with scripted("--stall-after", "2", "--record", str(record)) as running:
        for number, streams in enumerate((True, False), 1):
            host, port = running.url.removeprefix("http://").split(":")
            body = json.dumps({"prompt": "x", "max_tokens": 50, "stream": streams}).encode()
            _, writer = await asyncio.open_connection(host, int(port))
            writer.write(b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n" % len(body) + body)
            await until(lambda number=number: len(records(record, "Submit")) == number, "the request runs")
            writer.close()
            await until(lambda number=number: len(records(record, "Abort")) == number, "the engine heard of the abort")
        assert running.server.state.client.living == 0
        assert await running.metric('octavo_requests_finished_total{reason="abort"}') == 2


async def test_a_client_that_reads_nothing_delays_nobody_and_gets_its_whole_answer_later(
    scripted: Any, until: Any
) -> None:
    async with scripted() as running:
        host, port = running.url.removeprefix("http://").split(":")
        slow = socket.socket()
        slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        slow.setblocking(False)
        loop = asyncio.get_running_loop()
        await loop.sock_connect(slow, (host, int(port)))
        body = json.dumps({"prompt": ["x"] * 16, "max_tokens": 500, "stream": True, "logprobs": 1}).encode()
        head = b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n" % len(body)
        await loop.sock_sendall(slow, head + body)
        await until(lambda: running.server.state.client.living == 16, "the slow request runs")
        quick = await asyncio.wait_for(
            running.client.post("/v1/completions", json={"prompt": "x", "max_tokens": 5}), timeout=30
        )
        assert quick.status_code == 200
        await until(lambda: running.server.state.client.living == 0, "the engine is done with the slow client")
        data = b""
        while not data.endswith(b"0\r\n\r\n"):
            data += await asyncio.wait_for(loop.sock_recv(slow, 1 << 20), 30)
        slow.close()
        assert data.count(b'"finish_reason":"length"') == 16
        assert b"data: [DONE]" in data
