"""From logits to tokens for all rows of a step, on the device of the logits, without waiting for it.

Order: mask of a grammar and ids without a token → repetition, presence and frequency penalties → bias → greedy, or
temperature → top-k → top-p → min-p → draw. Limits keep every token whose logit equals the last kept one's. The draw
walks the vocabulary in order with one random number per row, keyed by (seed, choice, position), so a row's token
depends on that row alone. Sums are made of integers, so a row's token is the same on a CPU and on every GPU, alone and
in a batch, however its vocabulary was divided (sampling_reference.py defines it, in torch).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields

import torch

from octavo_kernels.compat import require_triton, triton_version
from octavo_kernels.sampling_reference import adjust_reference, sample_reference

MAX_VOCABULARY = 1 << 21
"""Logits of a row: sums of weights stay below 2⁶²."""


@dataclass(frozen=True)
class SamplingRows:
    """What each row asks for; all tensors `[rows]`, on the logits' device, contiguous.

    temperature: float32; 0 = the largest logit, the lowest id among equal ones. Below 1e-5 it counts as 1e-5.
    seeds, choices, positions: int64; the key of the row's random number. seeds holds the bits of an unsigned number.
    top_k: int32, 0 = all. top_p: float32 in (0, 1], 1 = all. min_p: float32 in [0, 1], 0 = all.
        None = all rows keep all.
    vocabulary: int32, ids from here on have no token and are never chosen; None = every logit has one.
    """

    temperature: torch.Tensor
    seeds: torch.Tensor
    choices: torch.Tensor
    positions: torch.Tensor
    top_k: torch.Tensor | None = None
    top_p: torch.Tensor | None = None
    min_p: torch.Tensor | None = None
    vocabulary: torch.Tensor | None = None

    @property
    def truncates(self) -> bool:
        """Whether any row may leave out improbable tokens."""
        return self.top_k is not None or self.top_p is not None or self.min_p is not None


@dataclass(frozen=True)
class TokenLists:
    """Sparse lists of tokens, resident on the device and changed by small scatters; a list holds an id at most once.

    ids: int32 `[lists, capacity]`; lengths: int32 `[lists]`, entries in use; what lies behind them is not read.
    lists: int32 `[rows]`, the list of each row, −1 = none; None = row r has list r.
    """

    ids: torch.Tensor
    lengths: torch.Tensor
    lists: torch.Tensor | None = None


@dataclass(frozen=True)
class Penalties:
    """Penalties on the tokens of a list. x > 0 becomes x / repetition, else x · repetition; then
    presence + frequency · count is subtracted where count > 0.

    tokens: every token of prompt and answer, once.
    counts: int32 `[lists, capacity]`, how often each stands in the answer; 0 = in the prompt alone.
    repetition (1 = none), presence (0), frequency (0): float32 `[rows]`.
    """

    tokens: TokenLists
    counts: torch.Tensor
    repetition: torch.Tensor
    presence: torch.Tensor
    frequency: torch.Tensor


@dataclass(frozen=True)
class Biases:
    """values: float32 `[lists, capacity]`, added to the logits of the list's tokens; −inf forbids one."""

    tokens: TokenLists
    values: torch.Tensor


@dataclass(frozen=True)
class TokenMasks:
    """Allowed tokens, one bit each: bit b of word w for token 32 · w + b; ids beyond the words are forbidden.

    words: int32 `[masks, words]`. rows: int32 `[rows]`, the mask of each row, −1 = none; None = row r has mask r.
    """

    words: torch.Tensor
    rows: torch.Tensor | None = None


