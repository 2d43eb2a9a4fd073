"""Which image of the catalogue an accelerator can run: native, else by minor-version compatibility, else none.

A driver runs every toolkit up to the CUDA version that it supports. Within one CUDA major it also runs newer toolkits
(minor-version compatibility), as long as an image holds machine code: only a native driver compiles PTX.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from octavo_operator.api.engine_section import Runtime
from octavo_operator.api.placement_section import Vendor

from .accelerators import AcceleratorFacts, version
from .facts import CatalogueImage

LEAST_DRIVERS = {
    "12.0": "525.60.13",
    "12.1": "530.30.02",
    "12.2": "535.54.03",
    "12.3": "545.23.06",
    "12.4": "550.54.14",
    "12.5": "555.42.02",
    "12.6": "560.28.03",
    "12.8": "570.26",
    "12.9": "575.51.03",
    "13.0": "580.65.06",
}
"""First driver of NVIDIA for each CUDA version (Linux), from the toolkits' release notes."""
MAJOR_BASELINE_DRIVERS = {12: LEAST_DRIVERS["12.0"], 13: LEAST_DRIVERS["13.0"]}
FAST_KERNELS_CUDA = "12.6"
"""Below this CUDA version of the driver or of the image the fast kernels are not promised."""
FAST_KERNELS_CAPABILITY = "8.0"
"""Below this compute capability Triton multiplies matrices without tensor cores (triton-lang/triton#5066)."""


@dataclass(frozen=True)
class ImageChoice:
    """The image, or why there is none."""

    image: CatalogueImage | None
    fit: str
    """Native, MinorVersion, CPU, Pinned, or empty."""
    reason: str
    message: str
    fallback: str = ""
    """Why slower kernels may run; empty when the fast ones do."""
    upgrade: str = ""
    """The smallest change that would help; empty when nothing needs help."""

    @property
    def need(self) -> str:
        """CUDA version that a node must support at least for this image in this mode; empty where none counts."""
        if self.image is None or not self.image.cuda or self.fit not in ("Native", "MinorVersion"):
            return ""
        return self.image.cuda


def _whose(images: Sequence[CatalogueImage], runtime: Runtime) -> str:
    """` for engine.runtime VLLM (the catalogue holds: vllm for CUDA 12.8)`; empty for Octavo's own images."""
    if runtime == Runtime.OCTAVO:
        return ""
    held = ", ".join(f"{image.name} for {f'CUDA {image.cuda}' if image.cuda else 'CPU'}" for image in images)
    return f" for engine.runtime {runtime.value} (the catalogue holds: {held})"


def no_runtime_image(runtime: Runtime) -> ImageChoice:
    """The catalogue knows nothing of the program that a service asks for."""
    upgrade = "pin one (image.policy Pinned), or have an administrator add one to serverImages"
    message = f"the catalogue holds no image for engine.runtime {runtime.value}; {upgrade}"
    return ImageChoice(None, "", "NoRuntimeImage", message, upgrade=upgrade)


def choose_cpu(images: Sequence[CatalogueImage], runtime: Runtime = Runtime.OCTAVO) -> ImageChoice:
    """The CPU image among those of one runtime."""
    if not images and runtime != Runtime.OCTAVO:
        return no_runtime_image(runtime)
    for image in images:
        if image.cuda is None:
            return ImageChoice(image, "CPU", "Resolved", f"CPU image {image.image}")
    upgrade = "pin one (image.policy Pinned), or have an administrator add one to serverImages"
    if any(image.cuda for image in images):
        upgrade += ", or place the service on accelerators"
    message = f"the catalogue has no CPU image{_whose(images, runtime)}; {upgrade}"
    return ImageChoice(None, "", "NoCPUImage", message, upgrade=upgrade)


def covers(image: CatalogueImage, capability: str) -> str:
    """`SASS`: machine code that this capability runs (its own, or of the same major and a lower minor); `PTX`: only
    code that the driver must compile first; empty: nothing that runs."""
    wanted = version(capability)
    for architecture in map(version, image.architectures):
        if architecture[:1] == wanted[:1] and architecture <= wanted:
            return "SASS"
    return "PTX" if any(version(text) <= wanted for text in image.ptx if version(text)) else ""


def _older(one: str, other: str) -> bool:
    return version(one) < version(other)


def _driver_for(cuda: str) -> str:
    least = LEAST_DRIVERS.get(cuda)
    return f"driver {least} or newer (CUDA {cuda})" if least else f"a driver that supports CUDA {cuda}"


def _fallback(image: CatalogueImage, how: str, cuda: str, capability: str) -> tuple[str, str]:
    """(why slower kernels may run, the smallest upgrade that ends it)."""
    if _older(cuda, FAST_KERNELS_CUDA):
        why = f"the driver supports CUDA {cuda}, the fast kernels are promised from {FAST_KERNELS_CUDA} on"
        return why, f"upgrade to {_driver_for(FAST_KERNELS_CUDA)}"
    if _older(image.cuda or "", FAST_KERNELS_CUDA):
        why = f"image {image.name} holds CUDA {image.cuda}, the fast kernels are promised from {FAST_KERNELS_CUDA} on"
        return why, f"use an image with CUDA {FAST_KERNELS_CUDA} or newer"
    if how == "PTX":
        why = f"image {image.name} holds no machine code for this accelerator; the driver compiles it at each start"
        return why, "use an image that is built for this compute capability"
    if _older(capability, FAST_KERNELS_CAPABILITY):
        why = f"kernels run without tensor cores on compute capability {capability}, below {FAST_KERNELS_CAPABILITY}"
        return why, f"choose accelerators of compute capability {FAST_KERNELS_CAPABILITY} or newer"
    return "", ""


