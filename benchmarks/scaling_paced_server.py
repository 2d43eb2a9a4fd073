"""A process that behaves like the server, with a set speed: for runs of the autoscaler on a real cluster.

Each request takes a set time in one of a few places and holds a set number of KV tokens; what finds no place waits.
Health, readiness, metrics, drain and the model's check are those of the wire contract.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import signal
import sys
from pathlib import Path

from aiohttp import web

PLACES = 8
SECONDS = 2.0
TOKENS = 400
BLOCK_TOKENS = 16
CAPACITY_TOKENS = 16_000
START_SECONDS = 3.0


class Paced:
    """The state of one replica."""

    def __init__(self) -> None:
        self.places = asyncio.Semaphore(PLACES)
        self.running = self.waiting = self.received = self.finished = 0
        self.ready = self.draining = self.cut = False
        self.gone = asyncio.Event()

    async def answer(self, _request: web.Request) -> web.Response:
        self.received += 1
        self.waiting += 1
        async with self.places:
            self.waiting -= 1
            self.running += 1
            await asyncio.sleep(SECONDS)
            self.running -= 1
        self.finished += 1
        if self.draining and not self.running and not self.waiting:
            self.gone.set()
        return web.json_response({"choices": [{"text": "done"}]})

    async def health(self, _request: web.Request) -> web.Response:
        return web.Response(text="ok")

    async def is_ready(self, _request: web.Request) -> web.Response:
        return web.Response(status=200 if self.ready and not self.draining else 503)

    async def cut_metrics(self, _request: web.Request) -> web.Response:
        """From now on nobody hears of its metrics."""
        self.cut = True
        return web.Response(text="cut")

    async def metrics(self, _request: web.Request) -> web.Response:
        if self.cut:
            return web.Response(status=503)
        active = self.running * TOKENS // BLOCK_TOKENS
        lines = {
            'octavo_kv_cache_blocks{state="active"}': active,
            "octavo_kv_cache_block_size_tokens": BLOCK_TOKENS,
            "octavo_kv_cache_capacity_tokens": CAPACITY_TOKENS,
            "octavo_requests_running": self.running,
            "octavo_requests_waiting": self.waiting,
            "octavo_requests_received_total": self.received,
            'octavo_requests_finished_total{reason="stop"}': self.finished,
            "octavo_preemptions_total": 0,
        }
        return web.Response(text="".join(f"{name} {value}\n" for name, value in lines.items()))

    def drain(self) -> None:
        """SIGTERM: no new requests come once this is seen; the running ones end."""
        self.draining = True
        asyncio.get_running_loop().call_later(5.0, self._end_if_idle)

    def _end_if_idle(self) -> None:
        if not self.running and not self.waiting:
            self.gone.set()


async def serve(host: str, port: int) -> None:
    """Until told to end and idle."""
    state, app = Paced(), web.Application()
    app.router.add_post("/v1/completions", state.answer)
    app.router.add_post("/cut", state.cut_metrics)
    app.router.add_get("/health", state.health)
    app.router.add_get("/ready", state.is_ready)
    app.router.add_get("/metrics", state.metrics)
    runner = web.AppRunner(app, shutdown_timeout=1.0)
    await runner.setup()
    await web.TCPSite(runner, host, port).start()
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGTERM, state.drain)
    loop.call_later(START_SECONDS, setattr, state, "ready", True)
    await state.gone.wait()
    await runner.cleanup()


def main() -> None:
    """`fetch --check` finds every model; `serve` serves."""
    words = sys.argv[1:]
    if words[:1] == ["fetch"]:
        told = json.dumps({"ok": True, "reason": "ModelFound", "message": "a paced server needs no model"})
        print(told)
        if log := os.environ.get("OCTAVO_TERMINATION_LOG"):
            Path(log).write_text(told)
        return
    flags = dict(itertools.pairwise(words))
    asyncio.run(serve(flags.get("--host", "127.0.0.1"), int(flags.get("--port", "8000"))))


if __name__ == "__main__":
    main()
