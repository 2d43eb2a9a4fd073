"""A download in a process of its own, so that the server answers /health meanwhile and can end at any moment."""

from __future__ import annotations

import asyncio
import json
import os
import sys
import tempfile
from pathlib import Path

from octavo_server.config import FetchConfig
from octavo_server.contract import TERMINATION_LOG_VARIABLE, ExitCode
from octavo_server.logs import FORMAT_VARIABLE
from octavo_server.termination import Refused

_END_SECONDS = 5.0
_LOGGER = "octavo.fetch"


class Download:
    """Runs `octavo-server fetch`; `stage` says how far it is."""

    def __init__(self, source: FetchConfig, log_format: str = "Text") -> None:
        self._source = source
        self._environment = {**os.environ, FORMAT_VARIABLE: log_format}
        self.stage = f"fetching {source.model}"

    async def run(self) -> Path:
        """The model's place on this machine. Raises Refused with the command's reason. May be cancelled."""
        with tempfile.TemporaryDirectory(prefix="octavo-fetch-") as folder:
            reason = Path(folder) / "reason"
            process = await asyncio.create_subprocess_exec(
                *self._command(),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.PIPE,
                env={**self._environment, TERMINATION_LOG_VARIABLE: str(reason)},
                start_new_session=True,
            )
            assert process.stdout is not None
            assert process.stderr is not None
            try:
                found, last = await asyncio.gather(process.stdout.read(), self._follow(process.stderr))
                code = await process.wait()
            finally:
                if process.returncode is None:
                    process.terminate()
                    try:
                        await asyncio.wait_for(process.wait(), _END_SECONDS)
                    except TimeoutError:
                        process.kill()
                        await process.wait()
            if code == 0:
                return Path(json.loads(found)["path"])
            told = json.loads(reason.read_text(encoding="utf-8")) if reason.is_file() else {}
            message = str(told.get("message") or last or f"fetch ended with code {code}")
            exit_code = ExitCode.REFUSED if code == int(ExitCode.REFUSED) else ExitCode.FAILED
            raise Refused(str(told.get("reason") or "FetchFailed"), message, exit_code)

    def _command(self) -> list[str]:
        source = self._source
        command = [sys.executable, "-m", "octavo_server", "fetch", "--model", source.model, "--format", source.format]
        command += ["--revision", source.revision] if source.revision else []
        command += ["--cache", source.cache] if source.cache else []
        command += ["--connections", str(source.connections)]
        return [*command, "--max-length", str(source.max_length_tokens)]

    async def _follow(self, lines: asyncio.StreamReader) -> str:
        """Passes the command's log on and keeps its last word as the stage."""
        last = ""
        async for raw in lines:
            last = raw.decode("utf-8", "replace").rstrip()
            print(last, file=sys.stderr, flush=True)
            self.stage = _progress(last) or self.stage
        return last


def _progress(line: str) -> str:
    """What a line of the command's log, in either form, says about the download; empty for other lines."""
    if not line.startswith("{"):
        return line.partition(f"{_LOGGER}: ")[2]
    try:
        entry = json.loads(line)
    except ValueError:
        return ""
    return str(entry.get("message", "")) if entry.get("logger") == _LOGGER else ""
