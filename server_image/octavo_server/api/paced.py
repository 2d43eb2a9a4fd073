"""uvicorn's HTTP protocol with a limit on how many connections are read in one turn of the event loop.

When thousands of clients send in one moment, the system reports all of their connections as readable at once, and
parsing all of that would keep the loop from everybody's streams for longer than a token takes.
"""

from __future__ import annotations

from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from octavo_server.api.turns import Turns


def paced_protocol(turns: Turns) -> type[HttpToolsProtocol]:
    """The protocol class; its connections share the turns."""

    class PacedProtocol(HttpToolsProtocol):
        """Hands bytes to the parser in its turn; until then nothing more is read from this connection."""

        def __init__(self, *arguments: Any, **settings: Any) -> None:
            super().__init__(*arguments, **settings)
            self._held: list[bytes] = []

        def data_received(self, data: bytes) -> None:
            """Bytes from the client."""
            if not self._held and turns.free():
                super().data_received(data)
                return
            if not self._held:
                self.transport.pause_reading()
                turns.later(self._in_turn)
            self._held.append(data)

        def _in_turn(self) -> bool:
            data, self._held = b"".join(self._held), []
            if self.transport.is_closing() or self.parser is None:
                return False
            if not self.flow.read_paused:
                self.transport.resume_reading()
            super().data_received(data)
            return True

    return PacedProtocol