class Sampler:
    """Samples batches of up to max_rows rows. Holds the kernels' scratch memory, so use one on one stream at a time.

    vocabulary: columns of the logits. device: where the logits are.
    backend: `Auto`, `Reference` (torch operations, any device) or `Triton`. Auto takes Triton on CUDA devices.
    Raises ValueError and RuntimeError that name the argument, its value and the way out.
    """

    def __init__(
        self, vocabulary: int, max_rows: int, device: torch.device | str = "cpu", *, backend: str = "Auto"
    ) -> None:
        device = torch.device(device)
        if not 1 <= vocabulary <= MAX_VOCABULARY:
            raise ValueError(f"vocabulary is {vocabulary}; it must be from 1 to {MAX_VOCABULARY}")
        if max_rows < 1:
            raise ValueError(f"max_rows is {max_rows}; it must be at least 1")
        if backend not in ("Auto", "Reference", "Triton"):
            raise ValueError(f"backend is {backend!r}; it must be one of Auto, Reference, Triton")
        if backend == "Auto":
            backend = "Triton" if device.type == "cuda" and triton_version() is not None else "Reference"
        self.vocabulary, self.max_rows, self.device, self.backend = vocabulary, max_rows, device, backend
        if backend == "Triton":
            require_triton(device)
            from octavo_kernels.triton_sampling import SamplingKernels

            self._kernels = SamplingKernels(vocabulary, max_rows, device)

    def sample(
        self,
        logits: torch.Tensor,
        rows: SamplingRows,
        *,
        penalties: Penalties | None = None,
        biases: Biases | None = None,
        masks: TokenMasks | None = None,
        out: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """One token per row.

        logits: float32 `[rows, vocabulary]`, contiguous rows; changed in place by penalties, biases and masks. A NaN
            counts as −inf. A row of −inf alone gives id 0.
        out: int64 `[rows]` receives the tokens; None allocates.
        Returns out. Launches depend on shapes and on which arguments are None alone, and nothing waits for the device,
        so the call can be captured in a CUDA graph. Raises ValueError with the argument, its value and the limit.
        """
        count = self._check(logits, rows, penalties, biases, masks, out)
        out = torch.empty(count, dtype=torch.int64, device=logits.device) if out is None else out
        if count == 0:
            return out
        if self.backend == "Triton":
            self._kernels.sample(logits, rows, penalties, biases, masks, out)
            return out
        adjust_reference(logits, rows.vocabulary, penalties, biases, masks)
        return out.copy_(sample_reference(logits, rows))

    def _check(
        self,
        logits: torch.Tensor,
        rows: SamplingRows,
        penalties: Penalties | None,
        biases: Biases | None,
        masks: TokenMasks | None,
        out: torch.Tensor | None,
    ) -> int:
        if logits.dim() != 2 or logits.shape[1] != self.vocabulary or logits.shape[0] > self.max_rows:
            raise ValueError(
                f"logits has shape {list(logits.shape)}; this Sampler was made for at most {self.max_rows} rows of"
                f" {self.vocabulary}"
            )
        if logits.dtype != torch.float32 or logits.stride(1) != 1 or logits.device.type != self.device.type:
            raise ValueError(
                f"logits is {logits.dtype} with strides {logits.stride()} on {logits.device};"
                f" it must be float32 with contiguous rows on {self.device}"
            )
        count = logits.shape[0]
        wanted: dict[str, tuple[torch.Tensor | None, torch.dtype, tuple[int, ...]]] = {
            f"rows.{item.name}": (getattr(rows, item.name), _DTYPES[item.name], (count,)) for item in fields(rows)
        }
        if penalties is not None:
            wanted |= _list_tensors("penalties", penalties.tokens, count)
            shape = tuple(penalties.tokens.ids.shape)
            wanted["penalties.counts"] = (penalties.counts, torch.int32, shape)
            for name in ("repetition", "presence", "frequency"):
                wanted[f"penalties.{name}"] = (getattr(penalties, name), torch.float32, (count,))
        if biases is not None:
            wanted |= _list_tensors("biases", biases.tokens, count)
            wanted["biases.values"] = (biases.values, torch.float32, tuple(biases.tokens.ids.shape))
        if masks is not None:
            rows_of_words = masks.words.shape[0] if masks.rows is not None else count
            wanted["masks.words"] = (masks.words, torch.int32, (rows_of_words, *masks.words.shape[1:2]))
            wanted["masks.rows"] = (masks.rows, torch.int32, (count,))
        wanted["out"] = (out, torch.int64, (count,))
        _check_tensors(wanted, logits.device)
        return count


_DTYPES: Mapping[str, torch.dtype] = {
    "temperature": torch.float32,
    "seeds": torch.int64,
    "choices": torch.int64,
    "positions": torch.int64,
    "top_k": torch.int32,
    "top_p": torch.float32,
    "min_p": torch.float32,
    "vocabulary": torch.int32,
}


def _list_tensors(
    name: str, tokens: TokenLists, rows: int
) -> dict[str, tuple[torch.Tensor | None, torch.dtype, tuple[int, ...]]]:
    lists = tokens.ids.shape[0] if tokens.lists is not None else rows
    return {
        f"{name}.tokens.ids": (tokens.ids, torch.int32, (lists, *tokens.ids.shape[1:2])),
        f"{name}.tokens.lengths": (tokens.lengths, torch.int32, (lists,)),
        f"{name}.tokens.lists": (tokens.lists, torch.int32, (rows,)),
    }


def _check_tensors(
    wanted: Mapping[str, tuple[torch.Tensor | None, torch.dtype, tuple[int, ...]]], device: torch.device
) -> None:
    for name, (tensor, dtype, shape) in wanted.items():
        if tensor is None:
            continue
        if tensor.dtype != dtype or tuple(tensor.shape) != shape or tensor.device.type != device.type:
            raise ValueError(
                f"{name} is {tensor.dtype} {list(tensor.shape)} on {tensor.device}; it must be {dtype} {list(shape)}"
                f" on {device}"
            )
        if not tensor.is_contiguous():
            raise ValueError(f"{name} has strides {tensor.stride()}; it must be contiguous")


__all__ = [
    "MAX_VOCABULARY",
    "Biases",
    "Penalties",
    "Sampler",
    "SamplingRows",
    "TokenLists",
    "TokenMasks",
]
