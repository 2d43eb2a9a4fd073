"""What a pod may learn about itself: fieldRef and resourceFieldRef."""

import math
import re
from decimal import Decimal

from .api import Object

_SUFFIXES = {
    "": Decimal(1), "m": Decimal("0.001"), "k": Decimal(10**3), "M": Decimal(10**6), "G": Decimal(10**9),
    "T": Decimal(10**12), "P": Decimal(10**15), "E": Decimal(10**18),
    "Ki": Decimal(2**10), "Mi": Decimal(2**20), "Gi": Decimal(2**30), "Ti": Decimal(2**40), "Pi": Decimal(2**50),
    "Ei": Decimal(2**60),
}  # fmt: skip
_QUANTITY = re.compile(r"([+-]?[0-9.]+(?:[eE][+-]?[0-9]+)?)([a-zA-Z]*)")
_KEYED = re.compile(r"metadata\.(annotations|labels)\['(.+)'\]")


def parse_quantity(text: str) -> Decimal:
    """A Kubernetes quantity as a number. Raises ValueError when it is none."""
    match = _QUANTITY.fullmatch(text)
    if match is None or match.group(2) not in _SUFFIXES:
        raise ValueError(f"{text!r} is no quantity")
    return Decimal(match.group(1)) * _SUFFIXES[match.group(2)]


def field_value(pod: Object, path: str, *, pod_ip: str, host_ip: str) -> str:
    """The value of a fieldRef for env or a downwardAPI file. Raises ValueError for a path that no pod has."""
    metadata, spec = pod["metadata"], pod["spec"]
    keyed = _KEYED.fullmatch(path)
    if keyed:
        return str((metadata.get(keyed.group(1)) or {}).get(keyed.group(2), ""))
    if path in ("metadata.annotations", "metadata.labels"):
        items = (metadata.get(path.removeprefix("metadata.")) or {}).items()
        return "".join(f'{key}="{escape(value)}"\n' for key, value in sorted(items))
    simple = {
        "metadata.name": metadata.get("name", ""),
        "metadata.namespace": metadata.get("namespace", ""),
        "metadata.uid": metadata.get("uid", ""),
        "spec.nodeName": spec.get("nodeName", ""),
        "spec.serviceAccountName": spec.get("serviceAccountName", ""),
        "status.podIP": pod_ip,
        "status.podIPs": pod_ip,
        "status.hostIP": host_ip,
        "status.hostIPs": host_ip,
    }
    if path not in simple:
        raise ValueError(
            f"fieldPath {path!r} is not supported; known: {', '.join(sorted(simple))}, metadata.labels['…']"
        )
    return str(simple[path])


def escape(value: str) -> str:
    """Write a value as a line of a downwardAPI file does."""
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def resource_value(pod: Object, container: str, reference: Object, allocatable: dict[str, str]) -> str:
    """The value of a resourceFieldRef, rounded up to whole divisors; a missing limit is the node's allocatable amount.

    Raises ValueError when the container or the resource is unknown.
    """
    wanted = reference.get("containerName") or container
    spec = next(
        (c for c in [*pod["spec"].get("initContainers", []), *pod["spec"]["containers"]] if c["name"] == wanted), None
    )
    if spec is None:
        raise ValueError(f"resourceFieldRef.containerName: no container is named {wanted!r}")
    kind, _, name = str(reference["resource"]).partition(".")
    resources = spec.get("resources") or {}
    found = (resources.get(kind) or {}).get(name)
    if found is None and kind == "limits":
        found = allocatable.get(name)
    amount = parse_quantity(str(found or "0"))
    divisor = parse_quantity(str(reference.get("divisor") or "1")) or Decimal(1)
    return str(math.ceil(amount / divisor))
