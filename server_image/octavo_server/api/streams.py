"""Answers that watch their client: server-sent events, and work that ends when the client goes away."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from typing import Any, TypeVar

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from octavo_server.api.errors import ApiError, ClientGone, dump_json

T = TypeVar("T")


async def unless_gone(request: Request, work: Coroutine[Any, Any, T]) -> T:
    """The result of `work`; cancels it and raises ClientGone when the client closes its connection first."""
    task = asyncio.ensure_future(work)
    watcher = asyncio.ensure_future(_until_disconnect(request.receive))
    try:
        await asyncio.wait({task, watcher}, return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            raise ClientGone
        return task.result()
    finally:
        for pending in (task, watcher):
            pending.cancel()
        await asyncio.gather(task, watcher, return_exceptions=True)


class EventStream(Response):
    """Server-sent events from an iterator of them as bytes (`event_bytes`), ended by `data: [DONE]`.

    `on_close` runs in every case: end, error, client gone, cancelled. Waiting for a slow client happens here alone.
    """

    media_type = "text/event-stream"

    def __init__(self, events: AsyncIterator[bytes], on_close: Callable[[], None], request_id: str):
        self.status_code = 200
        self.background = None
        self.body = b""
        self._events = events
        self._on_close = on_close
        self._request_id = request_id
        self.init_headers({"cache-control": "no-cache", "x-accel-buffering": "no"})
        self.raw_headers = [(name, value) for name, value in self.raw_headers if name != b"content-length"]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        writer = asyncio.ensure_future(self._write(send))
        watcher = asyncio.ensure_future(_until_disconnect(receive))
        try:
            await asyncio.wait({writer, watcher}, return_when=asyncio.FIRST_COMPLETED)
            if writer.done():
                writer.result()
        finally:
            self._on_close()
            for pending in (writer, watcher):
                pending.cancel()
            await asyncio.gather(writer, watcher, return_exceptions=True)

    async def _write(self, send: Send) -> None:
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        try:
            async for events in self._events:
                await send({"type": "http.response.body", "body": events, "more_body": True})
            last = b""
        except ApiError as error:
            last = event_bytes({**error.body, "request_id": self._request_id})
        await send({"type": "http.response.body", "body": last + b"data: [DONE]\n\n", "more_body": False})


def event_bytes(content: dict[str, Any]) -> bytes:
    """One event whose data is a JSON object."""
    return b"data: " + dump_json(content) + b"\n\n"


async def _until_disconnect(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
