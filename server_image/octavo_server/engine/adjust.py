"""Rules of single requests that change single logits: penalties, bias, bad words, allowed ids, min_tokens.

For all rows of a step at once: the host says which logits change (it never waits for the device), the device changes
them. What a request's text holds is counted as it grows.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from octavo_server.engine.request import Request

_BAD_WORD_PENALTY = 1e9
"""Probability 0 beside any other token, and still a way on where a grammar allows nothing else."""

Ints = npt.NDArray[np.int64]


def adjust(logits: torch.Tensor, rows: Sequence[int], requests: Sequence[Request]) -> None:
    """Applies the rules of these rows' requests in place; logits: float32 `[all rows, vocabulary]`."""
    pairs = [(row, requests[row]) for row in rows]
    repeated, counted, biased, words, allowed, stops = (_Places() for _ in range(6))
    for row, request in pairs:
        sampling = request.sampling
        if sampling.repetition_penalty != 1.0:
            repeated.add(row, request.counts(0).ids, sampling.repetition_penalty)
        if sampling.presence_penalty != 0.0 or sampling.frequency_penalty != 0.0:
            answer = request.counts(request.prompt_length)
            counted.add(row, answer.ids, sampling.presence_penalty + sampling.frequency_penalty * answer.counts)
        if sampling.logit_bias:
            biased.add(row, list(sampling.logit_bias), list(sampling.logit_bias.values()))
        if sampling.bad_words:
            words.add(row, sorted(_forbidden(request)), _BAD_WORD_PENALTY)
        if sampling.allowed_token_ids:
            allowed.add(row, sorted(set(sampling.allowed_token_ids)), 0.0)
        if request.stop_ids and request.generated < sampling.min_tokens:
            stops.add(row, [token for token in request.stop_ids if 0 <= token < logits.shape[1]], float("-inf"))
    device = logits.device
    if repeated:
        places, penalty = repeated.on(device)
        values = logits[places]
        logits[places] = torch.where(values > 0, values / penalty, values * penalty)
    for rule, sign in ((counted, -1), (biased, 1), (words, -1)):
        if rule:
            places, values = rule.on(device)
            logits[places] += sign * values
    if allowed:
        places, _ = allowed.on(device)
        kept = logits[places]
        logits[to_device(np.array(allowed.rows, np.int64), device)] = float("-inf")
        logits[places] = kept
    if stops:
        places, values = stops.on(device)
        logits[places] = values


class _Places:
    """Logits that a rule changes, each at most once, and a number for each."""

    def __init__(self) -> None:
        self.rows: list[int] = []
        self._ids: list[Ints] = []
        self._values: list[npt.NDArray[np.float32]] = []

    def __bool__(self) -> bool:
        return bool(self.rows)

    def add(self, row: int, ids: Any, values: Any) -> None:
        """Tokens of a row; one value for all, or one each."""
        found = np.asarray(ids, np.int64)
        if len(found):
            self.rows.append(row)
            self._ids.append(found)
            self._values.append(np.broadcast_to(np.asarray(values, np.float32), found.shape))

    def on(self, device: torch.device) -> tuple[tuple[torch.Tensor, torch.Tensor], torch.Tensor]:
        """(rows, tokens), int64, and the numbers, float32, on the device."""
        rows = np.repeat(np.array(self.rows, np.int64), [len(ids) for ids in self._ids])
        places = to_device(np.stack((rows, np.concatenate(self._ids))), device)
        return (places[0], places[1]), to_device(np.concatenate(self._values), device)


def _forbidden(request: Request) -> set[int]:
    """Last tokens of bad words whose others stand at the end of the text."""
    found = set()
    for word in request.sampling.bad_words:
        before = len(word) - 1
        if request.generated < before:
            continue
        if not before or request.tokens[request.length - before : request.length].tolist() == word[:-1]:
            found.add(word[-1])
    return found


def to_device(values: npt.NDArray[Any], device: torch.device) -> torch.Tensor:
    """The array on the device; the host does not wait for the copy."""
    tensor = torch.from_numpy(values)
    return tensor if device.type == "cpu" else tensor.pin_memory().to(device, non_blocking=True)
