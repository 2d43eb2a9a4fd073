"""Many streams at once: each ends rightly, the event loop stays free, a slow reader holds back itself alone."""

from __future__ import annotations

import asyncio
import gc
import json
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from octavo_server.api.turns import Turns

ROOT = Path(__file__).parents[2]
TEXT = "/v1/completions"
STREAMS, TOKENS = 400, 24
"""The benchmark runs 5,000 of them (benchmarks/http_overhead.py)."""


async def load(url: str, *arguments: str) -> dict[str, Any]:
    """Runs the benchmark's client in a process of its own."""
    port = url.rsplit(":", 1)[1]
    client = await asyncio.create_subprocess_exec(
        sys.executable, str(ROOT / "benchmarks" / "http_client.py"), port, *arguments, "--model", "scripted",
        stdout=subprocess.PIPE,
    )  # fmt: skip
    output, _ = await asyncio.wait_for(client.communicate(), 120)
    return dict(json.loads(output))


async def test_hundreds_of_streams_at_once_each_end_rightly_and_leave_nothing(dummy: Any, until: Any) -> None:
    async with dummy("--pace", "0.02") as running:
        found = await load(running.url, str(STREAMS), str(TOKENS))
        assert (found["ended"], found["complete"], found["ok"], found["errors"]) == (STREAMS, STREAMS, STREAMS, 0)
        words = " one two three four five six seven eight nine ten"
        assert found["characters"] == STREAMS * len((words * 3)[: len(words * 2 + " one two three four")])
        await until(lambda: running.server.state.client.living == 0, "nothing lives on")
        assert running.server.state.living_names == set()
        assert await running.metric("octavo_generation_tokens_total") == STREAMS * TOKENS
        metrics = running.server.state.metrics
        assert metrics.loop_delay.family().samples[-2].value > 0, "the loop is watched"


async def ask(url: str, body: dict[str, Any], read: int = -1) -> bytes:
    """One request on a connection of its own, without a client library's objects; `read`: so many bytes, then leave."""
    reader, writer = await asyncio.open_connection("127.0.0.1", int(url.rsplit(":", 1)[1]))
    content = json.dumps(body).encode()
    writer.write(b"POST /v1/completions HTTP/1.1\r\nhost: a\r\nconnection: close\r\n")
    writer.write(b"content-type: application/json\r\ncontent-length: %d\r\n\r\n%b" % (len(content), content))
    answer = await asyncio.wait_for(reader.read(read), 60)
    writer.close()
    return answer


async def test_requests_that_ended_leave_nothing_that_only_the_collector_of_cycles_frees(
    dummy: Any, until: Any
) -> None:
    async with dummy("--pace", "0.005") as running:
        state, body = running.server.state, {"model": "scripted", "prompt": "count", "max_tokens": 4}

        async def each_kind() -> None:
            await load(running.url, "20", "4")
            for _ in range(5):
                assert b"200 OK" in await ask(running.url, body)
                assert b"400 Bad Request" in await ask(running.url, {**body, "max_tokens": -1})
                await ask(running.url, {**body, "stream": True, "max_tokens": 500}, read=300)
            await until(lambda: state.client.living == 0, "those who left are forgotten")
            await until(lambda: not running.server._http.server_state.connections, "connections are closed")

        await each_kind()  # what is made once is made here
        gc.collect()
        gc.disable()
        gc.set_debug(gc.DEBUG_SAVEALL)
        try:
            await each_kind()
            gc.collect()
            found = {type(one).__name__ for one in gc.garbage}
        finally:
            gc.set_debug(0)
            gc.garbage.clear()
            gc.enable()
        ours = {"PacedProtocol", "RequestResponseCycle", "Patience", "Generation", "Choice", "Detokenizer", "PromptJob"}
        assert not found & ours


