"""Series that say what objects are like now: they change with their object and are gone with it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from prometheus_client import Gauge

Object = Mapping[str, Any]
Labels = tuple[str, ...]
Read = Callable[[Object], Mapping[Labels, float]]
"""Values of one object by labels, in the gauge's order; no two objects have labels in common."""


class LiveSeries:
    """Keeps a gauge equal to what the objects hold now."""

    def __init__(self, gauge: Gauge, read: Read) -> None:
        self._gauge, self._read = gauge, read
        self._shown: dict[Labels, float] = {}

    def show(self, objects: Iterable[Object]) -> None:
        """Series of what no longer holds, and of objects that are gone, are removed."""
        wanted = {labels: value for item in objects for labels, value in self._read(item).items()}
        for labels in self._shown.keys() - wanted.keys():
            self._gauge.remove(*labels)
        for labels, value in wanted.items():
            if self._shown.get(labels) != value:
                self._gauge.labels(*labels).set(value)
        self._shown = wanted
