"""What is known of each node: its accelerators, the image that would run there, how and why, and what would help."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from .accelerators import CPU_PRODUCT, AcceleratorFacts
from .facts import CatalogueImage
from .image_choice import ImageChoice, choose, choose_cpu
from .inventory import NodeView


@dataclass(frozen=True)
class Finding:
    """One kind of accelerator on one node, or a node without any."""

    node: str
    product: str
    facts: AcceleratorFacts | None
    choice: ImageChoice | None
    note: str = ""
    """Why nothing is known of it."""
    is_open: bool = True


def findings(nodes: Iterable[NodeView], images: Sequence[CatalogueImage]) -> list[Finding]:
    """In the order of the nodes."""
    found: list[Finding] = []
    for view in nodes:
        if view.is_plain:
            found.append(Finding(view.name, CPU_PRODUCT, None, choose_cpu(images), "", view.is_open))
        for facts in view.accelerators:
            note = "; ".join(view.notes)
            found.append(Finding(view.name, facts.product, facts, choose(images, None, facts), note, view.is_open))
        if not view.is_plain and not view.accelerators:
            found.append(Finding(view.name, "?", None, None, "; ".join(view.notes), view.is_open))
    return found


def _facts(facts: AcceleratorFacts) -> str:
    parts = [f"{facts.count} × {facts.resource}"]
    if facts.capability:
        parts.append(f"compute capability {facts.capability}")
    if facts.memory_mib:
        parts.append(f"{facts.memory_mib} MiB")
    if facts.sharing:
        parts.append(f"shared or sliced: {facts.sharing}")
    parts.append(f"driver {facts.driver or 'unknown'}")
    if facts.cuda:
        parts.append(f"CUDA up to {facts.cuda}")
    return ", ".join(parts)


def report(found: Sequence[Finding]) -> str:
    """A text for people."""
    lines: list[str] = []
    for item in found:
        closed = "" if item.is_open else " (takes no pods now)"
        lines.append(f"{item.node}: {item.product}{closed}")
        if item.facts is not None:
            lines.append(f"  facts:   {_facts(item.facts)}")
        if item.note:
            lines.append(f"  note:    {item.note}")
        if item.choice is None:
            continue
        image = item.choice.image
        lines.append(f"  image:   {image.image if image else 'none'}")
        lines.append(f"  mode:    {item.choice.fit or item.choice.reason}")
        lines.append(f"  why:     {item.choice.message}")
        if item.choice.upgrade:
            lines.append(f"  upgrade: {item.choice.upgrade}")
    unread = sum(item.choice is None for item in found)
    without = sum(item.choice is not None and item.choice.image is None for item in found)
    slow = sum(bool(item.choice and item.choice.fallback) for item in found)
    lines += [
        "",
        f"{len(found)} kinds on nodes: {without} without an image, {slow} with slower kernels, {unread} unread",
    ]
    return "\n".join(lines)
