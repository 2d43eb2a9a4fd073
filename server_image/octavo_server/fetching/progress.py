"""How far a fetch is: in the log every few seconds, and over HTTP for the operator, which shows it in status."""

from __future__ import annotations

import json
import logging
import threading
import time
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from octavo_server.contract import PROGRESS_PATH
from octavo_server.termination import Refused

_LOG = logging.getLogger("octavo.fetch")
LOG_SECONDS = 5.0


class Progress:
    """Bytes that are here, of all; safe to use from several threads."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._state, self._total, self._present = "Starting", 0, 0
        self._began, self._fetched = clock(), 0
        self._interruptions = 0

    def begin(self, total_bytes: int, present_bytes: int) -> None:
        """The size of the model is known, and what of it is here already."""
        with self._lock:
            self._state, self._total, self._present = "Fetching", total_bytes, present_bytes
            self._began = self._clock()

    def add(self, size_bytes: int, *, fetched: bool = True) -> None:
        """More bytes are here (fewer, when a broken file is thrown away); not `fetched`: another process brought it."""
        with self._lock:
            self._present += size_bytes
            self._fetched += max(0, size_bytes) if fetched else 0

    def say(self, state: str) -> None:
        """Fetching, Waiting (for another process), Verifying, Complete."""
        with self._lock:
            self._state = state

    def interrupted(self) -> None:
        """A connection broke."""
        with self._lock:
            self._interruptions += 1

    def report(self) -> dict[str, Any]:
        """The JSON object of the wire contract."""
        with self._lock:
            seconds = max(1e-3, self._clock() - self._began)
            return {
                "state": self._state,
                "presentBytes": self._present,
                "totalBytes": self._total,
                "bytesPerSecond": int(self._fetched / seconds),
                "interruptions": self._interruptions,
            }

    def sentence(self) -> str:
        """`37 % of 15.2 GiB, 112 MiB/s, 1 min 27 s left`."""
        return told(self.report())


def told(report: dict[str, Any]) -> str:
    """A report in words."""
    total, present, speed = report["totalBytes"], report["presentBytes"], report["bytesPerSecond"]
    if not total:
        return str(report["state"]).lower()
    words = f"{100 * present // total} % of {size_in_words(total)}"
    if report["state"] == "Waiting":
        return f"{words}, another process fetches the rest"
    if report["state"] == "Verifying" and present >= total:
        return f"{words}, verifying"
    if speed and present < total:
        words += f", {size_in_words(speed)}/s, {_duration((total - present) / speed)} left"
    if report["interruptions"]:
        words += f", resumed {report['interruptions']} times"
    return words


def size_in_words(size_bytes: float) -> str:
    """`15.2 GiB`, `512 MiB`, `3 KiB`."""
    for unit, scale, digits in (("GiB", 2**30, 1), ("MiB", 2**20, 0), ("KiB", 2**10, 0)):
        if size_bytes >= scale:
            return f"{size_bytes / scale:.{digits}f} {unit}"
    return f"{size_bytes:.0f} bytes"


def _duration(seconds: float) -> str:
    whole = int(seconds) + 1
    return f"{whole} s" if whole < 60 else f"{whole // 60} min {whole % 60} s"


class ProgressLog:
    """A line in the log every few seconds while it is entered."""

    def __init__(self, progress: Progress, location: str) -> None:
        self._progress, self._location = progress, location
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._stop.wait(LOG_SECONDS):
            _LOG.info("fetching %s: %s", self._location, self._progress.sentence())


class ProgressServer:
    """Answers GET /progress while it is entered; an empty address serves nobody."""

    def __init__(self, progress: Progress, address: str) -> None:
        """`address` is HOST:PORT. Raises Refused when it can't be listened on."""
        self._server: ThreadingHTTPServer | None = None
        if not address:
            return
        host, _, port = address.rpartition(":")
        if not port.isdigit():
            raise Refused("InvalidFlag", f"--progress-address {address}: write HOST:PORT")
        try:
            self._server = ThreadingHTTPServer((host.strip("[]") or "127.0.0.1", int(port)), _handler(progress))
        except OSError as error:
            raise Refused("PortInUse", f"--progress-address {address}: {error.strerror or error}") from error
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.1}, daemon=True)

    def __enter__(self) -> ProgressServer:
        if self._server is not None:
            self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._server is not None:
            self._server.shutdown()
            self._thread.join()
            self._server.server_close()

    @property
    def port(self) -> int:
        """The port it listens on; 0 when it serves nobody."""
        return self._server.server_address[1] if self._server is not None else 0


def _handler(progress: Progress) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        timeout = 10

        def log_message(self, *_: Any) -> None:
            """No line per request: the operator asks every few seconds."""

        def do_GET(self) -> None:
            known = self.path.partition("?")[0] == PROGRESS_PATH
            body = json.dumps(progress.report()).encode() if known else b""
            self.send_response(200 if known else 404)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

    return Handler
