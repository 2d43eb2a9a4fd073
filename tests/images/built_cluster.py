"""The demo's cluster with the images that were built here: its pods run their entry points from the built roots."""

from __future__ import annotations

import json
import shlex
import site
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import yaml
from octavo_localcluster import Cluster, ClusterOptions

ROOT = Path(__file__).resolve().parents[2]
READY_SECONDS = 180.0
NAMESPACE = "octavo-system"


def entry_point(folder: Path, program: str, image_root: str, shared: list[Path]) -> Path:
    """A script that runs an image's program from its root, with the cluster's folder and `shared` mounted as they are.

    The mounts live in a namespace of the process, and so end with it. `/opt/host` is where the image's torch points to.
    """
    places = [*map(str, shared), "/dev", "/proc"]
    binds = [f'mkdir -p "$root{place}"; mount --rbind {place} "$root{place}"' for place in places]
    packages = site.getsitepackages()[0]
    binds.append(f'mkdir -p "$root/opt/host"; mount --bind {shlex.quote(packages)} "$root/opt/host"')
    run = 'exec chroot "$root" env PATH=/opt/octavo/bin:/usr/bin:/bin ' + program + ' "$@"'
    inner = f"set -e; root={shlex.quote(image_root)}; {'; '.join(binds)}; {run}"
    script = folder / program
    script.write_text(f'#!/bin/sh\nexec unshare --mount sh -c {shlex.quote(inner)} {program} "$@"\n')
    script.chmod(0o755)
    return script


def serve_from_images(folder: Path, operator_root: str, server_root: str) -> dict[str, Any]:
    """Installs the chart on a cluster whose images are these roots, serves a model, asks it; what was seen."""
    state, programs = folder / "cluster", folder / "programs"
    programs.mkdir()
    shared = [folder, Path(site.getsitepackages()[0])]
    nodes = yaml.safe_load((ROOT / "localcluster" / "nodes" / "cpu.yaml").read_text())
    nodes["images"] = {
        "octavo-operator:*": str(entry_point(programs, "octavo-operator", operator_root, shared)),
        "octavo-server:*": str(entry_point(programs, "octavo-server", server_root, shared)),
    }
    nodes_file = folder / "nodes.yaml"
    nodes_file.write_text(yaml.safe_dump(nodes))
    with Cluster.start(ClusterOptions(folder=state, nodes_file=nodes_file), report=print) as cluster:
        run = _runner(cluster)
        chart = str(ROOT / "charts" / "octavo")
        run("helm", "upgrade", "--install", "octavo", chart, "-n", NAMESPACE, "--create-namespace")
        run("kubectl", "rollout", "status", "deployment/octavo-operator", "-n", NAMESPACE, "--timeout=120s")
        run("kubectl", "apply", "-f", str(ROOT / "examples" / "smollm2-cpu.yaml"))
        seen: dict[str, Any] = {}

        def is_ready() -> bool:
            found = json.loads(run("kubectl", "get", "ois", "smollm2", "-o", "json"))
            seen["conditions"] = (found.get("status") or {}).get("conditions") or []
            return any(item["type"] == "Ready" and item["status"] == "True" for item in seen["conditions"])

        _wait(is_ready, seen)
        address = json.loads(run("kubectl", "get", "service", "smollm2", "-o", "json"))["spec"]["clusterIP"]
        seen["answer"] = _ask(f"http://{address}")
        seen["roots"] = sorted({_root_of(pid) for pid in cluster.processes()} - {"/"})
    return seen


def _root_of(pid: int) -> str:
    try:
        return str(Path(f"/proc/{pid}/root").readlink())
    except OSError:
        return "/"


def _runner(cluster: Cluster) -> Callable[..., str]:
    import subprocess

    def run(program: str, *words: str) -> str:
        command = [str(cluster.program(program)), "--kubeconfig", str(cluster.kubeconfig), *words]
        done = subprocess.run(command, capture_output=True, text=True, timeout=150)
        assert done.returncode == 0, f"{' '.join(words)}: {done.stderr}"
        return done.stdout

    return run


def _ask(url: str) -> str:
    body = {"model": "smollm2", "messages": [{"role": "user", "content": "What is the capital of France?"}]}
    words = json.dumps({**body, "max_tokens": 12, "temperature": 0}).encode()
    request = urllib.request.Request(f"{url}/v1/chat/completions", words, {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=90) as reply:
        return str(json.load(reply)["choices"][0]["message"]["content"])


def _wait(condition: Callable[[], bool], seen: dict[str, Any]) -> None:
    deadline = time.monotonic() + READY_SECONDS
    while not condition():
        assert time.monotonic() < deadline, seen
        time.sleep(0.3)
