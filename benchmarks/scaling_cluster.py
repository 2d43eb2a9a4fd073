"""The autoscaler on a real control plane: load drives a service from 1 to several replicas and back.

`python benchmarks/scaling_cluster.py [SCENE]`; scaling_scenes.py describes the scenes. API server, scheduler,
controllers, operator and HTTP are real; the server is a process with a set speed (scaling_paced_server.py), so that two
cores suffice for a fleet, and the real one in the scene `real`.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import signal
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
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
from benchmarks.scaling_adapter import Adapter
from benchmarks.scaling_prometheus import prometheus_adapter, registration, served
from benchmarks.scaling_scenes import CLAIM, HPA, NAME, SCENES, SPACE, VOLUME, Phases, SceneOnCluster

COMMAND = "python benchmarks/scaling_simulation.py, scaling_scrape.py, scaling_cluster.py SCENE"


@dataclass
class Seen:
    """What the run showed."""

    sent: int = 0
    failed: list[str] = field(default_factory=list)
    counts: list[tuple[float, int]] = field(default_factory=list)
    reasons: dict[str, float] = field(default_factory=dict)
    """Reasons of the condition ScalingActive, with the time at which each was first seen."""
    ready: set[int] = field(default_factory=set)
    """Numbers of replicas that were seen ready."""
    busy: str | None = None
    """Name of the pod that was kept busy."""
    left: list[str] = field(default_factory=list)
    """Names of the pods at the end."""


def start(folder: Path, scene: SceneOnCluster) -> Cluster:
    """A cluster of one node with Octavo installed by its chart; its server image is the paced process, or the real."""
    node: dict[str, Any] = {"name": "cpu-1"}
    if scene.node_cpu is not None:
        node["capacity"] = {"cpu": scene.node_cpu}
    told: dict[str, Any] = {"nodes": [node], "persistentVolumes": [VOLUME]}
    if not scene.real:
        # Under the server's own name: pods ask for it by its command.
        program = folder / "bin" / "octavo-server"
        program.parent.mkdir()
        program.write_text(f'#!/bin/sh\nexec "{sys.executable}" "{ROOT}/benchmarks/scaling_paced_server.py" "$@"\n')
        program.chmod(0o755)
        told["images"] = {"octavo-server:*": str(program)}
    nodes = folder / "nodes.yaml"
    nodes.write_text(yaml.safe_dump(told))
    cluster = Cluster.start(ClusterOptions(folder=folder / "cluster", nodes_file=nodes), report=print)
    chart = str(ROOT / "charts" / "octavo")
    run_program(cluster, "helm", "upgrade", "--install", "octavo", chart, "-n", NAMESPACE, "--create-namespace")
    return cluster


def published(cluster: Cluster) -> float | None:
    """`octavo_desired_replicas` as the operator's own pod shows it."""
    pods = json.loads(run_program(cluster, "kubectl", "get", "pods", "-n", NAMESPACE, "-o", "json"))["items"]
    for pod in pods:
        try:
            address = f"http://{pod['status']['podIP']}:8080/metrics"
            with urllib.request.urlopen(address, timeout=3) as answer:
                text = answer.read().decode()
        except (OSError, KeyError):
            continue
        for line in text.splitlines():
            if line.startswith("octavo_desired_replicas{") and f'service="{NAME}"' in line:
                return float(line.rpartition(" ")[2])
    return None


@contextlib.contextmanager
def scaled_by_hpa(cluster: Cluster, scene: SceneOnCluster) -> Iterator[None]:
    """An external-metrics API behind the API server, and an HPA that reads the operator's recommendation from it."""
    if scene.adapter:
        with prometheus_adapter(cluster) as port:
            run_program(cluster, "kubectl", "apply", "-f", "-", stdin=yaml.safe_dump_all(registration(port)))
            wait_until(lambda: served(cluster), "prometheus-adapter serves the recommendation", 180)
            run_program(cluster, "kubectl", "apply", "-f", "-", stdin=yaml.safe_dump(HPA))
            yield
        return

    def value(_space: str, metric: str) -> float | None:
        return published(cluster) if metric == "octavo_desired_replicas" else None

    with Adapter(cluster, value) as adapter:
        run_program(cluster, "kubectl", "apply", "-f", "-", stdin=yaml.safe_dump_all([*adapter.registration(), HPA]))
        yield


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


