"""Whether the fast kernels are promised on a device: the same rules by which the operator chose the image, asked again
where the truth is. Pure but for the functions that ask this machine.

The engine exports what it finds as octavo_kernel_fallback{reason}; nothing degrades in silence.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

FAST_KERNELS_CUDA = "12.6"
"""Below this CUDA version of the driver or of torch the fast kernels are not promised."""
FAST_KERNELS_CAPABILITY = "8.0"
"""Below this compute capability Triton multiplies matrices without tensor cores (triton-lang/triton#5066)."""


@dataclass(frozen=True)
class Fallback:
    """Why slower kernels may run."""

    reason: str
    """CamelCase, a label of the metric."""
    message: str


def level(version: str) -> tuple[int, ...]:
    """Major and minor of a version; empty for anything else."""
    parts = version.split(".")
    return tuple(int(part) for part in parts[:2]) if all(part.isdecimal() for part in parts[:2]) else ()


def _architecture(name: str) -> tuple[str, tuple[int, ...]]:
    """`sm_90a` → ("sm", (9, 0)); the last digit is the minor."""
    kind, _, digits = name.partition("_")
    number = "".join(part for part in digits if part.isdecimal())
    return kind, (int(number[:-1]), int(number[-1])) if len(number) > 1 else ()


def has_machine_code(capability: str, architectures: Sequence[str]) -> bool:
    """Whether torch holds code that this compute capability runs as it is: its own, or of its major and a lower minor.

    architectures: as torch.cuda.get_arch_list() tells them, such as sm_90 and compute_120.
    """
    wanted = level(capability)
    found = (_architecture(name) for name in architectures)
    return any(kind == "sm" and has[:1] == wanted[:1] and has <= wanted for kind, has in found)


def fallbacks(capability: str, architectures: Sequence[str], driver_cuda: str, torch_cuda: str) -> list[Fallback]:
    """Every reason for slower kernels on a GPU; empty when the fast ones are promised."""
    found: list[Fallback] = []
    least = level(FAST_KERNELS_CUDA)
    if level(driver_cuda) < least:
        words = (
            f"the driver supports CUDA {driver_cuda or 'unknown'}; install one for CUDA {FAST_KERNELS_CUDA} or newer"
        )
        found.append(Fallback("DriverBelowFastKernels", words))
    if level(torch_cuda) < least:
        words = (
            f"torch was built for CUDA {torch_cuda or 'unknown'}; use an image with CUDA {FAST_KERNELS_CUDA} or newer"
        )
        found.append(Fallback("ImageBelowFastKernels", words))
    if level(capability) < level(FAST_KERNELS_CAPABILITY):
        words = (
            f"compute capability {capability}: kernels run without tensor cores below {FAST_KERNELS_CAPABILITY}; "
            "choose a newer accelerator"
        )
        found.append(Fallback("NoTensorCores", words))
    if not has_machine_code(capability, architectures):
        words = f"torch holds no machine code for compute capability {capability}; use an image that is built for it"
        found.append(Fallback("NoMachineCode", words))
    return found


def fallbacks_here(device: str = "cuda") -> list[Fallback]:
    """Asks torch and the driver of this machine; empty on a CPU. Imports torch: for the engine and `check` alone."""
    import torch

    if device != "cuda" or not torch.cuda.is_available():
        return []
    properties = torch.cuda.get_device_properties(0)
    number = int(getattr(torch._C, "_cuda_getDriverVersion", lambda: 0)())
    return fallbacks(
        f"{properties.major}.{properties.minor}",
        torch.cuda.get_arch_list(),
        f"{number // 1000}.{number % 1000 // 10}",
        torch.version.cuda or "",
    )


def unusable_accelerator(devices: Path = Path("/dev")) -> str:
    """Why a GPU that was given to this process can't be used; empty when there is none or it can.

    Without this a driver that is older than its node's label says would let a model run on the CPU, in silence.
    """
    import torch

    given = sorted(path.name for path in devices.glob("nvidia[0-9]*"))
    if not given or torch.cuda.is_available():
        return ""
    return (
        f"{', '.join(given)} can't be used by torch {torch.__version__} (CUDA {torch.version.cuda or 'none'}): the "
        "driver is too old for it, or broken; install a newer driver, use an image with an older CUDA version, or "
        "--device CPU"
    )
