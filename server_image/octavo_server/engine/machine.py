"""What this process may use of the machine: memory and processors, container limits included."""

from __future__ import annotations

import os
from pathlib import Path


def available_memory_bytes(root: Path = Path("/")) -> int:
    """Free memory: the least of what the kernel calls available and what is left of the container's limit.

    0 when neither can be read.
    """
    found = [value for value in (_kernel_available(root), _container_left(root)) if value is not None]
    return max(0, min(found, default=0))


def usable_processors() -> int:
    """Processors this process may run on, cut to the container's processor quota (at least 1)."""
    count = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    quota = _read(Path("/sys/fs/cgroup/cpu.max"))
    if quota:
        limit, period = quota.split()
        if limit != "max":
            count = min(count, max(1, int(limit) // int(period)))
    return max(1, count)


def _kernel_available(root: Path) -> int | None:
    for line in _read(root / "proc/meminfo").splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    return None


def _container_left(root: Path) -> int | None:
    limit = _read(root / "sys/fs/cgroup/memory.max").strip()
    used = _read(root / "sys/fs/cgroup/memory.current").strip()
    return int(limit) - int(used) if limit.isdigit() and used.isdigit() else None


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""
