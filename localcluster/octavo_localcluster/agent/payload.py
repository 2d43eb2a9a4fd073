"""Files of a generated volume, written so that a reader sees all of one version or all of the next."""

import os
import shutil
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

DATA = "..data"


@dataclass(frozen=True)
class File:
    """Contents and permission bits of one file."""

    content: bytes
    mode: int = 0o644


def write_payload(folder: Path, files: Mapping[str, File]) -> bool:
    """Make `folder` hold exactly these files (relative paths); gives False when it did already.

    As in Kubernetes, `..data` points to a folder of one version and each top-level name is a link into `..data`, so
    that one rename shows a whole new version.
    """
    folder.mkdir(parents=True, exist_ok=True)
    current = folder / DATA
    if current.exists() and _read(current.resolve()) == dict(files):
        return False
    version = Path(tempfile.mkdtemp(prefix="..", dir=folder))
    version.chmod(0o755)
    for name, file in files.items():
        path = version / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(file.content)
        path.chmod(file.mode)
    old = current.resolve() if current.is_symlink() else None
    link = folder / "..data_tmp"
    link.unlink(missing_ok=True)
    link.symlink_to(version.name)
    os.replace(link, current)
    tops = {name.partition("/")[0] for name in files}
    for top in tops:
        if not (folder / top).is_symlink():
            (folder / top).symlink_to(f"{DATA}/{top}")
    for entry in folder.iterdir():
        if not entry.name.startswith("..") and entry.name not in tops:
            entry.unlink()
    if old is not None:
        shutil.rmtree(old, ignore_errors=True)
    return True


def _read(version: Path) -> dict[str, File]:
    return {
        str(path.relative_to(version)): File(path.read_bytes(), path.stat().st_mode & 0o7777)
        for path in version.rglob("*")
        if path.is_file()
    }
