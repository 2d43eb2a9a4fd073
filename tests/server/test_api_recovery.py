"""The engine process dies: streams go on, poison is found, and there is an end to trying."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest
from octavo_server.contract import ExitCode
from octavo_server.termination import Refused


async def test_a_stream_goes_on_after_a_crash_with_nothing_lost_and_nothing_twice(
    scripted: Any, tmp_path: Path
) -> None:
    record, lives = tmp_path / "record", tmp_path / "lives"
    flags = ("--crash-at", "4", "--crashes", "1", "--lives", str(lives), "--record", str(record))
    async with scripted(*flags, "--text", " one two three four five six seven eight") as running:
        text = ""
        body = {"prompt": "x", "max_tokens": 8, "stream": True}
        async with running.client.stream("POST", "/v1/completions", json=body) as response:
            async for line in response.aiter_lines():
                if line.startswith("data: {"):
                    text += json.loads(line.removeprefix("data: "))["choices"][0]["text"]
        assert text == " one two three four five six seven eight"
        submits = [json.loads(line) for line in record.read_text().splitlines()]
        assert [len(entry["resumed"]) for entry in submits if entry["kind"] == "Submit"] == [0, 4]


async def test_an_engine_that_hangs_is_ended_and_its_streams_go_on_with_the_next_one(
    scripted: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    flags = ("--crash-at", "4", "--hang", "--crashes", "1", "--lives", str(tmp_path / "lives"))
    async with scripted(*flags, engine_silence_seconds=1.0) as running:
        hung = running.server.supervisor.process_id
        response = await running.client.post("/v1/completions", json={"prompt": "x", "max_tokens": 8})
        assert response.json()["choices"][0]["text"] == " one two three four five six seven eight"
        assert running.server.supervisor.process_id != hung
        assert not Path(f"/proc/{hung}").exists()
        assert "hangs: it reported nothing for 1 s" in caplog.text


async def test_ready_says_why_while_the_engine_starts_again_and_health_stays_good(
    scripted: Any, tmp_path: Path, until: Any
) -> None:
    gate, lives = tmp_path / "gate", tmp_path / "lives"
    gate.touch()
    async with scripted("--lives", str(lives), "--gate", str(gate)) as running:
        first = running.server.supervisor.process_id

        os.kill(first, signal.SIGKILL)
        await until(lambda: running.server.state.not_ready() is not None, "the crash was seen")
        response = await running.client.get("/ready")
        assert response.status_code == 503
        assert response.json()["reason"] == "EngineRestarting"
        assert (await running.client.get("/health")).status_code == 200
        await until(lambda: running.server.state.not_ready() is None, "the engine is back")
        assert running.server.supervisor.process_id != first


async def test_a_request_that_was_in_two_crashes_is_failed_and_named(
    scripted: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    lives = tmp_path / "lives"
    flags = ("--crash-at", "2", "--crashes", "2", "--lives", str(lives))
    async with scripted(*flags) as running:
        body = {"prompt": "x", "max_tokens": 30, "request_id": "the-poison"}
        headers = {"x-request-id": "from-the-gateway"}
        response = await running.client.post("/v1/completions", json=body, headers=headers)
        assert response.status_code == 500
        assert "from-the-gateway" in caplog.text
        assert "crashed 2 times" in response.json()["error"]["message"]
        assert "the-poison" in caplog.text
        healthy = await running.client.post("/v1/completions", json={"prompt": "x", "max_tokens": 2})
        assert healthy.status_code == 200


async def test_an_engine_that_keeps_crashing_is_given_up_with_exit_code_1(scripted: Any) -> None:
    async with scripted("--crash-at", "1") as running:
        for _ in range(2):
            await running.client.post("/v1/completions", json={"prompt": "x", "max_tokens": 30})
        with pytest.raises(Refused, match="the limit is 3 restarts") as caught:
            await running.task
        assert caught.value.exit_code == ExitCode.FAILED
        assert caught.value.reason == "EngineCrashed"


async def test_requests_that_waited_when_the_engine_was_given_up_hear_why(scripted: Any) -> None:
    async with scripted("--crash-at", "1") as running:
        await running.client.post("/v1/completions", json={"prompt": "x", "max_tokens": 30})  # is in crashes 1 and 2
        bodies = [{"prompt": "x", "max_tokens": 30, "stream": number % 2 == 1} for number in range(4)]
        answers = await asyncio.gather(*(running.client.post("/v1/completions", json=body) for body in bodies))
        with pytest.raises(Refused):
            await running.task
        for body, answer in zip(bodies, answers, strict=True):
            assert answer.status_code == (200 if body["stream"] else 500)
            assert "crashed 2 times" in answer.text or "the engine ended 4 times" in answer.text
        assert sum("the engine ended 4 times" in answer.text for answer in answers) >= 2


async def test_a_refusal_of_the_engine_ends_the_server_with_its_reason_and_exit_code_2(scripted: Any) -> None:
    async with scripted("--fail", "PoolTooSmall", "too small by 3 GiB", expect_ready=False) as running:
        with pytest.raises(Refused, match="too small by 3 GiB") as caught:
            await running.task
        assert (caught.value.reason, caught.value.exit_code) == ("PoolTooSmall", ExitCode.REFUSED)


async def test_an_engine_that_dies_before_it_was_ready_ends_the_server_with_exit_code_1(scripted: Any) -> None:
    async with scripted("--die-at-start", expect_ready=False) as running:
        with pytest.raises(Refused, match="exit code 7, before it was ready") as caught:
            await running.task
        assert caught.value.exit_code == ExitCode.FAILED