async def test_a_reader_that_stops_costs_a_bounded_memory_then_ends_with_a_clear_error(
    dummy: Any, tmp_path: Path, until: Any
) -> None:
    record = tmp_path / "record"
    async with dummy("--record", str(record), max_unread_bytes=20_000) as running:
        loop = asyncio.get_running_loop()
        slow = socket.socket()
        slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        slow.setblocking(False)
        host, port = running.url.removeprefix("http://").split(":")
        await loop.sock_connect(slow, (host, int(port)))
        body = json.dumps({"prompt": ["x"] * 40, "max_tokens": 8000, "stream": True}).encode()
        await loop.sock_sendall(
            slow, b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n" % len(body) + body
        )
        await until(lambda: running.server.state.client.living > 0, "the slow request runs")
        quick = await asyncio.wait_for(running.client.post(TEXT, json={"prompt": "x", "max_tokens": 500}), 60)
        assert quick.json()["usage"]["completion_tokens"] == 500
        await until(lambda: running.server.state.client.living < 40, "choices were given up, or all is read")
        data = b""
        while not data.endswith(b"0\r\n\r\n"):
            part = await asyncio.wait_for(loop.sock_recv(slow, 1 << 20), 30)
            assert part, "the connection ends in order"
            data += part
        slow.close()
        assert b"left more than 20000 bytes of this answer unread" in data
        assert data.rstrip(b"\r\n0").endswith(b"data: [DONE]")
        await until(lambda: running.server.state.client.living == 0, "all of its choices are given up")


async def test_a_client_that_leaves_frees_its_blocks_within_two_steps(dummy: Any, tmp_path: Path, until: Any) -> None:
    record = tmp_path / "record"
    async with dummy("--pace", "0.1", "--record", str(record)) as running:
        host, port = running.url.removeprefix("http://").split(":")
        for streams in (True, False):
            record.write_text("")
            body = json.dumps({"prompt": "x", "max_tokens": 5000, "stream": streams}).encode()
            _, writer = await asyncio.open_connection(host, int(port))
            writer.write(b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n" % len(body) + body)
            tokens = running.server.state.metrics.generation_tokens
            before = tokens.total
            await until(lambda before=before, tokens=tokens: tokens.total >= before + 3, "three steps were made")
            had = tokens.total - before
            writer.close()
            await until(lambda: "Abort" in record.read_text(), "the engine heard of the abort")
            [abort] = [
                entry for line in record.read_text().splitlines() if (entry := json.loads(line))["kind"] == "Abort"
            ]
            assert abort["made"] <= had + 2


async def test_memory_does_not_grow_with_the_number_of_streams_that_were(dummy: Any, until: Any) -> None:
    async with dummy() as running:
        await load(running.url, "100", "50")
        await until(lambda: running.server.state.client.living == 0, "the first round is over")
        before = memory_bytes()
        for _ in range(4):
            await load(running.url, "100", "50")
        await until(lambda: running.server.state.client.living == 0, "all rounds are over")
        assert memory_bytes() - before < 30 * 2**20


def memory_bytes() -> int:
    """Resident memory of this process, in which the server runs."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


async def test_work_that_arrives_at_once_is_spread_over_turns_of_the_loop_in_order() -> None:
    turns = Turns(per_turn=3)
    order: list[tuple[int, int]] = []
    ticks = 0

    async def tick() -> None:
        nonlocal ticks
        while len(order) < 30:
            ticks += 1
            await asyncio.sleep(0)

    async def work(number: int) -> None:
        await turns.take()
        order.append((number, ticks))

    await asyncio.gather(tick(), *(work(number) for number in range(30)))
    assert [number for number, _ in order] == list(range(30))
    for tick_number in {at for _, at in order}:
        assert sum(at == tick_number for _, at in order) <= 6
    assert len({at for _, at in order}) >= 5


async def test_a_waiter_that_gives_up_takes_nobodys_turn() -> None:
    turns = Turns(per_turn=1)
    await turns.take()
    waiters = [asyncio.create_task(turns.take()) for _ in range(3)]
    await asyncio.sleep(0)
    waiters[1].cancel()
    await asyncio.wait_for(asyncio.gather(waiters[0], waiters[2]), 5)
    with pytest.raises(asyncio.CancelledError):
        await waiters[1]
