"""Accelerators of one node as its labels and resources tell them: a record, or a reason in words. Never a guess."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from octavo_operator.api.placement_section import Vendor

from . import server_contract as contract
from .manifest import Manifest

CPU_PRODUCT = "CPU"
GPU_RESOURCE = "nvidia.com/gpu"
AMD_RESOURCE = "amd.com/gpu"
PRODUCT_LABEL = "nvidia.com/gpu.product"
AMD_PRODUCT_LABELS = ("amd.com/gpu.product-name", "beta.amd.com/gpu.product-name")
CUDA_LABELS = ("nvidia.com/cuda.runtime-version", "nvidia.com/cuda.runtime")
"""Highest CUDA version of the driver: current spelling, deprecated spelling."""
SHARING_LABEL = "nvidia.com/gpu.sharing-strategy"
SHARING_STRATEGIES = ("time-slicing", "mps")
DRIVER_LABELS = ("nvidia.com/cuda.driver-version", "nvidia.com/cuda.driver")
_NVIDIA_RESOURCE = re.compile(r"^nvidia\.com/(gpu|mig-([0-9]+g\.[0-9]+gb[a-z0-9.+_-]*?))(\.shared)?$")
_MIG_PRODUCT = re.compile(r"-MIG-([0-9]+g\.[0-9]+gb[a-z0-9.+_]*)")
_PLAIN_NUMBER = re.compile(r"0|[1-9][0-9]{0,8}")
_VERSION = re.compile(r"[0-9]{1,9}(\.[0-9]{1,9})*")

Labels = Mapping[str, str]


@dataclass(frozen=True)
class AcceleratorFacts:
    """One kind of accelerator that one node offers."""

    vendor: Vendor
    product: str
    """As pods are matched to it: the override label's word, else the vendor's."""
    label: str
    """Value of the vendor's product label on the node; differs from `product` for slices of a mixed MIG node."""
    capability: str
    """Compute capability such as 9.0; empty for AMD."""
    sharing: str
    """Empty, SHARED, MPS, or a MIG profile such as 1g.10gb (with -SHARED or -MPS)."""
    resource: str
    """Name of the resource that pods request."""
    memory_mib: int
    """0 = not told."""
    driver: str
    cuda: str
    """Highest CUDA version that the driver supports; empty for AMD."""
    count: int

    @property
    def is_shared(self) -> bool:
        """Whether other pods use the same memory and cores at the same time."""
        return self.sharing.endswith(("SHARED", "MPS"))


Reading = tuple[tuple[AcceleratorFacts, ...], tuple[str, ...]]
"""What a node offers, and a sentence for each thing about it that could not be read."""


def version(text: str) -> tuple[int, ...]:
    """Numbers of a dotted version; empty for anything else."""
    return tuple(map(int, text.split("."))) if _VERSION.fullmatch(text) else ()


def labels_of(node: Manifest) -> dict[str, str]:
    """Labels of a node."""
    return node["metadata"].get("labels") or {}


def _number(text: str) -> int | None:
    # isdigit() also accepts digits that int() does not, such as ².
    return int(text) if re.fullmatch(r"[0-9]{1,9}", text) else None


def _amounts(node: Manifest) -> dict[str, int]:
    """Extended resources of a node that count accelerators."""
    found = node.get("status", {}).get("allocatable") or {}
    known = {name: _number(str(amount)) for name, amount in found.items()}
    return {name: amount or 0 for name, amount in known.items() if _NVIDIA_RESOURCE.match(name) or name == AMD_RESOURCE}


def _labelled_version(labels: Labels, current: str, deprecated: str) -> str:
    full = labels.get(f"{current}.full", "")
    if _VERSION.fullmatch(full):
        return full
    for prefix in (current, deprecated):
        parts = [labels.get(f"{prefix}.{part}", "") for part in ("major", "minor", "revision", "rev")]
        if _number(parts[0]) is not None and _number(parts[1]) is not None:
            return ".".join(part for part in parts if _number(part) is not None)
    return ""


def _cuda(labels: Labels) -> tuple[str, str]:
    """(highest CUDA version of the driver, what is wrong with its labels), one of them empty.

    The scheduler compares major and minor as numbers, so these decide; a current spelling hides the deprecated one.
    """
    current, deprecated = CUDA_LABELS
    prefix = current if f"{current}.major" in labels or f"{deprecated}.major" not in labels else deprecated
    parts = [labels.get(f"{prefix}.{part}", "") for part in ("major", "minor")]
    if not all(map(_PLAIN_NUMBER.fullmatch, parts)):
        return "", f"no usable label {prefix}.major and .minor, which tell what the driver runs"
    full = version(labels.get(f"{prefix}.full", ""))
    if full[1:] and full[:2] != tuple(map(int, parts)):
        return "", f"labels {prefix}.full ({labels[f'{prefix}.full']}) and .major.minor ({'.'.join(parts)}) that differ"
    return ".".join(parts), ""


