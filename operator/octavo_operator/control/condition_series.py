"""What is read of a service's status as series: one per condition, one per node type in use."""

from __future__ import annotations

from octavo_operator.status.conditions import ORDER
from octavo_operator.status.reasons import REASONS

from .live_series import Labels, Object

OTHER = "Other"
"""In the place of reasons that programs and the API server word themselves: their number has no bound."""


def conditions_of(service: Object) -> dict[Labels, float]:
    """1 by (namespace, service, type, status, reason) for each condition."""
    meta = service["metadata"]
    return {
        (
            str(meta["namespace"]),
            str(meta["name"]),
            str(item["type"]),
            str(item["status"]),
            item["reason"] if item["reason"] in REASONS else OTHER,
        ): 1.0
        for item in (service.get("status") or {}).get("conditions") or ()
        if item["type"] in ORDER
    }


def node_types_of(service: Object) -> dict[Labels, float]:
    """Wanted replicas by (namespace, service, node_type, product, image, mode, block_size)."""
    meta = service["metadata"]
    return {
        (
            str(meta["namespace"]),
            str(meta["name"]),
            str(item["name"]),
            str(item.get("product") or ""),
            str(item.get("image") or ""),
            str(item.get("imageMode") or ""),
            str(item.get("blockSize") or 0),
        ): float(item.get("replicas") or 0)
        for item in (service.get("status") or {}).get("nodeTypes") or ()
    }
