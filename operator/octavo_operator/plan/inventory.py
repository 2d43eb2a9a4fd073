"""Nodes as plans see them, and how much of them is taken. Read once per change of a Node, not once per plan."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from .accelerators import AcceleratorFacts, has_accelerator, labels_of, read_accelerators
from .admission import open_for_pods
from .manifest import Manifest
from .quantities import micro

Amounts = Mapping[str, int]
"""Resource → millionths of its unit."""


@dataclass(frozen=True)
class NodeView:
    """One node, read."""

    name: str
    node: Manifest
    accelerators: tuple[AcceleratorFacts, ...]
    notes: tuple[str, ...]
    """A sentence for each label that could not be read."""
    is_plain: bool
    """Whether it neither shows nor announces accelerators."""
    is_open: bool
    """Whether the scheduler would put a pod there now."""
    allocatable: Amounts
    mark: str
    """Equal for nodes of one class."""

    def reads_like(self, other: NodeView, selected_labels: Iterable[str]) -> bool:
        """Whether plans find the same in two states of one node: of labels that say nothing of accelerators, they read
        those that a nodeSelector asks for."""
        same = (self.mark, self.is_open, self.allocatable) == (other.mark, other.is_open, other.allocatable)
        mine, theirs = labels_of(self.node), labels_of(other.node)
        return same and all(mine.get(key) == theirs.get(key) for key in selected_labels)


def view(node: Manifest) -> NodeView:
    """Read a Node of the API server; odd values become notes, never errors."""
    found, notes = read_accelerators(node)
    taints = node.get("spec", {}).get("taints") or ()
    told = [(taint["key"], taint.get("value"), taint.get("effect")) for taint in taints]
    # A node with something to say is told by its own name, and so is a class of its own.
    mark = repr((found, has_accelerator(node), told, node["metadata"]["name"] if notes else ""))
    allocatable = {name: micro(amount) for name, amount in (node.get("status", {}).get("allocatable") or {}).items()}
    return NodeView(
        str(node["metadata"]["name"]),
        node,
        found,
        notes,
        not has_accelerator(node),
        open_for_pods(node),
        {name: amount for name, amount in allocatable.items() if amount is not None},
        mark,
    )


@dataclass(frozen=True)
class NodeClass:
    """Nodes that differ in nothing that a placement without a nodeSelector asks for."""

    view: NodeView
    """One of them, in place of all."""
    names: tuple[str, ...]


def alone(nodes: Iterable[NodeView]) -> list[NodeClass]:
    """Each node as a class of its own."""
    return [NodeClass(node, (node.name,)) for node in nodes]


def classes(nodes: Iterable[NodeView]) -> list[NodeClass]:
    """Nodes by class, each in the order of its first node: thousands of nodes are of few classes."""
    found: dict[str, list[NodeView]] = {}
    for node in nodes:
        found.setdefault(node.mark, []).append(node)
    return [NodeClass(each[0], tuple(node.name for node in each)) for each in found.values()]


def requests_of(pod_spec: Manifest) -> dict[str, int]:
    """What the scheduler counts for a pod: its containers together or its largest init container, and the pod."""
    total: dict[str, int] = {}
    for container in pod_spec.get("containers") or ():
        for name, amount in ((container.get("resources") or {}).get("requests") or {}).items():
            total[name] = total.get(name, 0) + (micro(amount) or 0)
    for container in pod_spec.get("initContainers") or ():
        for name, amount in ((container.get("resources") or {}).get("requests") or {}).items():
            total[name] = max(total.get(name, 0), micro(amount) or 0)
    for name, amount in (pod_spec.get("overhead") or {}).items():
        total[name] = total.get(name, 0) + (micro(amount) or 0)
    total["pods"] = 1_000_000
    return total


def holds_resources(pod: Manifest) -> bool:
    """Whether a pod takes something from a node."""
    ended = pod.get("status", {}).get("phase") in ("Succeeded", "Failed")
    return bool(pod.get("spec", {}).get("nodeName")) and not ended


def usage_of(pods: Iterable[Manifest]) -> dict[str, dict[str, int]]:
    """What pods take from each node."""
    usage: dict[str, dict[str, int]] = {}
    for pod in filter(holds_resources, pods):
        taken = usage.setdefault(pod["spec"]["nodeName"], {})
        for name, amount in requests_of(pod["spec"]).items():
            taken[name] = taken.get(name, 0) + amount
    return usage


def without(usage: Mapping[str, Amounts], pods: Iterable[Manifest]) -> dict[str, Amounts]:
    """What would be taken from each node if these pods had ended."""
    left: dict[str, Amounts] = dict(usage)
    for name, amounts in usage_of(pods).items():
        taken = left.get(name, {})
        left[name] = {resource: taken.get(resource, 0) - amounts.get(resource, 0) for resource in {*taken, *amounts}}
    return left


def scarce(nodes: Sequence[NodeView], usage: Mapping[str, Amounts], pod_spec: Manifest) -> list[str]:
    """Resources of which no open node has enough left for one such pod; empty where they lack on different nodes."""
    found = []
    for name, amount in sorted(requests_of(pod_spec).items()):
        left = [node.allocatable.get(name, 0) - usage.get(node.name, {}).get(name, 0) for node in nodes if node.is_open]
        if amount and max(left, default=0) < amount:
            found.append(name)
    return found


def room(nodes: Iterable[NodeView], usage: Mapping[str, Amounts], pod_spec: Manifest) -> int:
    """How many more of these pods the open nodes among these can take, as far as requests are known."""
    needs = {name: amount for name, amount in requests_of(pod_spec).items() if amount}
    total = 0
    for node in nodes:
        if node.is_open:
            taken = usage.get(node.name, {})
            slots = ((node.allocatable.get(name, 0) - taken.get(name, 0)) // amount for name, amount in needs.items())
            total += max(0, min(slots))
    return total