def _found(image: CatalogueImage, fit: str, how: str, cuda: str, capability: str) -> ImageChoice:
    fallback, upgrade = _fallback(image, how, cuda, capability)
    if fit == "Native":
        message = f"image {image.name} (CUDA {image.cuda}) runs natively"
    else:
        message = f"image {image.name} (CUDA {image.cuda}) runs on CUDA {cuda} by minor-version compatibility"
        upgrade = upgrade or f"upgrade to {_driver_for(image.cuda or '')} to run it natively"
    if fallback:
        return ImageChoice(image, fit, "KernelFallback", f"{message}; {fallback}; {upgrade}", fallback, upgrade)
    return ImageChoice(image, fit, "Resolved", message, "", upgrade)


def _too_old(built: Sequence[tuple[CatalogueImage, str]], capability: str, cuda: str, driver: str) -> ImageChoice:
    """No image fits the driver: the smallest upgrade that makes one fit."""
    wanted = []
    for image, how in built:
        least = MAJOR_BASELINE_DRIVERS.get(version(image.cuda or "")[0]) if how == "SASS" else None
        least = least or LEAST_DRIVERS.get(image.cuda or "")
        if least:
            wanted.append((version(least), least, image))
    oldest = min((image for image, _ in built), key=lambda image: version(image.cuda or ""))
    if wanted:
        _, least, helped = min(wanted, key=lambda entry: (entry[0], entry[2].name))
        upgrade = f"upgrade the driver to {least} or newer, which runs image {helped.name} (CUDA {helped.cuda})"
    else:
        upgrade = f"upgrade the driver to one that supports CUDA {oldest.cuda}"
    message = (
        f"driver {driver or 'unknown'} supports CUDA {cuda or 'unknown'}, the oldest image for compute capability "
        f"{capability} needs CUDA {oldest.cuda}; {upgrade}"
    )
    return ImageChoice(None, "", "DriverTooOld", message, upgrade=upgrade)


def choose_cuda(
    images: Sequence[CatalogueImage], capability: str, cuda: str, driver: str, runtime: Runtime = Runtime.OCTAVO
) -> ImageChoice:
    """The newest image of one runtime for a compute capability that a driver (version, highest CUDA) can run."""
    if not images and runtime != Runtime.OCTAVO:
        return no_runtime_image(runtime)
    newest_first = sorted(
        (image for image in images if image.cuda),
        key=lambda image: (version(image.cuda or ""), image.name),
        reverse=True,
    )
    built = [(image, how) for image in newest_first if (how := covers(image, capability))]
    if not built:
        held = sorted({text for image in images for text in image.architectures}, key=version)
        upgrade = f"add an image that is built for {capability}, or choose others in placement.accelerators"
        whose = _whose(images, runtime)
        covered = ", ".join(held) or "none"
        message = f"no image{whose} has code for compute capability {capability} (covered: {covered}); "
        return ImageChoice(None, "", "ArchitectureNotBuilt", message + upgrade, upgrade=upgrade)
    has = version(cuda)[:2]
    native = [(image, how) for image, how in built if version(image.cuda or "") <= has]
    # Machine code before code that must be compiled first, then the newest.
    native.sort(key=lambda entry: entry[1] != "SASS")
    if native:
        return _found(native[0][0], "Native", native[0][1], cuda, capability)
    for image, how in built:
        major = version(image.cuda or "")[0]
        baseline = MAJOR_BASELINE_DRIVERS.get(major)
        if how == "SASS" and has[:1] == (major,) and baseline and version(driver) >= version(baseline):
            return _found(image, "MinorVersion", how, cuda, capability)
    return _too_old(built, capability, cuda, driver)


def choose(
    images: Sequence[CatalogueImage],
    pinned: CatalogueImage | None,
    accelerator: AcceleratorFacts,
    runtime: Runtime = Runtime.OCTAVO,
) -> ImageChoice:
    """The image for one kind of accelerator: the pinned one, as far as its driver runs it, else of the catalogue."""
    if accelerator.vendor == Vendor.AMD:
        if pinned:
            return ImageChoice(pinned, "Pinned", "Resolved", f"pinned image {pinned.image}")
        if not images and runtime != Runtime.OCTAVO:
            return no_runtime_image(runtime)
        upgrade = "pin an image that is built for ROCm (image.policy Pinned), or choose other accelerators"
        message = f"no image of the catalogue is built for AMD's {accelerator.product}; {upgrade}"
        return ImageChoice(None, "", "VendorNotBuilt", message, upgrade=upgrade)
    if pinned:
        # What a pinned image was built for is its owner's word; only the driver can be compared.
        images = [CatalogueImage(pinned.name, pinned.image, pinned.cuda, (accelerator.capability,))]
    return choose_cuda(images, accelerator.capability, accelerator.cuda, accelerator.driver, runtime)
