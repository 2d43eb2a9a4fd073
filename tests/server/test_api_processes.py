"""Several API processes with one engine: they share port, limits and metrics, and end together."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from pathlib import Path
from typing import Any

import httpx
from octavo_server.contract import ExitCode
from octavo_server.metrics import Metrics
from octavo_server.shared import SharedTable

TEXT = "/v1/completions"


async def answers_of(running: Any, count: int, **body: Any) -> list[httpx.Response]:
    """Requests on a connection each, so that the system spreads them over the processes."""

    async def one(number: int) -> httpx.Response:
        async with httpx.AsyncClient(base_url=running.url, timeout=60) as client:
            return await client.post(TEXT, json={"prompt": f"number {number}", "max_tokens": 3, **body})

    return list(await asyncio.gather(*(one(number) for number in range(count))))


def processes_of(record: Path) -> set[int]:
    """Numbers of the API processes that sent requests to the engine."""
    entries = [json.loads(line) for line in record.read_text().splitlines()]
    return {entry["id"] >> 48 for entry in entries if entry["kind"] == "Submit"}


async def test_requests_go_to_all_processes_and_metrics_of_any_answer_for_all(
    dummy: Any, tmp_path: Path, until: Any
) -> None:
    record = tmp_path / "record"
    async with dummy("--record", str(record), api_processes=3) as running:
        await all_serve(running, until, 3)
        answers = await answers_of(running, 60)
        assert [answer.status_code for answer in answers] == [200] * 60
        assert processes_of(record) == {0, 1, 2}
        received = set()
        for _ in range(12):
            async with httpx.AsyncClient(base_url=running.url, timeout=60) as client:
                text = (await client.get("/metrics")).text
            lines = dict(line.rsplit(" ", 1) for line in text.splitlines() if not line.startswith("#"))
            received.add((
                lines["octavo_requests_received_total"], lines['octavo_requests_finished_total{reason="length"}'],
                lines["octavo_generation_tokens_total"], lines["octavo_time_to_first_token_seconds_count"],
            ))  # fmt: skip
            assert "octavo_kv_cache_usage_ratio" in lines, "each process hears the engine's numbers"
        assert received == {("60.0", "60.0", "180.0", "60.0")}


async def test_the_limit_of_waiting_choices_holds_for_all_processes_together(
    dummy: Any, tmp_path: Path, until: Any
) -> None:
    async with dummy("--max-running", "0", api_processes=3, max_queued=10) as running:
        await all_serve(running, until, 3)
        clients = [httpx.AsyncClient(base_url=running.url, timeout=60) for _ in range(40)]
        body = {"prompt": "x", "max_tokens": 3}
        asked = []
        queued = running.server.state.metrics.queued
        try:
            for client in clients:
                asked.append(asyncio.create_task(client.post(TEXT, json=body)))
                wanted = min(10, len(asked))
                await until(lambda wanted=wanted: queued.total >= wanted, "it waits, or the queue is full")
            await until(lambda: sum(task.done() for task in asked) == 30, "all above the limit are refused")
            refused = [task.result() for task in asked if task.done()]
            assert {response.status_code for response in refused} == {429}
            assert running.server.state.metrics.queued.total == 10
        finally:
            for task in asked:
                task.cancel()
            await asyncio.gather(*asked, return_exceptions=True)
            for client in clients:
                await client.aclose()
        await until(lambda: running.server.state.metrics.queued.total == 0, "clients that left wait no more")


async def test_streams_of_all_processes_go_on_after_the_engine_crashed(dummy: Any, tmp_path: Path, until: Any) -> None:
    async with dummy("--pace", "0.02", api_processes=2) as running:
        await all_serve(running, until, 2)
        asked = asyncio.create_task(answers_of(running, 12, max_tokens=60))
        tokens = running.server.state.metrics.generation_tokens
        await until(lambda: tokens.total > 60, "tokens flow")
        os.kill(running.server.supervisor.process_id, signal.SIGKILL)
        words = " one two three four five six seven eight nine ten"
        for answer in await asked:
            assert answer.json()["choices"][0]["text"] == words * 6
        assert running.server.state.metrics.finished["length"].total == 12


async def test_an_api_process_that_dies_is_started_again_and_its_counts_stay(
    dummy: Any, tmp_path: Path, until: Any
) -> None:
    async with dummy(api_processes=2) as running:
        await all_serve(running, until, 2)
        await answers_of(running, 20)
        [process] = running.server.fleet.process_ids
        os.kill(process, signal.SIGKILL)
        await until(lambda: running.server.fleet.process_ids not in ([], [process]), "another one was started")
        await all_serve(running, until, 2)
        assert {answer.status_code for answer in await answers_of(running, 20)} == {200}
        assert running.server.state.metrics.received.total == 40


async def test_a_drain_ends_all_processes_after_their_streams(dummy: Any, tmp_path: Path, until: Any) -> None:
    async with dummy("--pace", "0.02", api_processes=2) as running:
        await all_serve(running, until, 2)
        asked = asyncio.create_task(answers_of(running, 12, max_tokens=40))
        await until(lambda: running.server.state.metrics.generation_tokens.total > 24, "tokens flow")
        processes = running.server.fleet.process_ids
        running.server.request_stop()
        answers = await asked
        assert [answer.json()["usage"]["completion_tokens"] for answer in answers] == [40] * 12
        await asyncio.wait_for(running.task, 20)
        assert not [number for number in processes if Path(f"/proc/{number}").exists()]


async def test_a_drain_waits_for_the_streams_of_other_processes_when_the_first_has_none(
    dummy: Any, tmp_path: Path, until: Any
) -> None:
    async with dummy("--pace", "0.05", api_processes=2, drain_seconds=30.0) as running:
        await all_serve(running, until, 2)
        state = running.server.state

        async def elsewhere() -> Any:
            """A request that another process than the first one took."""
            while True:
                task = asyncio.create_task(answers_of(running, 1, max_tokens=60))
                await until(lambda: state.metrics.living.total > 0, "the request runs")
                if state.client.living == 0:
                    return task
                await task

        task = await elsewhere()
        running.server.request_stop()
        [answer] = await task
        assert answer.status_code == 200, answer.text
        assert answer.json()["usage"]["completion_tokens"] == 60
        await asyncio.wait_for(running.task, 40)


async def all_serve(running: Any, until: Any, count: int) -> None:
    """Waits until each process listens: connections then reach all of them."""
    await until(lambda: running.server.state.metrics.serving.total == count, f"{count} processes serve")


def test_the_port_of_another_server_is_refused_also_with_several_processes(
    server: Any, cli: Any, model_path: Path
) -> None:
    port = server.url.rsplit(":", 1)[1]
    done = cli("serve", "--model", str(model_path), "--host", "127.0.0.1", "--port", port, "--api-processes", "2")
    assert done.returncode == ExitCode.REFUSED
    assert f"port {port}" in done.stderr


def test_sums_are_over_all_rows_and_gauges_of_a_dead_process_are_cleared() -> None:
    first = SharedTable(rows=3)
    metrics = [Metrics("m", first)]
    metrics += [Metrics("m", SharedTable(3, number, first.descriptor)) for number in (1, 2)]
    for number, one in enumerate(metrics):
        one.received.inc(number + 1)
        one.queued.set(5)
        one.duration.observe(0.05)
        one.duration.observe(10_000)
    for one in metrics:
        value = one.registry.get_sample_value
        assert value("octavo_requests_received_total") == 6
        assert value("octavo_request_duration_seconds_count") == 6
        assert value("octavo_request_duration_seconds_bucket", {"le": "0.05"}) == 3
        assert value("octavo_request_duration_seconds_bucket", {"le": "1200.0"}) == 3
        assert value("octavo_request_duration_seconds_bucket", {"le": "+Inf"}) == 6
        assert value("octavo_request_duration_seconds_sum") == 3 * 10_000.05
    first.clear_gauges(2)
    assert metrics[1].queued.total == 10
    assert metrics[1].received.total == 6
