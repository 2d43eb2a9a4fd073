"""A TCP proxy that cuts connections while they bring bytes, for protocols whose server can't be told to."""

from __future__ import annotations

import contextlib
import socket
import threading
from urllib.parse import urlsplit


class BreakingProxy:
    """Passes connections on to a server; each number in `breaks_after` ends one after so many bytes of its answer."""

    def __init__(self, url: str) -> None:
        place = urlsplit(url)
        assert place.hostname is not None
        assert place.port is not None
        self._target = (place.hostname, place.port)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        self.breaks_after: list[int] = []
        self.broken = 0
        self.passed_bytes = 0
        self._lock = threading.Lock()
        self._threads = [threading.Thread(target=self._accept, daemon=True)]
        self._threads[0].start()

    def close(self) -> None:
        """No connection is taken any more; those that live end with their peers."""
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._threads[0].join(10)

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                server = socket.create_connection(self._target, 10)
                for job in ((self._ask, client, server), (self._answer, server, client)):
                    threading.Thread(target=job[0], args=job[1:], daemon=True).start()

    def _ask(self, client: socket.socket, server: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := client.recv(65536):
                server.sendall(data)
        with contextlib.suppress(OSError):
            server.shutdown(socket.SHUT_WR)

    def _answer(self, server: socket.socket, client: socket.socket) -> None:
        passed = 0
        with contextlib.suppress(OSError):
            while data := server.recv(65536):
                passed += len(data)
                with self._lock:
                    # Small answers pass whole: it is the content that shall break.
                    cuts = bool(self.breaks_after) and passed > self.breaks_after[0] + 65536
                    if cuts:
                        self.breaks_after.pop(0)
                        self.broken += 1
                    self.passed_bytes += len(data)
                if cuts:
                    break
                client.sendall(data)
        for end in (client, server):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
            end.close()
