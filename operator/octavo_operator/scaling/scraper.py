"""Reads the metrics of every pod each few seconds: bounded concurrency, time-outs, spread over the interval."""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import aiohttp

from .exposition import LIMIT_BYTES
from .runtimes import RUNTIMES
from .sample import Absent, Reading


@dataclass(frozen=True, slots=True)
class Target:
    """One pod to read."""

    uid: str
    url: str
    """Of its metrics, without a query."""
    runtime: str = "Octavo"


@dataclass(frozen=True)
class ScrapeSettings:
    """How the pods are read."""

    interval_seconds: float = 5.0
    timeout_seconds: float = 2.0
    concurrency: int = 64


def phase(uid: str) -> float:
    """When within the interval a pod is read, 0 … 1: the same each time, and even over all pods."""
    return zlib.crc32(uid.encode()) / 2**32


class Scraper:
    """`run` reads for ever; `heard` gets each reading."""

    def __init__(
        self,
        session: aiohttp.ClientSession,
        targets: Callable[[], Iterable[Target]],
        heard: Callable[[Target, Reading], None],
        clock: Callable[[], float],
        settings: ScrapeSettings | None = None,
    ) -> None:
        """`targets` is asked once an interval; `clock` gives seconds for the readings and the pace."""
        self._session, self._targets, self._heard, self._clock = session, targets, heard, clock
        self._settings = settings or ScrapeSettings()
        self._timeout = aiohttp.ClientTimeout(total=self._settings.timeout_seconds)

    async def run(self) -> None:
        """For ever; a pod that is slow delays no other one."""
        todo: asyncio.Queue[Target] = asyncio.Queue()
        async with asyncio.TaskGroup() as tasks:
            for _ in range(self._settings.concurrency):
                tasks.create_task(self._work(todo))
            tasks.create_task(self._pace(todo))

    async def _pace(self, todo: asyncio.Queue[Target]) -> None:
        interval = self._settings.interval_seconds
        while True:
            begun = self._clock()
            # What the workers did not get to within an interval is not piled up.
            while not todo.empty():
                self._heard(todo.get_nowait(), Absent(begun, "the operator had no time to read it"))
            for target in sorted(self._targets(), key=lambda item: phase(item.uid)):
                wait = begun + phase(target.uid) * interval - self._clock()
                if wait > 0:
                    await asyncio.sleep(wait)
                todo.put_nowait(target)
            await asyncio.sleep(max(0.01, begun + interval - self._clock()))

    async def _work(self, todo: asyncio.Queue[Target]) -> None:
        while True:
            target = await todo.get()
            self._heard(target, await self.read(target))

    async def read(self, target: Target) -> Reading:
        """One reading; every failure of the pod or the network is an Absent with its reason."""
        metrics = RUNTIMES[target.runtime]
        query = [("name[]", name) for name in metrics.names] if metrics.filters else None
        try:
            async with self._session.get(
                target.url, params=query, timeout=self._timeout, allow_redirects=False
            ) as answer:
                if answer.status != 200:
                    return Absent(self._clock(), f"its metrics answer with status {answer.status}")
                body = bytearray()
                async for chunk in answer.content.iter_any():
                    body += chunk
                    if len(body) > LIMIT_BYTES:
                        return Absent(self._clock(), f"its metrics are longer than {LIMIT_BYTES} bytes")
        except TimeoutError:
            return Absent(self._clock(), f"it did not answer within {self._settings.timeout_seconds:g} s")
        except aiohttp.ClientError as error:
            return Absent(self._clock(), f"it can't be read: {type(error).__name__}")
        return metrics.read(body.decode("utf-8", "replace"), self._clock())
