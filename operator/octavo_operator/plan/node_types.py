"""Types of node: facts from labels as an optional record with a reason, and the filters of spec.placement."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from octavo_operator.api.placement_section import Accelerator, CPUPolicy, PlacementSection, TolerationOperator, Vendor

from .facts import CatalogueImage, Manifest, digest
from .image_choice import ImageChoice, choose_cpu, choose_cuda, version

GPU_RESOURCE = "nvidia.com/gpu"
PRODUCT_LABEL = "nvidia.com/gpu.product"
OTHER_VENDOR_RESOURCE = "amd.com/gpu"
_CUDA_LABELS = ("nvidia.com/cuda.runtime-version", "nvidia.com/cuda.runtime")
_DRIVER_LABELS = ("nvidia.com/cuda.driver-version", "nvidia.com/cuda.driver")
CPU_PRODUCT = "CPU"


@dataclass(frozen=True)
class AcceleratorFacts:
    """What the labels of one node say about its accelerators."""

    product: str
    capability: str
    sharing: str
    """Empty, SHARED, or a MIG profile such as 1g.10gb."""
    memory_mib: int
    driver: str
    cuda: str
    count: int


@dataclass(frozen=True)
class Hardware:
    """The part of a node type's key that comes from the node."""

    product: str
    capability: str = ""
    sharing: str = ""

    @property
    def is_cpu(self) -> bool:
        """Whether this is a node without accelerators."""
        return self.product == CPU_PRODUCT


@dataclass(frozen=True)
class NodeType:
    """Nodes that one Deployment may use."""

    hardware: Hardware
    choice: ImageChoice
    cost: int
    nodes: tuple[str, ...]
    driver: str = ""
    cuda: str = ""

    @property
    def key(self) -> tuple[str, ...]:
        """What a Deployment stands for; nothing else may reach its affinity."""
        hardware, image = self.hardware, self.choice.image
        cuda = (image.cuda if image else None) or ""
        return (
            hardware.product,
            hardware.capability,
            hardware.sharing,
            image.name if image else "",
            self.choice.fit,
            cuda,
        )

    @property
    def label(self) -> str:
        """8 hex digits of the key."""
        return digest(self.key, 8)


def _labelled_version(labels: dict[str, str], current: str, deprecated: str) -> str:
    full = labels.get(f"{current}.full", "")
    if re.fullmatch(r"[0-9]+(\.[0-9]+)*", full):
        return full
    for prefix in (current, deprecated):
        parts = [labels.get(f"{prefix}.{part}", "") for part in ("major", "minor", "revision", "rev")]
        numbers = [part for part in parts if part.isdigit()]
        if parts[0].isdigit() and parts[1].isdigit():
            return ".".join(numbers)
    return ""


def has_accelerator(node: Manifest) -> bool:
    """Whether a node shows or announces accelerators of any vendor."""
    labels = node["metadata"].get("labels") or {}
    amounts = node.get("status", {}).get("allocatable") or {}
    mig = any(name.startswith("nvidia.com/mig-") for name in amounts)
    return (
        PRODUCT_LABEL in labels
        or mig
        or any(str(amounts.get(r, "0")) != "0" for r in (GPU_RESOURCE, OTHER_VENDOR_RESOURCE))
    )


def read_accelerator(node: Manifest) -> tuple[AcceleratorFacts | None, str]:
    """Facts from NVIDIA's labels, current spelling before deprecated; None with the reason when they do not suffice."""
    labels = node["metadata"].get("labels") or {}
    name = node["metadata"]["name"]
    product = labels.get(PRODUCT_LABEL, "")
    if not product:
        return None, f"node {name} has accelerators but no label {PRODUCT_LABEL}; install GPU feature discovery"
    if "MIG-INVALID" in product:
        return None, f"node {name} has an invalid MIG configuration (product {product})"
    sharing = "SHARED" if product.endswith("-SHARED") else ""
    profile = re.search(r"-MIG-([0-9]+g\.[0-9]+gb[a-z0-9.+_]*)", product)
    if profile:
        sharing = f"{profile[1]}{'-SHARED' if sharing else ''}"
    major, minor = (labels.get(f"nvidia.com/gpu.compute.{part}", "") for part in ("major", "minor"))
    if not (major.isdigit() and minor.isdigit()):
        return None, f"node {name} ({product}) has no usable label nvidia.com/gpu.compute.major and .minor"
    cuda, driver = _labelled_version(labels, *_CUDA_LABELS), _labelled_version(labels, *_DRIVER_LABELS)
    if not cuda:
        return (
            None,
            f"node {name} ({product}) has no usable label {_CUDA_LABELS[0]}.full, which tells what the driver runs",
        )
    memory, count = labels.get("nvidia.com/gpu.memory", ""), labels.get("nvidia.com/gpu.count", "")
    capability = f"{int(major)}.{int(minor)}"
    facts = AcceleratorFacts(
        product,
        capability,
        sharing,
        int(memory) if memory.isdigit() else 0,
        driver,
        cuda,
        int(count) if count.isdigit() else 0,
    )
    return facts, ""


def fits(accelerator: Accelerator, facts: AcceleratorFacts) -> bool:
    """Whether a kind of accelerator from the spec admits this one; unknown memory does not count against it."""
    least = accelerator.min_compute_capability or "0.0"
    return (
        accelerator.vendor == Vendor.NVIDIA
        and (not accelerator.products or facts.product in accelerator.products)
        and tuple(map(int, facts.capability.split("."))) >= tuple(map(int, least.split(".")))
        # A card of 80 GB shows 81,559 MiB of its 80 GiB: 3 % are the driver's.
        and (not facts.memory_mib or facts.memory_mib >= (accelerator.min_memory_gib or 0) * 1024 * 0.97)
    )


