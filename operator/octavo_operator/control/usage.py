"""What pods take from each node, kept up to date with every change of a pod."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from octavo_operator.plan.inventory import Amounts, holds_resources, requests_of

Key = tuple[str, str]


class Usage:
    """Sums by node. `put` and `drop` pair up by the pod's key."""

    def __init__(self) -> None:
        self._pods: dict[Key, tuple[str, dict[str, int]]] = {}
        self._nodes: dict[str, dict[str, int]] = {}

    @property
    def by_node(self) -> Mapping[str, Amounts]:
        """Millionths of each resource by node; changes with the next `put` or `drop`."""
        return self._nodes

    def put(self, key: Key, pod: dict[str, Any]) -> None:
        """A pod came or changed."""
        self.drop(key)
        if holds_resources(pod):
            node, amounts = pod["spec"]["nodeName"], requests_of(pod["spec"])
            self._pods[key] = (node, amounts)
            self._add(node, amounts, 1)

    def drop(self, key: Key) -> None:
        """A pod went."""
        found = self._pods.pop(key, None)
        if found is not None:
            self._add(*found, -1)

    def _add(self, node: str, amounts: Amounts, sign: int) -> None:
        taken = self._nodes.setdefault(node, {})
        for name, amount in amounts.items():
            taken[name] = taken.get(name, 0) + sign * amount
            if not taken[name]:
                del taken[name]
        if not taken:
            del self._nodes[node]
