"""Pods are read over HTTP; each way to fail has its reason, and a slow pod delays no other."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import AsyncIterator, Callable

import aiohttp
import pytest
from aiohttp import web
from octavo_operator.scaling.sample import Absent, Partial, Reading, Sample
from octavo_operator.scaling.scraper import Scraper, ScrapeSettings, Target, phase

TEXT = """\
octavo_kv_cache_blocks{state="active"} 10
octavo_kv_cache_block_size_tokens 16
octavo_kv_cache_capacity_tokens 1600
octavo_requests_running 2
octavo_requests_waiting 1
"""


class Pods:
    """A server that stands for all pods; paths tell how each behaves."""

    def __init__(self, base: str) -> None:
        self.base = base

    def target(self, kind: str, uid: str = "") -> Target:
        return Target(uid or kind, f"{self.base}/{kind}")


@pytest.fixture
async def asked() -> list[str]:
    return []


@pytest.fixture
async def pods(asked: list[str]) -> AsyncIterator[Pods]:
    async def answer(request: web.Request) -> web.StreamResponse:
        kind = request.match_info["kind"]
        asked.append(kind)
        if kind == "slow":
            await asyncio.sleep(30)
        if kind == "huge":
            return web.Response(text="x" * (9 * 2**20))
        if kind == "elsewhere":
            return web.Response(status=302, headers={"Location": "/good"})
        if kind == "loading":
            return web.Response(text="octavo_requests_received_total 0\n")
        return web.Response(status=503) if kind == "draining" else web.Response(text=TEXT)

    app = web.Application()
    app.router.add_get("/{kind}", answer)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    server = site._server
    assert isinstance(server, asyncio.Server)
    yield Pods(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}")
    await runner.cleanup()


async def until(reached: Callable[[], bool]) -> None:
    async with asyncio.timeout(20):
        while not reached():
            await asyncio.sleep(0.01)


async def read(pods: Pods, kind: str) -> Reading:
    async with aiohttp.ClientSession() as session:
        scraper = Scraper(session, list, lambda _target, _reading: None, lambda: 7.0, ScrapeSettings(timeout_seconds=1))
        return await scraper.read(pods.target(kind))


async def test_a_pod_is_read(pods: Pods):
    assert await read(pods, "good") == Sample(7.0, 160, 1600, 2, 1)


@pytest.mark.parametrize(
    ("kind", "told"),
    [("slow", "within 1 s"), ("huge", "longer than"), ("elsewhere", "status 302"), ("draining", "status 503")],
)
async def test_a_pod_that_does_not_answer_well_is_absent_with_the_reason(pods: Pods, kind: str, told: str):
    reading = await read(pods, kind)
    assert isinstance(reading, Absent)
    assert told in reading.why


async def test_a_loading_pod_is_partial(pods: Pods):
    assert isinstance(await read(pods, "loading"), Partial)


async def test_nobody_there_is_absent():
    async with aiohttp.ClientSession() as session:
        scraper = Scraper(session, list, lambda _target, _reading: None, time.monotonic)
        # Port 9 of a loopback address: nothing listens.
        reading = await scraper.read(Target("gone", "http://127.0.0.1:9/metrics"))
    assert isinstance(reading, Absent)


async def test_slow_pods_delay_no_other_one(pods: Pods):
    heard: dict[str, list[Reading]] = {}
    targets = [pods.target("slow", f"slow-{n}") for n in range(3)] + [
        pods.target("good", f"good-{n}") for n in range(5)
    ]

    def hear(target: Target, reading: Reading) -> None:
        heard.setdefault(target.uid, []).append(reading)

    chosen = ScrapeSettings(interval_seconds=0.2, timeout_seconds=5.0, concurrency=32)
    async with aiohttp.ClientSession() as session:
        scraper = Scraper(session, lambda: targets, hear, time.monotonic, chosen)
        task = asyncio.create_task(scraper.run())
        await until(lambda: all(len(heard.get(f"good-{n}", ())) >= 2 for n in range(5)))
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
    assert all(isinstance(item, Sample) for n in range(5) for item in heard[f"good-{n}"])


async def test_a_pod_that_went_is_read_no_more(pods: Pods, asked: list[str]):
    targets = [pods.target("good"), pods.target("loading")]
    async with aiohttp.ClientSession() as session:
        chosen = ScrapeSettings(interval_seconds=0.05, concurrency=2)
        scraper = Scraper(session, lambda: list(targets), lambda _t, _r: None, time.monotonic, chosen)
        task = asyncio.create_task(scraper.run())
        await until(lambda: "loading" in asked)
        targets.pop()
        await until(lambda: asked[-4:] == ["good"] * 4)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


def test_pods_are_spread_over_the_interval():
    phases = sorted(phase(f"0d1c7c1e-{number}") for number in range(1000))
    assert max(after - before for before, after in itertools.pairwise(phases)) < 0.02
    assert phase("a") == phase("a")
