"""`octavo bench SERVICE`: streams to a service at once, and how fast they come."""

from __future__ import annotations

import asyncio
import json
import os
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import aiohttp
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from .errors import ServiceError

PROMPT = "Number {}: write a long story about a printer who folds sheets of paper into books. "
"""The number comes first, so that no request finds another one's prefix in the cache."""
TIMEOUT_SECONDS = 600.0


@dataclass(frozen=True)
class Load:
    """What is sent."""

    requests: int = 32
    concurrency: int = 8
    prompt_words: int = 64
    """About as many tokens."""
    tokens: int = 64
    """Of each answer; the end of the text is ignored."""


@dataclass(frozen=True)
class Stream:
    """One answer, in seconds since its request was sent."""

    first: float
    last: float
    tokens: int


def quantile(values: Sequence[float], share: float) -> float:
    """Nearest rank; `values` must not be empty."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def prompt(number: int, words: int) -> str:
    """One request's text of so many words."""
    text = PROMPT.format(number).split()
    return " ".join((text * (words // len(text) + 1))[:words])


async def _model(session: aiohttp.ClientSession, url: str) -> str:
    async with session.get(f"{url}/v1/models") as answer:
        if answer.status == 401:
            raise ServiceError(f"{url} asks for an API key; put it into OCTAVO_API_KEY")
        answer.raise_for_status()
        return str((await answer.json())["data"][0]["id"])


async def _stream(session: aiohttp.ClientSession, url: str, body: dict[str, Any]) -> Stream:
    began, first, last, count = time.monotonic(), 0.0, 0.0, 0
    async with session.post(f"{url}/v1/completions", json=body) as answer:
        if answer.status != 200:
            raise ServiceError(f"{url}: status {answer.status}: {(await answer.text())[:300]}")
        async for line in answer.content:
            if not line.startswith(b"data: {"):
                continue
            event = json.loads(line[6:])
            if "error" in event:
                raise ServiceError(f"{url}: a stream ended with an error: {event['error']}")
            if event.get("choices"):
                last = time.monotonic() - began
                first = first or last
            count = (event.get("usage") or {}).get("completion_tokens", count)
    return Stream(first, last, count)


def table(streams: Sequence[Stream], seconds: float) -> Table:
    """The figures of one run."""
    first = [item.first for item in streams]
    between = [(item.last - item.first) / (item.tokens - 1) for item in streams if item.tokens > 1]
    made = Table("figure", "p50", "p95", "max")
    for name, values in (("first token, ms", first), ("token to token, ms", between)):
        cells = [f"{quantile(values, share) * 1000:,.1f}" for share in (0.5, 0.95, 1.0)] if values else ["–"] * 3
        made.add_row(name, *cells)
    made.add_section()
    made.add_row("generated tokens per second", f"{sum(item.tokens for item in streams) / seconds:,.1f}", "", "")
    made.add_row("requests per second", f"{len(streams) / seconds:,.2f}", "", "")
    return made


async def _send(session: aiohttp.ClientSession, url: str, load: Load, console: Console) -> tuple[list[Stream], float]:
    """All answers, and how long all of them took in seconds."""
    common = {
        "model": await _model(session, url),
        "max_tokens": load.tokens,
        "ignore_eos": True,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    places = asyncio.Semaphore(load.concurrency)
    with Progress(console=console, transient=True) as progress:
        task = progress.add_task("requests", total=load.requests)

        async def one(number: int) -> Stream:
            async with places:
                done = await _stream(session, url, {**common, "prompt": prompt(number, load.prompt_words)})
            progress.advance(task)
            return done

        began = time.monotonic()
        running = [asyncio.create_task(one(number)) for number in range(load.requests)]
        try:
            return list(await asyncio.gather(*running)), time.monotonic() - began
        finally:
            for left in running:
                left.cancel()


async def bench(url: str, load: Load, console: Console) -> None:
    """Sends and tells. Raises ServiceError."""
    key = os.environ.get("OCTAVO_API_KEY")
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    timeout = aiohttp.ClientTimeout(total=TIMEOUT_SECONDS)
    connector = aiohttp.TCPConnector(limit=load.concurrency)
    try:
        async with aiohttp.ClientSession(headers=headers, timeout=timeout, connector=connector) as session:
            streams, seconds = await _send(session, url, load, console)
    except (aiohttp.ClientError, TimeoutError) as error:
        raise ServiceError(f"{url}: {type(error).__name__}: {error}; is a replica ready (octavo top)?") from error
    shape = f"{load.prompt_words} words in, {load.tokens} tokens out"
    console.print(f"{load.requests} requests, {load.concurrency} at once, {shape}")
    console.print(table(streams, seconds))