def has_accelerator(node: Manifest) -> bool:
    """Whether a node shows or announces accelerators of any vendor."""
    labels = labels_of(node)
    told = any(name in labels for name in (PRODUCT_LABEL, contract.PRODUCT_OVERRIDE_LABEL, *AMD_PRODUCT_LABELS))
    return told or any(_amounts(node).values())


def _sharing(labels: Labels, product: str, prefix: str, profile: str, renamed: bool) -> str:
    own = labels.get(f"{prefix}.sharing-strategy", "")
    several = (_number(labels.get(f"{prefix}.replicas", "")) or 1) > 1
    shared = renamed or product.endswith("-SHARED") or several or own in SHARING_STRATEGIES
    strategy = own or labels.get(SHARING_LABEL, "")
    mode = ("MPS" if strategy == "mps" else "SHARED") if shared else ""
    return "-".join(filter(None, (profile, mode)))


def _nvidia(name: str, labels: Labels, amounts: Mapping[str, int]) -> Reading:
    label, override = labels.get(PRODUCT_LABEL, ""), labels.get(contract.PRODUCT_OVERRIDE_LABEL, "")
    if not label and not override:
        return (), (f"node {name} has accelerators but no label {PRODUCT_LABEL}; install GPU feature discovery",)
    if "MIG-INVALID" in label:
        return (), (f"node {name} has an invalid MIG configuration (product {label}); create its MIG instances",)
    major, minor = (_number(labels.get(f"nvidia.com/gpu.compute.{part}", "")) for part in ("major", "minor"))
    if major is None or minor is None:
        return (), (f"node {name} ({label or override}) has no usable label nvidia.com/gpu.compute.major and .minor",)
    (cuda, wrong), driver = _cuda(labels), _labelled_version(labels, *DRIVER_LABELS)
    if wrong:
        return (), (f"node {name} ({label or override}) has {wrong}",)
    offered = {resource: count for resource, count in amounts.items() if resource != AMD_RESOURCE and count}
    notes: tuple[str, ...] = ()
    if not offered:
        # Labels may outlive the device plugin; the type stays known, and no pod is counted on here.
        notes = (f"node {name} ({label or override}) offers no {GPU_RESOURCE}; does the device plugin run there?",)
    found = []
    for resource, count in sorted(offered.items()) or [(GPU_RESOURCE, 0)]:
        parts = _NVIDIA_RESOURCE.match(resource)
        assert parts is not None, "offered holds resources of this form alone"
        slice_profile, renamed = parts[2] or "", parts[3] is not None
        prefix = resource.removesuffix(".shared") if slice_profile else GPU_RESOURCE
        whole = _MIG_PRODUCT.search(label)
        profile = slice_profile or (whole[1].removesuffix("-SHARED") if whole else "")
        product = override or label
        if slice_profile:
            # On a node of the mixed strategy the product label speaks of whole GPUs.
            product = f"{product}-MIG-{slice_profile}"
        memory = _number(labels.get(f"{prefix}.memory", ""))
        sharing = _sharing(labels, labels.get(f"{prefix}.product", ""), prefix, profile, renamed)
        found.append(
            AcceleratorFacts(
                Vendor.NVIDIA,
                product,
                label,
                f"{major}.{minor}",
                sharing,
                resource,
                memory or 0,
                driver,
                cuda,
                count,
            )
        )
    return tuple(found), notes


def _amd(name: str, labels: Labels, amounts: Mapping[str, int]) -> Reading:
    label = next((labels[key] for key in AMD_PRODUCT_LABELS if labels.get(key)), "")
    product = labels.get(contract.PRODUCT_OVERRIDE_LABEL) or label
    if not product:
        return (), (f"node {name} has accelerators but no label {AMD_PRODUCT_LABELS[0]}; run AMD's node labeller",)
    stems = [key.removesuffix(".product-name") for key in AMD_PRODUCT_LABELS]
    vram = next((labels[f"{stem}.vram"] for stem in stems if labels.get(f"{stem}.vram")), "")
    driver = next((labels[f"{stem}.driver-version"] for stem in stems if labels.get(f"{stem}.driver-version")), "")
    gigabytes = _number(vram.removesuffix("G"))
    memory = (gigabytes or 0) * 1024
    count = amounts.get(AMD_RESOURCE, 0)
    return (AcceleratorFacts(Vendor.AMD, product, label, "", "", AMD_RESOURCE, memory, driver, "", count),), ()


def read_accelerators(node: Manifest) -> Reading:
    """What the labels and resources of a node say about its accelerators, current spelling before deprecated."""
    if not has_accelerator(node):
        return (), ()
    name, labels, amounts = str(node["metadata"]["name"]), labels_of(node), _amounts(node)
    is_amd = any(key in labels for key in AMD_PRODUCT_LABELS) or amounts.get(AMD_RESOURCE, 0) > 0
    is_nvidia = PRODUCT_LABEL in labels or any(count for key, count in amounts.items() if key != AMD_RESOURCE)
    if is_amd and not is_nvidia:
        return _amd(name, labels, amounts)
    return _nvidia(name, labels, amounts)
