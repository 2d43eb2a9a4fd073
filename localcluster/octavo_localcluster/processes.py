"""Recognises and ends the processes of one cluster, and nobody else's.

Each process of a cluster carries OCTAVO_CLUSTER_FOLDER in its environment; /proc tells it, also after the process that
started it has died. Signals go through pidfds, so a reused process number is never hit.
"""

from __future__ import annotations

import ctypes
import os
import select
import signal
import time
from collections.abc import Callable, Iterable
from pathlib import Path

from octavo_localcluster.agent_config import FOLDER_VARIABLE

_PR_SET_PDEATHSIG = 1
_libc = ctypes.CDLL(None, use_errno=True)


def marked_processes(folder: Path) -> list[int]:
    """Living processes that belong to the cluster in `folder`, without this process and its parents."""
    marker = _marker(folder)
    own = set(_ancestors(os.getpid()))
    entries = {int(entry.name): entry for entry in Path("/proc").iterdir() if entry.name.isdigit()}
    return sorted(pid for pid, entry in entries.items() if pid not in own and _has_marker(entry, marker))


def end_marked(folder: Path, grace_seconds: float = 5.0) -> list[int]:
    """Ends what is left of a cluster: asks, then kills after the grace period. Returns the processes that were found.

    A second look catches children that a process started while it was being ended.
    """
    seen: list[int] = []
    for _ in range(5):
        pids = marked_processes(folder)
        if not pids:
            break
        seen += [pid for pid in pids if pid not in seen]
        end_processes(pids, grace_seconds, lambda pid: _has_marker(Path("/proc") / str(pid), _marker(folder)))
        grace_seconds = min(grace_seconds, 1.0)
    return seen


def end_processes(pids: Iterable[int], grace_seconds: float, still_ours: Callable[[int], bool]) -> None:
    """SIGTERM, then SIGKILL to those that live on. `still_ours` is asked after the process is pinned by a pidfd."""
    pinned: list[int] = []
    try:
        for pid in pids:
            try:
                pidfd = os.pidfd_open(pid)
            except OSError:
                continue
            pinned.append(pidfd)
            if not still_ours(pid):
                os.close(pinned.pop())
        for name in (signal.SIGTERM, signal.SIGKILL):
            for pidfd in pinned:
                _send(pidfd, name)
            if _wait_all(pinned, grace_seconds):
                return
    finally:
        for pidfd in pinned:
            os.close(pidfd)


def end_with_parent(signal_number: int) -> Callable[[], None]:
    """A `preexec_fn`: the child gets the signal when the thread that started it ends; nothing outlives a supervisor."""
    parent = os.getpid()

    def prepare() -> None:
        _libc.prctl(_PR_SET_PDEATHSIG, signal_number, 0, 0, 0)
        if os.getppid() != parent:
            os._exit(1)

    return prepare


def _marker(folder: Path) -> bytes:
    return f"{FOLDER_VARIABLE}={folder}".encode()


def _has_marker(entry: Path, marker: bytes) -> bool:
    try:
        return marker in (entry / "environ").read_bytes().split(b"\0")
    except OSError:  # It has ended, or belongs to someone else.
        return False


def _ancestors(pid: int) -> list[int]:
    chain = []
    while pid > 0:
        chain.append(pid)
        try:
            status = Path(f"/proc/{pid}/stat").read_text()
        except OSError:
            break
        pid = int(status.rpartition(")")[2].split()[1])
    return chain


def _send(pidfd: int, number: signal.Signals) -> None:
    try:
        signal.pidfd_send_signal(pidfd, number)
    except ProcessLookupError:
        return


def _wait_all(pidfds: list[int], seconds: float) -> bool:
    """Whether all processes have ended (a zombie counts as ended) within the time."""
    deadline = time.monotonic() + seconds
    for pidfd in pidfds:
        left = max(0.0, deadline - time.monotonic())
        readable, _, _ = select.select([pidfd], [], [], left)
        if not readable:
            return False
    return True
