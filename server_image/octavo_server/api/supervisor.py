"""The engine process as a child: started, connected, watched, started again when it crashes."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import shutil
import signal
import sys
import tempfile
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import asdict
from enum import StrEnum
from pathlib import Path

from octavo_server.api.link import Line, Listener
from octavo_server.config import EngineConfig
from octavo_server.contract import ExitCode
from octavo_server.engine.messages import Message, Progress, Ready, StartupFailed
from octavo_server.logs import FORMAT_VARIABLE
from octavo_server.termination import Refused

_LOG = logging.getLogger("octavo.engine")
MAX_CRASHES = 3
CRASH_WINDOW_SECONDS = 600.0
_LOGGED_PERCENT = 25
ENGINE_COMMAND = (sys.executable, "-m", "octavo_server.engine")


class EngineState(StrEnum):
    """Where the engine stands."""

    STARTING = "Starting"
    READY = "Ready"
    RESTARTING = "EngineRestarting"
    GIVEN_UP = "EngineGivenUp"


class Supervisor:
    """Keeps one engine process alive. `run` returns after `stop`, and raises Refused when there is no way on."""

    def __init__(
        self,
        config: EngineConfig,
        listener: Listener,
        command: Sequence[str] = ENGINE_COMMAND,
        *,
        silence_seconds: float = 120.0,
        log_format: str = "Text",
    ) -> None:
        self.config = config
        self._silence_seconds = silence_seconds
        self._listener = listener
        self._command = tuple(command)
        self._environment = {**os.environ, FORMAT_VARIABLE: log_format}
        self._folder = Path(tempfile.mkdtemp(prefix="octavo-"))
        self.path = self._folder / "engine"
        """The engine's socket: the same for each process that is started, so that other API processes find it."""
        self._stopping = asyncio.Event()
        self._crashes: deque[float] = deque()
        self.state = EngineState.STARTING
        self.stage = "starting the engine process"
        self.process_id: int | None = None
        self._logged = ("", -1)

    def stop(self) -> None:
        """Ends the engine; `run` returns once it is gone."""
        self._stopping.set()

    async def run(self) -> None:
        """Starts the engine again and again until stopped. Raises Refused: reason of the engine, or EngineCrashed."""
        try:
            await self._lives()
        finally:
            shutil.rmtree(self._folder, ignore_errors=True)

    async def _lives(self) -> None:
        was_ready = False
        while not self._stopping.is_set():
            failure = await self._life()
            if self._stopping.is_set():
                return
            lived = self.state is EngineState.READY
            was_ready |= lived
            self.state = EngineState.RESTARTING if was_ready else EngineState.GIVEN_UP
            self.stage = "starting the engine process again"
            if lived:
                self._listener.engine_lost()
            if not was_ready:
                if isinstance(failure, StartupFailed):
                    raise Refused(failure.reason, failure.message)
                raise Refused("EngineCrashed", f"{failure}, before it was ready; see its log above", ExitCode.FAILED)
            self._count_crash(failure if isinstance(failure, str) else f"{failure.reason}: {failure.message}")

    def _count_crash(self, what: str) -> None:
        now = time.monotonic()
        self._crashes.append(now)
        while self._crashes[0] < now - CRASH_WINDOW_SECONDS:
            self._crashes.popleft()
        if len(self._crashes) > MAX_CRASHES:
            self.state = EngineState.GIVEN_UP
            raise Refused(
                "EngineCrashed",
                f"the engine ended {len(self._crashes)} times in {CRASH_WINDOW_SECONDS / 60:.0f} minutes, "
                f"the limit is {MAX_CRASHES} restarts; last: {what}",
                ExitCode.FAILED,
            )
        _LOG.error("%s; starting it again (%d of %d)", what, len(self._crashes), MAX_CRASHES)

    async def _life(self) -> StartupFailed | str:
        """One engine process from start to end; returns what ended it."""
        self.path.unlink(missing_ok=True)
        process = await asyncio.create_subprocess_exec(
            *self._command,
            "--socket",
            str(self.path),
            stdin=asyncio.subprocess.PIPE,
            env=self._environment,
            start_new_session=True,  # a Ctrl-C in the terminal starts a drain here and must not end the engine
        )
        self.process_id = process.pid
        talk = asyncio.create_task(self._converse(process))
        ended = asyncio.create_task(process.wait())
        stop = asyncio.create_task(self._stopping.wait())
        try:
            await asyncio.wait({talk, ended, stop}, return_when=asyncio.FIRST_COMPLETED)
            if talk.done() or ended.done():
                # The end of the process and the last words on the socket race; let the other one come too.
                await asyncio.wait({talk, ended}, timeout=2.0)
        finally:
            if process.returncode is None:
                process.kill()
            code = await process.wait()
            for task in (talk, ended, stop):
                task.cancel()
            await asyncio.gather(talk, ended, stop, return_exceptions=True)
            self.process_id = None
        if not talk.cancelled():
            error = talk.exception()
            if error is not None:
                return f"the connection to the engine broke: {type(error).__name__}: {error}"
            if (failure := talk.result()) is not None:
                return failure
        return f"the engine process ended with {_ending(code)}"

    async def _converse(self, process: asyncio.subprocess.Process) -> StartupFailed | str | None:
        """Hears the engine until it ends; returns why where the engine said so or went silent."""
        assert process.stdin is not None
        process.stdin.write(json.dumps(asdict(self.config)).encode())
        process.stdin.close()
        line = await Line.to(self.path)
        try:
            async for message in line.messages(self._patience):
                if isinstance(message, StartupFailed):
                    return message
                self._hear(message, line)
        except TimeoutError:
            return f"the engine process hangs: it reported nothing for {self._silence_seconds:g} s"
        finally:
            line.close()
        return None

    def _patience(self) -> float | None:
        # Loading a model from slow storage may take any time; a kubelet's startup probe limits that.
        return self._silence_seconds if self.state is EngineState.READY else None

    def _hear(self, message: Message, line: Line) -> None:
        if isinstance(message, Progress):
            stage = f"{message.stage} ({message.percent} %)"
            step = (message.stage, message.percent // _LOGGED_PERCENT)
            if step != self._logged:
                _LOG.info("engine: %s", stage)
            self.stage, self._logged = stage, step
        elif isinstance(message, Ready):
            self.state = EngineState.READY
            self.stage = ""
            self._listener.engine_ready(message, line.send)
        else:
            self._listener.engine_message(message)


def _ending(code: int) -> str:
    return f"signal {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
