"""The pod of a replica, rendered from its inputs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from octavo_operator.api.base import Switch
from octavo_operator.api.inference_service import InferenceServiceSpec

from . import server_contract as contract
from .affinity import affinity
from .facts import Manifest, digest
from .model_source import (
    credentials,
    escaped,
    fetch_arguments,
    is_fetched,
    model_location,
    model_volume,
    store_mounts,
)
from .node_types import NodeType
from .pods import environment, place, pod_of, program_container, scratch
from .quantities import canonical
from .runtimes import PROGRAMS, RuntimeProgram, Serving

POD_IP: Manifest = {"name": "POD_IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}}


@dataclass(frozen=True)
class Replica:
    """Inputs of one pod template."""

    service: str
    spec: InferenceServiceSpec
    node_type: NodeType
    image: str
    block_size_tokens: int
    fetch_image: str = ""
    """Octavo's image that fetches the model for another runtime; empty = the same as `image`."""
    launch_table: str = ""
    """Measured launch configurations of this block size, as the server's --launch-table reads them; empty = none."""
    proxy: tuple[tuple[str, str], ...] = ()
    """The administrator's, taken up at the next rollout: no input, so that a change of it restarts nothing."""

    def inputs(self) -> dict[str, Any]:
        """Everything that reaches the pod; a new template is rendered only when this changes."""
        found = {
            "spec": spec_inputs(self.spec),
            "image": self.image,
            "blockSize": self.block_size_tokens,
            "nodeType": self.node_type.key.named(),
        }
        optional = {"fetchImage": self.fetch_image, "launchTable": self.launch_table}
        return {**found, **{name: value for name, value in optional.items() if value}}

    def name(self) -> str:
        """10 hex digits of the inputs."""
        return digest(self.inputs(), 10)


def spec_inputs(spec: InferenceServiceSpec) -> dict[str, Any]:
    """Fields of the spec that reach a pod; defaults left out, so that a new field with a default changes nothing."""
    found: dict[str, Any] = spec.model_dump(
        mode="json",
        by_alias=True,
        exclude_defaults=True,
        include={
            "model": True,
            "engine": True,
            "image": True,
            "placement": {"node_selector", "tolerations", "priority_class_name", "resources"},
            "rollout": {"drain_seconds"},
            "access": {"api_key_secret_ref"},
        },
    )
    return {key: value for key, value in found.items() if value}


def shared_memory(replica: Replica) -> tuple[list[Manifest], list[Manifest]]:
    """(volumes, mounts) of /dev/shm, through which the ranks of a replica exchange data: a runtime's 64 MiB are few."""
    if replica.node_type.key.is_cpu:
        return [], []
    size = f"{replica.spec.engine.parallelism.tensor}Gi"
    volume = {"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": size}}
    return [volume], [{"name": "shm", "mountPath": "/dev/shm"}]


def launch_table_volume(replica: Replica) -> tuple[list[Manifest], list[Manifest]]:
    """(volumes, mounts) of the file with launch configurations.

    It shows an annotation of the pod's own template, so that the table is as old as the template, whatever becomes of
    the profile that it came from, and nothing has to be kept beside it.
    """
    if not replica.launch_table:
        return [], []
    field = {"fieldPath": f"metadata.annotations['{contract.LAUNCH_TABLE_ANNOTATION}']"}
    items = [{"path": contract.LAUNCH_TABLE_FILE, "fieldRef": field}]
    volume = {"name": "launches", "downwardAPI": {"items": items}}
    return [volume], [{"name": "launches", "mountPath": contract.LAUNCH_TABLE_FOLDER, "readOnly": True}]


def _serve_arguments(replica: Replica, program: RuntimeProgram) -> list[str]:
    spec = replica.spec
    serving = Serving(
        spec,
        spec.model.served_name or replica.service,
        model_location(spec.model),
        replica.node_type.key.is_cpu,
        replica.block_size_tokens,
        f"{contract.LAUNCH_TABLE_FOLDER}/{contract.LAUNCH_TABLE_FILE}" if replica.launch_table else "",
    )
    words = [*map(escaped, program.arguments(serving)), "--host", "$(POD_IP)"]
    if spec.access.api_key_secret_ref is not None:
        words += program.key_arguments
    return [*words, *map(escaped, spec.engine.extra_args)]


def _resources(replica: Replica) -> Manifest:
    given = replica.spec.placement.resources
    cpu = replica.node_type.key.is_cpu
    requests = {name: canonical(amount) for name, amount in given.requests.items()}
    limits = {name: canonical(amount) for name, amount in given.limits.items()}
    if not given.requests and not given.limits:
        requests = {"cpu": "500m", "memory": "1Gi"} if cpu else {"cpu": "2", "memory": "8Gi"}
    if not cpu:
        resource = replica.node_type.key.resource
        limits[resource] = requests[resource] = str(replica.spec.engine.parallelism.tensor)
    return {part: amounts for part, amounts in (("requests", requests), ("limits", limits)) if amounts}


