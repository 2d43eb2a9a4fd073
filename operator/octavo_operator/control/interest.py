"""Which services a change of a Node concerns. Thousands of services have few placements: each is asked once."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from typing import Any

from pydantic import ValidationError

from octavo_operator.api.placement_section import CPUPolicy, PlacementSection
from octavo_operator.plan.admission import fits, selected, tolerated, wanted_accelerators
from octavo_operator.plan.inventory import NodeView
from octavo_operator.plan.manifest import digest

Key = tuple[str, str]


def concerns(placement: PlacementSection, node: NodeView) -> bool:
    """Whether a node can make a difference to a placement."""
    if not selected(node.node, placement):
        return False
    if node.is_plain:
        return placement.cpu != CPUPolicy.FORBIDDEN and tolerated(node.node, placement, None)
    if placement.cpu == CPUPolicy.REQUIRED:
        return False
    if node.notes:
        # What could not be read may be what the service waits for.
        return True
    wanted = wanted_accelerators(placement)
    return any(
        tolerated(node.node, placement, facts.vendor) and any(fits(item, facts) for item in wanted)
        for facts in node.accelerators
    )


class Interest:
    """Services by placement."""

    def __init__(self) -> None:
        self._mark: dict[Key, str] = {}
        self._placement: dict[str, PlacementSection | None] = {}
        self._services: defaultdict[str, set[Key]] = defaultdict(set)
        self._selected: frozenset[str] | None = None

    def add(self, key: Key, spec: dict[str, Any]) -> None:
        """A service came or changed; one that can't be parsed is concerned by every node."""
        written = spec.get("placement") or {}
        mark = digest(written, 16)
        if self._mark.get(key) == mark:
            return
        self.remove(key)
        self._mark[key] = mark
        self._services[mark].add(key)
        if mark not in self._placement:
            try:
                self._placement[mark] = PlacementSection.model_validate(written)
            except ValidationError:
                self._placement[mark] = None
            self._selected = None

    def remove(self, key: Key) -> None:
        """A service went."""
        mark = self._mark.pop(key, None)
        if mark is None:
            return
        self._services[mark].discard(key)
        if not self._services[mark]:
            del self._services[mark], self._placement[mark]
            self._selected = None

    def selected_labels(self) -> frozenset[str]:
        """Keys of the labels that any nodeSelector asks for."""
        if self._selected is None:
            placements = [placement for placement in self._placement.values() if placement is not None]
            self._selected = frozenset(key for placement in placements for key in placement.node_selector)
        return self._selected

    def concerned(self, nodes: Iterable[NodeView]) -> set[Key]:
        """Services that any of these states of a node can make a difference to: none where plans read the same of all
        of them."""
        states = list(nodes)
        if len(states) == 2 and states[0].reads_like(states[1], self.selected_labels()):
            return set()
        found: set[Key] = set()
        for mark, placement in self._placement.items():
            if placement is None or any(concerns(placement, node) for node in states):
                found |= self._services[mark]
        return found
