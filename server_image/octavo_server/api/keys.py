"""API keys: one from the environment, any number from a file, compared in constant time."""

from __future__ import annotations

import hmac
import logging
import time
from hashlib import sha256
from pathlib import Path

from octavo_server.termination import Refused

_LOG = logging.getLogger("octavo.api")
_LOOK_SECONDS = 5.0


class ApiKeys:
    """The keys that are accepted. The file is read again when it changes, so that a mounted secret can be rotated."""

    def __init__(self, key: str, file: str) -> None:
        self._own = [_digest(key)] if key else []
        self._file = Path(file) if file else None
        self._from_file: list[bytes] = []
        self._stamp: tuple[int, int] | None = None
        self._looked = 0.0
        if self._file is not None:
            try:
                self._read(self._file)
            except OSError as error:
                raise Refused("FileMissing", f"--api-key-file: {file} can't be read: {error.strerror}") from error
            if not self._from_file:
                raise Refused("InvalidFlag", f"--api-key-file: {file} holds no key; write one per line")

    @property
    def wanted(self) -> bool:
        """Whether any key is asked for."""
        return bool(self._own) or self._file is not None

    def allows(self, given: str) -> bool:
        """Compares with every key and never stops early: the time tells nothing about which one was near."""
        self._look()
        digest = _digest(given)
        found = 0
        for known in (*self._own, *self._from_file):
            found |= hmac.compare_digest(digest, known)
        return bool(found)

    def _look(self) -> None:
        now = time.monotonic()
        if self._file is None or now - self._looked < _LOOK_SECONDS:
            return
        try:
            self._read(self._file)
        except (OSError, UnicodeDecodeError) as error:
            _LOG.warning("--api-key-file %s can't be read now, the last keys stay: %s", self._file, error)

    def _read(self, file: Path) -> None:
        self._looked = time.monotonic()
        status = file.stat()
        stamp = (status.st_mtime_ns, status.st_ino)
        if stamp == self._stamp:
            return
        lines = [line.strip() for line in file.read_text(encoding="utf-8").splitlines()]
        keys = [_digest(line) for line in lines if line and not line.startswith("#")]
        if keys or self._stamp is None:  # an empty file is more likely half a rotation than a wish to shut all out
            self._from_file = keys
        self._stamp = stamp


def _digest(key: str) -> bytes:
    return sha256(key.encode("utf-8", "surrogateescape")).digest()
