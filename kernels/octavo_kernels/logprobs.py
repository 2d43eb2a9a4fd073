"""Log-probabilities of tokens: the log-softmax of logits before bias, penalties, temperature, masks and truncation."""

from __future__ import annotations

from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class TokenDescriptions:
    """What is told about one token per row.

    values: float32 `[rows]`, its log-probability. ranks: int64 `[rows]`, 1 = no other is more likely.
    top_ids, top_values: int64 and float32 `[rows, count]`, the most likely tokens, the most likely first.
    """

    values: torch.Tensor
    ranks: torch.Tensor
    top_ids: torch.Tensor
    top_values: torch.Tensor


def log_probabilities(logits: torch.Tensor, rows: torch.Tensor | None = None) -> torch.Tensor:
    """Log-softmax of all rows, or of those that `rows` names, in memory of its own.

    logits: float32 `[batch, vocabulary]`. rows: int64 `[n]`. Returns float32 `[n, vocabulary]`, natural logarithm.
    """
    if logits.dtype != torch.float32 or logits.dim() != 2:
        raise ValueError(f"logits is {logits.dtype} {list(logits.shape)}; it must be float32 [batch, vocabulary]")
    return (logits if rows is None else logits.index_select(0, rows)).log_softmax(dim=1)


def describe_tokens(log_probabilities: torch.Tensor, tokens: torch.Tensor, count: int = 0) -> TokenDescriptions:
    """Describes one token per row, without waiting for the device.

    log_probabilities: float32 `[rows, vocabulary]`. tokens: int64 `[rows]`. count: how many of the most likely.
    Raises ValueError when shapes do not fit or count is not from 0 to the vocabulary's size.
    """
    rows, vocabulary = log_probabilities.shape
    if tokens.shape != (rows,) or tokens.dtype != torch.int64:
        raise ValueError(f"tokens is {tokens.dtype} {list(tokens.shape)}; it must be int64 [{rows}]")
    if not 0 <= count <= vocabulary:
        raise ValueError(f"count is {count}; it must be from 0 to {vocabulary}")
    own = log_probabilities.gather(1, tokens[:, None])
    ranks = (log_probabilities > own).sum(dim=1) + 1
    top = log_probabilities.topk(count, dim=1)
    return TokenDescriptions(own.squeeze(1), ranks, top.indices, top.values)
