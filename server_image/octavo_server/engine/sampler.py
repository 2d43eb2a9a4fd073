"""From logits to tokens, for all rows of a step at once, on the device of the logits.

Order: log-probabilities (before anything is changed) → masks of grammars (engine/grammars.py) → ids without a token →
repetition, presence and frequency penalties → bias → bad words → allowed ids → min_tokens → greedy or temperature →
top-k → top-p → min-p → draw. Limits keep every token whose logit equals the last kept one's, and the draw walks the
vocabulary in order with one number per row (engine/philox.py), so a row's token depends on that row alone.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from octavo_server.engine.messages import TokenLogprobs
from octavo_server.engine.philox import uniforms
from octavo_server.engine.request import Request

_FIRST_CANDIDATES = 512
_BAD_WORD_PENALTY = 1e9
"""Probability 0 beside any other token, and still a way on where a grammar allows nothing else."""


def sample(logits: torch.Tensor, requests: Sequence[Request]) -> list[int]:
    """One token per row; `logits` float32 `[rows, vocabulary]` is changed in place."""
    _forbid_ids_without_token(logits, requests)
    for row, request in enumerate(requests):
        _adjust(logits[row], request)
    greedy = [row for row, request in enumerate(requests) if request.sampling.temperature == 0]
    drawn = [row for row, request in enumerate(requests) if request.sampling.temperature > 0]
    tokens = [0] * len(requests)
    if greedy:
        chosen = logits.argmax(dim=1) if len(greedy) == len(requests) else logits[greedy].argmax(dim=1)
        for row, token in zip(greedy, chosen.tolist(), strict=True):
            tokens[row] = token
    if drawn:
        rows = logits if len(drawn) == len(requests) else logits[drawn]
        for row, token in zip(drawn, _draw(rows, [requests[row] for row in drawn]), strict=True):
            tokens[row] = token
    return tokens


def _forbid_ids_without_token(logits: torch.Tensor, requests: Sequence[Request]) -> None:
    """A model may have more logits than its tokenizer has tokens: those ids get −inf."""
    sizes = [request.sampling.vocabulary_size or logits.shape[1] for request in requests]
    if min(sizes, default=logits.shape[1]) >= logits.shape[1]:
        return
    if min(sizes) == max(sizes):
        logits[:, sizes[0] :] = float("-inf")
        return
    for row, size in enumerate(sizes):
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
        ids = torch.tensor(list(sampling.logit_bias), device=logits.device)
        logits[ids] += torch.tensor(list(sampling.logit_bias.values()), device=logits.device)
    for word in sampling.bad_words:
        before = len(word) - 1
        if (
            request.generated >= before
            and request.tokens[request.length - before : request.length].tolist() == word[:-1]
        ):
            logits[word[-1]] -= _BAD_WORD_PENALTY
    if sampling.allowed_token_ids:
        allowed = torch.tensor(sampling.allowed_token_ids, device=logits.device)
        kept = logits[allowed]
        logits.fill_(float("-inf"))
        logits[allowed] = kept
    if request.generated < sampling.min_tokens and request.stop_ids:
        stops = [token for token in request.stop_ids if 0 <= token < logits.shape[0]]
        logits[stops] = float("-inf")


def _draw(logits: torch.Tensor, requests: Sequence[Request]) -> list[int]:
    """Draws from `softmax(logits / temperature)` after top-k, top-p and min-p; float32 `[rows, vocabulary]`."""
    device = logits.device
    temperature = torch.tensor([request.sampling.temperature for request in requests], device=device)
    logits = logits / temperature[:, None].clamp_min(1e-5)
    top_k = [request.sampling.top_k for request in requests]
    if any(0 < k < logits.shape[1] for k in top_k):
        logits = _keep_top_k(logits, top_k)
    if any(request.sampling.top_p < 1 for request in requests):
        logits = _keep_top_p(logits, [request.sampling.top_p for request in requests])
    if any(request.sampling.min_p > 0 for request in requests):
        floor = torch.tensor([request.sampling.min_p for request in requests], device=device).log()
        limit = logits.amax(dim=1) + floor
        logits = logits.masked_fill(logits < limit[:, None], float("-inf"))
    cumulative = logits.softmax(dim=1).double().cumsum(dim=1)
    numbers = uniforms(
        np.array([request.sampling.seed for request in requests], dtype=np.uint64),
        np.array([request.sampling.choice_index for request in requests], dtype=np.uint64),
        np.array([request.length for request in requests], dtype=np.uint64),
    )
    targets = torch.from_numpy(numbers).to(device)[:, None] * cumulative[:, -1:]
    # right=True: the first token whose cumulative sum is above the target, never one of probability 0.
    chosen = torch.searchsorted(cumulative, targets, right=True).squeeze(1)
    result: list[int] = chosen.clamp_max(logits.shape[1] - 1).tolist()
    return result


def _keep_top_k(logits: torch.Tensor, top_k: Sequence[int]) -> torch.Tensor:
    """Masks all below the k-th largest value of each row; k = 0 keeps all."""
    wanted = [k if 0 < k < logits.shape[1] else 0 for k in top_k]
    largest = logits.topk(max(wanted), dim=1).values
    index = torch.tensor([max(k, 1) - 1 for k in wanted], device=logits.device)
    limit = largest.gather(1, index[:, None])
    limit[[row for row, k in enumerate(wanted) if k == 0]] = float("-inf")
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


def token_logprobs(
    log_probabilities: torch.Tensor, tokens: Sequence[int], counts: Sequence[int]
) -> list[TokenLogprobs]:
    """Entries for one token per row of `log_probabilities` `[rows, vocabulary]` with the `counts` most likely ones."""
    ids = torch.tensor(tokens, device=log_probabilities.device)[:, None]
    own = log_probabilities.gather(1, ids)
    ranks = ((log_probabilities > own).sum(dim=1) + 1).tolist()
    own_values = own.squeeze(1).tolist()
    most = min(max(counts, default=0), log_probabilities.shape[1])
    top = log_probabilities.topk(most, dim=1) if most > 0 else None
    top_values = top.values.tolist() if top else [[]] * len(tokens)
    top_ids = top.indices.tolist() if top else [[]] * len(tokens)
    return [
        TokenLogprobs(token, value, rank, ids_of_row[:count], values_of_row[:count])
        for token, value, rank, ids_of_row, values_of_row, count in zip(
            tokens, own_values, ranks, top_ids, top_values, counts, strict=True
        )
    ]


def _ids(tokens: np.ndarray[tuple[int], np.dtype[np.int32]], device: torch.device) -> torch.Tensor:
    return torch.from_numpy(tokens.astype(np.int64)).to(device)
