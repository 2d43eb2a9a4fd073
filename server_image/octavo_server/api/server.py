"""One API process from start to end: listen, load the text side, start the engine, serve, drain."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import socket
from collections.abc import Callable, Generator, Sequence
from dataclasses import replace
from pathlib import Path

import uvicorn

from octavo_server.api.app import create_app
from octavo_server.api.fleet import Fleet, Place
from octavo_server.api.link import Follower
from octavo_server.api.paced import paced_protocol
from octavo_server.api.state import Phase, ServerState
from octavo_server.api.supervisor import ENGINE_COMMAND, Supervisor
from octavo_server.api.turns import Turns, tidy_when_idle, watch_loop
from octavo_server.config import ServeConfig
from octavo_server.fetching.child import Download
from octavo_server.metrics import Metrics
from octavo_server.shared import SharedTable
from octavo_server.termination import Refused
from octavo_server.text.template import ChatTemplate, TemplateError
from octavo_server.text.tokenizer import TokenizerError, load_tokenizer

_LOG = logging.getLogger("octavo.server")
_READS_PER_TURN = 6
"""Connections that are read in one turn of the event loop, at up to 0.3 ms each."""
_LAST_WORDS_SECONDS = 2.0
"""Time in which responses may be flushed after the drain's deadline ended them."""


class _Http(uvicorn.Server):
    """uvicorn without its own signal handlers: SIGTERM means drain, not close."""

    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        yield


