"""Further API processes beside the first: started, watched, started again, drained with it.

All listen on the same port and the system spreads connections over them; all talk to the one engine, which the first
process looks after. A further process opens the port once it can serve, so that nothing is sent to it before.
"""

from __future__ import annotations

import asyncio
import json
import logging
import signal
import sys
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from octavo_server.config import ServeConfig
from octavo_server.contract import ExitCode
from octavo_server.shared import SharedTable
from octavo_server.termination import Refused

_LOG = logging.getLogger("octavo.server")
WORKER_COMMAND = (sys.executable, "-m", "octavo_server.api.worker")
_MAX_CRASHES = 3
_WINDOW_SECONDS = 600.0
_PAUSE_SECONDS = 0.5
_LAST_SECONDS = 5.0


@dataclass(frozen=True)
class Place:
    """Where one API process stands among those of its server."""

    number: int
    table: SharedTable
    engine: Path | None = None
    """The engine's socket; None for the first process, which starts the engine."""


class Fleet:
    """The processes 1 … count − 1. `run` returns after `drain` or `end`, once they are gone."""

    def __init__(self, count: int, table: SharedTable, command: Sequence[str] = WORKER_COMMAND) -> None:
        self._count = count
        self._table = table
        self._command = tuple(command)
        self._living: dict[int, asyncio.subprocess.Process] = {}
        self._crashes: deque[float] = deque()
        self._stopping = False
        self._watches: list[asyncio.Task[None]] = []

    @property
    def process_ids(self) -> list[int]:
        """Of the processes that live now."""
        return [process.pid for process in self._living.values()]

    async def run(self, config: ServeConfig, engine: Path) -> None:
        """Keeps all of them alive. Raises Refused when they keep ending."""
        numbers = range(1, self._count)
        self._watches = [asyncio.create_task(self._keep(number, config, engine)) for number in numbers]
        try:
            await asyncio.gather(*self._watches)
        finally:
            self._stopping = True
            for watch in self._watches:
                watch.cancel()
            await asyncio.gather(*self._watches, return_exceptions=True)

    def drain(self) -> None:
        """Lets them do what the first SIGTERM does."""
        self._stopping = True
        self._signal(signal.SIGTERM)

    async def end(self) -> None:
        """Ends them now; their requests get an error."""
        self._stopping = True
        for _ in range(2):  # the second SIGTERM cuts a drain short
            self._signal(signal.SIGTERM)
        if self._watches:
            await asyncio.wait(self._watches, timeout=_LAST_SECONDS)
        self._signal(signal.SIGKILL)

    def _signal(self, number: signal.Signals) -> None:
        for process in list(self._living.values()):
            if process.returncode is None:
                process.send_signal(number)

    async def _keep(self, number: int, config: ServeConfig, engine: Path) -> None:
        while not self._stopping:
            process = await asyncio.create_subprocess_exec(
                *self._command,
                stdin=asyncio.subprocess.PIPE,
                pass_fds=[self._table.descriptor],
                start_new_session=True,  # a Ctrl-C in the terminal reaches the first process, which passes it on
            )
            self._living[number] = process
            try:
                assert process.stdin is not None
                task = {
                    "config": asdict(config), "number": number, "count": self._count,
                    "engine": str(engine), "table": self._table.descriptor,
                }  # fmt: skip
                process.stdin.write(json.dumps(task).encode())
                process.stdin.close()
                code = await process.wait()
            finally:
                if process.returncode is None:
                    process.kill()
                    await process.wait()
                del self._living[number]
            if not self._stopping:
                self._count_crash(number, code)
                await asyncio.sleep(_PAUSE_SECONDS)

    def _count_crash(self, number: int, code: int) -> None:
        self._table.clear_gauges(number)
        now = time.monotonic()
        self._crashes.append(now)
        while self._crashes[0] < now - _WINDOW_SECONDS:
            self._crashes.popleft()
        what = f"API process {number} ended with code {code}"
        if len(self._crashes) > _MAX_CRASHES:
            raise Refused("ApiProcessCrashed", f"{what}; the limit is {_MAX_CRASHES} restarts", ExitCode.FAILED)
        _LOG.error("%s; starting it again (%d of %d)", what, len(self._crashes), _MAX_CRASHES)
