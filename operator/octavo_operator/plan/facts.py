"""What a plan is made from and what it is."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

Manifest = dict[str, Any]


@dataclass(frozen=True)
class CatalogueImage:
    """One image of the server."""

    name: str
    image: str
    cuda: str | None = None
    """CUDA version inside; None = CPU image."""
    architectures: tuple[str, ...] = ()
    """Compute capabilities with compiled code, such as 9.0."""

    @classmethod
    def parse(cls, entry: Manifest) -> CatalogueImage:
        """From an entry of the chart's catalogue; raises ValueError that names what is missing."""
        for key in ("name", "image"):
            if not entry.get(key):
                raise ValueError(
                    f"image catalogue: an entry lacks {key!r}: {entry}; give name, image, cuda, architectures"
                )
        architectures = entry.get("architectures") or entry.get("computeCapabilities") or ()
        cuda = entry.get("cuda")
        return cls(str(entry["name"]), str(entry["image"]), str(cuda) if cuda else None, tuple(map(str, architectures)))


@dataclass(frozen=True)
class PlanSettings:
    """Settings of the operator that reach plans."""

    operator_namespace: str = "octavo-system"
    monitoring_namespace: str | None = None
    images: tuple[CatalogueImage, ...] = ()
    cluster_domain: str = "cluster.local"
    check_retry_seconds: int = 300
    """A failed model check is tried again after this time."""


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
    neighbours: Sequence[Manifest] = ()
    """Pods of others, as far as known: what they request is not free."""

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


def digest(value: Any, length: int) -> str:
    """The first hex digits of a SHA-256 over the value's canonical JSON."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    return hashlib.sha256(text.encode()).hexdigest()[:length]
