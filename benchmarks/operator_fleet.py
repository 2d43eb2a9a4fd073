"""A thousand services of three replicas on two thousand GPU nodes of eight types: how the operator bears it.

Part of `make bench-operator`. What is real and what is simulated: see operator_scale.py. Nodes' Leases last ten
minutes, or their renewals alone would be two hundred writes a second.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import time
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import yaml
from octavo_localcluster import Cluster, ClusterOptions
from octavo_operator.cluster.client import Client, connect
from octavo_operator.cluster.resources import NODES, SERVICES

from benchmarks.common import Row
from benchmarks.operator_process import Audit, OperatorProcess, install_rights, run_program, user_of, wait_until

FLEET = "fleet"
LEASE_SECONDS = 600
TYPES = 8
GPUS_PER_NODE = 8
CONVERGE_LIMIT_SECONDS = 1200.0
SETTLE_SECONDS = 5.0
PLANS = "octavo_operator_reconcile_seconds_count"
EDITS = 200
EDITS_PER_SECOND = 5.0
UPDATES_PER_SECOND = 200
CATALOGUE = """images:
  - {name: cpu, image: "octavo/octavo-server:0.1.0-cpu"}
  - {name: cuda12.8, image: "octavo/octavo-server:0.1.0-cuda12.8", cuda: "12.8", computeCapabilities: ["9.0"]}
