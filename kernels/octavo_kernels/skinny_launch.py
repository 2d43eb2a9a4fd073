"""Launch configurations of the products of few rows, and for which of them the kernel is worth taking."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from octavo_kernels.compat import is_interpreting
from octavo_kernels.launch_table import LaunchTable

ROWS = 16
"""Rows of x at most."""
KERNEL = "skinny_product"
_LEAST_BYTES = 4 << 20
"""Weights below this are read in a launch's own time: cuBLAS serves them as well."""


@dataclass(frozen=True)
class SkinnyLaunch:
    """block_n: columns of a tile. block_k: depth of a step. programs: of a multiprocessor. warps, stages: as Triton's.

    preferred: 1 where the kernel was faster than torch's product, 0 where it was not.
    """

    block_n: int
    block_k: int
    programs: int
    warps: int
    stages: int
    preferred: int = 0


def shape_of(rows: int, columns: int, depth: int, gated: bool, dtype: torch.dtype) -> dict[str, int | str]:
    """What a launch depends on, as launch tables name it: columns of out, rows rounded up to 1, 4, 8 or 16."""
    rounded = next(size for size in (1, 4, 8, ROWS) if rows <= size)
    return {
        "rows": rounded,
        "columns": columns,
        "depth": depth,
        "gated": int(gated),
        "dtype": str(dtype).removeprefix("torch."),
    }


def choose_launch(
    table: LaunchTable, rows: int, columns: int, depth: int, gated: bool, dtype: torch.dtype
) -> SkinnyLaunch:
    """From the table, else a safe default, which is not preferred to torch's product."""
    found = table.find(KERNEL, shape_of(rows, columns, depth, gated, dtype))
    if found is not None:
        return SkinnyLaunch(**found)
    if is_interpreting():
        return SkinnyLaunch(32, 32, 2, 4, 1)
    if dtype == torch.float32:
        return SkinnyLaunch(32, 32, 2, 4, 2)
    return SkinnyLaunch(64, 64 if gated else 128, 2, 4, 3)


def worth_taking(launch: SkinnyLaunch, weight: torch.Tensor) -> bool:
    """Whether backend Auto takes the kernel: where it was measured to be faster."""
    return launch.preferred == 1 and weight.nbytes >= _LEAST_BYTES
