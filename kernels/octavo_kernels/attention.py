"""The one entry point to attention over a paged pool: `plan` once per step, `run` once per layer."""

from __future__ import annotations

from typing import Literal, Protocol

import torch

from octavo_kernels.batch import Batch, PackedMask, SharedPrefixes, check_batch
from octavo_kernels.compat import require_triton
from octavo_kernels.cpu import CpuBackend
from octavo_kernels.launch_table import LaunchTable
from octavo_kernels.reference import ReferenceBackend
from octavo_kernels.shape import FP8, AttentionShape, AttentionVariant

BackendName = Literal["Auto", "Reference", "CPU", "Triton"]


class Backend(Protocol):
    """What a backend does: `plan` keeps what `run` needs; `run` may be called any number of times after it."""

    name: str
    fallback_reason: str | None
    launch_reason: str | None

    def plan(self, batch: Batch, tokens: int | None) -> None: ...

    def run(
        self,
        q: torch.Tensor,
        kv: torch.Tensor,
        out: torch.Tensor,
        lse: torch.Tensor | None,
        scales: torch.Tensor | None = None,
    ) -> None: ...


class PagedAttention:
    """Causal attention of new tokens over a paged pool, for prefill, decode and any mix of the two.

    shape, variant: sizes and score function.
    device: where q, kv and out live.
    backend: `Auto` takes `CPU` for host memory and `Triton` for a GPU; `Reference` is slow and exact.
    max_tokens, max_sequences: the largest batch that will be planned.
    batch_invariant: a sequence's results are the same bits whatever else is in the batch: keys are cut at places that
        follow from its own length and the page table's width, and its tiles' kind from its own new tokens. It takes
        more memory for partial results, and time where few sequences are long. The `CPU` backend refuses it.
    launch_table: launch configurations that were measured (launch_table.load, tune); None: those of the package.
    Raises ValueError for a backend that cannot serve the device, RuntimeError where Triton is missing.
    """

    def __init__(
        self,
        shape: AttentionShape,
        variant: AttentionVariant | None = None,
        *,
        device: torch.device | str = "cpu",
        backend: BackendName = "Auto",
        max_tokens: int = 8192,
        max_sequences: int = 1024,
        batch_invariant: bool = False,
        launch_table: LaunchTable | None = None,
    ) -> None:
        if max_tokens < 1:
            raise ValueError(f"max_tokens is {max_tokens}; it must be at least 1")
        if max_sequences < 1:
            raise ValueError(f"max_sequences is {max_sequences}; it must be at least 1")
        self.shape = shape
        self.variant = variant or AttentionVariant()
        self.device = torch.device(device)
        self.max_tokens = max_tokens
        self.max_sequences = max_sequences
        self.batch_invariant = batch_invariant
        self.launch_table = launch_table
        self._backend = _make_backend(backend, self)
        self._planned = False

    @property
    def backend(self) -> str:
        """Name of the backend in use: `Reference`, `CPU` or `Triton`."""
        return self._backend.name

    @property
    def fallback_reason(self) -> str | None:
        """Why the fastest kernels of this device do not serve the shape and variant; None where they do."""
        return self._backend.fallback_reason

    @property
    def launch_reason(self) -> str | None:
        """Why launches are safe defaults, not measured ones; None where a table serves or nothing is to be chosen."""
        return self._backend.launch_reason

    def plan(
        self,
        query_starts: torch.Tensor,
        kv_lengths: torch.Tensor,
        page_table: torch.Tensor,
        slots: torch.Tensor | None = None,
        *,
        tokens: int | None = None,
        kv_tokens: int | None = None,
        groups: SharedPrefixes | None = None,
        mask: PackedMask | None = None,
    ) -> None:
        """Prepares a step.

        query_starts: int32 `[batch + 1]`, prefix sum of new tokens.
        kv_lengths: int32 `[batch]`, tokens in the cache, the new ones included.
        page_table: int32 `[max_sequences, max_pages_per_sequence]`; unused entries are 0.
        slots: int32 `[batch]`, the page-table row of each sequence; None means 0 … batch − 1.
        tokens: rows of q at most, padding included; None means the end of query_starts where that is in host memory,
            else max_tokens (a device's value is never waited for). A close bound keeps GPU launches small.
        kv_tokens: the sum of kv_lengths at most; None means what the page table has room for. It changes no result:
            where it says that there is little to read, the launch is laid out for it.
        groups: prefixes that sequences share. They change no result: where it saves time, the Triton backend reads
            them once for all sequences of a group.
        mask: what each new token sees, for a variant with custom_mask, and for no other.
        Raises ValueError where a tensor's shape or dtype is wrong or the batch is larger than max_sequences.
        """
        if tokens is not None and not 0 <= tokens <= self.max_tokens:
            raise ValueError(f"tokens is {tokens}; it must be from 0 to max_tokens ({self.max_tokens})")
        if (mask is not None) != self.variant.custom_mask:
            given, wanted = ("a mask", "takes none") if mask is not None else ("no mask", "needs one")
            raise ValueError(f"plan was given {given}; this PagedAttention's variant {wanted} (custom_mask)")
        index = (query_starts, kv_lengths, page_table, slots)
        batch = check_batch(*index, groups, mask, kv_tokens, max_sequences=self.max_sequences)
        self._backend.plan(batch, tokens)
        self._planned = True

    def run(
        self,
        q: torch.Tensor,
        kv: torch.Tensor,
        out: torch.Tensor,
        lse: torch.Tensor | None = None,
        *,
        scales: torch.Tensor | None = None,
    ) -> None:
        """Attends with the last plan, for one layer.

        q, out: shape.dtype `[tokens, query_heads, head_size]`, packed by sequence; out is overwritten.
        kv: shape.kv_dtype `[pages, 2, kv_heads, page_size, head_size]`, contiguous, new tokens already appended.
        lse: float32 `[tokens, query_heads]`, receives the natural logarithm of the softmax's denominator.
        scales: for a float8_e4m3fn pool, float32 `[2, kv_heads]`, contiguous: the keys' and the values' factor of each
            KV head, by which the stored numbers are multiplied; None for 1.
        Rows that see nothing give 0 and −inf. Rows past the last sequence's are left as they are.
        Raises ValueError where a tensor's shape, dtype or layout is wrong, RuntimeError before the first plan.
        """
        if not self._planned:
            raise RuntimeError("run was called before plan; call plan once per step")
        self._check_run(q, kv, out, lse)
        if scales is not None:
            self._check_scales(scales)
        self._backend.run(q, kv, out, lse, scales)

    def _check_scales(self, scales: torch.Tensor) -> None:
        if self.shape.pool_dtype != FP8:
            raise ValueError(f"scales were given; a {self.shape.pool_dtype} pool takes none")
        wanted = (2, self.shape.kv_heads)
        if scales.dtype != torch.float32 or scales.shape != wanted or not scales.is_contiguous():
            raise ValueError(
                f"scales is {scales.dtype} {list(scales.shape)}; it must be float32 {list(wanted)}, contiguous"
            )

    def _check_run(self, q: torch.Tensor, kv: torch.Tensor, out: torch.Tensor, lse: torch.Tensor | None) -> None:
        shape = self.shape
        rows = (q.shape[0], shape.query_heads, shape.head_size)
        if q.shape != rows or out.shape != rows:
            raise ValueError(
                f"q has shape {list(q.shape)} and out {list(out.shape)}; both must be"
                f" [tokens, {shape.query_heads}, {shape.head_size}]"
            )
        if q.stride(2) != 1 or not out.is_contiguous():
            raise ValueError("q needs contiguous heads (stride 1 in its last dimension) and out must be contiguous")
        if q.shape[0] > self.max_tokens:
            raise ValueError(f"q has {q.shape[0]} tokens; this PagedAttention was made for {self.max_tokens}")
        if kv.shape[1:] != shape.pool_shape(0)[1:] or not kv.is_contiguous():
            raise ValueError(
                f"kv has shape {list(kv.shape)} and strides {list(kv.stride())}; it must be contiguous"
                f" [pages, 2, {shape.kv_heads}, {shape.page_size}, {shape.head_size}]"
            )
        if q.dtype != shape.dtype or out.dtype != shape.dtype or kv.dtype != shape.pool_dtype:
            raise ValueError(
                f"q, out and kv have dtypes {q.dtype}, {out.dtype} and {kv.dtype}; this PagedAttention was made for"
                f" {shape.dtype}, {shape.dtype} and {shape.pool_dtype}"
            )
        if lse is not None and (lse.dtype != torch.float32 or lse.shape != rows[:2]):
            raise ValueError(f"lse is {lse.dtype} {list(lse.shape)}; it must be float32 {list(rows[:2])}")