"""


@dataclass(frozen=True)
class Fleet:
    """Sizes of one run."""

    services: int = 1000
    replicas: int = 3
    nodes: int = 2000
    quiet_seconds: float = 60.0
    storm_seconds: float = 30.0
    look_seconds: float = 10.0
    """How long what one relabelled node causes is looked for."""
    flags: tuple[str, ...] = ("--resync-seconds", "3600")
    """More flags of octavo-operator. A complete list plans every service once more: it would be counted with whatever
    falls into the same seconds. The run with fewer services has one every 20 s."""


def product(number: int) -> str:
    """One of the eight types, in turns."""
    return f"NVIDIA-TYPE-{number % TYPES}"


def _labels(number: int) -> dict[str, str]:
    return {
        "kubernetes.io/os": "linux",
        "kubernetes.io/hostname": f"gpu-{number:04}",
        "nvidia.com/gpu.product": product(number),
        "nvidia.com/gpu.count": str(GPUS_PER_NODE),
        "nvidia.com/gpu.replicas": "1",
        "nvidia.com/gpu.memory": "81559",
        "nvidia.com/gpu.compute.major": "9",
        "nvidia.com/gpu.compute.minor": "0",
        "nvidia.com/cuda.driver-version.full": "570.172.08",
        "nvidia.com/cuda.runtime-version.full": "12.8",
        "nvidia.com/cuda.runtime-version.major": "12",
        "nvidia.com/cuda.runtime-version.minor": "8",
    }


def _nodes(count: int) -> list[dict[str, Any]]:
    resources = {"cpu": "128", "memory": "2Ti", "pods": "250", "nvidia.com/gpu": str(GPUS_PER_NODE)}
    found = []
    for number in range(count):
        meta = {"name": f"gpu-{number:04}", "annotations": {"kwok.x-k8s.io/node": "fake"}, "labels": _labels(number)}
        status = {"allocatable": resources, "capacity": resources}
        found.append({"apiVersion": "v1", "kind": "Node", "metadata": meta, "status": status})
    return found


def _services(fleet: Fleet) -> list[dict[str, Any]]:
    return [
        {
            "apiVersion": SERVICES.api_version,
            "kind": SERVICES.kind,
            "metadata": {"name": f"model-{number:04}", "namespace": FLEET},
            "spec": {
                "model": {"uri": f"file:///models/model-{number:04}"},
                "placement": {"accelerators": [{"products": [product(number)]}]},
                "scaling": {"minReplicas": fleet.replicas},
            },
        }
        for number in range(fleet.services)
    ]


def _ready(items: list[dict[str, Any]]) -> int:
    return sum(
        condition["type"] == "Ready"
        and condition["status"] == "True"
        and condition["observedGeneration"] == item["metadata"]["generation"]
        for item in items
        for condition in item.get("status", {}).get("conditions", ())
    )


async def _wait_ready(client: Client, wanted: int) -> float:
    began = time.monotonic()
    while time.monotonic() - began < CONVERGE_LIMIT_SECONDS:
        ready = _ready(await client.list(SERVICES, FLEET))
        if ready == wanted:
            return time.monotonic()
        print(f"  {ready} of {wanted} services are Ready after {time.monotonic() - began:.0f} s", flush=True)
        await asyncio.sleep(5)
    raise TimeoutError(f"not all {wanted} services are Ready after {CONVERGE_LIMIT_SECONDS:.0f} s")


async def _settle(audit: Audit) -> float:
    """Wait until the operator has written nothing for a while; returns when its last write was seen."""
    written, seen = -1, time.monotonic()
    while written != (now := len(audit.writes())):
        written, seen = now, time.monotonic()
        await asyncio.sleep(SETTLE_SECONDS)
    return seen


def _instant(text: str) -> float:
    return datetime.fromisoformat(text).timestamp()


def _events(log: Path, offset: int) -> Iterator[dict[str, Any]]:
    with log.open("rb") as file:
        file.seek(offset)
        for line in file:
            if line.endswith(b"\n"):
                event = json.loads(line)
                if event["stage"] == "ResponseComplete":
                    yield event


async def _edit_latencies(cluster: Cluster, client: Client, fleet: Fleet, edits: int) -> list[float]:
    """Seconds from the answer to a user's edit to the answer to the operator's apply of the Deployment, by the API
    server's own clock: each edit raises one service's replicas by one."""
    offset = cluster.audit_log.stat().st_size
    names = [f"model-{(number * 7) % fleet.services:04}" for number in range(min(edits, fleet.services))]
    for name in names:
        body = {"spec": {"scaling": {"minReplicas": fleet.replicas + 1}}}
        path = SERVICES.path(FLEET, name)
        began = time.monotonic()
        await client.request("PATCH", path, body, content_type="application/merge-patch+json")
        await asyncio.sleep(max(0.0, 1 / EDITS_PER_SECOND - (time.monotonic() - began)))
    await _settle(Audit(cluster, user_of()))
    events = [event for event in _events(cluster.audit_log, offset) if event["verb"] == "patch"]
    begun: dict[str, float] = {}
    edited: dict[str, float] = {}
    for event in events:
        about = event.get("objectRef") or {}
        if about.get("resource") == "inferenceservices" and event["user"]["username"] == "admin":
            begun[about["name"]] = _instant(event["requestReceivedTimestamp"])
            edited[about["name"]] = _instant(event["stageTimestamp"])
    applied: dict[str, float] = {}
    for event in events:
        about = event.get("objectRef") or {}
        if about.get("resource") == "deployments" and event["user"]["username"] == user_of():
            service, at = about["name"].rpartition("-")[0], _instant(event["stageTimestamp"])
            # The watch may bring an edit before its own answer is sent and logged.
            if service in begun and at > begun[service]:
                applied[service] = min(at, applied.get(service, at))
    missing = set(names) - set(applied)
    if missing:
        raise RuntimeError(f"{len(missing)} of {len(names)} edits were not applied, such as that of {min(missing)}")
    return sorted(max(0.0, applied[name] - edited[name]) for name in names)


def _foreign_label(value: str) -> dict[str, Any]:
    return {"metadata": {"labels": {"example.com/rack": value}}}


async def _storm(client: Client, fleet: Fleet, seconds: float) -> int:
    """Change nodes: half of the updates are heartbeats, a quarter labels that no plan reads, a quarter taints, which
    plans read. Returns how many were answered."""
    limit, done = asyncio.Semaphore(64), 0
    began = time.monotonic()

    async def update(number: int) -> None:
        nonlocal done
        path = NODES.path(None, f"gpu-{number % fleet.nodes:04}")
        if number % 2:
            condition = {"type": "Beat", "status": "True", "reason": "Storm", "message": str(number)}
            body: dict[str, Any] = {"status": {"conditions": [condition]}}
            path += "/status"
        elif number % 4:
            body = _foreign_label(str(number))
        else:
            taint = {"key": "example.com/storm", "value": str(number), "effect": "PreferNoSchedule"}
            body = {"spec": {"taints": [taint]}}
        async with limit:
            await client.request("PATCH", path, body, content_type="application/strategic-merge-patch+json")
            done += 1

    async with asyncio.TaskGroup() as tasks:
        for number in range(int(seconds * UPDATES_PER_SECOND)):
            tasks.create_task(update(number))
            ahead = number / UPDATES_PER_SECOND - (time.monotonic() - began)
            if ahead > 0:
                await asyncio.sleep(ahead)
    print(f"  {done} updates of nodes in {time.monotonic() - began:.1f} s", flush=True)
    return done


def percentile(values: list[float], share: float) -> float:
    """Of sorted values, by the nearest rank."""
    return values[min(len(values) - 1, int(share * len(values)))]


async def _unconcerned(operator: OperatorProcess) -> float:
    """Wait until no service has been planned for a while; returns how many plans there were."""
    plans, now = -1.0, operator.metric(PLANS)
    while plans != now:
        plans = now
        await asyncio.sleep(SETTLE_SECONDS)
        now = operator.metric(PLANS)
    return plans


async def _measure(cluster: Cluster, operator: OperatorProcess, fleet: Fleet) -> list[Row]:
    os.environ["KUBECONFIG"] = str(cluster.kubeconfig)
    rows: list[Row] = []
    size = f"{fleet.services} services × {fleet.replicas} replicas on {fleet.nodes} nodes of {TYPES} types"
    everything = Audit(cluster, user_of())
    async with connect(Path("/nowhere")) as client:
        busy, began = operator.cpu_seconds(), time.monotonic()
        text = yaml.dump_all(_services(fleet), Dumper=getattr(yaml, "CSafeDumper", yaml.SafeDumper))
        await asyncio.to_thread(run_program, cluster, "kubectl", "create", "-f", "-", stdin=text)
        created = time.monotonic()
        await _wait_ready(client, fleet.services)
        converged = await _settle(everything)
        written = len(everything.writes())
        rows += [
            Row(f"{size} converge", "s", round(converged - began, 1), "lower",
                note=f"from kubectl create, which took {created - began:.1f} s, to the operator's last write"),
            Row(f"processor time of the operator until then ({fleet.services} services)", "s",
                round(operator.cpu_seconds() - busy, 1), "lower"),
            Row(f"API writes per service ({fleet.services} services)", "requests",
                round(written / fleet.services, 2), "lower"),
        ]  # fmt: skip
        quiet, busy = Audit(cluster, user_of()), operator.cpu_seconds()
        await asyncio.sleep(fleet.quiet_seconds)
        rows += [
            Row(f"writes in {fleet.quiet_seconds:.0f} s of rest ({fleet.services} services)", "requests",
                len(quiet.writes()), "lower", 0),
            Row("processor time of the operator at rest", "%",
                round(100 * (operator.cpu_seconds() - busy) / fleet.quiet_seconds, 1), "lower"),
        ]  # fmt: skip
        taint = {"spec": {"taints": [{"key": "example.com/rack", "value": "7", "effect": "PreferNoSchedule"}]}}
        goal = -(-fleet.services // TYPES)
        for name, body, most, note in (
            ("services planned anew when one node gets a taint", taint, goal, "goal: those of its type"),
            ("services planned anew when one node gets a label", _foreign_label("7"), 0, "a label that no plan reads"),
        ):
            before = await _unconcerned(operator)
            quiet = Audit(cluster, user_of())
            path = NODES.path(None, "gpu-0000")
            await client.request("PATCH", path, body, content_type="application/merge-patch+json")
            await asyncio.sleep(fleet.look_seconds)
            touched = operator.metric(PLANS) - before
            rows += [Row(name, "services", touched, "lower", most, note=f"{note}; {len(quiet.writes())} writes")]
        calm = await _edit_latencies(cluster, client, fleet, EDITS)
        rows += [
            Row("p50 from a spec's change to applied", "ms", round(1000 * percentile(calm, 0.5)), "lower"),
            Row("p99 from a spec's change to applied", "ms", round(1000 * percentile(calm, 0.99)), "lower", 1000,
                note=f"{len(calm)} edits, {EDITS_PER_SECOND:.0f} a second, by the API server's clock"),
        ]  # fmt: skip
        quiet = Audit(cluster, user_of())
        storm = asyncio.create_task(_storm(client, fleet, fleet.storm_seconds))
        await asyncio.sleep(2)
        busy, began = operator.cpu_seconds(), time.monotonic()
        done = await storm
        spent = (operator.cpu_seconds() - busy) / (time.monotonic() - began)
        await asyncio.sleep(5)
        rows += [
            Row("writes caused by a storm of node updates", "requests", len(quiet.writes()), "lower", 0,
                note=f"{done} updates in {fleet.storm_seconds:.0f} s: heartbeats, labels, taints"),
            Row("processor time of the operator in the storm", "%", round(100 * spent, 1), "lower"),
            Row("services that wait 5 s after the storm", "services",
                operator.metric("octavo_operator_queue_depth"), "lower", 0),
        ]  # fmt: skip
    rows.append(Row(f"peak memory of the operator ({fleet.services} services)", "MiB",
                    round(operator.peak_memory_mib(), 1), "lower", 400))  # fmt: skip
    again = Audit(cluster, user_of())
    operator.end(signal.SIGKILL)
    killed = time.monotonic()
    operator.start().wait_for("working", 180)
    restart = time.monotonic() - killed
    await asyncio.sleep(fleet.quiet_seconds)
    return [
        *rows,
        Row(f"from kill −9 to work again ({fleet.services} services)", "s", round(restart, 1), "lower",
            note="the dead leader's Lease must run out first (15 s)"),
        Row(f"writes in {fleet.quiet_seconds:.0f} s after kill −9 and restart ({fleet.services} services)", "requests",
            len(again.writes()), "lower", 0),
        Row(f"peak memory of the operator after its restart ({fleet.services} services)", "MiB",
            round(operator.peak_memory_mib(), 1), "lower", 400),
    ]  # fmt: skip


def measure_fleet(folder: Path, fleet: Fleet) -> list[Row]:
    """Start a cluster, run once, and return the rows of the result."""
    options = ClusterOptions(
        folder=folder / "cluster", audit=True, simulated_nodes=1, simulated_lease_seconds=LEASE_SECONDS
    )
    with Cluster.start(options, report=print) as cluster:
        install_rights(cluster)
        run_program(cluster, "kubectl", "create", "namespace", FLEET)
        text = yaml.dump_all(_nodes(fleet.nodes), Dumper=getattr(yaml, "CSafeDumper", yaml.SafeDumper))
        run_program(cluster, "kubectl", "create", "-f", "-", stdin=text)
        operator = OperatorProcess(cluster, folder / "operator", *fleet.flags)
        (operator.folder / "images.yaml").write_text(CATALOGUE)
        with operator:
            operator.wait_for("working", 120)
            wait_until(lambda: operator.metric("octavo_operator_leader") == 1, "it leads")
            return asyncio.run(_measure(cluster, operator, fleet))
