"""uvicorn's HTTP protocol with a limit on how many connections are read in one turn of the event loop.

When thousands of clients send in one moment, the system reports all of their connections as readable at once, and
parsing all of that would keep the loop from everybody's streams for longer than a token takes. Also here, because
uvicorn has no limits of its own: how long the head of a request may be, and how long a request may take to arrive.
"""

from __future__ import annotations

from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from octavo_server.api.slow import HEAD_SECONDS, PAUSE_SECONDS, Patience
from octavo_server.api.turns import Turns

_MAX_HELD_BYTES = 64 * 1024
MAX_HEAD_BYTES = 64 * 1024
"""Request line and headers; bodies have a limit of their own (middleware.py)."""


def paced_protocol(
    turns: Turns, head_seconds: float = HEAD_SECONDS, pause_seconds: float = PAUSE_SECONDS
) -> type[HttpToolsProtocol]:
    """The protocol class; its connections share the turns. A connection is closed when a request's head takes longer
    than `head_seconds` to arrive, or its body pauses for longer than `pause_seconds`."""

    class PacedProtocol(HttpToolsProtocol):
        """Hands bytes to the parser in its turn; until then they are kept, and little more is read."""

        def __init__(self, *arguments: Any, **settings: Any) -> None:
            super().__init__(*arguments, **settings)
            self._held: list[bytes] = []
            self._held_bytes = 0
            self._paused = False
            self._head_bytes = 0
            self._in_head = True
            self._patience = Patience(self.loop, self._wait_in_vain)

        def connection_made(self, transport: Any) -> None:
            """A new connection, whose first request is awaited."""
            super().connection_made(transport)
            self._patience.wait(head_seconds)

        def connection_lost(self, exc: Exception | None) -> None:
            """The connection is gone. What refers to it in a circle is let go: else the collector of cycles had to
            find each ended connection with all that hangs on it."""
            self._patience.end()
            super().connection_lost(exc)
            self.cycle = None  # type: ignore[assignment]
            self.pipeline.clear()

        def _wait_in_vain(self) -> None:
            if self.transport.is_closing():
                return
            if self._held or self.flow.read_paused:
                self._patience.wait(pause_seconds)  # the next bytes wait for this server, not for the client
            elif self._in_head and not self._head_bytes:
                self.transport.close()
            elif self._in_head:
                self.send_408_response(f"The head of the request did not arrive within {head_seconds:g} s.")
            else:
                self.send_408_response(f"No byte of the request's body arrived for {pause_seconds:g} s.")

        def send_408_response(self, message: str) -> None:
            """The request came too slowly. Nothing is said when the answer has begun already."""
            if self._in_head or not self.cycle.response_started:
                content = message.encode()
                self.transport.write(
                    b"HTTP/1.1 408 Request Timeout\r\ncontent-type: text/plain; charset=utf-8\r\n"
                    b"content-length: %d\r\nconnection: close\r\n\r\n%b" % (len(content), content)
                )
            self.transport.close()

        def data_received(self, data: bytes) -> None:
            """Bytes from the client."""
            if not self._held and turns.free():
                self._parse(data)
                return
            if not self._held:
                turns.later(self._in_turn)
            self._held.append(data)
            self._held_bytes += len(data)
            if self._held_bytes > _MAX_HELD_BYTES and not self._paused:
                self._paused = True
                self.transport.pause_reading()

        def _in_turn(self) -> bool:
            data, self._held, self._held_bytes = b"".join(self._held), [], 0
            if self.transport.is_closing() or self.parser is None:
                return False
            if self._paused and not self.flow.read_paused:
                self.transport.resume_reading()
            self._paused = False
            self._parse(data)
            return True

        def _parse(self, data: bytes) -> None:
            super().data_received(data)
            if self._in_head:
                self._head_bytes += len(data)
                if self._head_bytes > MAX_HEAD_BYTES and not self.transport.is_closing():
                    self.send_400_response(f"The head of the request is longer than {MAX_HEAD_BYTES} bytes.")

        def on_message_begin(self) -> None:
            """A new request on this connection."""
            self._in_head, self._head_bytes = True, 0
            self._patience.wait(head_seconds)
            super().on_message_begin()

        def on_headers_complete(self) -> None:
            """The head is read; a body may follow."""
            self._in_head, self._head_bytes = False, 0
            self._patience.wait(pause_seconds)
            super().on_headers_complete()

        def on_body(self, body: bytes) -> None:
            """A part of the body."""
            self._patience.wait(pause_seconds)
            super().on_body(body)

        def on_message_complete(self) -> None:
            """The request is here in full."""
            self._patience.stop()
            super().on_message_complete()

    return PacedProtocol
