"""Runs one step on the device: builds the batch, runs the model, samples.

Per-slot state (the page table) stays on the device; a step sends only what changed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import torch
from octavo_kernels import AttentionShape, PagedAttention

from octavo_server.engine.grammars import apply_masks
from octavo_server.engine.messages import TokenLogprobs
from octavo_server.engine.request import Request
from octavo_server.engine.sampler import sample, token_logprobs
from octavo_server.engine.scheduler import Part
from octavo_server.models.decoder import Decoder, StepTensors


@dataclass(frozen=True)
class StepResult:
    """What a step gave: for each part that samples, its token and, where asked for, log-probabilities."""

    tokens: list[int]
    """One per part; -1 where the part does not sample."""
    logprobs: dict[int, TokenLogprobs] = field(default_factory=dict)
    """By index of the part."""
    prompt_logprobs: dict[int, list[TokenLogprobs]] = field(default_factory=dict)
    """By index of the part: entries for positions start + 1 … of the prompt."""


class Runner:
    """Owns the decoder, the pool's tensors and the page table."""

    def __init__(
        self,
        decoder: Decoder,
        *,
        blocks: int,
        block_size: int,
        kv_dtype: torch.dtype,
        device: torch.device,
        max_sequences: int,
        max_batched_tokens: int,
        max_length: int,
    ) -> None:
        spec = decoder.spec
        self.device = device
        self.block_size = block_size
        self._decoder = decoder
        shape = AttentionShape(
            query_heads=spec.query_heads,
            kv_heads=spec.kv_heads,
            head_size=spec.head_size,
            page_size=block_size,
            dtype=decoder.dtype,
            kv_dtype=kv_dtype,
        )
        self._attention = PagedAttention(
            shape, device=device, max_tokens=max_batched_tokens, max_sequences=max_sequences
        )
        size = (blocks, 2, spec.kv_heads, block_size, spec.head_size)
        self.pool = [torch.zeros(size, dtype=kv_dtype, device=device) for _ in range(spec.layers)]
        columns = -(-max_length // block_size)
        self._page_table = torch.zeros(max_sequences, columns, dtype=torch.int32, device=device)
        # What the page table holds, per slot: the owner, its admission, and how many of its blocks were sent.
        self._sent: list[tuple[Request | None, int, int]] = [(None, 0, 0)] * max_sequences

    @property
    def attention_backend(self) -> str:
        """Name of the attention backend in use."""
        return self._attention.backend

    def step(self, parts: Sequence[Part]) -> StepResult:
        """Computes the parts and samples for those that reach their last known token."""
        with torch.inference_mode():
            self._send_pages(parts)
            wanted = [self._logit_positions(part) for part in parts]
            step = self._step_tensors(parts, wanted)
            self._plan(parts)
            logits = self._decoder.forward(step, self._attention, self.pool)
            return self._collect(parts, wanted, logits)

    def forget_pages(self) -> None:
        """Clears the page table; only while no request is living."""
        self._page_table.zero_()
        self._sent = [(None, 0, 0)] * len(self._sent)

    def _send_pages(self, parts: Sequence[Part]) -> None:
        """Writes new page numbers into the page table: one small scatter per step."""
        slots: list[int] = []
        columns: list[int] = []
        pages: list[int] = []
        for part in parts:
            request = part.request
            owner, admission, count = self._sent[request.slot]
            # A preempted request may come back to its old slot with other blocks: the admission tells.
            known = count if owner is request and admission == request.admissions else 0
            held = len(request.blocks)
            if held != count or known != count:
                # Entries that the slot's last owner left behind become 0 again.
                end = max(held, count)
                slots += [request.slot] * (end - known)
                columns += range(known, end)
                pages += request.blocks[known:] + [0] * (end - held)
                self._sent[request.slot] = (request, request.admissions, len(request.blocks))
        if slots:
            index = torch.tensor([slots, columns], device=self.device)
            self._page_table[index[0], index[1]] = torch.tensor(pages, dtype=torch.int32, device=self.device)

    def _logit_positions(self, part: Part) -> range:
        """Positions of the part whose logits are needed: the last one, or all that have a next prompt token."""
        request, end = part.request, part.start + part.count
        if request.sampling.prompt_logprobs >= 0 and part.start + 1 < request.prompt_length:
            return range(part.start, end)
        return range(end - 1, end) if part.samples else range(0)

    def _step_tensors(self, parts: Sequence[Part], wanted: Sequence[range]) -> StepTensors:
        total = sum(part.count for part in parts)
        tokens = np.empty(total, dtype=np.int64)
        positions = np.empty(total, dtype=np.int64)
        slot_mapping = np.empty(total, dtype=np.int64)
        rows: list[int] = []
        at = 0
        for part, needed in zip(parts, wanted, strict=True):
            request, start, end = part.request, part.start, part.start + part.count
            if part.count == 1:
                tokens[at] = request.tokens[start]
                positions[at] = start
                slot_mapping[at] = request.blocks[start // self.block_size] * self.block_size + start % self.block_size
            else:
                here = slice(at, at + part.count)
                tokens[here] = request.tokens[start:end]
                positions[here] = span = np.arange(start, end)
                blocks = np.array(request.blocks, dtype=np.int64)
                slot_mapping[here] = blocks[span // self.block_size] * self.block_size + span % self.block_size
            rows += range(at + needed.start - start, at + needed.stop - start) if needed else ()
            at += part.count
        return StepTensors(
            tokens=self._send(tokens),
            positions=self._send(positions),
            slot_mapping=self._send(slot_mapping),
            logit_rows=self._send(np.array(rows, dtype=np.int64)),
        )

    def _plan(self, parts: Sequence[Part]) -> None:
        starts = np.zeros(len(parts) + 1, dtype=np.int32)
        np.cumsum([part.count for part in parts], out=starts[1:])
        lengths = np.array([part.start + part.count for part in parts], dtype=np.int32)
        slots = np.array([part.request.slot for part in parts], dtype=np.int32)
        self._attention.plan(
            self._send(starts), self._send(lengths), self._page_table, self._send(slots), tokens=int(starts[-1])
        )

    def _send(self, values: npt.NDArray[np.generic]) -> torch.Tensor:
        return torch.from_numpy(values).to(self.device)

    def _collect(self, parts: Sequence[Part], wanted: Sequence[range], logits: torch.Tensor) -> StepResult:
        """Splits the logits' rows among the parts, takes log-probabilities first, then samples."""
        sampling, sample_rows, prompts = [], [], {}
        at = 0
        for index, (part, needed) in enumerate(zip(parts, wanted, strict=True)):
            if len(needed) > 1 or (needed and not part.samples):
                prompts[index] = self._prompt_logprobs(part, logits[at : at + len(needed)])
            at += len(needed)
            if part.samples:
                sampling.append(index)
                sample_rows.append(at - 1)
        tokens = [-1] * len(parts)
        if not sampling:
            return StepResult(tokens, {}, prompts)
        chosen_logits = logits if len(sample_rows) == logits.shape[0] else logits[sample_rows]
        asked = [place for place, index in enumerate(sampling) if parts[index].request.sampling.logprobs >= 0]
        raw = chosen_logits[asked].log_softmax(dim=1) if asked else None
        requests = [parts[index].request for index in sampling]
        self._mask(chosen_logits, requests)
        chosen = sample(chosen_logits, requests)
        for index, token in zip(sampling, chosen, strict=True):
            tokens[index] = token
        logprobs: dict[int, TokenLogprobs] = {}
        if raw is not None:
            indices = [sampling[place] for place in asked]
            counts = [parts[index].request.sampling.logprobs for index in indices]
            entries = token_logprobs(raw, [tokens[index] for index in indices], counts)
            logprobs = dict(zip(indices, entries, strict=True))
        return StepResult(tokens, logprobs, prompts)

    def _mask(self, logits: torch.Tensor, requests: Sequence[Request]) -> None:
        """Forbids, in the rows of requests with a grammar, what it does not allow next."""
        states = [(row, request.grammar) for row, request in enumerate(requests) if request.grammar is not None]
        if states:
            # The device still computes the logits meanwhile: nothing before this line waits for them.
            masks = states[0][1].owner.masks([state for _, state in states])
            apply_masks(logits, [row for row, _ in states], masks)

    def _prompt_logprobs(self, part: Part, logits: torch.Tensor) -> list[TokenLogprobs]:
        """Entries of the prompt tokens that follow the part's positions; `logits` `[part.count, vocabulary]`."""
        request = part.request
        following = request.tokens[part.start + 1 : min(part.start + part.count + 1, request.prompt_length)].tolist()
        count = request.sampling.prompt_logprobs
        rows = logits[: len(following)].log_softmax(dim=1)
        return token_logprobs(rows, following, [count] * len(following))
