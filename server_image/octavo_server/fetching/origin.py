"""What a place with model files must offer: a list of files, and their bytes from any position."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Protocol


class Interrupted(Exception):
    """The transfer broke in a way that may pass: connection lost, time-out, 5xx, 429. It is tried again from there."""

    def __init__(self, message: str, wait_seconds: float = 0.0) -> None:
        """`wait_seconds`: what the source asked for (Retry-After)."""
        super().__init__(message)
        self.wait_seconds = wait_seconds


@dataclass(frozen=True)
class RemoteFile:
    """One file of a model, as its source describes it."""

    path: str
    """Name at the source."""
    size_bytes: int
    identity: str
    """The same for the same content, whatever repository or revision it lies in; letters, digits and dashes."""
    checksum: str = ""
    """`sha256:…`, `md5:…` or `git-sha1:…` in hex; empty where the source tells none."""

    @property
    def name(self) -> str:
        """Its name in the model's folder."""
        return self.path.rsplit("/", 1)[-1]


class Origin(Protocol):
    """A model at its source, at one commit."""

    @property
    def location(self) -> str:
        """As the user wrote it, for messages."""

    @property
    def name(self) -> str:
        """Name that the model is served under unless it is given another."""

    @property
    def files(self) -> tuple[RemoteFile, ...]:
        """Chosen files, sorted by path."""

    def open(self, file: RemoteFile, start: int, size: int) -> AbstractContextManager[Iterator[bytes]]:
        """Bytes `start … start + size` in pieces. Raises Interrupted, or Refused when trying again is of no use."""


def size_bytes(files: tuple[RemoteFile, ...]) -> int:
    """All files together."""
    return sum(file.size_bytes for file in files)