async def load(address: str, phases: Phases, body: dict[str, Any], seen: Seen) -> None:
    """The phases of load; each request on a connection of its own, as many clients make them."""
    connector, patience = aiohttp.TCPConnector(force_close=True, limit=0), aiohttp.ClientTimeout(total=600)
    async with aiohttp.ClientSession(connector=connector, timeout=patience) as session:

        async def ask() -> None:
            try:
                async with session.post(f"{address}/v1/completions", json=body) as answer:
                    await answer.read()
                    if answer.status != 200:
                        seen.failed.append(f"status {answer.status}")
            except (TimeoutError, aiohttp.ClientError) as error:
                seen.failed.append(f"{type(error).__name__}: {error}")

        async with asyncio.TaskGroup() as tasks:
            for seconds, rate in phases:
                end = time.monotonic() + seconds
                while time.monotonic() < end:
                    tasks.create_task(ask())
                    seen.sent += 1
                    await asyncio.sleep(1 / rate)


async def watch(cluster: Cluster, seen: Seen, scene: SceneOnCluster) -> None:
    """Note each count and reason; do the scene's mischief once, in the middle of the load."""
    began, kill, cut = time.monotonic(), scene.kill_operator_after, scene.cut_metrics_after
    while True:
        try:
            status = (await asyncio.to_thread(service, cluster)).get("status", {})
        except RuntimeError as error:
            print(error)
            status = {}
        passed = time.monotonic() - began
        count = status.get("scaling", {}).get("desired")
        seen.ready.add(status.get("readyReplicas") or 0)
        if count is not None and (not seen.counts or seen.counts[-1][1] != count):
            seen.counts.append((passed, count))
            print(f"{passed:6.1f} s: {count} replicas wanted, {status.get('readyReplicas')} ready", flush=True)
        for item in status.get("conditions", ()):
            if item["type"] == "ScalingActive" and item["reason"] not in seen.reasons:
                seen.reasons[item["reason"]] = passed
                print(
                    f"{passed:6.1f} s: ScalingActive={item['status']} {item['reason']}: {item['message']}", flush=True
                )
        if kill is not None and passed > kill:
            kill = None
            for pid in operators(cluster):
                os.kill(pid, signal.SIGKILL)
            print("operator killed")
        if cut is not None and passed > cut:
            cut = None
            await asyncio.to_thread(cut_metrics, cluster)
        await asyncio.sleep(1.0)


def serving_pods(cluster: Cluster) -> list[dict[str, Any]]:
    """Server pods that are not ending, the eldest first."""
    text = run_program(
        cluster, "kubectl", "get", "pods", "-n", SPACE, "-l", "serving.octavo.dev/role=server", "-o", "json",
        "--sort-by=.metadata.creationTimestamp",
    )  # fmt: skip
    return [pod for pod in json.loads(text)["items"] if not pod["metadata"].get("deletionTimestamp")]


def cut_metrics(cluster: Cluster) -> None:
    """The eldest pod answers requests as before, and its metrics no more."""
    address = serving_pods(cluster)[0]["status"]["podIP"]
    request = urllib.request.Request(f"http://{address}:8000/cut", data=b"", method="POST")
    with urllib.request.urlopen(request, timeout=5) as answer:
        print(f"{address}: metrics {answer.read().decode()}")


async def keep_youngest_busy(cluster: Cluster, after: float, seen: Seen) -> None:
    """From then on until cancelled, four requests at a time go to the youngest pod, past the Service."""
    await asyncio.sleep(after)
    pod = (await asyncio.to_thread(serving_pods, cluster))[-1]
    seen.busy = pod["metadata"]["name"]
    address = f"http://{pod['status']['podIP']}:8000/v1/completions"
    print(f"{seen.busy} is kept busy", flush=True)
    async with aiohttp.ClientSession() as session, asyncio.TaskGroup() as tasks:

        async def ask_again() -> None:
            while True:
                async with session.post(address, json={}) as answer:
                    await answer.read()

        for _ in range(4):
            tasks.create_task(ask_again())


