"""/healthz, /readyz and /metrics."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

from aiohttp import web
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest

from octavo_operator.metrics import REGISTRY
from octavo_operator.settings import SettingsError


@dataclass
class Health:
    """What the operator says of itself."""

    ready: bool = False
    state: str = "checking its rights"


@asynccontextmanager
async def serve(health: Health, host: str, port: int) -> AsyncIterator[None]:
    """Answer while the context lasts; raises SettingsError when the address can't be used."""

    async def alive(_: web.Request) -> web.Response:
        return web.Response(text="alive\n")

    async def ready(_: web.Request) -> web.Response:
        return web.Response(status=200 if health.ready else 503, text=f"{health.state}\n")

    async def metrics(_: web.Request) -> web.Response:
        return web.Response(body=generate_latest(REGISTRY), headers={"Content-Type": CONTENT_TYPE_LATEST})

    app = web.Application()
    app.add_routes([web.get("/healthz", alive), web.get("/readyz", ready), web.get("/metrics", metrics)])
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    try:
        try:
            await web.TCPSite(runner, host, port).start()
        except OSError as error:
            raise SettingsError(
                f"--host {host} --port {port}: {error.strerror or error}; give an address and port that are free here"
            ) from error
        yield
    finally:
        await runner.cleanup()
