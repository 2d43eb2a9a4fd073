"""The autoscaler on a real control plane: load drives a service from 1 to several replicas and back.

`python benchmarks/scaling_cluster.py [--kill-operator]`. API server, scheduler, operator and HTTP are real; the server
is a process with a set speed (scaling_paced_server.py), so that two cores suffice for a fleet.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import signal
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

if __package__ in (None, ""):
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import aiohttp
import yaml
from octavo_localcluster import Cluster, ClusterOptions

from benchmarks.common import ROOT, Row, read_results, write_result
from benchmarks.operator_process import NAMESPACE, run_program, wait_until

SPACE, NAME = "team", "chat"
COMMAND = "python benchmarks/scaling_simulation.py, scaling_scrape.py, scaling_cluster.py [--kill-operator]"
PHASES = ((20.0, 1.5), (90.0, 10.0), (125.0, 0.4))
"""(seconds, requests per second); one replica serves 4 per second."""
SERVICE: dict[str, Any] = {
    "apiVersion": "serving.octavo.dev/v1alpha1",
    "kind": "InferenceService",
    "metadata": {"name": NAME, "namespace": SPACE},
    "spec": {
        "model": {"uri": "file:///models/none"},
        "placement": {"cpu": "Required", "resources": {"requests": {"cpu": "100m", "memory": "64Mi"}}},
        "scaling": {"minReplicas": 1, "maxReplicas": 4, "scaleDownSeconds": 15},
    },
}


@dataclass
class Seen:
    """What the run showed."""

    sent: int = 0
    failed: list[str] = field(default_factory=list)
    counts: list[tuple[float, int]] = field(default_factory=list)


def start(folder: Path) -> Cluster:
    """A cluster of one node, whose server image is the paced process, with Octavo installed by its chart."""
    # Under the server's own name: pods ask for it by its command.
    program = folder / "bin" / "octavo-server"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\nexec "{sys.executable}" "{ROOT}/benchmarks/scaling_paced_server.py" "$@"\n')
    program.chmod(0o755)
    nodes = folder / "nodes.yaml"
    nodes.write_text(yaml.safe_dump({"nodes": [{"name": "cpu-1"}], "images": {"octavo-server:*": str(program)}}))
    cluster = Cluster.start(ClusterOptions(folder=folder / "cluster", nodes_file=nodes), report=print)
    chart = str(ROOT / "charts" / "octavo")
    run_program(cluster, "helm", "upgrade", "--install", "octavo", chart, "-n", NAMESPACE, "--create-namespace")
    return cluster


def service(cluster: Cluster) -> dict[str, Any]:
    """The InferenceService as it is."""
    found: dict[str, Any] = json.loads(run_program(cluster, "kubectl", "get", "ois", NAME, "-n", SPACE, "-o", "json"))
    return found


def available(cluster: Cluster) -> bool:
    """Whether a replica serves."""
    found = service(cluster).get("status", {}).get("conditions", ())
    return any(item["type"] == "Available" and item["status"] == "True" for item in found)


def operators(cluster: Cluster) -> list[int]:
    """Processes of the operator."""
    found = []
    for pid in cluster.processes():
        try:
            words = Path(f"/proc/{pid}/cmdline").read_bytes()
        except OSError:
            continue
        if b"octavo-operator" in words:
            found.append(pid)
    return found


async def load(address: str, seen: Seen) -> None:
    """The phases of load; each request on a connection of its own, as many clients make them."""
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(force_close=True, limit=0)) as session:

        async def ask() -> None:
            try:
                async with session.post(f"{address}/v1/completions", json={}) as answer:
                    await answer.read()
                    if answer.status != 200:
                        seen.failed.append(f"status {answer.status}")
            except aiohttp.ClientError as error:
                seen.failed.append(f"{type(error).__name__}: {error}")

        async with asyncio.TaskGroup() as tasks:
            for seconds, rate in PHASES:
                end = time.monotonic() + seconds
                while time.monotonic() < end:
                    tasks.create_task(ask())
                    seen.sent += 1
                    await asyncio.sleep(1 / rate)


async def watch(cluster: Cluster, seen: Seen, kill_after: float | None) -> None:
    """Note each count; end the operator once, without a warning, in the middle of the load."""
    began = time.monotonic()
    while True:
        try:
            status = (await asyncio.to_thread(service, cluster)).get("status", {})
        except RuntimeError as error:
            print(error)
            status = {}
        count = status.get("scaling", {}).get("desired")
        if count is not None and (not seen.counts or seen.counts[-1][1] != count):
            seen.counts.append((time.monotonic() - began, count))
            print(f"{seen.counts[-1][0]:6.1f} s: {count} replicas wanted, {status.get('readyReplicas')} ready")
        if kill_after is not None and time.monotonic() - began > kill_after:
            kill_after = None
            for pid in operators(cluster):
                os.kill(pid, signal.SIGKILL)
            print("operator killed")
        await asyncio.sleep(1.0)


async def drive(cluster: Cluster, address: str, kill_after: float | None) -> Seen:
    """Load and watch together."""
    seen = Seen()
    watching = asyncio.create_task(watch(cluster, seen, kill_after))
    await load(address, seen)
    watching.cancel()
    await asyncio.gather(watching, return_exceptions=True)
    return seen


def main() -> None:
    """Run once and write the rows beside those of the simulation."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kill-operator", action="store_true", help="end the operator in the middle of the load")
    flags = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, start(Path(folder)) as cluster:
        run_program(cluster, "kubectl", "create", "namespace", SPACE)
        run_program(cluster, "kubectl", "apply", "-f", "-", stdin=yaml.safe_dump(SERVICE))
        wait_until(lambda: available(cluster), "the service is available", 120)
        spec = json.loads(run_program(cluster, "kubectl", "get", "service", NAME, "-n", SPACE, "-o", "json"))["spec"]
        address = f"http://{spec['clusterIP']}:{spec['ports'][0]['port']}"
        seen = asyncio.run(drive(cluster, address, 60.0 if flags.kill_operator else None))
        status = service(cluster)["status"]
        print(json.dumps(status["scaling"], indent=2))
        print(
            run_program(
                cluster, "kubectl", "get", "events", "-n", SPACE, "--field-selector", f"involvedObject.name={NAME}"
            )
        )
    print(f"{seen.sent} requests, {len(seen.failed)} failed: {sorted(set(seen.failed))[:3]}")
    kind = "cluster, operator killed" if flags.kill_operator else "cluster"
    grown = next((at for at, count in seen.counts if count > 1), float("inf"))
    found = [
        Row(f"{kind}: requests that failed", "", len(seen.failed), "lower", 0.0, note=f"of {seen.sent}"),
        Row(f"{kind}: most replicas", "", max(count for _, count in seen.counts), "higher", 4.0),
        Row(f"{kind}: replicas at the end", "", seen.counts[-1][1], "lower", 1.0),
        Row(f"{kind}: from the burst to the first added replica", "s", round(grown - PHASES[0][0], 1), "lower", 30.0),
    ]
    before = next((item["rows"] for item in read_results() if item["topic"] == "scaling-simulation"), [])
    kept = [row for row in before if not row["name"].startswith(f"{kind}:")]
    write_result("scaling-simulation", [*kept, *found], command=COMMAND)


if __name__ == "__main__":
    main()