class Server:
    """Runs until SIGTERM or SIGINT, or until the engine can't be kept alive (Refused).

    The first API process of a server has a listener, the engine as its child, and perhaps a model to fetch before; a
    further one has a place among them, and opens the port itself once it can serve.
    """

    def __init__(
        self,
        config: ServeConfig,
        listener: socket.socket | None,
        engine_command: Sequence[str] = ENGINE_COMMAND,
        *,
        place: Place | None = None,
        download: Download | None = None,
    ) -> None:
        model = config.engine.model
        name = model.served_name or Path(model.path).name
        api = config.api
        self.config = config
        self.place = place or Place(0, SharedTable(api.api_processes))
        self.state = ServerState(config, name, Metrics(name, self.place.table), self.place.number)
        self.supervisor: Supervisor | None = None
        self.follower: Follower | None = None
        self.fleet: Fleet | None = None
        if self.place.engine is None:
            self.supervisor = Supervisor(
                config.engine, self.state, engine_command, silence_seconds=api.engine_silence_seconds,
                log_format=api.log_format,
            )  # fmt: skip
            if api.api_processes > 1:
                self.fleet = Fleet(api.api_processes, self.place.table)
        else:
            self.follower = Follower(self.place.engine, self.state)
        self.state.stage = self._stage
        self._listener = listener
        self._download = download
        self._have_model = asyncio.Event()
        self._drain = asyncio.Event()
        self._end = asyncio.Event()
        app = create_app(self.state)
        self._http = _Http(
            uvicorn.Config(
                app, log_config=None, access_log=False, lifespan="off", timeout_keep_alive=75,
                http=paced_protocol(Turns(_READS_PER_TURN)), server_header=False, ws="none",
            )
        )  # fmt: skip

    def request_stop(self) -> None:
        """What SIGTERM and SIGINT do: the first starts the drain, the second ends at once."""
        if self._drain.is_set():
            _LOG.warning("second signal: ending at once")
            self._end.set()
        self._drain.set()

    async def run(self, on_serving: Callable[[], None] = lambda: None) -> None:
        """Serves. Raises Refused when the model, its text side or the engine make that impossible."""
        loop = asyncio.get_running_loop()
        signals = (signal.SIGTERM, signal.SIGINT)
        with contextlib.suppress(ValueError, RuntimeError):  # only the main thread may
            for number in signals:
                loop.add_signal_handler(number, self.request_stop)
        engine = asyncio.create_task(self._run_engine())
        http = asyncio.create_task(self._run_http())
        text = asyncio.create_task(self._load_text())
        drain = asyncio.create_task(self._drained())
        fleet = asyncio.create_task(self._run_fleet())
        helpers = [
            asyncio.create_task(
                watch_loop(self.state.metrics.loop_delay.observe, self.state.metrics.loop_work.observe)
            ),
            asyncio.create_task(tidy_when_idle(lambda: not self.state.client.living)),
        ]
        last_words = "the server is shutting down"
        try:
            on_serving()
            await self._until_end(http, {engine, drain}, {text, fleet})
        except Refused as refused:
            last_words = f"the server ends: {refused.message}"
            raise
        finally:
            self.state.phase = Phase.ENDED
            self.state.client.fail_all(last_words)
            self._http.should_exit = True
            if not self._drain.is_set() or self._end.is_set():
                self._http.force_exit = True
            if self.fleet is not None:
                await self.fleet.end()
            if self._have_model.is_set():
                self._stop_engine()
            else:
                engine.cancel()
            for task in (drain, text, fleet, *helpers):
                task.cancel()
            await asyncio.gather(engine, drain, text, fleet, *helpers, return_exceptions=True)
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(asyncio.shield(http), 0 if self._end.is_set() else _LAST_WORDS_SECONDS)
            self._http.force_exit = True
            await asyncio.wait({http}, timeout=_LAST_WORDS_SECONDS)
            http.cancel()  # a client that reads nothing may hold its connection open for ever
            await asyncio.gather(http, return_exceptions=True)
            for number in signals:
                with contextlib.suppress(ValueError, RuntimeError):
                    loop.remove_signal_handler(number)

    def _stage(self) -> str:
        if self._download is not None and not self._have_model.is_set():
            return self._download.stage
        looked_after = self.supervisor or self.follower
        return looked_after.stage if looked_after is not None else ""

    async def _run_engine(self) -> None:
        if self._download is not None:
            path = await self._download.run()
            model = replace(self.config.engine.model, path=str(path))
            self.config = replace(self.config, engine=replace(self.config.engine, model=model))
            self.state.config = self.config
        self._have_model.set()
        if self.supervisor is not None:
            self.supervisor.config = self.config.engine
            await self.supervisor.run()
        elif self.follower is not None:
            await self.follower.run()

    def _stop_engine(self) -> None:
        for looked_after in (self.supervisor, self.follower):
            if looked_after is not None:
                looked_after.stop()

    async def _run_http(self) -> None:
        if self._listener is None:
            await self.state.settled.wait()
            self._listener = bind(self.config.api.host, self.config.api.port, shared=True)
            _LOG.info("API process %d serves", self.place.number)
        self.state.metrics.serving.set(1)
        try:
            await self._http.serve(sockets=[self._listener])
        finally:
            self.state.metrics.serving.set(0)
            if self.place.number:
                self._listener.close()

    async def _run_fleet(self) -> None:
        await self._have_model.wait()
        if self.fleet is not None and self.supervisor is not None and self._listener is not None:
            host, port = self._listener.getsockname()[:2]
            config = replace(self.config, api=replace(self.config.api, host=host, port=port))
            await self.fleet.run(config, self.supervisor.path)

    async def _until_end(
        self, http: asyncio.Task[None], others: set[asyncio.Task[None]], helpers: set[asyncio.Task[None]]
    ) -> None:
        """Returns when one of the tasks is done, in a drain one other than http; raises what any of them raises."""
        tasks = {http, *others}
        waiting = tasks | helpers
        while waiting & tasks == tasks:
            done, waiting = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
            if self._drain.is_set():
                # This process may have answered all of its own requests while the others still have some.
                tasks = tasks - {http}

    async def _load_text(self) -> None:
        await self._have_model.wait()
        path = Path(self.config.engine.model.path)
        file = Path(self.config.api.chat_template) if self.config.api.chat_template else None
        try:
            tokenizer = await asyncio.to_thread(load_tokenizer, path, chat_template_file=file)
            template = (
                ChatTemplate(tokenizer.chat_template, tokenizer.special_tokens) if tokenizer.chat_template else None
            )
        except TokenizerError as error:
            raise Refused("ModelUnreadable", str(error)) from error
        except TemplateError as error:
            raise Refused("ChatTemplateInvalid", f"{error}; give another one with --chat-template") from error
        self.state.text_ready(tokenizer, template)

    async def _drained(self) -> None:
        """Returns when the drain is over; every request then has its end."""
        await self._drain.wait()
        api = self.config.api
        self.state.draining = True
        if self.fleet is not None:
            self.fleet.drain()
        _LOG.info(
            "draining: new requests for %g s more, running ones for %g s after that; another signal ends at once",
            api.drain_notice_seconds,
            api.drain_seconds,
        )
        if await self._ended_within(api.drain_notice_seconds):
            return
        self._http.should_exit = True  # closes the listener and idle connections, waits for the others
        deadline = asyncio.get_running_loop().time() + api.drain_seconds
        while self._http.server_state.tasks or self._http.server_state.connections:
            left = deadline - asyncio.get_running_loop().time()
            if left <= 0:
                break
            if await self._ended_within(min(left, 0.05)):
                return
        while self.fleet is not None and self.fleet.process_ids and deadline > asyncio.get_running_loop().time():
            if await self._ended_within(0.05):
                return
        if self.state.client.living:
            _LOG.warning("drain time is over: %d running requests are ended", self.state.client.living)
        self.state.client.fail_all(f"the server shut down before this request was done ({api.drain_seconds:g} s)")

    async def _ended_within(self, seconds: float) -> bool:
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._end.wait(), seconds)
        return self._end.is_set()


def bind(host: str, port: int, *, shared: bool = False) -> socket.socket:
    """A listening socket, before anything expensive starts. Raises Refused for an occupied or impossible address.

    shared: further processes of this server may listen on the same port.
    """
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
    except OSError as error:
        raise Refused("AddressUnavailable", f"--host {host}: {error.strerror or error}") from error
    listener = socket.socket(family, kind, protocol)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if shared:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        listener.bind(address)
        listener.listen(2048)
    except OSError as error:
        listener.close()
        way_out = "choose another with --port" if error.errno == 98 else "choose another --host or --port"
        message = f"port {port} on {host} can't be opened: {error.strerror}; {way_out}"
        raise Refused("AddressUnavailable", message) from error
    listener.setblocking(False)
    return listener
