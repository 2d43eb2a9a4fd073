"""Where pods of a node type may be scheduled: derived from the type's key alone, so that nodes may come and go."""

from __future__ import annotations

from octavo_operator.api.placement_section import Vendor

from . import server_contract as contract
from .accelerators import (
    AMD_PRODUCT_LABELS,
    CUDA_LABELS,
    GPU_RESOURCE,
    PRODUCT_LABEL,
    SHARING_LABEL,
    SHARING_STRATEGIES,
    version,
)
from .admission import VENDOR_TAINTS
from .manifest import Manifest
from .node_types import TypeKey

SLICES_LABEL = "nvidia.com/gpu.slices.gi"
"""On nodes whose accelerators are all cut into slices (MIG, single strategy)."""
_MIG_PREFIX = "nvidia.com/mig-"


def _absent(label: str) -> Manifest:
    return {"key": label, "operator": "DoesNotExist"}


def _products(key: TypeKey) -> list[list[Manifest]]:
    """One list of conditions per spelling of the product; an administrator's override hides the vendor's label."""
    product = key.product
    if key.resource.startswith(_MIG_PREFIX):
        # A node of the mixed strategy is labelled with its whole GPU; the resource finds the slice.
        product = product.removesuffix("-MIG-" + key.resource.removeprefix(_MIG_PREFIX).removesuffix(".shared"))
    override = contract.PRODUCT_OVERRIDE_LABEL
    spellings = (PRODUCT_LABEL,) if key.vendor == Vendor.NVIDIA else AMD_PRODUCT_LABELS
    same = {"operator": "In", "values": [product]}
    return [
        [{"key": override, **same}, *_whole(key)],
        *([{"key": label, **same}, _absent(override)] for label in spellings),
    ]


def _whole(key: TypeKey) -> list[Manifest]:
    """An override's word may stand for whole accelerators and for slices of them."""
    sliced = key.resource != GPU_RESOURCE or key.sharing not in ("", "SHARED", "MPS")
    return [] if sliced else [_absent(SLICES_LABEL)]


def _capability(key: TypeKey) -> list[Manifest]:
    """The silicon that the image was chosen for: an override's word may stand for several."""
    parts = zip(("major", "minor"), key.capability.split("."), strict=True) if key.capability else ()
    return [{"key": f"nvidia.com/gpu.compute.{part}", "operator": "In", "values": [value]} for part, value in parts]


def _sharing(key: TypeKey) -> list[Manifest]:
    """Whole accelerators, time-slicing and MPS offer one resource, and often bear one product."""
    if key.vendor != Vendor.NVIDIA or not key.capability or key.resource != GPU_RESOURCE:
        return []
    if key.sharing.endswith("MPS"):
        return [{"key": SHARING_LABEL, "operator": "In", "values": ["mps"]}]
    unlike = ["mps"] if key.sharing.endswith("SHARED") else list(SHARING_STRATEGIES)
    return [{"key": SHARING_LABEL, "operator": "NotIn", "values": unlike}]


def _drivers(key: TypeKey) -> list[list[Manifest]]:
    """One list of conditions per spelling of the driver's CUDA version and way to be new enough."""
    if not key.cuda:
        return [[]]
    major, minor = (*version(key.cuda), 0)[:2]
    found: list[list[Manifest]] = []
    for label, hidden_by in ((CUDA_LABELS[0], None), (CUDA_LABELS[1], CUDA_LABELS[0])):
        # A stale deprecated label says nothing beside a current one.
        alone = [_absent(f"{hidden_by}.major")] if hidden_by else []
        above: Manifest = {"key": f"{label}.major", "operator": "Gt", "values": [str(major)]}
        same: Manifest = {"key": f"{label}.major", "operator": "In", "values": [str(major)]}
        least: Manifest = {"key": f"{label}.minor", "operator": "Gt", "values": [str(minor - 1)]}
        enough = [same, least] if key.fit == "Native" and minor else [same]
        found += [[above, *alone], [*enough, *alone]]
    return found


def affinity(key: TypeKey) -> Manifest:
    """Required node affinity of a type."""
    if key.is_cpu:
        labels = (PRODUCT_LABEL, contract.PRODUCT_OVERRIDE_LABEL, *AMD_PRODUCT_LABELS)
        terms: list[Manifest] = [{"matchExpressions": [_absent(label) for label in labels]}]
    else:
        terms = [
            {"matchExpressions": [*one, *_capability(key), *_sharing(key), *other]}
            for one in _products(key)
            for other in _drivers(key)
        ]
    return {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}}


def vendor_tolerations(key: TypeKey) -> list[Manifest]:
    """The taint that keeps other pods off accelerators; nothing for a type without any."""
    if key.is_cpu:
        return []
    return [vendor_toleration(Vendor(key.vendor))]


def vendor_toleration(vendor: Vendor) -> Manifest:
    """Accepts the taint of a vendor's accelerators."""
    return {"key": VENDOR_TAINTS[vendor], "operator": "Exists", "effect": "NoSchedule"}
