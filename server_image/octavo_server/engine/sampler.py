"""From logits to tokens, for all rows of a step at once, on the device of the logits.

Order: log-probabilities (before anything is changed) → masks of grammars (engine/grammars.py) → ids without a token →
repetition, presence and frequency penalties → bias → bad words → allowed ids → min_tokens → greedy or temperature →
top-k → top-p → min-p → draw. Limits keep every token whose logit equals the last kept one's, and the draw walks the
vocabulary in order with one number per row (engine/philox.py), so a row's token depends on that row alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from octavo_kernels.logprobs import describe_tokens

from octavo_server.engine.adjust import adjust, to_device
from octavo_server.engine.messages import TokenLogprobs
from octavo_server.engine.philox import uniforms
from octavo_server.engine.request import Request
from octavo_server.engine.slots import RowRules

_FIRST_CANDIDATES = 512
_ROWS_AT_ONCE = 256
_PARTS = 512
"""Parts of rows whose largest logits a GPU finds side by side: a row of its own keeps one multiprocessor of many."""


def sample(logits: torch.Tensor, requests: Sequence[Request]) -> list[int]:
    """One token per row; `logits` float32 `[rows, vocabulary]` is changed in place. Waits for the device."""
    result: list[int] = choose(logits, requests, rules_of(requests)).tolist()
    return result


def rules_of(requests: Sequence[Request]) -> RowRules:
    """The rules of these requests, one row each, wherever they are."""
    asked = [request.sampling for request in requests]
    return RowRules(
        np.array([one.temperature for one in asked], np.float64),
        np.array([one.vocabulary_size for one in asked], np.int64),
        np.array([request.adjusted for request in requests], np.bool_),
        np.array([one.top_k for one in asked], np.int64),
        np.array([one.top_p for one in asked], np.float64),
        np.array([one.min_p for one in asked], np.float64),
        uniforms(
            np.array([one.seed for one in asked], np.uint64),
            np.array([one.choice_index for one in asked], np.uint64),
            np.array([request.length for request in requests], np.uint64),
        ),
    )


def choose(logits: torch.Tensor, requests: Sequence[Request], rules: RowRules) -> torch.Tensor:
    """int64 `[rows]` on the device of the logits, float32 `[rows, vocabulary]`, which are changed in place."""
    _forbid_ids_without_token(logits, rules.vocabulary)
    if rules.adjusted.any():
        adjust(logits, np.flatnonzero(rules.adjusted).tolist(), requests)
    drawn = np.flatnonzero(rules.temperature > 0)
    if len(drawn) == 0:
        return largest(logits)
    if len(drawn) == len(requests):
        return _draw_in_parts(logits, rules, drawn)
    index = to_device(drawn, logits.device)
    tokens = largest(logits)
    tokens[index] = _draw_in_parts(logits[index], rules, drawn)
    return tokens


def largest(logits: torch.Tensor) -> torch.Tensor:
    """int64 `[rows]`: the first of each row's largest logits, `[rows, vocabulary]`."""
    rows, columns = logits.shape
    parts = 1
    while logits.device.type != "cpu" and 2 * parts * rows <= _PARTS and columns % (2 * parts) == 0:
        parts *= 2
    if parts == 1:
        return logits.argmax(dim=1)
    values, places = logits.view(rows * parts, columns // parts).max(dim=1)
    best = values.view(rows, parts).argmax(dim=1, keepdim=True)
    return (places.view(rows, parts).gather(1, best) + best * (columns // parts)).squeeze(1)


def _draw_in_parts(logits: torch.Tensor, rules: RowRules, rows: npt.NDArray[np.int64]) -> torch.Tensor:
    """Draws for these rows of the rules, whose logits are given; parts bound the memory of double precision."""
    parts = [slice(at, at + _ROWS_AT_ONCE) for at in range(0, len(rows), _ROWS_AT_ONCE)]
    drawn = [_draw(logits[part], rules, rows[part]) for part in parts]
    return drawn[0] if len(drawn) == 1 else torch.cat(drawn)


def _forbid_ids_without_token(logits: torch.Tensor, vocabulary: npt.NDArray[np.int64]) -> None:
    """A model may have more logits than its tokenizer has tokens: those ids get −inf."""
    sizes = np.where(vocabulary > 0, vocabulary, logits.shape[1])
    least = int(sizes.min(initial=logits.shape[1]))
    if least >= logits.shape[1]:
        return
    if least == sizes.max():
        logits[:, least:] = float("-inf")
        return
    for row, size in enumerate(sizes.tolist()):
        logits[row, size:] = float("-inf")


def _draw(logits: torch.Tensor, rules: RowRules, rows: npt.NDArray[np.int64]) -> torch.Tensor:
    """int64 `[rows]`, drawn from `softmax(logits / temperature)` after top-k, top-p and min-p.

    logits: float32 `[rows, vocabulary]`, those of `rows` of the rules.
    """
    vocabulary = logits.shape[1]
    top_k, top_p, min_p = rules.top_k[rows], rules.top_p[rows], rules.min_p[rows]
    top_k = np.where((top_k > 0) & (top_k < vocabulary), top_k, 0)
    # One upload for all of them.
    numbers = np.stack((rules.temperature[rows], rules.numbers[rows], top_k, top_p, min_p))
    temperature, drawn, device_k, device_p, device_min_p = to_device(numbers, logits.device)[:, :, None]
    logits = logits / temperature.float().clamp_min(1e-5)
    if top_k.any():
        logits = _keep_top_k(logits, device_k.long(), int(top_k.max()))
    if (top_p < 1).any():
        logits = _keep_top_p(logits, device_p, np.flatnonzero(top_p < 1))
    if (min_p > 0).any():
        limit = logits.amax(dim=1, keepdim=True) + device_min_p.float().log()
        logits = logits.masked_fill(logits < limit, float("-inf"))
    cumulative = logits.softmax(dim=1).double().cumsum(dim=1)
    # right=True: the first token whose cumulative sum is above the target, never one of probability 0.
    chosen = torch.searchsorted(cumulative, drawn * cumulative[:, -1:], right=True).squeeze(1)
    return chosen.clamp_max(vocabulary - 1)


def _keep_top_k(logits: torch.Tensor, top_k: torch.Tensor, most: int) -> torch.Tensor:
    """Masks all below the k-th largest value of each row; top_k: int64 `[rows, 1]`, at most `most`; 0 keeps all."""
    largest = logits.topk(most, dim=1).values
    limit = largest.gather(1, (top_k - 1).clamp_min(0)).masked_fill(top_k == 0, float("-inf"))
    return logits.masked_fill(logits < limit, float("-inf"))


def _keep_top_p(logits: torch.Tensor, wanted: torch.Tensor, below_one: npt.NDArray[np.int64]) -> torch.Tensor:
    """Masks all below the value at which the largest probabilities first reach p.

    wanted: p, float64 `[rows, 1]`. below_one: rows with p < 1; the others keep all.

    Sorting a whole vocabulary takes milliseconds on a CPU; the largest few hundred values nearly always reach p.
    """
    total = logits.logsumexp(dim=1, keepdim=True)
    limits = torch.full_like(total, float("-inf"))
    open_rows = to_device(below_one, logits.device)
    for count in (min(_FIRST_CANDIDATES, logits.shape[1]), logits.shape[1]):
        values = logits[open_rows].topk(count, dim=1).values
        reached = (values - total[open_rows]).double().exp().cumsum(dim=1) >= wanted[open_rows]
        done = reached.any(dim=1) if count < logits.shape[1] else torch.ones_like(reached[:, 0])
        last = torch.where(reached.any(dim=1), reached.int().argmax(dim=1), count - 1)
        limits[open_rows[done]] = values.gather(1, last[:, None])[done]
        open_rows = open_rows[~done]
        if not len(open_rows):
            break
    return logits.masked_fill(logits < limits, float("-inf"))


@dataclass(frozen=True)
class LogprobTensors:
    """Log-probabilities of some rows on their way to the host. tokens: int64 `[rows]`; own: float32 `[rows]`; ranks:
    int64 `[rows]`; top_ids, top_values: `[rows, most]`."""

    tokens: torch.Tensor
    own: torch.Tensor
    ranks: torch.Tensor
    top_ids: torch.Tensor
    top_values: torch.Tensor

    def entries(self, counts: Sequence[int]) -> list[TokenLogprobs]:
        """One entry per row with its `counts` most likely tokens; the copies must have ended."""
        rows = zip(
            *(tensor.tolist() for tensor in (self.tokens, self.own, self.ranks, self.top_ids, self.top_values)),
            counts,
            strict=True,
        )
        return [TokenLogprobs(token, own, rank, ids[:n], values[:n]) for token, own, rank, ids, values, n in rows]


def logprob_tensors(log_probabilities: torch.Tensor, tokens: torch.Tensor, most: int) -> LogprobTensors:
    """What the host needs of `log_probabilities` `[rows, vocabulary]` for one token per row, `tokens` int64 `[rows]`.

    From a GPU it is copied without waiting: record an event behind the call and wait for that.
    """
    found = describe_tokens(log_probabilities, tokens, min(most, log_probabilities.shape[1]))
    parts = (tokens, found.values, found.ranks, found.top_ids, found.top_values)
    return LogprobTensors(*map(to_host, parts))


def to_host(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor in host memory, sooner or later; the host does not wait for the copy."""
    if tensor.device.type == "cpu":
        return tensor
    return torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True).copy_(tensor, non_blocking=True)
