"""Which image of the catalogue a node's driver can run: native, else minor-version compatibility, else none."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from .facts import CatalogueImage

MAJOR_BASELINE_DRIVERS = {12: "525.60.13", 13: "580.65.06"}


@dataclass(frozen=True)
class ImageChoice:
    """The image, or why there is none."""

    image: CatalogueImage | None
    fit: str
    """Native, MinorVersion, CPU, Pinned, or empty."""
    reason: str
    message: str


def version(text: str) -> tuple[int, ...]:
    """Numbers of a dotted version; empty for anything else."""
    return tuple(map(int, text.split("."))) if re.fullmatch(r"[0-9]+(\.[0-9]+)*", text) else ()


def choose_cpu(images: Sequence[CatalogueImage]) -> ImageChoice:
    """The catalogue's CPU image."""
    for image in images:
        if image.cuda is None:
            return ImageChoice(image, "CPU", "Resolved", f"CPU image {image.image}")
    return ImageChoice(None, "", "NoCPUImage", "the image catalogue has no CPU image; add one, or pin image.reference")


def choose_cuda(images: Sequence[CatalogueImage], capability: str, cuda: str, driver: str) -> ImageChoice:
    """The newest image for a compute capability that a driver (version, highest CUDA) can run."""
    built = [image for image in images if image.cuda and capability in image.architectures]
    if not built:
        held = sorted({arch for image in images for arch in image.architectures})
        return ImageChoice(
            None,
            "",
            "ArchitectureNotBuilt",
            f"no image has code for compute capability {capability} (covered: {', '.join(held) or 'none'}); "
            "add an image for it, or choose other accelerators in placement.accelerators",
        )
    built.sort(key=lambda image: (version(image.cuda or ""), image.name), reverse=True)
    has = version(cuda)
    for image in built:
        if version(image.cuda or "") <= has:
            return ImageChoice(image, "Native", "Resolved", f"image {image.name} (CUDA {image.cuda}) runs natively")
    for image in built:
        major = version(image.cuda or "")[0]
        baseline = MAJOR_BASELINE_DRIVERS.get(major)
        if has and major == has[0] and baseline and version(driver) >= version(baseline):
            note = f"image {image.name} (CUDA {image.cuda}) runs on CUDA {cuda} by minor-version compatibility"
            return ImageChoice(image, "MinorVersion", "Resolved", note)
    oldest = built[-1]
    return ImageChoice(
        None,
        "",
        "DriverTooOld",
        f"driver {driver or 'unknown'} supports CUDA {cuda or 'unknown'}, the oldest image for compute capability "
        f"{capability} needs CUDA {oldest.cuda}; upgrade the driver to one that supports CUDA {oldest.cuda}",
    )
