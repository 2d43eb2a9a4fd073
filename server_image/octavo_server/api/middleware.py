"""What happens to every request before its route: the key, the size of the body, the header of a draining server.

Plain ASGI: nothing here stands between a route and the news that its client went away.
"""

from __future__ import annotations

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from octavo_server.api.errors import ApiError, shortened
from octavo_server.api.identity import request_id
from octavo_server.api.keys import ApiKeys
from octavo_server.api.state import ServerState
from octavo_server.contract import HEALTH_PATH, METRICS_PATH, READY_PATH

_DISCARDED = 8
"""A body up to that many times the limit is read to its end and thrown away: a client that is cut off while it sends
sees a broken connection in place of the 413."""
_OPEN_PATHS = frozenset({HEALTH_PATH, READY_PATH, METRICS_PATH})


class RequireKey:
    """401 without a right bearer token, on every route but health and metrics."""

    def __init__(self, app: ASGIApp, keys: ApiKeys) -> None:
        self._app = app
        self._keys = keys

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and scope["path"] not in _OPEN_PATHS and not self._allowed(Headers(scope=scope)):
            error = ApiError(
                401, "the API key is missing or wrong; send it as Authorization: Bearer KEY", code="invalid_api_key"
            )
            name = request_id(scope)
            await error.response({"www-authenticate": "Bearer"}, request_id=name)(scope, receive, send)
            return
        await self._app(scope, receive, send)

    def _allowed(self, headers: Headers) -> bool:
        scheme, _, token = headers.get("authorization", "").partition(" ")
        return self._keys.allows(token.strip()) and scheme.lower() == "bearer"


class LimitBody:
    """Reads the body up to the limit, else 413; the route gets it whole, and disconnects after it."""

    def __init__(self, app: ASGIApp, max_bytes: int) -> None:
        self._app = app
        self._max_bytes = max_bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["method"] != "POST":
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        encoding = headers.get("content-encoding", "identity").strip().lower()
        if encoding not in ("", "identity"):
            error = ApiError(
                415,
                f"content-encoding: {shortened(encoding)!r} is not supported; send the body as plain JSON",
                param="content-encoding",
                code="unsupported_encoding",
            )
            await _refuse(error, scope, receive, send)
            return
        length = headers.get("content-length", "0")
        parts: list[bytes] = []
        size, more = 0, True
        too_large = length.isdigit() and int(length) > self._max_bytes
        while more and size <= self._max_bytes * _DISCARDED:
            message = await receive()
            if message["type"] == "http.disconnect":
                return
            part = message.get("body", b"")
            size += len(part)
            too_large |= size > self._max_bytes
            if too_large:
                parts.clear()
            else:
                parts.append(part)
            more = message.get("more_body", False)
        if too_large:
            error = ApiError(
                413,
                f"body: larger than the limit of {self._max_bytes} bytes",
                param="body",
                code="body_too_large",
            )
            await _refuse(error, scope, receive, send)
            return
        body: Message | None = {"type": "http.request", "body": b"".join(parts), "more_body": False}

        async def replay() -> Message:
            nonlocal body
            if body is None:
                return await receive()
            first, body = body, None
            return first

        await self._app(scope, replay, send)


class Closing:
    """While draining, every response asks its client to connect anew, which leads to another replica."""

    def __init__(self, app: ASGIApp, state: ServerState) -> None:
        self._app = app
        self._state = state

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def with_header(message: Message) -> None:
            if message["type"] == "http.response.start" and self._state.draining:
                MutableHeaders(scope=message)["connection"] = "close"
            await send(message)

        await self._app(scope, receive, with_header if scope["type"] == "http" else send)


async def _refuse(error: ApiError, scope: Scope, receive: Receive, send: Send) -> None:
    """Answers before the body is read, so that the connection cannot serve another request."""
    await error.response({"connection": "close"}, request_id=request_id(scope))(scope, receive, send)
