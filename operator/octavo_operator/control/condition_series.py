"""Conditions of all services as series: one per service and condition type, gone with the service."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from prometheus_client import Gauge

from octavo_operator.status.conditions import ORDER
from octavo_operator.status.reasons import REASONS

OTHER = "Other"
"""In the place of reasons that programs and the API server word themselves: their number has no bound."""
Labels = tuple[str, str, str, str, str]


def labels_of(service: Mapping[str, Any]) -> set[Labels]:
    """(namespace, service, type, status, reason) of each condition."""
    meta = service["metadata"]
    return {
        (
            str(meta["namespace"]),
            str(meta["name"]),
            str(item["type"]),
            str(item["status"]),
            item["reason"] if item["reason"] in REASONS else OTHER,
        )
        for item in (service.get("status") or {}).get("conditions") or ()
        if item["type"] in ORDER
    }


class ConditionSeries:
    """Keeps a gauge equal to the conditions that hold now."""

    def __init__(self, gauge: Gauge) -> None:
        self._gauge = gauge
        self._shown: set[Labels] = set()

    def show(self, services: Iterable[Mapping[str, Any]]) -> None:
        """Series of conditions that no longer hold, and of services that are gone, are removed."""
        wanted = {labels for service in services for labels in labels_of(service)}
        for labels in self._shown - wanted:
            self._gauge.remove(*labels)
        for labels in wanted - self._shown:
            self._gauge.labels(*labels).set(1)
        self._shown = wanted
