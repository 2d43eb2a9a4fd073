"""Accelerators that `octavo init` compares a model with, as GPU feature discovery names them."""

from __future__ import annotations

from dataclasses import dataclass

GIB = 2**30


@dataclass(frozen=True)
class Accelerator:
    """One product."""

    product: str
    memory_gib: float
    """Memory of one device as the driver tells it."""
    capability: str
    """CUDA compute capability."""


ACCELERATORS = (
    Accelerator("NVIDIA-T4", 15.0, "7.5"),
    Accelerator("NVIDIA-A10", 22.5, "8.6"),
    Accelerator("NVIDIA-L4", 22.5, "8.9"),
    Accelerator("NVIDIA-A100-SXM4-40GB", 40.0, "8.0"),
    Accelerator("NVIDIA-L40S", 45.0, "8.9"),
    Accelerator("NVIDIA-H100-80GB-HBM3", 79.6, "9.0"),
    Accelerator("NVIDIA-A100-SXM4-80GB", 80.0, "8.0"),
    Accelerator("NVIDIA-H200", 140.4, "9.0"),
    Accelerator("NVIDIA-B200", 179.0, "10.0"),
)
"""In order of memory. Other products serve as well: a manifest asks for memory, not for a name."""
