"""Where pods of a node type may be scheduled: derived from the type's key alone, so that nodes may come and go."""

from __future__ import annotations

from octavo_operator.api.placement_section import Vendor

from . import server_contract as contract
from .accelerators import AMD_PRODUCT_LABELS, CUDA_LABELS, PRODUCT_LABEL, version
from .admission import VENDOR_TAINTS
from .manifest import Manifest
from .node_types import TypeKey

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
    return [[{"key": override, **same}], *([{"key": label, **same}, _absent(override)] for label in spellings)]


def _drivers(key: TypeKey) -> list[list[Manifest]]:
    """One list of conditions per spelling of the driver's CUDA version and way to be new enough."""
    if not key.cuda:
        return [[]]
    major, minor = (*version(key.cuda), 0)[:2]
    found: list[list[Manifest]] = []
    for label in CUDA_LABELS:
        above: Manifest = {"key": f"{label}.major", "operator": "Gt", "values": [str(major)]}
        same: Manifest = {"key": f"{label}.major", "operator": "In", "values": [str(major)]}
        least: Manifest = {"key": f"{label}.minor", "operator": "Gt", "values": [str(minor - 1)]}
        found += [[above], [same, least] if key.fit == "Native" and minor else [same]]
    return found


def affinity(key: TypeKey) -> Manifest:
    """Required node affinity of a type."""
    if key.is_cpu:
        labels = (PRODUCT_LABEL, contract.PRODUCT_OVERRIDE_LABEL, *AMD_PRODUCT_LABELS)
        terms: list[Manifest] = [{"matchExpressions": [_absent(label) for label in labels]}]
    else:
        terms = [{"matchExpressions": [*one, *other]} for one in _products(key) for other in _drivers(key)]
    return {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}}


def vendor_tolerations(key: TypeKey) -> list[Manifest]:
    """The taint that keeps other pods off accelerators; nothing for a type without any."""
    if key.is_cpu:
        return []
    return [{"key": VENDOR_TAINTS[Vendor(key.vendor)], "operator": "Exists", "effect": "NoSchedule"}]
