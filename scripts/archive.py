"""Archives whose bytes depend on nothing but their content: sorted names, one time, one owner, two modes."""

from __future__ import annotations

import gzip
import hashlib
import io
import tarfile
from collections.abc import Iterable, Mapping
from pathlib import Path

EXECUTABLE, ORDINARY = 0o755, 0o644


def _pack(members: Iterable[tuple[str, bytes, bool]], epoch: int) -> bytes:
    """A gzipped tar of (name, content, executable) in order of names."""
    raw = io.BytesIO()
    with tarfile.open(fileobj=raw, mode="w", format=tarfile.USTAR_FORMAT) as archive:
        for name, content, executable in sorted(members):
            entry = tarfile.TarInfo(name)
            entry.size, entry.mtime = len(content), epoch
            entry.mode = EXECUTABLE if executable else ORDINARY
            archive.addfile(entry, io.BytesIO(content))
    return gzip.compress(raw.getvalue(), 9, mtime=epoch)


def pack_files(root: Path, names: Iterable[str], epoch: int, folder: str) -> bytes:
    """Files below `root`, each as `folder`/name. Times are seconds since 1970."""
    paths = ((name, root / name) for name in names)
    return _pack(((f"{folder}/{name}", path.read_bytes(), bool(path.stat().st_mode & 0o100)) for name, path in paths),
                 epoch)  # fmt: skip


def repack(content: bytes, epoch: int) -> bytes:
    """A gzipped tar of another program, packed anew."""
    members = []
    with tarfile.open(fileobj=io.BytesIO(content), mode="r:gz") as archive:
        for entry in archive:
            file = archive.extractfile(entry)
            assert file is not None, f"{entry.name} is no file"
            members.append((entry.name, file.read(), False))
    return _pack(members, epoch)


def checksums(files: Mapping[str, bytes]) -> str:
    """What `sha256sum --check` reads."""
    return "".join(f"{hashlib.sha256(content).hexdigest()}  {name}\n" for name, content in sorted(files.items()))
