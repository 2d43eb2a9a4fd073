"""Which nodes and accelerators spec.placement admits."""

from __future__ import annotations

from octavo_operator.api.placement_section import Accelerator, PlacementSection, TolerationOperator, Vendor

from .accelerators import AMD_RESOURCE, GPU_RESOURCE, AcceleratorFacts, labels_of, version
from .manifest import Manifest

VENDOR_TAINTS = {Vendor.NVIDIA: GPU_RESOURCE, Vendor.AMD: AMD_RESOURCE}
"""Taint by which clusters keep other pods off nodes with accelerators; pods that ask for one tolerate it."""
_USABLE_SHARE = 0.97
"""A card of 80 GB shows 81,559 MiB of its 80 GiB: 3 % are the driver's."""


def wanted_accelerators(placement: PlacementSection) -> tuple[Accelerator, ...]:
    """Kinds of accelerators that the spec asks for; every kind of NVIDIA's when it names none."""
    return placement.accelerators or (Accelerator(),)


def names(accelerator: Accelerator, product: str) -> bool:
    """Whether a kind of accelerator admits a product by name."""
    return not accelerator.products or product in accelerator.products


def fits(accelerator: Accelerator, facts: AcceleratorFacts) -> bool:
    """Whether a kind of accelerator from the spec admits this one; unknown memory does not count against it."""
    if accelerator.vendor != facts.vendor or not names(accelerator, facts.product):
        return False
    if facts.is_shared and not accelerator.products:
        # A neighbour may hold the memory that a replica counts on: shared accelerators must be asked for by name.
        return False
    least = accelerator.min_compute_capability
    if least is not None and version(facts.capability) < version(least):
        return False
    return not facts.memory_mib or facts.memory_mib >= (accelerator.min_memory_gib or 0) * 1024 * _USABLE_SHARE


def accepts_taint(taint: Manifest, placement: PlacementSection) -> bool:
    """Whether a toleration of the spec accepts a taint."""
    return any(
        (t.key is None or t.key == taint["key"])
        and (t.effect is None or t.effect.value == taint.get("effect"))
        and (t.operator == TolerationOperator.EXISTS or (t.value or "") == (taint.get("value") or ""))
        for t in placement.tolerations
    )


def tolerated(node: Manifest, placement: PlacementSection, vendor: Vendor | None) -> bool:
    """Whether the service accepts every hard taint of the node; cordoned nodes come back and count as accepted."""
    for taint in node.get("spec", {}).get("taints") or ():
        if taint.get("effect") == "PreferNoSchedule" or taint["key"].startswith("node.kubernetes.io/"):
            continue
        if vendor is not None and taint["key"] == VENDOR_TAINTS[vendor] and taint.get("effect") == "NoSchedule":
            continue
        if not accepts_taint(taint, placement):
            return False
    return True


def selected(node: Manifest, placement: PlacementSection) -> bool:
    """Whether the node carries the labels of placement.nodeSelector."""
    if not placement.node_selector:
        return True
    labels = labels_of(node)
    return all(labels.get(key) == value for key, value in placement.node_selector.items())


def open_for_pods(node: Manifest) -> bool:
    """Whether the scheduler would put a pod there now: neither cordoned nor known as unreachable or under pressure."""
    spec = node.get("spec", {})
    if spec.get("unschedulable") or node["metadata"].get("deletionTimestamp"):
        return False
    return not any(
        taint["key"].startswith("node.kubernetes.io/") and taint.get("effect") in ("NoSchedule", "NoExecute")
        for taint in spec.get("taints") or ()
    )


def described(placement: PlacementSection) -> str:
    """What a placement asks for, in words."""
    parts = [f"placement.cpu {placement.cpu.value}"]
    for accelerator in placement.accelerators:
        wanted = [accelerator.vendor.value, *accelerator.products]
        if accelerator.min_memory_gib:
            wanted.append(f"at least {accelerator.min_memory_gib} GiB")
        if accelerator.min_compute_capability:
            wanted.append(f"compute capability {accelerator.min_compute_capability} or more")
        parts.append(" ".join(wanted))
    if placement.node_selector:
        parts.append("nodeSelector " + ", ".join(f"{k}={v}" for k, v in sorted(placement.node_selector.items())))
    return "; ".join(parts)
