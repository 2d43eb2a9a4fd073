"""Fetches the files of a model into a store: several pieces at once, resumed after a break, verified by checksum.

A file is cut into pieces. Workers take them one by one and write at their place in the part file; a finished piece is
noted beside it, so that a new process goes on where the last one was. Within a piece a broken connection is taken up
again at the byte it broke at. The number of breaks is not limited, only that of breaks in a row without a new byte.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import logging
import os
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from octavo_server.contract import CheckReason
from octavo_server.fetching.origin import Interrupted, Origin, RemoteFile, size_bytes
from octavo_server.fetching.progress import Progress, ProgressLog, size_in_words
from octavo_server.fetching.store import Store
from octavo_server.termination import Refused

_LOG = logging.getLogger("octavo.fetch")


@dataclass(frozen=True)
class TransferSettings:
    """How files are fetched."""

    workers: int = 4
    piece_bytes: int = 64 * 1024 * 1024
    fruitless_tries: int = 6
    """Breaks in a row without a new byte after which the source counts as unreachable."""
    first_wait_seconds: float = 0.5
    longest_wait_seconds: float = 30.0


def fetch_files(
    origin: Origin, store: Store, folder: Path, progress: Progress, settings: TransferSettings | None = None
) -> Path:
    """The model's folder (its GGUF file, when it is one), complete. Raises Refused with a reason of the contract."""
    with _reasons(origin, store):
        store.require_space(origin.files, origin.location)
        present = sum(file.size_bytes for file in origin.files if store.has(file))
        progress.begin(size_bytes(origin.files), present)
        with ProgressLog(progress, origin.location):
            for number, file in enumerate(origin.files, 1):
                how = _Fetch(origin, store, file, progress, settings or TransferSettings()).run()
                count = len(origin.files)
                _LOG.info("%s %s (%d of %d files, %s)", how, file.name, number, count, progress.sentence())
        store.link(origin.files, folder)
    progress.say("Complete")
    first = origin.files[0].name
    return folder / first if first.endswith(".gguf") else folder


