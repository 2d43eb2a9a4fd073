"""Addresses of Unix sockets whose path is longer than the system's 108 bytes allow."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_LIMIT_BYTES = 100
"""Linux takes 107 and a zero, other systems fewer."""


@contextmanager
def socket_address(path: Path) -> Iterator[str]:
    """What to bind or connect to for a socket at `path`; valid inside the `with` block.

    A temporary folder may lie deep (a pod's own folder on a development machine). Linux then reaches it through an
    open file descriptor of the folder, which is short however long the path is.
    """
    if len(os.fsencode(path)) <= _LIMIT_BYTES:
        yield str(path)
        return
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        yield f"/proc/self/fd/{folder}/{path.name}"
    finally:
        os.close(folder)
