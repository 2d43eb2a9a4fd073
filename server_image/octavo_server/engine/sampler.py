"""From logits to tokens, for all rows of a step at once, on the device of the logits.

Order: log-probabilities (before anything is changed) → masks of grammars (engine/grammars.py) → ids without a token →
repetition, presence and frequency penalties → bias → bad words → allowed ids → min_tokens → greedy or temperature →
top-k → top-p → min-p → draw. Limits keep every token whose logit equals the last kept one's, and the draw walks the
vocabulary in order with one number per row (engine/philox.py), so a row's token depends on that row alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from octavo_kernels.logprobs import describe_tokens

from octavo_server.engine.messages import TokenLogprobs
from octavo_server.engine.philox import uniforms
from octavo_server.engine.request import Request

_FIRST_CANDIDATES = 512
_ROWS_AT_ONCE = 256
_PARTS = 512
"""Parts of rows whose largest logits a GPU finds side by side: a row of its own keeps one multiprocessor of many."""
_BAD_WORD_PENALTY = 1e9
"""Probability 0 beside any other token, and still a way on where a grammar allows nothing else."""


def sample(logits: torch.Tensor, requests: Sequence[Request]) -> list[int]:
    """One token per row; `logits` float32 `[rows, vocabulary]` is changed in place. Waits for the device."""
    result: list[int] = choose(logits, requests, rules_of(requests)).tolist()
    return result


@dataclass(frozen=True)
class RowRules:
    """What is looked at for all rows at once. temperature: float32; vocabulary: int64, 0 = all ids have a token;
    adjusted: bool, whether a row's logits are changed by rules of its own. All `[rows]`."""

    temperature: npt.NDArray[np.float32]
    vocabulary: npt.NDArray[np.int64]
    adjusted: npt.NDArray[np.bool_]


def rules_of(requests: Sequence[Request]) -> RowRules:
    """The rules of these requests, one row each."""
    return RowRules(
        np.array([request.sampling.temperature for request in requests], np.float32),
        np.array([request.sampling.vocabulary_size for request in requests], np.int64),
        np.array([request.adjusted for request in requests], np.bool_),
    )


def choose(logits: torch.Tensor, requests: Sequence[Request], rules: RowRules) -> torch.Tensor:
    """int64 `[rows]` on the device of the logits, float32 `[rows, vocabulary]`, which are changed in place."""
    _forbid_ids_without_token(logits, rules.vocabulary)
    for row in np.flatnonzero(rules.adjusted).tolist():
        _adjust(logits[row], requests[row])
    drawn = np.flatnonzero(rules.temperature > 0)
    if len(drawn) == 0:
        return largest(logits)
    if len(drawn) == len(requests):
        return _draw_in_parts(logits, requests)
    index = to_device(drawn, logits.device)
    tokens = largest(logits)
    tokens[index] = _draw_in_parts(logits[index], [requests[row] for row in drawn.tolist()])
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


def to_device(values: npt.NDArray[Any], device: torch.device) -> torch.Tensor:
    """The array on the device; the host does not wait for the copy."""
    tensor = torch.from_numpy(values)
    return tensor if device.type == "cpu" else tensor.pin_memory().to(device, non_blocking=True)


def _draw_in_parts(logits: torch.Tensor, requests: Sequence[Request]) -> torch.Tensor:
    """Bounds the memory that sums in double precision take."""
    parts = range(0, len(requests), _ROWS_AT_ONCE)
    drawn = [_draw(logits[at : at + _ROWS_AT_ONCE], requests[at : at + _ROWS_AT_ONCE]) for at in parts]
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


