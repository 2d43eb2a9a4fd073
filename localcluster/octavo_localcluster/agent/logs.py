"""Container logs: where they lie, how lines are chosen, how they are followed."""

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

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
    position, inode, lines = await asyncio.to_thread(_stored, path)
    piece = renderer.feed(choose(lines, options))
    while True:
        if left is not None:
            piece = piece[:left]
            left -= len(piece)
        if piece:
            yield piece
        if not options.follow or left == 0:
            return
        ended = running is None or running.is_set()
        data, position, inode = _more(path, position, inode)
        piece = renderer.feed(parse_lines(data))
        if not piece:
            if ended:
                return
            await asyncio.sleep(FOLLOW_POLL_SECONDS)


def _stored(path: Path) -> tuple[int, int, list[Line]]:
    """Bytes of whole lines in the present file, its inode, and all stored lines up to there."""
    lines: list[Line] = []
    rotated = path.with_name(path.name + ".1")
    for part in (rotated, path):
        try:
            data = part.read_bytes()
        except FileNotFoundError:
            data = b""
        position = data.rfind(b"\n") + 1
        lines += parse_lines(data[:position])
    return position, path.stat().st_ino if path.exists() else 0, lines


def _more(path: Path, position: int, inode: int) -> tuple[bytes, int, int]:
    """New whole lines since a position; a rotation is followed through the rotated file."""
    try:
        with open(path, "rb") as file:
            now = os.fstat(file.fileno()).st_ino
            if inode and now != inode:
                rotated = path.with_name(path.name + ".1")
                rest = rotated.read_bytes()[position:] if rotated.exists() else b""
                return rest[: rest.rfind(b"\n") + 1], 0, now
            file.seek(position)
            data = file.read()
    except FileNotFoundError:
        return b"", position, inode
    data = data[: data.rfind(b"\n") + 1]
    return data, position + len(data), now


def last_lines(path: Path, *, lines: int = 80, limit_bytes: int = 2048) -> str:
    """The end of a log, as FallbackToLogsOnError takes it for the termination message."""
    chosen = choose(_stored(path)[2], LogOptions(tail_lines=lines))
    text = _Renderer(LogOptions()).feed(chosen)
    return text[-limit_bytes:].decode(errors="replace")
