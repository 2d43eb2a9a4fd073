"""Requests to the API server under one client certificate."""

import json
import ssl
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp

Object = dict[str, Any]

JSON_PATCH_TYPES = {"strategic": "application/strategic-merge-patch+json", "merge": "application/merge-patch+json"}
REQUEST_TIMEOUT_SECONDS = 20.0
OUTAGE = (aiohttp.ClientError, TimeoutError, OSError)
"""What a request raises when no answer came; an answer with an error code is an ApiError."""


class ApiError(Exception):
    """An answer of the API server with a code of 400 or above."""

    def __init__(self, code: int, reason: str, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.reason = reason
        self.message = message


class ApiClient:
    """JSON over HTTPS; one connection pool. Close it with close()."""

    def __init__(self, server: str, ca: Path, certificate: Path, key: Path) -> None:
        self.server = server.rstrip("/")
        context = ssl.create_default_context(cafile=str(ca))
        context.load_cert_chain(str(certificate), str(key))
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(ssl=context, limit=0),
            headers={"User-Agent": "octavo-node-agent", "Accept": "application/json"},
        )

    async def request(
        self, method: str, path: str, body: Object | None = None, *, content_type: str = "application/json",
        params: dict[str, str] | None = None,
    ) -> Object:  # fmt: skip
        """Send one request. Raises ApiError for an error answer, one of OUTAGE when none came."""
        async with self._session.request(
            method,
            self.server + path,
            data=None if body is None else json.dumps(body).encode(),
            params=params,
            headers={"Content-Type": content_type} if body is not None else None,
            timeout=aiohttp.ClientTimeout(total=REQUEST_TIMEOUT_SECONDS),
        ) as response:
            text = await response.text()
            if response.status >= 400:
                raise api_error(response.status, text)
            return dict(json.loads(text))

    async def get(self, path: str, params: dict[str, str] | None = None) -> Object:
        """GET one object or list."""
        return await self.request("GET", path, params=params)

    async def create(self, path: str, body: Object) -> Object:
        """POST an object to its collection."""
        return await self.request("POST", path, body)

    async def patch(self, path: str, body: Object, *, kind: str = "strategic") -> Object:
        """PATCH an object; `kind` is strategic or merge."""
        return await self.request("PATCH", path, body, content_type=JSON_PATCH_TYPES[kind])

    async def delete(self, path: str, body: Object) -> Object:
        """DELETE an object with DeleteOptions."""
        return await self.request("DELETE", path, body)

    async def watch(self, path: str, params: dict[str, str]) -> AsyncIterator[Object]:
        """Events of a watch until the server ends it. Raises like request()."""
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=REQUEST_TIMEOUT_SECONDS, sock_read=None)
        async with self._session.get(
            self.server + path, params={**params, "watch": "true"}, timeout=timeout, read_bufsize=2**20
        ) as response:
            if response.status >= 400:
                raise api_error(response.status, await response.text())
            pending = b""
            async for chunk in response.content.iter_any():
                *lines, pending = (pending + chunk).split(b"\n")
                for line in lines:
                    if line:
                        yield dict(json.loads(line))

    async def close(self) -> None:
        """Close all connections."""
        await self._session.close()


def api_error(code: int, text: str) -> ApiError:
    """The error in a Status object, or in plain text where a proxy or a starting server answered."""
    try:
        status = json.loads(text)
        return ApiError(code, str(status.get("reason", "")), str(status.get("message", text)))
    except (ValueError, AttributeError):
        return ApiError(code, "", text.strip()[:500] or f"HTTP {code}")
