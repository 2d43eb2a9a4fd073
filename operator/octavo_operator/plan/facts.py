"""What a plan is made from and what it is."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import cached_property
from typing import Any

from octavo_operator.api.engine_section import Runtime

from .inventory import NodeClass, NodeView, classes, usage_of, view
from .manifest import Manifest, digest

__all__ = ["SAFE_ARGUMENTS", "CatalogueImage", "Egress", "Event", "Facts", "Manifest", "Plan", "PlanSettings", "digest"]


@dataclass(frozen=True)
class CatalogueImage:
    """One image of the server."""

    name: str
    image: str
    cuda: str | None = None
    """CUDA version inside; None = CPU image."""
    architectures: tuple[str, ...] = ()
    """Compute capabilities with machine code (SASS), such as 9.0."""
    ptx: tuple[str, ...] = ()
    """Compute capabilities with code that a driver can compile for later ones."""
    triton: str = ""
    """Version of Triton inside; empty where there is none, or it is not told."""
    runtime: str = "Octavo"
    """The program inside, by its name in engine.runtime."""

    @classmethod
    def parse(cls, entry: Manifest) -> CatalogueImage:
        """From an entry of the chart's catalogue; raises ValueError that names what is missing."""
        for key in ("name", "image"):
            if not entry.get(key):
                raise ValueError(
                    f"image catalogue: an entry lacks {key!r}: {entry}; give name, image, cuda, architectures"
                )
        if entry.get("cuda") and not re.fullmatch(r"[0-9]{1,3}\.[0-9]{1,3}", str(entry["cuda"])):
            raise ValueError(
                f"image catalogue: entry {entry['name']}: cuda {entry['cuda']!r} is no version such as 12.8"
            )
        runtime = str(entry.get("runtime") or "Octavo")
        if runtime not in (known := [item.value for item in Runtime]):
            raise ValueError(
                f"image catalogue: entry {entry['name']}: runtime {runtime!r} is none of {', '.join(known)}"
            )
        architectures = entry.get("architectures") or entry.get("computeCapabilities") or ()
        cuda, ptx = entry.get("cuda"), entry.get("ptx") or ()
        return cls(
            str(entry["name"]),
            str(entry["image"]),
            str(cuda) if cuda else None,
            tuple(map(str, architectures)),
            tuple(map(str, ptx)),
            str(entry.get("triton") or ""),
            runtime,
        )


SAFE_ARGUMENTS = (
    "--max-",
    "--cpu-threads",
    "--pool-bytes",
    "--drain-notice-seconds",
    "--log-level",
    "--access-log",
)
"""Flags of engine.extraArgs that read no file and reach nothing: users may set them without being allowed to."""


@dataclass(frozen=True)
class Egress:
    """An address that pods which fetch a model may reach, such as a proxy or a mirror."""

    cidr: str
    port: int


@dataclass(frozen=True)
class PlanSettings:
    """Settings of the operator that reach plans."""

    operator_namespace: str = "octavo-system"
    monitoring_namespace: str | None = None
    images: tuple[CatalogueImage, ...] = ()
    cluster_domain: str = "cluster.local"
    check_retry_seconds: int = 300
    """A failed model check is tried again after this time, then after twice as long, and so on."""
    check_longest_retry_seconds: int = 3600
    reads_nodes: bool = True
    """Whether the operator may read Nodes."""
    image_prefixes: tuple[str, ...] = ()
    """What a pinned image may begin with, beside the repositories of the catalogue's images."""
    file_prefixes: tuple[str, ...] = ("*",)
    """Folders of the image in which a model with file:// may lie."""
    argument_prefixes: tuple[str, ...] = SAFE_ARGUMENTS
    """What a flag of engine.extraArgs may begin with."""
    priority_classes: tuple[str, ...] = ()
    """Priority classes that a service may name."""
    tolerations: tuple[str, ...] = ()
    """Taints that a service may tolerate, as `key` or `key=value`, beside those of accelerators."""
    resources: tuple[str, ...] = ()
    """Resources that a service may ask for beside CPU, memory, storage and its accelerators."""
    cache_claim: str = ""
    """Claim that keeps fetched files where model.cacheClaim is not set; each namespace with services holds its own."""
    hub_endpoint: str = ""
    """Mirror of the Hub where model.endpoint is not set."""
    priority_class: str = ""
    """Priority class of model pods where placement.priorityClassName is not set."""
    gateway_namespace: str | None = None
    """Namespace whose pods may send requests to models."""
    calibration: str = "Off"
    """Where block sizes are measured: Off, Accelerators, or All (also on CPUs)."""
    calibration_seconds: int = 300
    """Time that a calibration may measure."""
    calibration_priority_class: str = ""
    """Priority class of calibrations, below that of every replica; empty = the cluster's default."""
    egress: tuple[Egress, ...] = ()
    """Where pods that fetch a model may connect to, beside TCP 443 anywhere."""
    pull_secrets: tuple[str, ...] = ()
    """Secrets with which images of model pods are pulled; each namespace with services holds its own."""
    proxy: tuple[tuple[str, str], ...] = ()
    """Variables that tell containers which talk to a model's source their proxy, such as HTTPS_PROXY."""


