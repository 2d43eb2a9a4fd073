"""Prometheus and promtool: from PATH, our cache, or Debian's package, unpacked into the cache but not installed."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest
from octavo_localcluster.programs import cache_folder


def unpack_debian_package(folder: Path) -> str | None:
    """Put Debian's Prometheus below `folder`. Returns what stood in the way, if anything."""
    if shutil.which("apt-get") is None or shutil.which("dpkg-deb") is None:
        return "there is no prometheus on PATH, and without apt-get it can't be fetched"
    folder.mkdir(parents=True, exist_ok=True)
    command = ["apt-get", "-q", "-o", "APT::Sandbox::User=root", "download", "prometheus"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    packages = sorted(folder.glob("prometheus_*.deb"))
    if not packages:
        return f"apt-get download prometheus: {done.stderr.strip() or 'nothing came'}"
    subprocess.run(["dpkg-deb", "-x", str(packages[-1]), str(folder)], check=True)
    packages[-1].unlink()
    return None


@pytest.fixture(scope="session")
def prometheus_programs() -> dict[str, str]:
    """Paths of prometheus and promtool; skips, with the reason, where no package can be had."""
    names = ("prometheus", "promtool")
    found = {name: shutil.which(name) for name in names}
    if not all(found.values()):
        folder = cache_folder() / "prometheus-debian"
        programs = {name: folder / "usr" / "bin" / name for name in names}
        if not all(path.exists() for path in programs.values()):
            obstacle = unpack_debian_package(folder)
            if obstacle is not None:
                pytest.skip(obstacle)
        found = {name: str(path) for name, path in programs.items()}
    return {name: str(path) for name, path in found.items()}
