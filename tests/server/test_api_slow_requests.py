"""A request that never comes to its end holds no connection for ever; one that is merely slow is served."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from octavo_server.api import server
from octavo_server.api.paced import paced_protocol

HEAD, PAUSE = 0.6, 0.6


@pytest.fixture
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    """Limits that a test can wait for."""
    monkeypatch.setattr(server, "paced_protocol", lambda turns: paced_protocol(turns, HEAD, PAUSE))


async def _answer(running: Any, *parts: bytes) -> bytes:
    """Everything that the server says to these bytes, until it closes the connection."""
    host, port = running.url.removeprefix("http://").split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    for part in parts:
        writer.write(part)
        await writer.drain()
    try:
        return await asyncio.wait_for(reader.read(), 20)
    finally:
        writer.close()


@pytest.mark.usefixtures("hasty")
async def test_a_connection_that_sends_nothing_is_closed_without_a_word(scripted: Any) -> None:
    async with scripted() as running:
        assert await _answer(running) == b""


@pytest.mark.usefixtures("hasty")
async def test_a_head_that_does_not_end_in_time_gets_408(scripted: Any) -> None:
    async with scripted() as running:
        told = await _answer(running, b"GET /version HTTP/1.1\r\nhost: x\r\n")
    assert told.startswith(b"HTTP/1.1 408 ")
    assert b"head of the request did not arrive within 0.6 s" in told


@pytest.mark.usefixtures("hasty")
async def test_a_body_that_stops_gets_408(scripted: Any) -> None:
    head = b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: 100\r\n\r\n"
    async with scripted() as running:
        told = await _answer(running, head, b'{"prompt"')
        assert running.server.state.client.living == 0
    assert told.startswith(b"HTTP/1.1 408 ")
    assert b"No byte of the request's body arrived for 0.6 s" in told


@pytest.mark.usefixtures("hasty")
async def test_a_body_in_slow_pieces_and_an_answer_that_takes_long_are_no_fault(dummy: Any) -> None:
    """Longer than both limits as a whole, and a second request on the same connection after that."""
    body = b'{"prompt": "x", "max_tokens": 12}'
    head = b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n" % len(body)
    async with dummy("--pace", "0.1") as running:
        host, port = running.url.removeprefix("http://").split(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        for _ in range(2):
            writer.write(head)
            for place in range(0, len(body), 8):
                await asyncio.sleep(0.15)  # a slow line
                writer.write(body[place : place + 8])
            told = await asyncio.wait_for(reader.readuntil(b"}}}"), 60)
            assert told.startswith(b"HTTP/1.1 200 ")
        writer.close()