@dataclass(frozen=True)
class Facts:
    """What the operator's indexes hold about one service; plain objects of the API server, never changed."""

    service: Manifest
    now: datetime
    settings: PlanSettings = field(default_factory=PlanSettings)
    owned: Sequence[Manifest] = ()
    pods: Sequence[Manifest] = ()
    """Pods of the service, of every role."""
    nodes: Sequence[Manifest] = ()
    claims: Sequence[Manifest] = ()
    profiles: Sequence[Manifest] = ()
    """TuningProfiles of the namespace."""
    known_views: Sequence[NodeView] | None = None
    """The nodes, read, in the order of their names; read from `nodes` when absent."""
    known_classes: Sequence[NodeClass] | None = None
    """The nodes by class; grouped from `views` when absent."""
    progress: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """How far pods are that fetch their model, by UID, as they tell it themselves."""
    known_usage: Mapping[str, Mapping[str, int]] | None = None
    """What all pods take from each node; what `pods` take when absent."""

    @cached_property
    def views(self) -> Sequence[NodeView]:
        """The nodes, read, in the order of their names."""
        if self.known_views is not None:
            return self.known_views
        return [view(node) for node in sorted(self.nodes, key=lambda node: str(node["metadata"]["name"]))]

    @cached_property
    def classes(self) -> Sequence[NodeClass]:
        """The nodes by class."""
        return classes(self.views) if self.known_classes is None else self.known_classes

    @cached_property
    def views_by_name(self) -> Mapping[str, NodeView]:
        """The nodes, read, by name."""
        return {item.name: item for item in self.views}

    @cached_property
    def usage(self) -> Mapping[str, Mapping[str, int]]:
        """Millionths of each resource that pods take from each node."""
        return usage_of(self.pods) if self.known_usage is None else self.known_usage

    @property
    def sees_nodes(self) -> bool:
        """Whether what is known of nodes is complete enough to take something away."""
        return bool(self.views) or not self.settings.reads_nodes

    def owned_of(self, kind: str) -> dict[str, Manifest]:
        """Owned objects of a kind by name."""
        found = (item for item in self.owned if item.get("kind") == kind)
        return {
            item["metadata"]["name"]: item for item in sorted(found, key=lambda item: str(item["metadata"]["name"]))
        }


@dataclass(frozen=True)
class Event:
    """Something to tell once."""

    type: str
    """Normal or Warning."""
    reason: str
    message: str


@dataclass(frozen=True)
class Plan:
    """What shall be."""

    objects: tuple[Manifest, ...]
    """Complete manifests in the order in which to apply them."""
    status: Manifest
    events: tuple[Event, ...] = ()
    prune: bool = False
    """Whether owned objects that are not among `objects` may go; false while facts are incomplete."""
    requeue_seconds: float | None = None
    seed_replicas: int | None = None
    """Count to write once into spec.replicas, which is absent in a mode that reads it."""
    profiles: tuple[Manifest, ...] = ()
    """TuningProfiles to write, complete with status; only those that differ from what is there."""
    spare: int | None = None
    """Replicas that would find a node at once; None where nodes can't be seen."""
