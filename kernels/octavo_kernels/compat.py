"""Triton as an optional import: what is there, and whether a call may use it."""

from __future__ import annotations

import importlib.util
import os
from functools import cache
from importlib import metadata

import torch

TRITON_DTYPES = (torch.float16, torch.bfloat16, torch.float32)


@cache
def triton_version() -> str | None:
    """Version of the installed Triton, or None where it is missing."""
    try:
        found = importlib.util.find_spec("triton") is not None
    except ModuleNotFoundError:
        found = False
    if not found:
        return None
    try:
        return metadata.version("triton")
    except metadata.PackageNotFoundError:
        # A Triton that came without its package's metadata, as some vendors' builds do.
        return "unknown"


def is_interpreting() -> bool:
    """Whether Triton kernels run in its interpreter on the CPU: TRITON_INTERPRET=1, set before the first import."""
    return os.environ.get("TRITON_INTERPRET") == "1"


def require_triton(device: torch.device) -> None:
    """Raises RuntimeError, naming the way out, where Triton kernels cannot run on this device."""
    if triton_version() is None:
        raise RuntimeError(
            f"backend Triton on {device} needs the package triton (pip install 'octavo-kernels[triton]');"
            " backends Reference and, in host memory, CPU work without it"
        )
    if device.type == "cpu" and not is_interpreting():
        raise RuntimeError("backend Triton cannot serve device cpu; use backend CPU (TRITON_INTERPRET=1 is for tests)")


def uses_triton(tensor: torch.Tensor) -> bool:
    """Whether a fused function takes its Triton kernel for this tensor; else its torch operations."""
    return tensor.is_cuda and tensor.dtype in TRITON_DTYPES and triton_version() is not None