def _make_backend(name: BackendName, attention: PagedAttention) -> Backend:
    variant = attention.variant
    if variant.sinks is not None and variant.sinks.shape[0] != attention.shape.query_heads:
        raise ValueError(
            f"sinks has {variant.sinks.shape[0]} values; there must be one for each of the"
            f" {attention.shape.query_heads} query heads"
        )
    for_cpu = variant.plain and attention.shape.pool_dtype != FP8 and not attention.batch_invariant
    chosen = name
    if name == "Auto":
        chosen = "Triton" if attention.device.type != "cpu" else "CPU" if for_cpu else "Reference"
    if chosen == "Reference":
        return ReferenceBackend(attention.shape, attention.variant)
    if chosen == "CPU":
        if attention.device.type != "cpu":
            raise ValueError(f"backend CPU cannot serve device {attention.device}; use Triton or Auto")
        if not for_cpu:
            raise ValueError(
                "backend CPU takes no transform, no sinks, no custom mask, no float8 pool and no batch_invariant;"
                " use Reference or Auto"
            )
        return CpuBackend(attention.shape, attention.variant, attention.launch_table)
    if chosen == "Triton":
        require_triton(attention.device)
        from octavo_kernels.triton_backend import TritonBackend

        return TritonBackend(
            attention.shape,
            attention.variant,
            attention.device,
            max_tokens=attention.max_tokens,
            batch_invariant=attention.batch_invariant,
            launch_table=attention.launch_table,
        )
    raise ValueError(f"backend is {name!r}; it must be one of Auto, Reference, CPU, Triton")
