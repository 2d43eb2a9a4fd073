"""Container logs: where they lie, how lines are chosen, how they are followed."""

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import BinaryIO

FOLLOW_POLL_SECONDS = 0.1
KEPT_ATTEMPTS = 2


@dataclass(frozen=True)
class LogOptions:
    """What a reader asks for, as PodLogOptions; `since` in seconds since the epoch."""

    follow: bool = False
    previous: bool = False
    timestamps: bool = False
    tail_lines: int | None = None
    limit_bytes: int | None = None
    since: float | None = None


@dataclass(frozen=True)
class Line:
    """One stored line; `whole` is False when the program's line goes on in the next one."""

    stamp: str
    text: bytes
    whole: bool


def parse_line(raw: bytes) -> Line:
    """Read one line of a log file, without its line end. Raises ValueError when it is damaged."""
    stamp, _, flag, text = raw.split(b" ", 3)
    return Line(stamp.decode(), text, flag == b"F")


def render(line: Line, options: LogOptions, *, start: bool) -> bytes:
    """What the reader gets; `start` tells that this begins a line of the program."""
    prefix = line.stamp.encode() + b" " if options.timestamps and start else b""
    return prefix + line.text + (b"\n" if line.whole else b"")


def epoch(stamp: str) -> float:
    """Seconds since the epoch of an RFC 3339 time with nanoseconds."""
    whole, _, rest = stamp.rstrip("Z").partition(".")
    return datetime.fromisoformat(whole + "+00:00").timestamp() + float("0." + (rest or "0"))


def parse_lines(data: bytes) -> list[Line]:
    """All undamaged lines of a part of a log."""
    found = []
    for raw in data.split(b"\n"):
        with contextlib.suppress(ValueError):
            found.append(parse_line(raw))
    return found


def choose(lines: list[Line], options: LogOptions) -> list[Line]:
    """Apply sinceTime and tailLines."""
    if options.since is not None:
        lines = [line for line in lines if epoch(line.stamp) >= options.since]
    if options.tail_lines is not None:
        wanted, index = options.tail_lines, len(lines)
        while index > 0 and wanted >= 0:
            if lines[index - 1].whole:
                wanted -= 1
            if wanted < 0:
                break
            index -= 1
        lines = lines[index:] if options.tail_lines > 0 else []
    return lines


class _Renderer:
    def __init__(self, options: LogOptions) -> None:
        self.options = options
        self.start = True

    def feed(self, lines: list[Line]) -> bytes:
        out = []
        for line in lines:
            out.append(render(line, self.options, start=self.start))
            self.start = line.whole
        return b"".join(out)


async def read_log(path: Path, options: LogOptions, running: asyncio.Event | None) -> AsyncIterator[bytes]:
    """Pieces of a log. With follow it goes on until `running`, an event that is set at the container's end, is set."""
    renderer = _Renderer(options)
    left = options.limit_bytes
    with _Tail(path) as tail:
        piece = renderer.feed(choose(await asyncio.to_thread(tail.stored), options))
        while True:
            if left is not None:
                piece = piece[:left]
                left -= len(piece)
            if piece:
                yield piece
            if not options.follow or left == 0:
                return
            ended = running is None or running.is_set()
            piece = renderer.feed(tail.more())
            if not piece:
                if ended:
                    return
                await asyncio.sleep(FOLLOW_POLL_SECONDS)


class _Tail:
    """Reads whole lines of a log as they come; keeps the file open, so that a deleted pod's last lines are read too."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file: BinaryIO | None = None
        self._open()

    def __enter__(self) -> "_Tail":
        return self

    def __exit__(self, *_: object) -> None:
        if self._file is not None:
            self._file.close()

    def _open(self) -> None:
        with contextlib.suppress(FileNotFoundError):
            self._file = open(self.path, "rb")  # noqa: SIM115 - closed by __exit__

    def stored(self) -> list[Line]:
        """All lines there are, the rotated part first."""
        rotated = self.path.with_name(self.path.name + ".1")
        lines = []
        with contextlib.suppress(FileNotFoundError):
            lines = parse_lines(rotated.read_bytes())
        return lines + self.more()

    def more(self) -> list[Line]:
        """Lines since the last call."""
        lines = self._read()
        if not lines and self._rotated():
            # What the writer added between our read and its rename is still in the old file.
            lines = self._read()
            assert self._file is not None
            self._file.close()
            self._open()
        return lines

    def _read(self) -> list[Line]:
        if self._file is None:
            self._open()
            if self._file is None:
                return []
        position = self._file.tell()
        data = self._file.read()
        whole = data.rfind(b"\n") + 1
        self._file.seek(position + whole)
        return parse_lines(data[:whole])

    def _rotated(self) -> bool:
        try:
            return self._file is not None and os.fstat(self._file.fileno()).st_ino != self.path.stat().st_ino
        except FileNotFoundError:
            return False


def last_lines(path: Path, *, lines: int = 80, limit_bytes: int = 2048) -> str:
    """The end of a log, as FallbackToLogsOnError takes it for the termination message."""
    with _Tail(path) as tail:
        chosen = choose(tail.stored(), LogOptions(tail_lines=lines))
    text = _Renderer(LogOptions()).feed(chosen)
    return text[-limit_bytes:].decode(errors="replace")
