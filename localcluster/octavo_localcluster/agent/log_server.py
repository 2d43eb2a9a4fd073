"""The node's HTTPS endpoint: container logs for the API server, one clear line for all that is not there."""

import ssl
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from aiohttp import web

from ..agent_config import AgentConfig, NodeIdentity
from .container import Container
from .logs import LogOptions, read_log
from .pod_worker import PodWorker

Lookup = Callable[[str, str], PodWorker | None]


@dataclass(frozen=True)
class ChosenLog:
    """A log file with the container it belongs to; `live` when that container may still write to it."""

    path: Path
    container: Container | None


class NotThere(Exception):
    """No such log; the message goes to the reader."""


def server_tls(config: AgentConfig) -> ssl.SSLContext:
    """TLS of the endpoint: callers need a certificate of the cluster's own authority, which pods never have."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(str(config.kubelet_server.certificate), str(config.kubelet_server.key))
    context.load_verify_locations(str(config.ca))
    context.verify_mode = ssl.CERT_REQUIRED
    return context


async def start_log_server(find_pod: Lookup, identity: NodeIdentity, tls: ssl.SSLContext) -> web.AppRunner:
    """Listen at the node's address; end it with `await runner.cleanup()`. Raises OSError when the port is taken."""

    async def logs(request: web.Request) -> web.StreamResponse:
        worker = find_pod(request.match_info["namespace"], request.match_info["pod"])
        if worker is None:
            return web.Response(status=404, text=f"pod {request.match_info['pod']!r} is not on this node\n")
        try:
            options = log_options(request.query, time.time())
            chosen = choose_log(worker, request.match_info["container"], options)
        except NotThere as error:
            return web.Response(status=400, text=f"{error}\n")
        response = web.StreamResponse(headers={"Content-Type": "text/plain"})
        await response.prepare(request)
        ended = None if chosen.container is None else chosen.container.ended
        async for piece in read_log(chosen.path, options, ended):
            await response.write(piece)
        await response.write_eof()
        return response

    async def health(_: web.Request) -> web.Response:
        return web.Response(text="ok")

    async def other(request: web.Request) -> web.Response:
        verb = request.path.strip("/").partition("/")[0] or "this"
        return web.Response(status=501, text=f"the local cluster's nodes do not implement {verb}; logs are served\n")

    app = web.Application()
    app.router.add_get("/containerLogs/{namespace}/{pod}/{container}", logs)
    app.router.add_get("/healthz", health)
    app.router.add_route("*", "/{rest:.*}", other)
    # Readers that follow a log would hold up the end of the agent.
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.5, handler_cancellation=True)
    await runner.setup()
    await web.TCPSite(runner, identity.address, identity.kubelet_port, ssl_context=tls).start()
    return runner


def log_options(query: Mapping[str, str], now: float) -> LogOptions:
    """Read PodLogOptions from a query. Raises NotThere for a value that is none."""

    def integer(name: str) -> int | None:
        return int(query[name]) if query.get(name) else None

    try:
        since = None
        if query.get("sinceSeconds"):
            since = now - float(query["sinceSeconds"])
        elif query.get("sinceTime"):
            since = datetime.fromisoformat(query["sinceTime"]).timestamp()
        return LogOptions(
            follow=query.get("follow") in ("true", "1"),
            previous=query.get("previous") in ("true", "1"),
            timestamps=query.get("timestamps") in ("true", "1"),
            tail_lines=integer("tailLines"),
            limit_bytes=integer("limitBytes"),
            since=since,
        )
    except ValueError as error:
        raise NotThere(f"a log option is malformed: {error}") from None


def choose_log(worker: PodWorker, name: str, options: LogOptions) -> ChosenLog:
    """The log of a container's present (or last) run, or of the one before. Raises NotThere."""
    container = worker.containers.get(name)
    pod = worker.record.name
    if container is None or container.record.attempt < 0:
        raise NotThere(f'container "{name}" in pod "{pod}" is waiting to start')
    attempt = container.record.attempt - (1 if options.previous else 0)
    path = container.log_path(attempt)
    if attempt < 0 or (options.previous and not path.exists()):
        raise NotThere(f'previous terminated container "{name}" in pod "{pod}" not found')
    live = container.record.phase == "running" and not options.previous
    return ChosenLog(path, container if live else None)
