"""A folder of files by content: fetched once, used by every model, pod and revision that holds the same bytes.

    blobs/IDENTITY           complete, verified, read-only
    parts/IDENTITY           being fetched, of full length; parts/IDENTITY.done has one byte per finished piece
    locks/IDENTITY           held (flock) by the process that fetches this file
    .../MODEL/name           the model's folder: links to blobs

The lock is the kernel's: it ends with its process, also on a shared volume (NFS 4, CephFS), and leaves nothing stale.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import logging
import os
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from octavo_server.contract import CheckReason
from octavo_server.fetching.origin import RemoteFile
from octavo_server.termination import Refused

_LOG = logging.getLogger("octavo.fetch")
_POLL_SECONDS = 0.2
_NO_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.ENOTSUP, errno.EINVAL)
_GIB = 1024**3


class Store:
    """The folder; its parts are made when first written."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def blob(self, file: RemoteFile) -> Path:
        """Where the complete file is or will be."""
        return self.folder / "blobs" / file.identity

    def part(self, file: RemoteFile) -> Path:
        """Where it grows."""
        return self.folder / "parts" / file.identity

    def done(self, file: RemoteFile) -> Path:
        """Which pieces of the part are finished, one byte each."""
        return self.folder / "parts" / f"{file.identity}.done"

    def has(self, file: RemoteFile) -> bool:
        """Whether the file is here, complete."""
        try:
            return self.blob(file).stat().st_size == file.size_bytes
        except OSError:
            return False

    def prepare(self, file: RemoteFile) -> None:
        """Makes the folders for a file."""
        for folder in ("blobs", "parts", "locks"):
            (self.folder / folder).mkdir(parents=True, exist_ok=True)

    def keep(self, file: RemoteFile) -> None:
        """The part is complete and verified: it becomes the blob, in one step that no reader sees half done."""
        part = self.part(file)
        part.chmod(0o444)
        part.replace(self.blob(file))
        self.done(file).unlink(missing_ok=True)

    def discard(self, file: RemoteFile) -> None:
        """Forget what was fetched of a file."""
        self.part(file).unlink(missing_ok=True)
        self.done(file).unlink(missing_ok=True)

    @contextlib.contextmanager
    def lock(self, file: RemoteFile, waiting: Callable[[], None]) -> Iterator[None]:
        """One process at a time fetches a file; `waiting` is called once when another one holds the lock."""
        path = self.folder / "locks" / file.identity
        handle = os.open(path, os.O_CREAT | os.O_RDWR, 0o666)
        try:
            told = False
            while not _take(handle, path):
                if not told:
                    told = True
                    waiting()
                time.sleep(_POLL_SECONDS)
            yield
        finally:
            os.close(handle)

    def link(self, files: tuple[RemoteFile, ...], folder: Path) -> None:
        """The model's folder, holding exactly these files (others that were linked before are taken away)."""
        folder.mkdir(parents=True, exist_ok=True)
        names = {file.name for file in files}
        for old in folder.iterdir():
            if old.is_symlink() and old.name not in names:
                old.unlink(missing_ok=True)
        for file in files:
            link, target = folder / file.name, self.blob(file).absolute()
            if link.is_symlink() and os.readlink(link) == str(target):
                continue
            fresh = folder / f".{file.name}.{os.getpid()}"
            fresh.unlink(missing_ok=True)
            fresh.symlink_to(target)
            fresh.replace(link)

    def require_space(self, files: tuple[RemoteFile, ...], location: str) -> None:
        """Raises Refused with NoSpaceLeft when what is still to be fetched does not fit."""
        missing = sum(file.size_bytes - _allocated(self.part(file)) for file in files if not self.has(file))
        existing = self.folder.absolute()
        while not existing.exists():
            existing = existing.parent
        free = shutil.disk_usage(existing).free
        if missing > free:
            raise Refused(
                CheckReason.NO_SPACE_LEFT,
                f"model {location}: needs {missing / _GIB:.2f} GiB more, {existing} has {free / _GIB:.2f} GiB free; "
                "make room or use a larger volume",
            )


def _allocated(part: Path) -> int:
    try:
        found = part.stat()
    except OSError:
        return 0
    return min(found.st_size, found.st_blocks * 512)


def _take(handle: int, path: Path) -> bool:
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as error:
        if error.errno not in _NO_LOCKS:
            raise
        _LOG.warning("%s: this volume has no locks (%s); let one pod at a time fetch onto it", path, error.strerror)
    return True
