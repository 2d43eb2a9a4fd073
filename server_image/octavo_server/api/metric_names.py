"""A part of the metrics, by the names of samples: who reads thousands of servers each few seconds needs ten lines."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from dataclasses import dataclass

from prometheus_client import CollectorRegistry, Metric


@dataclass(frozen=True)
class Named:
    """In a registry's place before an encoder. The registry's own filter knows only collectors that describe themselves
    ahead, and the engine's does not."""

    registry: CollectorRegistry
    names: frozenset[str]
    """Of samples: `octavo_requests_finished_total`, `octavo_queue_seconds_bucket`."""

    def collect(self) -> Iterator[Metric]:
        """The families that have such samples, with these alone."""
        for family in self.registry.collect():
            kept = [sample for sample in family.samples if sample.name in self.names]
            if kept:
                part = copy.copy(family)
                part.samples = kept
                yield part
