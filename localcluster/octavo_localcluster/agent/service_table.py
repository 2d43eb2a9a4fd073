"""Which pods stand behind which listening address: pure functions over Services and Pods."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from .api import Object

API_SERVICE = ("default", "kubernetes")


@dataclass(frozen=True, order=True)
class Listener:
    """An address to listen on."""

    address: str
    port: int


@dataclass(frozen=True)
class ServicePort:
    """One port of one Service."""

    namespace: str
    name: str
    target: int | str


def listeners_of(service: Object) -> dict[Listener, ServicePort]:
    """Listeners of a Service: its ClusterIP, and 127.0.0.1 for node ports. Headless and external ones have none."""
    spec, metadata = service["spec"], service["metadata"]
    address = spec.get("clusterIP") or "None"
    if address == "None" or spec.get("type") == "ExternalName":
        return {}
    found = {}
    for port in spec.get("ports") or []:
        if port.get("protocol", "TCP") != "TCP":
            continue
        target = port.get("targetPort") or port["port"]
        behind = ServicePort(metadata["namespace"], metadata["name"], target)
        found[Listener(address, int(port["port"]))] = behind
        if port.get("nodePort"):
            found[Listener("127.0.0.1", int(port["nodePort"]))] = behind
    return found


def unsupported_of(service: Object) -> list[str]:
    """What the forwarder does not do for a Service."""
    spec = service["spec"]
    found = [
        f"spec.ports[{index}].protocol {port['protocol']}"
        for index, port in enumerate(spec.get("ports") or [])
        if port.get("protocol", "TCP") != "TCP"
    ]
    if spec.get("sessionAffinity", "None") != "None":
        found.append(f"spec.sessionAffinity {spec['sessionAffinity']}")
    return found


def is_ready(pod: Object) -> bool:
    """Whether a pod takes new connections: Ready, with an address, not on its way out."""
    if pod["metadata"].get("deletionTimestamp") or not (pod.get("status") or {}).get("podIP"):
        return False
    return any(c["type"] == "Ready" and c["status"] == "True" for c in pod["status"].get("conditions") or [])


def target_port(pod: Object, target: int | str) -> int | None:
    """A Service's targetPort on one pod; None when no container port has that name."""
    if isinstance(target, int):
        return target
    for container in pod["spec"]["containers"]:
        for port in container.get("ports") or []:
            if port.get("name") == target:
                return int(port["containerPort"])
    return None


def backends(service: Object, target: int | str, pods: Iterable[Object]) -> list[tuple[str, int]]:
    """Addresses of all pods that may get a new connection, in a fixed order."""
    selector: Mapping[str, str] = service["spec"].get("selector") or {}
    if not selector:
        return []
    namespace = service["metadata"]["namespace"]
    unready_too = bool(service["spec"].get("publishNotReadyAddresses"))
    found = []
    for pod in pods:
        if pod["metadata"]["namespace"] != namespace:
            continue
        if not selector.items() <= (pod["metadata"].get("labels") or {}).items():
            continue
        usable = is_ready(pod) or (unready_too and bool((pod.get("status") or {}).get("podIP")))
        port = target_port(pod, target)
        if usable and port is not None:
            found.append((str(pod["status"]["podIP"]), port))
    return sorted(found)
