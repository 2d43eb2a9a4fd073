"""Objects that a fresh cluster needs: the forwarder's rights, the storage class and the volumes, simulated nodes."""

from __future__ import annotations

from typing import Any

from octavo_localcluster.layout import FORWARDER_USER
from octavo_localcluster.nodes import NodesFile, PersistentVolumeSpec
from octavo_localcluster.rest import ApiError, RestClient

MANAGED = {"app.kubernetes.io/managed-by": "octavo-localcluster"}
_RBAC = "rbac.authorization.k8s.io"
_VOLUMES = "/api/v1/persistentvolumes"


def seed(client: RestClient, nodes: NodesFile, simulated_nodes: int) -> None:
    """Applies everything; doing it again changes nothing. Raises ApiError."""
    for path, manifest in manifests(nodes):
        client.apply(path, manifest)
    for number in range(1, simulated_nodes + 1):
        _create(client, "/api/v1/nodes", simulated_node(number))


def _create(client: RestClient, path: str, manifest: dict[str, Any]) -> None:
    """Creates with status, which server-side apply would drop; what exists already is left as it is."""
    try:
        client.request("POST", path, manifest)
    except ApiError as error:
        if error.status != 409:
            raise


def manifests(nodes: NodesFile) -> list[tuple[str, dict[str, Any]]]:
    """Pairs of collection path and manifest."""
    reader = {
        "apiVersion": f"{_RBAC}/v1",
        "kind": "ClusterRole",
        "metadata": {"name": FORWARDER_USER, "labels": MANAGED},
        "rules": [
            {"apiGroups": [""], "resources": ["services", "pods", "namespaces"], "verbs": ["get", "list", "watch"]},
        ],
    }
    binding = {
        "apiVersion": f"{_RBAC}/v1",
        "kind": "ClusterRoleBinding",
        "metadata": {"name": FORWARDER_USER, "labels": MANAGED},
        "roleRef": {"apiGroup": _RBAC, "kind": "ClusterRole", "name": FORWARDER_USER},
        "subjects": [{"apiGroup": _RBAC, "kind": "User", "name": FORWARDER_USER}],
    }
    classes = sorted({volume.storage_class_name for volume in nodes.persistent_volumes})
    return [
        (f"/apis/{_RBAC}/v1/clusterroles", reader),
        (f"/apis/{_RBAC}/v1/clusterrolebindings", binding),
        *(("/apis/storage.k8s.io/v1/storageclasses", storage_class(name)) for name in classes),
        *((_VOLUMES, volume) for spec in nodes.persistent_volumes for volume in persistent_volumes(spec)),
    ]


def storage_class(name: str) -> dict[str, Any]:
    """A class of local volumes: a claim is bound when a pod that uses it has found its node."""
    return {
        "apiVersion": "storage.k8s.io/v1",
        "kind": "StorageClass",
        "metadata": {"name": name, "labels": MANAGED},
        "provisioner": "kubernetes.io/no-provisioner",
        "reclaimPolicy": "Retain",
        "volumeBindingMode": "WaitForFirstConsumer",
    }


def persistent_volumes(spec: PersistentVolumeSpec) -> list[dict[str, Any]]:
    """`spec.count` local volumes on one folder and one node."""
    term = {"matchExpressions": [{"key": "kubernetes.io/hostname", "operator": "In", "values": [spec.node]}]}
    return [
        {
            "apiVersion": "v1",
            "kind": "PersistentVolume",
            "metadata": {"name": name, "labels": MANAGED},
            "spec": {
                "capacity": {"storage": spec.capacity},
                "accessModes": ["ReadWriteOnce", "ReadOnlyMany", "ReadWriteMany"],
                "persistentVolumeReclaimPolicy": "Retain",
                "storageClassName": spec.storage_class_name,
                "local": {"path": str(spec.folder())},
                "nodeAffinity": {"required": {"nodeSelectorTerms": [term]}},
            },
        }
        for name in spec.names
    ]


def recycle_volumes(client: RestClient) -> None:
    """Frees our volumes whose claim is gone, as an administrator of local volumes would. Raises ApiError."""
    selector = "labelSelector=app.kubernetes.io%2Fmanaged-by%3Doctavo-localcluster"
    for volume in client.request("GET", f"{_VOLUMES}?{selector}")["items"]:
        if volume["status"].get("phase") == "Released":
            patch = {"metadata": {"resourceVersion": volume["metadata"]["resourceVersion"]}, "spec": {"claimRef": None}}
            path = f"{_VOLUMES}/{volume['metadata']['name']}"
            client.request("PATCH", path, patch, content_type="application/merge-patch+json")


def simulated_node(number: int) -> dict[str, Any]:
    """A node with eight H100 whose pods kwok pretends to run."""
    name = f"simulated-{number}"
    resources = {"cpu": "64", "memory": "1Ti", "pods": "250", "nvidia.com/gpu": "8", "ephemeral-storage": "1Ti"}
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {
            "name": name,
            "annotations": {"kwok.x-k8s.io/node": "fake", "node.alpha.kubernetes.io/ttl": "0"},
            "labels": {
                **MANAGED,
                "kubernetes.io/hostname": name,
                "kubernetes.io/os": "linux",
                "kubernetes.io/arch": "amd64",
                "nvidia.com/gpu.present": "true",
                "nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3",
                "nvidia.com/gpu.family": "hopper",
                "nvidia.com/gpu.count": "8",
                "nvidia.com/gpu.replicas": "1",
                "nvidia.com/gpu.memory": "81559",
                "nvidia.com/gpu.compute.major": "9",
                "nvidia.com/gpu.compute.minor": "0",
                "nvidia.com/cuda.driver-version.full": "580.65.06",
                "nvidia.com/cuda.driver-version.major": "580",
                "nvidia.com/cuda.driver-version.minor": "65",
                "nvidia.com/cuda.driver-version.revision": "06",
                "nvidia.com/cuda.runtime-version.full": "13.0",
                "nvidia.com/cuda.runtime-version.major": "13",
                "nvidia.com/cuda.runtime-version.minor": "0",
            },
        },
        "status": {"allocatable": resources, "capacity": resources},
    }