class _Fetch:
    """One file on its way into the store."""

    def __init__(
        self, origin: Origin, store: Store, file: RemoteFile, progress: Progress, settings: TransferSettings
    ) -> None:
        self._origin, self._store, self._file = origin, store, file
        self._progress, self._settings = progress, settings
        self._stop = threading.Event()

    def run(self) -> str:
        """`fetched`, or `found` when it was there."""
        store, file = self._store, self._file
        if store.has(file):
            return "found"
        store.prepare(file)
        with store.lock(file, self._waits):
            self._progress.say("Fetching")
            if store.has(file):
                self._progress.add(file.size_bytes, fetched=False)
                return "found"
            for attempt in (1, 2):
                self._fetch()
                self._progress.say("Verifying")
                found = checksum_of(store.part(file), file.checksum) if file.checksum else ""
                if found == file.checksum:
                    store.keep(file)
                    self._progress.say("Fetching")
                    return "fetched" if file.checksum else "fetched, without a checksum from the source,"
                store.discard(file)
                self._progress.add(-file.size_bytes)
                told = f"{file.name} arrived with {found}, the source says {file.checksum}"
                _LOG.warning("%s: thrown away (attempt %d of 2)", told, attempt)
        raise Refused(CheckReason.MODEL_UNREADABLE, f"model {self._origin.location}: {told}, twice; try another mirror")

    def _waits(self) -> None:
        _LOG.info("%s is being fetched by another process; waiting for it", self._file.name)
        self._progress.say("Waiting")

    def _fetch(self) -> None:
        file, size = self._file, self._settings.piece_bytes
        count = max(1, -(-file.size_bytes // size))
        part = os.open(self._store.part(file), os.O_CREAT | os.O_RDWR, 0o644)
        done = os.open(self._store.done(file), os.O_CREAT | os.O_RDWR, 0o644)
        try:
            finished = os.pread(done, count, 0) if os.fstat(part).st_size == file.size_bytes else b""
            if not finished:
                os.ftruncate(part, file.size_bytes)
                os.ftruncate(done, 0)
            # A byte that is neither was cut off by a full disk, or is from another size of pieces.
            if os.fstat(done).st_size != count:
                os.ftruncate(done, count)
            here = [index for index in range(count) if finished[index : index + 1] == _mark(size)]
            kept = sum(min(size, file.size_bytes - index * size) for index in here)
            if kept:
                _LOG.info("%s: %s of it are here already", file.name, size_in_words(kept))
                self._progress.add(kept, fetched=False)

            def fetch_piece(index: int) -> None:
                try:
                    if not self._stop.is_set():
                        self._piece(part, index * size, min(size, file.size_bytes - index * size))
                except BaseException:
                    # The first failure is the one to tell; the other workers end at their next bytes.
                    self._stop.set()
                    raise
                if not self._stop.is_set():
                    os.fdatasync(part)
                    os.pwrite(done, _mark(size), index)

            with ThreadPoolExecutor(min(self._settings.workers, count)) as pool:
                for _ in pool.map(fetch_piece, [index for index in range(count) if index not in here]):
                    pass
        finally:
            os.close(part)
            os.close(done)

    def _piece(self, part: int, start: int, size: int) -> None:
        have, tries, settings = 0, 0, self._settings
        while have < size:
            before = have
            try:
                with self._origin.open(self._file, start + have, size - have) as pieces:
                    for piece in pieces:
                        if self._stop.is_set():
                            return
                        piece = piece[: size - have]
                        os.pwrite(part, piece, start + have)
                        have += len(piece)
                        self._progress.add(len(piece))
                if have < size:
                    raise Interrupted("the connection ended early")
            except Interrupted as error:
                tries = 0 if have > before else tries + 1
                if tries >= settings.fruitless_tries:
                    raise Refused(
                        CheckReason.SOURCE_UNREACHABLE,
                        f"model {self._origin.location}: {self._file.name} breaks off at byte {start + have}, "
                        f"{tries} times in a row: {error}; what was fetched is kept",
                    ) from error
                self._progress.interrupted()
                wait = max(error.wait_seconds, settings.first_wait_seconds * 2 ** max(0, tries - 1))
                _LOG.warning("%s: %s at byte %d; going on there", self._file.name, error, start + have)
                self._stop.wait(min(wait, settings.longest_wait_seconds))
                if self._stop.is_set():
                    return


def _mark(piece_bytes: int) -> bytes:
    """Marks a finished piece; another size of pieces has another mark, so that none is taken for finished."""
    return bytes([1 + piece_bytes.bit_length()])


def checksum_of(path: Path, like: str) -> str:
    """The checksum of a file, written as `like` is: `sha256:…`, `md5:…` or `git-sha1:…` (git's name of it)."""
    kind = like.partition(":")[0]
    makers: dict[str, Callable[[], hashlib._Hash]] = {
        "sha256": hashlib.sha256,
        "md5": lambda: hashlib.md5(usedforsecurity=False),
        "git-sha1": lambda: hashlib.sha1(b"blob %d\0" % path.stat().st_size, usedforsecurity=False),
    }
    with path.open("rb") as file:
        digest = makers[kind]()
        while block := file.read(4 * 1024 * 1024):
            digest.update(block)
    return f"{kind}:{digest.hexdigest()}"


@contextlib.contextmanager
def _reasons(origin: Origin, store: Store) -> Iterator[None]:
    """Faults of the volume as reasons of the wire contract."""
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            message = f"model {origin.location}: no space left on {store.folder} while fetching"
            raise Refused(CheckReason.NO_SPACE_LEFT, message) from error
        where = error.filename or store.folder
        message = f"model {origin.location}: {where} can't be written: {error.strerror}"
        raise Refused(CheckReason.MODEL_UNREADABLE, message) from error
