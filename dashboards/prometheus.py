"""Prometheus and promtool: from PATH, our cache, or Debian's package, unpacked into the cache but not installed.

And what Prometheus Operator makes of a PodMonitor, for a Prometheus that runs without it.
"""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from octavo_localcluster.programs import cache_folder

NAMES = ("prometheus", "promtool")
Object = Mapping[str, Any]


class PrometheusMissing(Exception):
    """No Prometheus can be had here; the message says what stands in the way."""


def _unpack_debian_package(folder: Path) -> None:
    """Put Debian's Prometheus below `folder`. Raises PrometheusMissing."""
    if shutil.which("apt-get") is None or shutil.which("dpkg-deb") is None:
        raise PrometheusMissing("there is no prometheus on PATH, and without apt-get it can't be fetched")
    folder.mkdir(parents=True, exist_ok=True)
    command = ["apt-get", "-q", "-o", "APT::Sandbox::User=root", "download", "prometheus"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    packages = sorted(folder.glob("prometheus_*.deb"))
    if not packages:
        raise PrometheusMissing(f"apt-get download prometheus: {done.stderr.strip() or 'nothing came'}")
    subprocess.run(["dpkg-deb", "-x", str(packages[-1]), str(folder)], check=True)
    packages[-1].unlink()


def programs() -> dict[str, str]:
    """Paths of prometheus and promtool. Raises PrometheusMissing."""
    found = {name: shutil.which(name) for name in NAMES}
    if not all(found.values()):
        folder = cache_folder() / "prometheus-debian"
        paths = {name: folder / "usr" / "bin" / name for name in NAMES}
        if not all(path.exists() for path in paths.values()):
            _unpack_debian_package(folder)
        found = {name: str(path) for name, path in paths.items()}
    return {name: str(path) for name, path in found.items()}


def _snake(text: str) -> str:
    return re.sub(r"([A-Z])", lambda found: "_" + found[1].lower(), text)


def _written(name: str) -> str:
    """A name as Prometheus writes it in labels of its own."""
    return re.sub("[^a-zA-Z0-9]", "_", name)


def discovered(pods: Iterable[Object]) -> list[dict[str, Any]]:
    """What Prometheus's discovery tells of running pods, for Debian's build, which has none for Kubernetes."""
    found = []
    for pod in pods:
        meta, address = pod["metadata"], pod.get("status", {}).get("podIP")
        labels = {"namespace": meta["namespace"], "pod_name": meta["name"], "pod_node_name": pod["spec"]["nodeName"]}
        for name, value in (meta.get("labels") or {}).items():
            labels |= {f"pod_label_{_written(name)}": value, f"pod_labelpresent_{_written(name)}": "true"}
        for container in pod["spec"]["containers"]:
            for port in container.get("ports", ()):
                own = labels | {"pod_container_name": container["name"], "pod_container_port_name": port["name"]}
                target = f"{address}:{port['containerPort']}"
                found.append(
                    {"targets": [target], "labels": {f"__meta_kubernetes_{key}": value for key, value in own.items()}}
                )
    return found


def scrape_config(monitor: Object, targets: Path) -> dict[str, Any]:
    """What Prometheus Operator makes of a PodMonitor, in the parts that ours use."""
    [endpoint] = monitor["spec"]["podMetricsEndpoints"]
    selector = monitor["spec"]["selector"]
    keep = [
        ([f"__meta_kubernetes_pod_label_{_written(name)}"], value)
        for name, value in selector.get("matchLabels", {}).items()
    ]
    keep += [
        ([f"__meta_kubernetes_pod_labelpresent_{_written(item['key'])}"], "true")
        for item in selector.get("matchExpressions", [])
    ]
    keep.append((["__meta_kubernetes_pod_container_port_name"], endpoint["port"]))
    rules: list[dict[str, Any]] = [{"source_labels": names, "regex": value, "action": "keep"} for names, value in keep]
    rules += [{_snake(key): value for key, value in rule.items()} for rule in endpoint.get("relabelings", [])]
    return {
        "job_name": monitor["metadata"]["name"],
        "metrics_path": endpoint["path"],
        "honor_labels": endpoint.get("honorLabels", False),
        "file_sd_configs": [{"files": [str(targets)], "refresh_interval": "2s"}],
        "relabel_configs": rules,
    }