def tolerated(node: Manifest, placement: PlacementSection) -> bool:
    """Whether the service accepts every hard taint of the node; cordoned nodes come back and count as accepted."""
    for taint in node.get("spec", {}).get("taints") or ():
        if taint.get("effect") == "PreferNoSchedule" or taint["key"].startswith("node.kubernetes.io/"):
            continue
        accepted = any(
            (t.key is None or t.key == taint["key"])
            and (t.effect is None or t.effect.value == taint.get("effect"))
            and (t.operator == TolerationOperator.EXISTS or (t.value or "") == (taint.get("value") or ""))
            for t in placement.tolerations
        )
        # The extended-resource toleration is added to every pod that asks for this accelerator.
        if not accepted and taint["key"] != GPU_RESOURCE:
            return False
    return True


@dataclass(frozen=True)
class Resolution:
    """Types that fit a placement, and what is to be said."""

    types: tuple[NodeType, ...]
    reason: str
    message: str
    image_reason: str
    image_message: str
    odd: tuple[str, ...] = ()


def _asked(placement: PlacementSection) -> str:
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


def resolve(
    placement: PlacementSection,
    nodes: Sequence[Manifest],
    images: Sequence[CatalogueImage],
    pinned: CatalogueImage | None,
) -> Resolution:
    """Node types that a placement admits, cheapest first, each with its image."""
    selected = [
        node
        for node in sorted(nodes, key=lambda node: str(node["metadata"]["name"]))
        if tolerated(node, placement)
        and all((node["metadata"].get("labels") or {}).get(k) == v for k, v in placement.node_selector.items())
    ]
    odd: list[str] = []
    grouped: dict[tuple[Hardware, ImageChoice, int], list[tuple[str, str, str]]] = {}
    refused: list[ImageChoice] = []
    if placement.cpu != CPUPolicy.REQUIRED:
        for node in filter(has_accelerator, selected):
            facts, why = read_accelerator(node)
            if facts is None:
                odd.append(why)
                continue
            wanted = placement.accelerators or (Accelerator(),)
            costs = [accelerator.cost_weight for accelerator in wanted if fits(accelerator, facts)]
            if not costs:
                continue
            choice = choose_cuda([pinned] if pinned else images, facts.capability, facts.cuda, facts.driver)
            if pinned:
                pin = CatalogueImage(pinned.name, pinned.image, pinned.cuda, (facts.capability,))
                choice = choose_cuda([pin], facts.capability, facts.cuda, facts.driver)
            if choice.image is None:
                refused.append(choice)
                continue
            hardware = Hardware(facts.product, facts.capability, facts.sharing)
            grouped.setdefault((hardware, choice, min(costs)), []).append(
                (node["metadata"]["name"], facts.driver, facts.cuda)
            )
    cpu_wanted = placement.cpu == CPUPolicy.REQUIRED or (
        placement.cpu == CPUPolicy.ALLOWED and not placement.accelerators and not grouped and not refused
    )
    if cpu_wanted:
        plain = [node["metadata"]["name"] for node in selected if not has_accelerator(node)]
        choice = ImageChoice(pinned, "CPU", "Resolved", "pinned image") if pinned else choose_cpu(images)
        if plain and choice.image is None:
            refused.append(choice)
        elif plain:
            grouped[Hardware(CPU_PRODUCT), choice, 100] = [(name, "", "") for name in plain]
    types = [
        NodeType(
            hardware,
            choice,
            cost,
            tuple(name for name, _, _ in members),
            min((driver for _, driver, _ in members), default="", key=version),
            min((cuda for _, _, cuda in members), default="", key=version),
        )
        for (hardware, choice, cost), members in grouped.items()
    ]
    types.sort(key=lambda item: (item.cost, item.key))
    note = ("; " + "; ".join(odd)) if odd else ""
    if types:
        products = ", ".join(sorted({item.hardware.product for item in types}))
        images_used = "; ".join(sorted({item.choice.message for item in types}))
        return Resolution(tuple(types), "Resolved", f"fits: {products}{note}", "Resolved", images_used, tuple(odd))
    if refused:
        worst = refused[0]
        return Resolution((), "NoImage", f"nodes fit, but no image does: {worst.message}", worst.reason, worst.message)
    exist = sorted({(node["metadata"].get("labels") or {}).get(PRODUCT_LABEL) or CPU_PRODUCT for node in nodes})
    message = (
        f"no node fits {_asked(placement)}; {len(nodes)} nodes exist ({', '.join(exist) or 'none'}), {len(selected)} "
        f"match nodeSelector and taints; change placement or add a node{note}"
    )
    return Resolution((), "NoNodeFits", message, "NoNodeFits", "no node fits, so no image was chosen", tuple(odd))


def affinity(item: NodeType) -> Manifest:
    """Required node affinity, derived from the key alone."""
    if item.hardware.is_cpu:
        absent: list[Manifest] = [{"key": PRODUCT_LABEL, "operator": "DoesNotExist"}]
        terms: list[Manifest] = [{"matchExpressions": absent}]
    else:
        product: Manifest = {"key": PRODUCT_LABEL, "operator": "In", "values": [item.hardware.product]}
        major, minor = (*map(int, (item.key[5] or "0.0").split(".")), 0)[:2]
        terms = []
        for label in _CUDA_LABELS:
            above: Manifest = {"key": f"{label}.major", "operator": "Gt", "values": [str(major)]}
            same: Manifest = {"key": f"{label}.major", "operator": "In", "values": [str(major)]}
            least: Manifest = {"key": f"{label}.minor", "operator": "Gt", "values": [str(minor - 1)]}
            terms.append({"matchExpressions": [product, above]})
            terms.append({"matchExpressions": [product, same, *([least] if item.choice.fit == "Native" else [])]})
    return {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}}
