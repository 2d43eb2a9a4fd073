"""A load of streams over HTTP, from one process: each request has a connection of its own."""

from __future__ import annotations

import asyncio
import json
import ssl
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any
from urllib.parse import urlsplit

import httptools

from octavo_server.bench.figures import Record
from octavo_server.bench.workloads import Session, Turn
from octavo_server.progress_bar import Bar
from octavo_server.termination import Refused

_READ_BYTES = 1 << 16
_CONNECT_SECONDS = 10.0
_SHOWN_CHARACTERS = 300


@dataclass(frozen=True)
class Target:
    """A server: `http://host:port`, the model's name, and the key for it."""

    url: str
    model: str = ""
    api_key: str = ""


class _Answer:
    """Collects what httptools finds in an answer's bytes."""

    def __init__(self) -> None:
        self.parser = httptools.HttpResponseParser(self)
        self.body = bytearray()
        self.done = False

    def on_body(self, data: bytes) -> None:
        self.body += data

    def on_message_complete(self) -> None:
        self.done = True

    @property
    def status(self) -> int:
        return int(self.parser.get_status_code())


class Client:
    """Sends requests to one server. Raises Refused for an address that is none."""

    def __init__(self, target: Target) -> None:
        parts = urlsplit(target.url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise Refused("InvalidFlag", f"--url {target.url!r}: write http://host:port or https://host")
        self._target = target
        self._host, self._path = parts.hostname, parts.path.rstrip("/")
        self._secure = ssl.create_default_context() if parts.scheme == "https" else None
        self._port = parts.port or (443 if self._secure else 80)

    async def model(self) -> str:
        """Name of the first model that is served. Raises Refused when the server can't be asked."""
        try:
            status, body = await self._whole("GET", "/v1/models")
        except (OSError, TimeoutError, httptools.HttpParserError) as error:
            raise Refused(
                "ServerUnreachable", f"{self._target.url}: {_words(error)}; does a server run there?"
            ) from error
        if status == 401:
            raise Refused("AccessDenied", f"{self._target.url} asks for a key: set OCTAVO_API_KEY")
        try:
            return str(json.loads(body)["data"][0]["id"])
        except (ValueError, LookupError, TypeError) as error:
            text = body[:_SHOWN_CHARACTERS].decode(errors="replace")
            raise Refused("ServerUnsuitable", f"{self._target.url}/v1/models: status {status}: {text}") from error

    async def stream(self, body: dict[str, Any], record: Record) -> None:
        """Sends a completion with `stream` and notes when its events come; faults are noted as well."""
        try:
            await self._stream(body, record)
        except (OSError, httptools.HttpParserError, ValueError) as error:
            record.error = _words(error)

    async def _stream(self, body: dict[str, Any], record: Record) -> None:
        answer, begin = _Answer(), 0
        reader, writer = await self._send("POST", "/v1/completions", json.dumps(body).encode())
        try:
            while not answer.done:
                data = await reader.read(_READ_BYTES)
                now = time.monotonic()
                if not data:
                    raise ConnectionError("the server closed the connection before the answer's end")
                answer.parser.feed_data(data)
                if answer.status != 200:
                    continue
                while (end := answer.body.find(b"\n\n", begin)) >= 0:
                    self._event(bytes(answer.body[begin:end]), now, record)
                    begin = end + 2
                del answer.body[:begin]
                begin = 0
        finally:
            writer.close()
        if answer.status != 200:
            text = answer.body[:_SHOWN_CHARACTERS].decode(errors="replace")
            record.error = f"status {answer.status}: {text}"
        record.ended = not record.error

    def _event(self, event: bytes, now: float, record: Record) -> None:
        if not event.startswith(b"data: {"):
            return
        found = json.loads(event[6:])
        if "error" in found:
            record.error = f"the stream ended with an error: {found['error']}"
        if found.get("choices"):
            record.arrived(now)
        if usage := found.get("usage"):
            record.tokens = usage.get("completion_tokens", record.tokens)
            record.prompt_tokens = usage.get("prompt_tokens", record.prompt_tokens)
            record.cached_tokens = (usage.get("prompt_tokens_details") or {}).get("cached_tokens") or 0

    async def _whole(self, method: str, path: str) -> tuple[int, bytes]:
        answer = _Answer()
        async with asyncio.timeout(_CONNECT_SECONDS):
            reader, writer = await self._send(method, path, b"")
            try:
                while not answer.done and (data := await reader.read(_READ_BYTES)):
                    answer.parser.feed_data(data)
            finally:
                writer.close()
        return answer.status, bytes(answer.body)

    async def _send(self, method: str, path: str, body: bytes) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        async with asyncio.timeout(_CONNECT_SECONDS):
            reader, writer = await asyncio.open_connection(self._host, self._port, ssl=self._secure)
        key = f"authorization: Bearer {self._target.api_key}\r\n" if self._target.api_key else ""
        head = (
            f"{method} {self._path}{path} HTTP/1.1\r\nhost: {self._host}:{self._port}\r\nconnection: close\r\n"
            f"content-type: application/json\r\n{key}content-length: {len(body)}\r\n\r\n"
        )
        writer.write(head.encode() + body)
        await writer.drain()
        return reader, writer


@dataclass(frozen=True)
class Schedule:
    """When sessions begin: at these seconds (open loop), with at most so many at once (0 = no limit)."""

    starts: Sequence[float]
    concurrency: int
    limit_seconds: float


async def run(client: Client, sessions: Sequence[Session], schedule: Schedule, settings: dict[str, Any], *,
              vocabulary: int, progress: bool) -> tuple[list[Record], float]:  # fmt: skip
    """All sessions; records of their requests and the seconds until the last one ended or time was over.

    settings: fields of each request's body. A session's turn follows the one before at once. Ids of an answer are not
    in the interface: in the next prompt of a session stand as many random ones.
    """
    records: list[Record] = []
    bar = Bar(sys.stderr, "requests") if progress else None
    total = sum(map(len, sessions))
    places = asyncio.Semaphore(schedule.concurrency or len(sessions))

    def show() -> None:
        if bar is not None:
            over = sum(1 for record in records if record.ended or record.error)
            bar.show(over, total, sum(record.tokens for record in records))

    async def one(number: int, session: Session) -> None:
        await asyncio.sleep(max(0.0, begun + schedule.starts[number] - time.monotonic()))
        async with places:
            await _session(client, session, settings, records, Random(number), vocabulary, show)

    begun = time.monotonic()
    running = [asyncio.create_task(one(number, session)) for number, session in enumerate(sessions)]
    try:
        async with asyncio.timeout(schedule.limit_seconds):
            await asyncio.gather(*running)
    except TimeoutError:
        pass
    finally:
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)
        if bar is not None:
            bar.end()
    return records, time.monotonic() - begun


async def _session(client: Client, session: Session, settings: dict[str, Any], records: list[Record], random: Random,
                   vocabulary: int, show: Callable[[], None]) -> None:  # fmt: skip
    said: list[int] = []
    for turn in session:
        said += turn.added
        record = Record(time.monotonic(), len(said))
        records.append(record)
        await client.stream({**settings, **_body(said, turn)}, record)
        show()
        if record.error:
            return
        said += random.choices(range(min(10, vocabulary - 1), vocabulary), k=record.tokens)


def _body(prompt: list[int], turn: Turn) -> dict[str, Any]:
    return {
        "prompt": prompt,
        "max_tokens": turn.output_tokens,
        "ignore_eos": True,
        "stream": True,
        "stream_options": {"include_usage": True},
    }


def _words(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
