"""FlashInfer beside us, where it is installed: the same lengths, page order, page sets and graphs."""

from __future__ import annotations

import importlib.util
import os
import statistics
import time
from typing import Any

import torch

from benchmarks.attention_cases import DEVICE, Cell, seconds

NAME = "FlashInfer"


def installed() -> bool:
    """Whether FlashInfer can be imported; it compiles its kernels at their first use, which takes minutes."""
    return importlib.util.find_spec("flashinfer") is not None


class FlashInfer:
    """One workspace and a wrapper a call, as its users write it."""

    def __init__(self) -> None:
        os.environ.setdefault("FLASHINFER_CUDA_ARCH_LIST", "9.0a")
        import flashinfer

        self._module = flashinfer
        self._workspace = torch.empty(512 * 2**20, dtype=torch.uint8, device=DEVICE)

    def decode_seconds(self, cell: Cell) -> float:
        """Time of a layer of decoding; tensor cores where at least four query heads share a KV head."""
        wrapper, pools = self.planned_decode(cell)
        return seconds([lambda kv=kv: wrapper.run(cell.q, kv, out=cell.out) for kv in pools])

    def prefill_seconds(self, cell: Cell, backend: str) -> float:
        """Time of a causal layer with the given kernels (fa2, fa3)."""
        wrapper, pools = self.planned_prefill(cell, backend)
        return seconds([lambda kv=kv: wrapper.run(cell.q, kv, out=cell.out) for kv in pools])

    def plan_seconds(self, cell: Cell) -> float:
        """Median host time of planning a decode step."""
        wrapper, _ = self.planned_decode(cell)
        times = []
        for _ in range(30):
            torch.cuda.synchronize()
            begin = time.perf_counter()
            self._plan_decode(wrapper, cell)
            times.append(time.perf_counter() - begin)
        return statistics.median(times)

    def planned_decode(self, cell: Cell) -> tuple[Any, list[torch.Tensor]]:
        group = cell.shape.group_size
        wrapper = self._module.BatchDecodeWithPagedKVCacheWrapper(self._workspace, "NHD", use_tensor_cores=group >= 4)
        self._plan_decode(wrapper, cell)
        return wrapper, self._pools(cell)

    def _plan_decode(self, wrapper: Any, cell: Cell) -> None:
        shape = cell.shape
        indptr, pages, last = self._pages(cell)
        wrapper.plan(
            indptr, pages, last, shape.query_heads, shape.kv_heads, shape.head_size, shape.page_size,
            q_data_type=shape.dtype, kv_data_type=shape.pool_dtype,
        )  # fmt: skip

    def planned_prefill(self, cell: Cell, backend: str) -> tuple[Any, list[torch.Tensor]]:
        shape = cell.shape
        wrapper = self._module.BatchPrefillWithPagedKVCacheWrapper(self._workspace, "NHD", backend=backend)
        wrapper.plan(
            cell.starts.to(DEVICE), *self._pages(cell), shape.query_heads, shape.kv_heads, shape.head_size,
            shape.page_size, causal=True, q_data_type=shape.dtype, kv_data_type=shape.pool_dtype,
        )  # fmt: skip
        return wrapper, self._pools(cell)

    def _pages(self, cell: Cell) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        page_size = cell.shape.page_size
        indptr = torch.tensor([0, *cell.pages_of]).cumsum(0).int()
        pages = torch.cat([row[:count] for row, count in zip(cell.table, cell.pages_of, strict=True)])
        last = (cell.lengths - 1) % page_size + 1
        return indptr.to(DEVICE), pages.to(DEVICE), last.to(DEVICE)

    def _pools(self, cell: Cell) -> list[torch.Tensor]:
        shape = cell.shape
        return [flat.view(cell.pages, 2, shape.page_size, shape.kv_heads, shape.head_size) for flat in cell.flat]
