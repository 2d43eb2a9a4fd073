"""What the user's kubeconfig says beside the API server's address, and kubectl as a program."""

from __future__ import annotations

import asyncio
import shutil
import sys
from pathlib import Path

import yaml
from octavo_operator.cluster.client import kubeconfig_files

from .errors import CommandError


def current_namespace() -> str:
    """The namespace of the current context, as kubectl takes it; `default` where none is set. Raises ApiError."""
    contexts: dict[str, str] = {}
    current = ""
    # Of several files, the first that says something about a context wins: kubectl's own rule.
    for file in filter(None, kubeconfig_files().split(":")):
        path = Path(file).expanduser()
        content = yaml.safe_load(path.read_text(encoding="utf-8")) if path.is_file() else None
        if not isinstance(content, dict):
            continue
        current = current or content.get("current-context") or ""
        for entry in content.get("contexts") or ():
            contexts.setdefault(entry["name"], (entry.get("context") or {}).get("namespace") or "default")
    return contexts.get(current, "default")


def kubectl() -> str:
    """Path of kubectl, from PATH or beside this Python. Raises CommandError."""
    found = shutil.which("kubectl") or shutil.which("kubectl", path=str(Path(sys.executable).parent))
    if found is None:
        raise CommandError("kubectl is not on PATH; install it, or run this where the pods' addresses can be reached")
    return found


async def raw(path: str) -> str | None:
    """An answer of the API server's own paths through kubectl; None when it has none."""
    quiet = asyncio.subprocess.DEVNULL
    command = (kubectl(), "get", "--raw", path)
    process = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE, stderr=quiet)
    output, _ = await process.communicate()
    return output.decode("utf-8", "replace") if process.returncode == 0 else None