def _probe(path: str, period: int, failures: int) -> Manifest:
    http = {"path": path, "port": contract.PORT_NAME, "scheme": "HTTP"}
    return {"httpGet": http, "periodSeconds": period, "failureThreshold": failures, "timeoutSeconds": 5}


def _server(replica: Replica, mounts: list[Manifest]) -> Manifest:
    program = PROGRAMS[replica.spec.engine.runtime]
    variables = [POD_IP, *environment(), *({"name": name, "value": value} for name, value in program.environment)]
    key = replica.spec.access.api_key_secret_ref
    if key is not None and program.key_variable:
        reference = {"name": key.name, "key": key.key}
        variables.append({"name": program.key_variable, "valueFrom": {"secretKeyRef": reference}})
    container = {
        **program_container(
            contract.SERVER_CONTAINER,
            replica.image,
            _serve_arguments(replica, program),
            variables,
            _resources(replica),
            mounts,
            command=program.command,
        ),
        "ports": [{"name": contract.PORT_NAME, "containerPort": contract.PORT, "protocol": "TCP"}],
        # A big model loads for minutes: 30 minutes until the first healthy answer.
        "startupProbe": _probe(program.health_path, 2, 900),
        "livenessProbe": _probe(program.health_path, 10, 3),
        "readinessProbe": _probe(program.ready_path, program.probe_seconds, 2),
    }
    notice = program.notice()
    return container if notice is None else {**container, "lifecycle": notice}


def _fetch(replica: Replica, mounts: list[Manifest]) -> Manifest:
    model = replica.spec.model
    container = program_container(
        contract.FETCH_CONTAINER,
        replica.fetch_image or replica.image,
        fetch_arguments(model, replica.spec.engine.runtime),
        [POD_IP, *environment(), *credentials(model, replica.proxy)],
        {"requests": {"cpu": "100m", "memory": "256Mi"}},
        mounts + store_mounts(model),
    )
    return {**container, "ports": [{"name": "progress", "containerPort": contract.PORT, "protocol": "TCP"}]}


def _apart(replica: Replica) -> list[Manifest]:
    """Replicas on different nodes and zones where that is possible."""
    mine = {
        contract.SERVICE_LABEL: replica.service,
        contract.ROLE_LABEL: contract.ROLE_SERVER,
        contract.TEMPLATE_LABEL: replica.name(),
    }
    return [
        {
            "maxSkew": 1,
            "topologyKey": key,
            "whenUnsatisfiable": "ScheduleAnyway",
            "labelSelector": {"matchLabels": mine},
        }
        for key in ("kubernetes.io/hostname", "topology.kubernetes.io/zone")
    ]


def render(replica: Replica) -> Manifest:
    """The pod template of a replica's inputs; stored in a ControllerRevision and from then on applied verbatim."""
    placement = replica.spec.placement
    volumes, mounts = scratch()
    shared_volumes, shared_mounts = shared_memory(replica)
    model_volumes, model_mounts = model_volume(replica.spec.model)
    launch_volumes, launch_mounts = launch_table_volume(replica)
    spec: Manifest = {
        **pod_of(replica.service),
        "terminationGracePeriodSeconds": replica.spec.rollout.drain_seconds + contract.DRAIN_MARGIN_SECONDS,
        "affinity": affinity(replica.node_type.key),
        "topologySpreadConstraints": _apart(replica),
        "containers": [_server(replica, mounts + shared_mounts + model_mounts + launch_mounts)],
        "volumes": volumes + shared_volumes + model_volumes + launch_volumes,
    }
    if is_fetched(replica.spec.model):
        spec["initContainers"] = [_fetch(replica, mounts)]
    place(spec, placement, replica.node_type.key)
    if placement.priority_class_name:
        spec["priorityClassName"] = placement.priority_class_name
    labels = {
        contract.SERVICE_LABEL: replica.service,
        contract.ROLE_LABEL: contract.ROLE_SERVER,
        contract.NODE_TYPE_LABEL: replica.node_type.label,
        contract.TEMPLATE_LABEL: replica.name(),
        contract.MANAGED_BY_LABEL: contract.FIELD_MANAGER,
    }
    metadata: Manifest = {"labels": labels}
    if replica.launch_table:
        metadata["annotations"] = {contract.LAUNCH_TABLE_ANNOTATION: replica.launch_table}
    return {"metadata": metadata, "spec": spec}


def fetches_for_itself(spec: InferenceServiceSpec) -> bool:
    """Whether pods of the service need a way out of the cluster for their model."""
    return is_fetched(spec.model)


def limits_traffic(spec: InferenceServiceSpec) -> bool:
    """Whether a NetworkPolicy is wanted."""
    return spec.access.network_policy == Switch.ENABLED
