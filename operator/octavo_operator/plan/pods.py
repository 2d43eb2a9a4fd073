"""What the pods of a service share, whatever runs in them."""

from __future__ import annotations

from collections.abc import Sequence

from octavo_operator.api.placement_section import PlacementSection

from . import server_contract as contract
from .affinity import vendor_tolerations
from .manifest import Manifest
from .node_types import TypeKey

USER_ID = 65532


def restricted_container() -> Manifest:
    """Security context of each container under the restricted pod security level."""
    return {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }


def restricted_pod() -> Manifest:
    """Security context of each pod under the restricted pod security level."""
    return {
        "runAsNonRoot": True,
        "runAsUser": USER_ID,
        "runAsGroup": USER_ID,
        "fsGroup": USER_ID,
        "seccompProfile": {"type": "RuntimeDefault"},
    }


def scratch() -> tuple[list[Manifest], list[Manifest]]:
    """(volumes, mounts) of the folders that a read-only root file system needs."""
    folders = {"tmp": "/tmp", "cache": contract.CACHE_FOLDER}
    volumes: list[Manifest] = [{"name": name, "emptyDir": {}} for name in folders]
    return volumes, [{"name": name, "mountPath": path} for name, path in folders.items()]


def environment() -> list[Manifest]:
    """Environment that all containers share."""
    return [
        {"name": "HOME", "value": "/tmp"},
        # Triton writes what it compiles; the root file system is read-only.
        {"name": "TRITON_CACHE_DIR", "value": f"{contract.CACHE_FOLDER}/triton"},
        {"name": contract.TERMINATION_ENV, "value": contract.TERMINATION_PATH},
    ]


def program_container(
    name: str,
    image: str,
    arguments: list[str],
    variables: list[Manifest],
    resources: Manifest,
    mounts: list[Manifest],
    *,
    command: Sequence[str] = (contract.PROGRAM,),
) -> Manifest:
    """A container with least rights that says in its termination message how it ended."""
    return {
        "name": name,
        "image": image,
        "imagePullPolicy": "IfNotPresent",
        "command": list(command),
        "args": arguments,
        "env": variables,
        "resources": resources,
        "securityContext": restricted_container(),
        "terminationMessagePath": contract.TERMINATION_PATH,
        "volumeMounts": mounts,
    }


def pod_of(service: str) -> Manifest:
    """The part of a pod's spec that is the same for all pods of a service."""
    return {
        "serviceAccountName": service,
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "securityContext": restricted_pod(),
    }


def place(pod: Manifest, placement: PlacementSection, key: TypeKey | None = None) -> None:
    """Gives a pod's spec what the placement asks for, and the tolerations that accelerators of the type need."""
    if placement.node_selector:
        pod["nodeSelector"] = dict(placement.node_selector)
    found = [item.model_dump(mode="json", by_alias=True, exclude_none=True) for item in placement.tolerations]
    if key is not None:
        found += [item for item in vendor_tolerations(key) if item not in found]
    if found:
        pod["tolerations"] = found
