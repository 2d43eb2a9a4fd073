"""The engine process: one loop that reads the socket between steps and never waits for a slow reader.

Each API process has one connection. What it is sent waits in a buffer of its own; a connection whose buffer outgrows
the limit is closed, because its reader has stopped.
"""

from __future__ import annotations

import logging
import selectors
import socket
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from octavo_server.engine.address import socket_address
from octavo_server.engine.codec import CodecError, FrameBuffer, decode, encode, frame
from octavo_server.engine.messages import Abort, Message, Ready, StartupFailed, Stats, Submit

if TYPE_CHECKING:
    # Importing the engine imports torch, which takes seconds; the socket is to be open before.
    from octavo_server.engine.core import Engine

log = logging.getLogger(__name__)

_READ_BYTES = 1 << 20
_MAX_UNSENT_BYTES = 256 << 20
_STATS_SECONDS = 0.25
_IDLE_SECONDS = 0.25
"""Longest wait while idle; also how long SIGTERM may take to be seen."""


class Connection:
    """One API process: its socket, the bytes that came and those not sent yet."""

    def __init__(self, number: int, channel: socket.socket) -> None:
        self.number = number
        self.channel = channel
        self.received = FrameBuffer()
        self.unsent = bytearray()


class Process:
    """Listens on a Unix socket; `pump` moves bytes, `serve` runs the engine until `stopped` is set."""

    def __init__(self, path: Path) -> None:
        self.stopped = False
        self._path = path
        path.unlink(missing_ok=True)
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        with socket_address(path) as address:
            self._listener.bind(address)
        path.chmod(0o600)
        self._listener.listen(64)
        self._listener.setblocking(False)
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._listener, selectors.EVENT_READ, None)
        self._connections: dict[int, Connection] = {}
        self._next_number = 0
        self._state: Message | None = None
        self._engine: Engine | None = None

    @property
    def serving(self) -> bool:
        """Whether `serve` runs and will see `stopped`."""
        return self._engine is not None

    def announce(self, message: Message) -> None:
        """Sends the state of the start-up to every connection, also to those that come later."""
        self._state = message
        for connection in list(self._connections.values()):
            self._send(connection, message)
        self.pump(0)

    def serve(self, engine: Engine, ready: Ready, before_step: Callable[[float], None] | None = None) -> None:
        """Runs steps while there is work, waits for messages while there is none."""
        self._engine = engine
        self.announce(ready)
        due, was_busy = 0.0, True
        while not self.stopped:
            self.pump(0 if engine.busy else _IDLE_SECONDS)
            if engine.busy:
                if before_step is not None:
                    before_step(time.monotonic())
                for number, message in engine.step():
                    self._send_to(number, message)
            now = time.monotonic()
            if now >= due or was_busy != engine.busy:
                self._send_stats(engine.stats(engine.take_queue_seconds()))
                due, was_busy = now + _STATS_SECONDS, engine.busy

    def close(self, message: StartupFailed | None = None, *, patience_seconds: float = 0.0) -> bool:
        """Sends a last message (waiting a while for a first listener), closes everything, removes the socket.

        Returns whether somebody was connected and was sent all.
        """
        deadline = time.monotonic() + patience_seconds
        if message is not None:
            self.announce(message)
            while not self._connections and time.monotonic() < deadline:
                self.pump(0.05)
        while any(connection.unsent for connection in self._connections.values()) and time.monotonic() < deadline:
            self.pump(0.05)
        heard = bool(self._connections) and not any(connection.unsent for connection in self._connections.values())
        for connection in list(self._connections.values()):
            self._drop(connection)
        self._selector.close()
        self._listener.close()
        self._path.unlink(missing_ok=True)
        return heard

    def pump(self, timeout_seconds: float) -> None:
        """Accepts, reads and writes what is possible; waits up to `timeout_seconds` for the first of it."""
        for key, events in self._selector.select(timeout_seconds):
            if key.data is None:
                self._accept()
                continue
            connection: Connection = key.data
            if events & selectors.EVENT_WRITE:
                self._flush(connection)
            if events & selectors.EVENT_READ and connection.number in self._connections:
                self._read(connection)

    def _accept(self) -> None:
        try:
            channel, _ = self._listener.accept()
        except BlockingIOError:
            return
        channel.setblocking(False)
        connection = Connection(self._next_number, channel)
        self._next_number += 1
        self._connections[connection.number] = connection
        self._selector.register(channel, selectors.EVENT_READ, connection)
        if self._state is not None:
            self._send(connection, self._state)
        if self._engine is not None:
            self._send(connection, self._engine.stats([]))

    def _read(self, connection: Connection) -> None:
        try:
            data = connection.channel.recv(_READ_BYTES)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self._drop(connection)
            return
        try:
            for payload in connection.received.feed(data):
                self._handle(connection, decode(payload))
        except CodecError as error:
            log.error("connection %d is closed: %s", connection.number, error)
            self._drop(connection)

    def _handle(self, connection: Connection, message: Message) -> None:
        if self._engine is None or not isinstance(message, Submit | Abort):
            raise CodecError(f"{type(message).__name__} is no message for this moment")
        if isinstance(message, Submit):
            answers = self._engine.submit(connection.number, message)
        else:
            answers = self._engine.abort(connection.number, message)
        for number, answer in answers:
            self._send_to(number, answer)

    def _send_stats(self, stats: Stats) -> None:
        for connection in list(self._connections.values()):
            self._send(connection, stats)

    def _send_to(self, number: int, message: Message) -> None:
        connection = self._connections.get(number)
        if connection is not None:
            self._send(connection, message)

    def _send(self, connection: Connection, message: Message) -> None:
        connection.unsent += frame(encode(message))
        if len(connection.unsent) > _MAX_UNSENT_BYTES:
            log.error(
                "connection %d is closed: it has not read for %d bytes", connection.number, len(connection.unsent)
            )
            self._drop(connection)
        else:
            self._flush(connection)

    def _flush(self, connection: Connection) -> None:
        try:
            while connection.unsent:
                sent = connection.channel.send(connection.unsent)
                del connection.unsent[:sent]
        except BlockingIOError:
            pass
        except OSError:
            self._drop(connection)
            return
        wanted = selectors.EVENT_READ | (selectors.EVENT_WRITE if connection.unsent else 0)
        if connection.number in self._connections:
            self._selector.modify(connection.channel, wanted, connection)

    def _drop(self, connection: Connection) -> None:
        """Closes a connection and ends its requests."""
        if self._connections.pop(connection.number, None) is None:
            return
        self._selector.unregister(connection.channel)
        connection.channel.close()
        if self._engine is not None:
            self._engine.drop_connection(connection.number)