async def drive(cluster: Cluster, address: str, scene: SceneOnCluster) -> Seen:
    """Load and watch together."""
    seen = Seen()
    watching = asyncio.create_task(watch(cluster, seen, scene))
    after = scene.busy_youngest_after
    busy = asyncio.create_task(keep_youngest_busy(cluster, after, seen)) if after is not None else None
    await load(address, scene.phases, scene.request(), seen)
    # What the last decisions did is seen before the end.
    await asyncio.sleep(2.0)
    if busy is not None:
        seen.left = [pod["metadata"]["name"] for pod in await asyncio.to_thread(serving_pods, cluster)]
        busy.cancel()
        await asyncio.gather(busy, return_exceptions=True)
    watching.cancel()
    await asyncio.gather(watching, return_exceptions=True)
    return seen


def played(scene: SceneOnCluster) -> Seen:
    """One run of a scene on a cluster of its own."""
    with tempfile.TemporaryDirectory() as folder, start(Path(folder), scene) as cluster:
        run_program(cluster, "kubectl", "create", "namespace", SPACE)
        wanted = [*([CLAIM] if scene.real else []), scene.service()]
        run_program(cluster, "kubectl", "apply", "-f", "-", stdin=yaml.safe_dump_all(wanted))
        wait_until(lambda: available(cluster), "the service is available", 180)
        spec = json.loads(run_program(cluster, "kubectl", "get", "service", NAME, "-n", SPACE, "-o", "json"))["spec"]
        address = f"http://{spec['clusterIP']}:{spec['ports'][0]['port']}"
        with scaled_by_hpa(cluster, scene) if scene.hpa else contextlib.nullcontext():
            seen = asyncio.run(drive(cluster, address, scene))
        print(json.dumps(service(cluster)["status"]["scaling"], indent=2))
        about = f"involvedObject.name={NAME}"
        print(run_program(cluster, "kubectl", "get", "events", "-n", SPACE, "--field-selector", about))
    return seen


def rows(scene: SceneOnCluster, seen: Seen) -> Iterator[Row]:
    """What the run must show."""
    kind, counts = scene.title, [count for _, count in seen.counts]
    yield Row(f"{kind}: requests that failed", "", len(seen.failed), "lower", 0.0, note=f"of {seen.sent}")
    yield Row(f"{kind}: most replicas", "", max(counts), "higher", float(scene.most))
    if scene.last == 1:
        yield Row(f"{kind}: replicas at the end", "", counts[-1], "lower", 1.0)
    else:
        note = f"held, {', '.join(seen.reasons)}"
        yield Row(f"{kind}: replicas at the end", "", counts[-1], "higher", float(scene.last), note=note)
    if scene.busy_youngest_after is not None:
        stayed, gone = float(seen.busy in seen.left), max(counts) - len(seen.left)
        yield Row(f"{kind}: pods that went before it", "", gone if stayed else 0, "higher", 2.0)
        yield Row(f"{kind}: it is still there", "", stayed, "higher", 1.0, note="a ReplicaSet ends the youngest first")
    # What never came took longer than the whole run.
    whole = sum(seconds for seconds, _ in scene.phases)
    grown = next((at for at, count in seen.counts if count > 1), whole)
    limit = 60.0 if scene.hpa or scene.real else 30.0
    yield Row(
        f"{kind}: from the burst to the first added replica", "s", round(grown - scene.phases[0][0], 1), "lower", limit
    )
    if scene.node_cpu is not None:
        given_up = seen.reasons.get("WaitingForAccelerator", whole) - scene.phases[0][0]
        yield Row(f"{kind}: from the burst until it is given up", "s", round(given_up, 1), "lower", 400.0)
        served = max(seen.ready, default=0)
        yield Row(
            f"{kind}: replicas that served", "", served, "lower", float(scene.most - 1), note="the rest had no node"
        )


def main() -> None:
    """Run one scene and write its rows beside those of the others."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("scene", nargs="?", default="plain", choices=SCENES, help="(default: %(default)s)")
    scene = SCENES[parser.parse_args().scene]
    seen = played(scene)
    print(f"{seen.sent} requests, {len(seen.failed)} failed: {sorted(set(seen.failed))[:3]}")
    found = list(rows(scene, seen))
    for row in found:
        print(row)
    before = next((item["rows"] for item in read_results() if item["topic"] == "scaling-simulation"), [])
    kept = [row for row in before if not row["name"].startswith(f"{scene.title}:")]
    write_result("scaling-simulation", [*kept, *found], command=COMMAND)


if __name__ == "__main__":
    main()
