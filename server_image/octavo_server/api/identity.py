"""The id of each HTTP request: taken from X-Request-Id or drawn, sent back, and written into the access log.

The access log names method, path, status, times and sizes. It holds no query, no header, no prompt and no answer.
"""

from __future__ import annotations

import logging
import random
import re
import time
from collections.abc import MutableMapping
from typing import Any

from starlette.types import ASGIApp, Message, Receive, Scope, Send

_LOG = logging.getLogger("octavo.access")
_KEY = "octavo.request_id"
_HEADER = b"x-request-id"
_GOOD = re.compile(rb"[\x21-\x7e]{1,128}\Z")
_GONE = 499
_SHOWN_PATH_CHARACTERS = 200


def request_id(scope: MutableMapping[str, Any]) -> str:
    """The id of the request that is handled in this scope."""
    return str(scope.get(_KEY, ""))


def new_id() -> str:
    """32 hexadecimal digits for a request that brought no name. Nothing is reached by knowing one, so that they need
    not come from the system's source of secrets, which every request would wait for with the interpreter let go."""
    return f"{random.getrandbits(128):032x}"


class Identify:
    """Outermost of the layers: whatever answers, the answer has the id."""

    def __init__(self, app: ASGIApp, *, access_log: bool) -> None:
        self._app = app
        self._access_log = access_log

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        given = next((value for name, value in scope["headers"] if name == _HEADER), b"")
        name = given if _GOOD.match(given) else new_id().encode()
        scope[_KEY] = name.decode()
        began = time.perf_counter()
        status, sent = _GONE, 0

        async def with_id(message: Message) -> None:
            nonlocal status, sent
            if message["type"] == "http.response.start":
                status = message["status"]
                message = {**message, "headers": [*message.get("headers", ()), (_HEADER, name)]}
            else:
                sent += len(message.get("body", b""))
            await send(message)

        try:
            await self._app(scope, receive, with_id)
        finally:
            if self._access_log:
                fields = {
                    "request_id": scope[_KEY],
                    "method": scope["method"],
                    "path": _printable(scope["path"]),
                    "status": status,
                    "milliseconds": round(1000 * (time.perf_counter() - began), 1),
                    "bytes_sent": sent,
                }
                _LOG.info("request", extra={"fields": fields})


def _printable(path: str) -> str:
    """A path that can't write lines of its own into a log."""
    shown = path if path.isprintable() and " " not in path else ascii(path)[1:-1].replace(" ", "%20")
    return shown[:_SHOWN_PATH_CHARACTERS]
