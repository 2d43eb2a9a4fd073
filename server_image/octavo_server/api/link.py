"""The line to the engine process: connect, hear what it says in slices that leave the event loop free, send.

A `Follower` is the line of an API process that did not start the engine: it connects again whenever the engine is
started anew.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Protocol

from octavo_server.engine.address import socket_address
from octavo_server.engine.codec import CodecError, FrameBuffer, decode_slices, encode, frame
from octavo_server.engine.messages import Message, Outputs, Ready, StartupFailed

_LOG = logging.getLogger("octavo.engine")
_CONNECT_PAUSE_SECONDS = 0.02
_READ_BYTES = 1 << 20
_SLICE = 48
"""Outputs that are built and handed on in one turn of the event loop."""


class Listener(Protocol):
    """Who hears about the engine."""

    def engine_ready(self, ready: Ready, send: Callable[[Message], None]) -> None:
        """Requests may be sent."""

    def engine_message(self, message: Message) -> None:
        """Outputs, Finished, Stats."""

    def engine_lost(self) -> None:
        """The process is gone; a new one is being started unless the supervisor gives up."""


class Line:
    """One connection to one engine process."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    @classmethod
    async def to(cls, path: Path) -> Line:
        """Waits for the engine's socket; the caller ends the wait when the process ends."""
        while True:
            try:
                with socket_address(path) as address:
                    return cls(*await asyncio.open_unix_connection(address, limit=4 * 1024 * 1024))
            except (FileNotFoundError, ConnectionRefusedError, ConnectionResetError):
                await asyncio.sleep(_CONNECT_PAUSE_SECONDS)

    def send(self, message: Message) -> None:
        """Queues a message; a lost line drops it, and the requests it was for are sent again on the next one."""
        self._writer.write(frame(encode(message)))

    def close(self) -> None:
        """Ends the connection."""
        self._writer.close()

    async def messages(self, patience: Callable[[], float | None]) -> AsyncIterator[Message]:
        """What the engine says, until it closes the line. Raises TimeoutError after `patience()` seconds of silence,
        and CodecError for what is no message."""
        buffer = FrameBuffer()
        handed_on = 0
        while True:
            try:
                async with asyncio.timeout(patience()):
                    data = await self._reader.read(_READ_BYTES)
            except ConnectionError:
                return
            if not data:
                return
            for payload in buffer.feed(data):
                for message in decode_slices(payload, _SLICE):
                    yield message
                    handed_on += len(message.outputs) if isinstance(message, Outputs) else 1
                    if handed_on >= _SLICE:
                        handed_on = 0
                        await asyncio.sleep(0)
            await asyncio.sleep(0)


class Follower:
    """Keeps a line to an engine that the first API process looks after."""

    def __init__(self, path: Path, listener: Listener) -> None:
        self._path = path
        self._listener = listener
        self._stopping = asyncio.Event()
        self.stage = "connecting to the engine process"

    def stop(self) -> None:
        """Ends the line; `run` returns."""
        self._stopping.set()

    async def run(self) -> None:
        """Connects again and again until stopped."""
        talk = asyncio.create_task(self._talk())
        stop = asyncio.create_task(self._stopping.wait())
        try:
            await asyncio.wait({talk, stop}, return_when=asyncio.FIRST_COMPLETED)
            if talk.done():
                talk.result()
        finally:
            for task in (talk, stop):
                task.cancel()
            await asyncio.gather(talk, stop, return_exceptions=True)

    async def _talk(self) -> None:
        while True:
            line = await Line.to(self._path)
            ready = False
            try:
                async for message in line.messages(lambda: None):
                    if isinstance(message, Ready):
                        ready = True
                        self.stage = ""
                        self._listener.engine_ready(message, line.send)
                    elif ready:
                        self._listener.engine_message(message)
                    elif isinstance(message, StartupFailed):
                        break
            except CodecError as error:
                _LOG.error("the line to the engine is closed: %s", error)
            finally:
                line.close()
                self.stage = "waiting for the engine process"
                if ready:
                    self._listener.engine_lost()
            await asyncio.sleep(_CONNECT_PAUSE_SECONDS)