def _adjust(logits: torch.Tensor, request: Request) -> None:
    """Penalties, bias and min_tokens on one row `[vocabulary]`, in place; free when a request asks for none."""
    sampling = request.sampling
    if sampling.repetition_penalty != 1.0:
        seen = _ids(request.tokens[: request.length], logits.device).unique()  # type: ignore[no-untyped-call]
        values = logits[seen]
        penalty = sampling.repetition_penalty
        logits[seen] = torch.where(values > 0, values / penalty, values * penalty)
    if sampling.presence_penalty != 0.0 or sampling.frequency_penalty != 0.0:
        answer = _ids(request.tokens[request.prompt_length : request.length], logits.device)
        ids, counts = answer.unique(return_counts=True)  # type: ignore[no-untyped-call]
        logits[ids] -= sampling.presence_penalty + sampling.frequency_penalty * counts
    if sampling.logit_bias:
        ids = to_device(np.array(list(sampling.logit_bias), np.int64), logits.device)
        logits[ids] += to_device(np.array(list(sampling.logit_bias.values()), np.float32), logits.device)
    for word in sampling.bad_words:
        before = len(word) - 1
        if (
            request.generated >= before
            and request.tokens[request.length - before : request.length].tolist() == word[:-1]
        ):
            logits[word[-1]] -= _BAD_WORD_PENALTY
    if sampling.allowed_token_ids:
        allowed = to_device(np.array(sampling.allowed_token_ids, np.int64), logits.device)
        kept = logits[allowed]
        logits.fill_(float("-inf"))
        logits[allowed] = kept
    if request.generated < sampling.min_tokens and request.stop_ids:
        stops = np.array([token for token in request.stop_ids if 0 <= token < logits.shape[0]], np.int64)
        logits[to_device(stops, logits.device)] = float("-inf")


def _draw(logits: torch.Tensor, requests: Sequence[Request]) -> torch.Tensor:
    """int64 `[rows]`, drawn from `softmax(logits / temperature)` after top-k, top-p and min-p.

    logits: float32 `[rows, vocabulary]`.
    """
    device = logits.device
    temperature = to_device(np.array([request.sampling.temperature for request in requests], np.float32), device)
    logits = logits / temperature[:, None].clamp_min(1e-5)
    top_k = [request.sampling.top_k for request in requests]
    if any(0 < k < logits.shape[1] for k in top_k):
        logits = _keep_top_k(logits, top_k)
    if any(request.sampling.top_p < 1 for request in requests):
        logits = _keep_top_p(logits, [request.sampling.top_p for request in requests])
    if any(request.sampling.min_p > 0 for request in requests):
        floor = to_device(np.array([request.sampling.min_p for request in requests], np.float32), device).log()
        limit = logits.amax(dim=1) + floor
        logits = logits.masked_fill(logits < limit[:, None], float("-inf"))
    cumulative = logits.softmax(dim=1).double().cumsum(dim=1)
    numbers = uniforms(
        np.array([request.sampling.seed for request in requests], dtype=np.uint64),
        np.array([request.sampling.choice_index for request in requests], dtype=np.uint64),
        np.array([request.length for request in requests], dtype=np.uint64),
    )
    targets = to_device(numbers, device)[:, None] * cumulative[:, -1:]
    # right=True: the first token whose cumulative sum is above the target, never one of probability 0.
    chosen = torch.searchsorted(cumulative, targets, right=True).squeeze(1)
    return chosen.clamp_max(logits.shape[1] - 1)


def _keep_top_k(logits: torch.Tensor, top_k: Sequence[int]) -> torch.Tensor:
    """Masks all below the k-th largest value of each row; k = 0 keeps all."""
    wanted = [k if 0 < k < logits.shape[1] else 0 for k in top_k]
    largest = logits.topk(max(wanted), dim=1).values
    index = to_device(np.array([max(k, 1) - 1 for k in wanted], np.int64), logits.device)
    limit = largest.gather(1, index[:, None])
    unlimited = to_device(np.array([k == 0 for k in wanted], np.bool_), logits.device)
    limit = limit.masked_fill(unlimited[:, None], float("-inf"))
    return logits.masked_fill(logits < limit, float("-inf"))


def _keep_top_p(logits: torch.Tensor, top_p: Sequence[float]) -> torch.Tensor:
    """Masks all below the value at which the largest probabilities first reach p; p = 1 keeps all.

    Sorting a whole vocabulary takes milliseconds on a CPU; the largest few hundred values nearly always reach p.
    """
    total = logits.logsumexp(dim=1, keepdim=True)
    wanted = torch.tensor(top_p, device=logits.device, dtype=torch.float64)[:, None]
    limits = torch.full_like(total, float("-inf"))
    open_rows = torch.tensor([row for row, p in enumerate(top_p) if p < 1], device=logits.device)
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


def _ids(tokens: np.ndarray[tuple[int], np.dtype[np.int32]], device: torch.device) -> torch.Tensor:
    return to_device(tokens.astype(np.int64), device)
