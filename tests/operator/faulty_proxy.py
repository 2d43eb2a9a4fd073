"""A proxy between one operator and the API server that loses, delays and refuses on purpose, with a seeded dice.

It ends TLS with a certificate of its own authority and passes the operator's token on, so that API server and operator
are the real ones.
"""

from __future__ import annotations

import asyncio
import json
import random
import ssl
import threading
from collections import Counter
from dataclasses import dataclass, replace
from pathlib import Path
from types import TracebackType
from typing import Any

from aiohttp import ClientSession, ClientTimeout, TCPConnector, web
from octavo_localcluster.pki import make_authority

_HOST = "127.0.0.1"
_PASSED_ON = ("Authorization", "Content-Type", "Accept", "User-Agent")


@dataclass(frozen=True)
class Faults:
    """Percent of the events, or of the requests, that meet with a fault."""

    lost_events: int = 0
    late_events: int = 0
    """Held back for up to `late_seconds`, and with them all that follow in that watch."""
    late_seconds: float = 1.0
    every_nth_watch_expires: int = 0
    """Answered with 410: what it would follow from is no longer known. 0: none."""
    cut_watches: int = 0
    """Events after which the connection breaks off."""
    frozen_watches: int = 0
    """Events after which a watch stays open and tells nothing more, not even bookmarks."""
    refused_writes: int = 0
    """Answered with 429 or 409 in place of being passed on."""
    unanswered_writes: int = 0
    """Passed on, and the answer is lost."""


class FaultyProxy:
    """Runs in a thread of its own. `faults` may be replaced at any time; `met` counts those that happened."""

    def __init__(self, folder: Path, server: str, authority: Path, faults: Faults, seed: int = 1) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.authority = make_authority(folder, "proxy")
        self.faults, self.met, self._watches = faults, Counter[str](), 0
        self._identity = self.authority.server("proxy-serving", [_HOST])
        self._server, self._upstream = server, ssl.create_default_context(cafile=str(authority))
        self._dice = random.Random(seed)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stop = asyncio.Event()
        self._ready = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._serve()), daemon=True)
        self.address = ""

    def __enter__(self) -> FaultyProxy:
        self._thread.start()
        assert self._ready.wait(20), "the proxy did not start"
        return self

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        assert self._loop is not None, "started"
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(20)

    def heal(self) -> None:
        """From now on everything passes."""
        self.faults = Faults()

    def worsen(self, **faults: Any) -> None:
        """Change some of the faults."""
        self.faults = replace(self.faults, **faults)

    def _strikes(self, percent: int, name: str) -> bool:
        if self._dice.randrange(100) < percent:
            self.met[name] += 1
            return True
        return False

    async def _serve(self) -> None:
        self._loop = asyncio.get_running_loop()
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(self._identity.certificate, self._identity.key)
        connector = TCPConnector(ssl=self._upstream, limit=0)
        async with ClientSession(connector=connector, timeout=ClientTimeout(total=None), read_bufsize=2**24) as session:
            app = web.Application(client_max_size=2**24)

            async def handle(request: web.Request) -> web.StreamResponse:
                return await self._pass(session, request)

            app.router.add_route("*", "/{path:.*}", handle)
            runner = web.AppRunner(app, shutdown_timeout=0.5)
            await runner.setup()
            site = web.TCPSite(runner, _HOST, 0, ssl_context=context)
            await site.start()
            port = site._server.sockets[0].getsockname()[1]  # type: ignore[union-attr]
            self.address = f"https://{_HOST}:{port}"
            self._ready.set()
            await self._stop.wait()
            await runner.cleanup()

    async def _pass(self, session: ClientSession, request: web.Request) -> web.StreamResponse:
        writes = request.method in ("PATCH", "DELETE", "PUT") or "selfsubjectaccessreviews" in request.path
        if request.method in ("PATCH", "DELETE") and self._strikes(self.faults.refused_writes, "refused writes"):
            return _refusal(429 if self._dice.random() < 0.5 else 409)
        headers = {name: request.headers[name] for name in _PASSED_ON if name in request.headers}
        url, body = self._server + request.path_qs, await request.read()
        async with session.request(request.method, url, headers=headers, data=body or None) as answer:
            if request.query.get("watch") == "true":
                return await self._watch(request, answer)
            content = await answer.read()
            if writes and self._strikes(self.faults.unanswered_writes, "unanswered writes"):
                assert request.transport is not None
                request.transport.abort()
            kind = answer.headers.get("Content-Type", "application/json")
            return web.Response(status=answer.status, body=content, headers={"Content-Type": kind})

    async def _watch(self, request: web.Request, answer: Any) -> web.StreamResponse:
        stream = web.StreamResponse(status=answer.status, headers={"Content-Type": "application/json"})
        await stream.prepare(request)
        self._watches += 1
        if self.faults.every_nth_watch_expires and self._watches % self.faults.every_nth_watch_expires == 0:
            self.met["expired watches"] += 1
            gone = {"kind": "Status", "code": 410, "reason": "Expired", "message": "too old resource version"}
            await stream.write(json.dumps({"type": "ERROR", "object": gone}).encode() + b"\n")
            return stream
        async for line in answer.content:
            if self._strikes(self.faults.late_events, "late events"):
                await asyncio.sleep(self._dice.random() * self.faults.late_seconds)
            if self._strikes(self.faults.lost_events, "lost events"):
                continue
            await stream.write(line)
            if self._strikes(self.faults.frozen_watches, "frozen watches"):
                await self._stop.wait()
            if self._strikes(self.faults.cut_watches, "cut watches"):
                assert request.transport is not None
                request.transport.abort()
                break
        return stream


def _refusal(code: int) -> web.Response:
    reason = {429: "TooManyRequests", 409: "Conflict"}[code]
    body = {"kind": "Status", "status": "Failure", "code": code, "reason": reason, "message": "by the proxy"}
    return web.json_response(body, status=code)
