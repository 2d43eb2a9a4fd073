"""SIGTERM: no new work, running work to its end, and an end in any case."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import httpx
import pytest
from octavo_server.contract import ExitCode

BODY = {"prompt": "x", "max_tokens": 20}


async def test_ready_fails_at_once_and_new_requests_are_served_until_the_notice_is_over(
    scripted: Any, tmp_path: Path, until: Any
) -> None:
    gate = tmp_path / "gate"
    async with scripted("--gate", str(gate), drain_notice_seconds=1.5, drain_seconds=30.0) as running:
        early = asyncio.create_task(running.client.post("/v1/completions", json=BODY))
        await until(lambda: running.server.state.client.living == 1, "a request runs")
        running.server.request_stop()
        await until(lambda: running.server.state.draining, "the drain began")
        ready = await running.client.get("/ready")
        assert (ready.status_code, ready.json()["reason"]) == (503, "Draining")
        assert ready.headers["connection"] == "close"
        late = asyncio.create_task(running.client.post("/v1/completions", json=BODY))
        await until(lambda: running.server.state.client.living == 2, "a late request is served")
        deadline = asyncio.get_running_loop().time() + 30
        while await asyncio.to_thread(listening, running.url):
            assert asyncio.get_running_loop().time() < deadline, "the listener stays open"
        gate.touch()
        for answer in (await early, await late):
            assert answer.json()["usage"]["completion_tokens"] == 20
            assert answer.headers["connection"] == "close"
        await asyncio.wait_for(running.task, 20)


async def test_requests_that_outlast_the_drain_end_with_a_clear_error(
    scripted: Any, tmp_path: Path, until: Any
) -> None:
    async with scripted("--stall-after", "2", drain_seconds=0.2) as running:
        whole = asyncio.create_task(running.client.post("/v1/completions", json=BODY))
        streamed = asyncio.create_task(running.client.post("/v1/completions", json={**BODY, "stream": True}))
        await until(lambda: running.server.state.client.living == 2, "two requests run")
        running.server.request_stop()
        response = await whole
        assert response.status_code == 503
        assert "shut down before this request was done" in response.json()["error"]["message"]
        assert '"error"' in (await streamed).text
        await asyncio.wait_for(running.task, 20)


async def test_a_second_signal_ends_at_once(scripted: Any, until: Any) -> None:
    async with scripted("--stall-after", "2", drain_notice_seconds=600.0, drain_seconds=600.0) as running:
        request = asyncio.create_task(running.client.post("/v1/completions", json=BODY))
        await until(lambda: running.server.state.client.living == 1, "a request runs")
        running.server.request_stop()
        await until(lambda: running.server.state.draining, "the drain began")
        running.server.request_stop()
        await asyncio.wait_for(running.task, 20)
        with pytest.raises(httpx.HTTPError):
            (await request).raise_for_status()


def test_the_process_ends_with_0_after_sigterm_and_leaves_no_engine(own_server: Any) -> None:
    children = own_server.engine_processes()
    assert len(children) == 1
    own_server.process.terminate()
    assert own_server.process.wait(30) == ExitCode.ENDED
    assert not [pid for pid in children if Path(f"/proc/{pid}").exists()]


def listening(url: str) -> bool:
    try:
        httpx.get(f"{url}/health")
    except httpx.TransportError:
        return False
    return True
