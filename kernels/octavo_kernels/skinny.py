"""Products of a few rows with a large weight, as decoding with a small batch makes them: reading it is the work.

cuBLAS is made for larger batches; for 1 to 16 rows a kernel that streams the weight in equal parts can come closer to
the memory's bandwidth. Pieces are added in their order, so equal inputs give equal bits.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F

from octavo_kernels.activation import silu_mul
from octavo_kernels.compat import TRITON_DTYPES, is_interpreting, require_triton, triton_version
from octavo_kernels.launch_table import LaunchTable, table_for
from octavo_kernels.skinny_launch import ROWS, SkinnyLaunch, choose_launch, worth_taking
from octavo_kernels.triton_launch import Device

MAX_ROWS = ROWS


class SkinnyProducts:
    """x · Wᵀ with bias, residual or SiLU·mul for few rows; every other shape goes to torch.

    Holds the kernels' scratch memory, so use one on one stream at a time, and call a shape once before capturing it.
    device: where the operands are. table: launch configurations; None takes the package's for this device.
    backend: `Auto`, `Torch` or `Triton`. Auto takes Triton for shapes for which a table says that it was faster than
    torch's product in the same run; Triton takes it wherever it can, for tests and for tuning.
    """

    def __init__(self, device: torch.device | str, *, table: LaunchTable | None = None, backend: str = "Auto") -> None:
        self.device = torch.device(device)
        if backend not in ("Auto", "Torch", "Triton"):
            raise ValueError(f"backend is {backend!r}; it must be one of Auto, Torch, Triton")
        if backend == "Auto" and (self.device.type != "cuda" or triton_version() is None):
            backend = "Torch"
        self.backend = backend
        self._chip = Device.of(self.device)
        self._launches: dict[tuple[int, int, int, bool, torch.dtype], SkinnyLaunch] = {}
        if backend != "Torch":
            require_triton(self.device)
            from octavo_kernels.triton_skinny import SkinnyKernels

            self._table = table_for(self.device, table)
            self._kernels = SkinnyKernels(self.device, self._chip.processors, self._chip.major)

    def product(
        self,
        x: torch.Tensor,
        weight: torch.Tensor,
        bias: torch.Tensor | None = None,
        residual: torch.Tensor | None = None,
        *,
        gated: bool = False,
        out: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """x · Wᵀ (+ bias) (+ residual), or silu(gate) · up of it.

        x: `[rows, depth]`. weight: `[columns, depth]`, of x's dtype. bias: `[columns]`.
        residual: `[rows, columns]`, not with gated; out may be the residual itself.
        gated: weight holds the rows of gate, then as many of up; out is `[rows, columns / 2]`.
        out: receives the result; None allocates. Its dtype is x's, or float32 (the head's logits).
        Sums are float32. Returns out. Raises ValueError with the argument, its value and the limit.
        """
        columns = self._check(x, weight, bias, residual, gated, out)
        launch = self._launch(x, weight, columns, gated)
        operands = [tensor for tensor in (x, weight, residual, out) if tensor is not None]
        if launch is not None and all(tensor.stride(1) == 1 for tensor in operands):
            out = x.new_empty(x.shape[0], columns) if out is None else out
            self._kernels.product(x, weight, bias, residual, gated, out, launch)
            return out
        result = F.linear(x, weight, bias)
        if gated:
            result = silu_mul(result)
        if residual is not None:
            result = result + residual
        return result if out is None else out.copy_(result)

    def uses_kernel(self, x: torch.Tensor, weight: torch.Tensor, *, gated: bool = False) -> bool:
        """Whether product takes its own kernel for these operands."""
        return self._launch(x, weight, weight.shape[0] // (2 if gated else 1), gated) is not None

    def _launch(self, x: torch.Tensor, weight: torch.Tensor, columns: int, gated: bool) -> SkinnyLaunch | None:
        """The kernel's launch for these operands, or None where torch serves."""
        rows, depth = x.shape
        if self.backend == "Torch" or not 1 <= rows <= ROWS or x.dtype not in TRITON_DTYPES:
            return None
        if self._chip.major < 8 and not is_interpreting():
            return None
        key = (rows, columns, depth, gated, x.dtype)
        if key not in self._launches:
            self._launches[key] = choose_launch(self._table, *key)
        launch = self._launches[key]
        return launch if self.backend == "Triton" or worth_taking(launch, weight) else None

    @staticmethod
    def _check(
        x: torch.Tensor,
        weight: torch.Tensor,
        bias: torch.Tensor | None,
        residual: torch.Tensor | None,
        gated: bool,
        out: torch.Tensor | None,
    ) -> int:
        if x.dim() != 2 or weight.dim() != 2 or x.shape[1] != weight.shape[1] or x.dtype != weight.dtype:
            raise ValueError(
                f"x is {x.dtype} {list(x.shape)} and weight {weight.dtype} {list(weight.shape)}; they must be"
                " [rows, depth] and [columns, depth] of one dtype"
            )
        columns = weight.shape[0]
        if gated and (columns % 2 or residual is not None):
            raise ValueError(
                f"gated takes an even number of columns and no residual; weight has {columns},"
                f" residual is {'given' if residual is not None else 'None'}"
            )
        width = columns // 2 if gated else columns
        if bias is not None and (bias.shape != (columns,) or not bias.is_contiguous()):
            raise ValueError(f"bias has shape {list(bias.shape)}; it must be contiguous [{columns}]")
        for name, tensor in (("residual", residual), ("out", out)):
            if tensor is not None and tensor.shape != (x.shape[0], width):
                raise ValueError(f"{name} has shape {list(tensor.shape)}; it must be [{x.shape[0]}, {width}]")
        if out is not None and out.dtype not in (x.dtype, torch.float32):
            raise ValueError(f"out is {out.dtype}; it must be {x.dtype} like x, or torch.float32")
        return width


__all__ = ["MAX_ROWS", "SkinnyProducts"]
