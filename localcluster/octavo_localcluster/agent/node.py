"""The Node object: what is registered, how it is kept ready, its Lease."""

import asyncio
import logging
import os
import platform
from datetime import UTC, datetime
from pathlib import Path

from ..agent_config import NodeIdentity
from ..nodes import NodeSpec
from .api import OUTAGE, ApiClient, ApiError, Object
from .container import now_text
from .unsupported import ANNOTATION, NOT_ENFORCED

log = logging.getLogger(__name__)

EMULATED_LABEL = "localcluster.octavo.dev/emulated"
DEVICE_LABEL = "localcluster.octavo.dev/device"
LEASE_NAMESPACE = "kube-node-lease"
LEASE_SECONDS = 40
RENEW_SECONDS = 10.0
STATUS_SECONDS = 60.0
RETRY_SECONDS = 1.0
_CONDITIONS = (
    ("MemoryPressure", "False", "KubeletHasSufficientMemory", "the node agent enforces no memory limit"),
    ("DiskPressure", "False", "KubeletHasNoDiskPressure", "the node agent enforces no disk limit"),
    ("PIDPressure", "False", "KubeletHasSufficientPID", "the node agent enforces no process limit"),
    ("Ready", "True", "KubeletReady", "the node agent is running pods"),
)


def capacity_of(spec: NodeSpec) -> dict[str, str]:
    """Capacity as the nodes file gives it; cpu, memory and pods have defaults from this machine."""
    memory_kib = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 1024
    defaults = {"cpu": str(os.cpu_count() or 1), "memory": f"{memory_kib}Ki", "pods": "110"}
    return defaults | dict(spec.capacity)


def is_emulated(spec: NodeSpec) -> bool:
    """Whether the node shows an accelerator that is not there: a vendor's resource while the device is the CPU."""
    return any("/" in name for name in spec.capacity) and spec.device == "cpu"


def node_labels(spec: NodeSpec) -> dict[str, str]:
    """Labels of the file with those every node has."""
    architecture = {"x86_64": "amd64", "aarch64": "arm64"}.get(platform.machine(), platform.machine())
    labels = {
        "kubernetes.io/hostname": spec.name, "kubernetes.io/os": "linux", "kubernetes.io/arch": architecture,
        DEVICE_LABEL: spec.device,
    }  # fmt: skip
    if is_emulated(spec):
        labels[EMULATED_LABEL] = "true"
    return labels | dict(spec.labels)


def node_object(spec: NodeSpec) -> Object:
    """The Node to create."""
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {
            "name": spec.name,
            "labels": node_labels(spec),
            "annotations": {ANNOTATION: ",".join(NOT_ENFORCED)},
        },
        "spec": {"taints": [taint.model_dump() for taint in spec.taints]} if spec.taints else {},
    }


def node_status(spec: NodeSpec, identity: NodeIdentity, present: Object, now: str) -> Object:
    """The Node's status; times of conditions that did not change are kept from `present`."""
    known = {c["type"]: c for c in (present.get("status") or {}).get("conditions") or []}
    conditions = []
    for kind, status, reason, message in _CONDITIONS:
        old = known.get(kind) or {}
        since = old.get("lastTransitionTime") if old.get("status") == status else now
        conditions.append(
            {"type": kind, "status": status, "reason": reason, "message": message, "lastHeartbeatTime": now,
             "lastTransitionTime": since}
        )  # fmt: skip
    capacity = capacity_of(spec)
    return {
        "capacity": capacity,
        "allocatable": capacity,
        "conditions": conditions,
        "addresses": [
            {"type": "InternalIP", "address": identity.address},
            {"type": "Hostname", "address": spec.name},
        ],
        "daemonEndpoints": {"kubeletEndpoint": {"Port": identity.kubelet_port}},
        "nodeInfo": {
            "architecture": node_labels(spec)["kubernetes.io/arch"],
            "operatingSystem": "linux",
            "osImage": platform.platform(),
            "kernelVersion": platform.release(),
            "kubeletVersion": "v1.37.2",
            "kubeProxyVersion": "",
            "containerRuntimeVersion": "octavo://process-groups",
            "machineID": _read("/etc/machine-id"),
            "systemUUID": spec.name,
            "bootID": _read("/proc/sys/kernel/random/boot_id"),
        },
    }


async def keep_node(client: ApiClient, spec: NodeSpec, identity: NodeIdentity) -> None:
    """Register the Node and keep status and Lease fresh until cancelled."""
    next_status = 0.0
    clock = asyncio.get_running_loop().time
    while True:
        try:
            if clock() >= next_status:
                await _register(client, spec, identity)
                next_status = clock() + STATUS_SECONDS
            await _renew(client, spec.name)
        except ApiError as error:
            if error.code == 404:
                next_status = 0.0
            log.warning("node %s: %s", spec.name, error)
            await asyncio.sleep(RETRY_SECONDS)
            continue
        except OUTAGE as error:
            log.info("node %s: no answer from the API server: %s", spec.name, error or type(error).__name__)
            await asyncio.sleep(RETRY_SECONDS)
            continue
        await asyncio.sleep(RENEW_SECONDS)


async def _register(client: ApiClient, spec: NodeSpec, identity: NodeIdentity) -> None:
    wanted = node_object(spec)
    path = f"/api/v1/nodes/{spec.name}"
    try:
        present = await client.get(path)
    except ApiError as error:
        if error.code != 404:
            raise
        present = await client.create("/api/v1/nodes", wanted)
    labels, annotations = wanted["metadata"]["labels"], wanted["metadata"]["annotations"]
    metadata = present["metadata"]
    if not (labels.items() <= (metadata.get("labels") or {}).items()) or not (
        annotations.items() <= (metadata.get("annotations") or {}).items()
    ):
        present = await client.patch(path, {"metadata": {"labels": labels, "annotations": annotations}})
    await client.patch(f"{path}/status", {"status": node_status(spec, identity, present, now_text())})


async def _renew(client: ApiClient, name: str) -> None:
    path = f"/apis/coordination.k8s.io/v1/namespaces/{LEASE_NAMESPACE}/leases"
    now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
    try:
        await client.patch(f"{path}/{name}", {"spec": {"renewTime": now}}, kind="merge")
    except ApiError as error:
        if error.code != 404:
            raise
        spec = {"holderIdentity": name, "leaseDurationSeconds": LEASE_SECONDS, "renewTime": now}
        await client.create(path, {"metadata": {"name": name, "namespace": LEASE_NAMESPACE}, "spec": spec})


def _read(path: str) -> str:
    try:
        return Path(path).read_text().strip()
    except OSError:
        return ""
