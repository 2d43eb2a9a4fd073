"""Runs steps on the device: sends a step's numbers, queues the model, samples, brings the tokens back.

`launch`, `sample` and `collect` belong together; on a GPU none but the last waits, so the next step can be launched
while one runs. Tokens stay on the device: the next step reads them from the last tokens of all slots. The page table
stays there as well; a step sends only what changed.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import torch
from octavo_kernels import AttentionShape, PagedAttention, SharedPrefixes
from octavo_kernels.launch_table import LaunchTable

from octavo_server.engine.adjust import to_device
from octavo_server.engine.batch import Wanted, fill, wanted_rows
from octavo_server.engine.grammars import apply_masks
from octavo_server.engine.graphs import MAX_GRAPH_TOKENS, Bucket, StepGraphs, buckets, largest_buckets
from octavo_server.engine.launches import launches_for, refuses_launches
from octavo_server.engine.messages import TokenLogprobs
from octavo_server.engine.pages import PageTable
from octavo_server.engine.plan import StepPlan, empty_plan
from octavo_server.engine.sampler import LogprobTensors, choose, largest, logprob_tensors
from octavo_server.engine.slots import SlotTable
from octavo_server.engine.staging import Arrays, Staging, Tensors
from octavo_server.models.decoder import Decoder, StepTensors

_PAGE_UPDATES = (2048, 16384)
"""New page-table entries that travel with a step's other numbers, for graphs and for larger steps."""
_EAGER_TOKENS = 512
"""Attention is planned for multiples of this, so that few different plans are kept."""
_EAGER_SEQUENCES = 16
_LITTLE_BYTES = 1 << 28
"""Of a layer's keys and values: up to here a step counts as one that reads little."""
_MARKS = 8
"""Events that take turns: two per step, and a step is collected before the next but one is launched."""


@dataclass(frozen=True)
class StepResult:
    """What a step gave: for each row of its plan, its token and, where asked for, log-probabilities."""

    tokens: npt.NDArray[np.int64]
    """One per row; -1 where the row does not sample."""
    logprobs: dict[int, TokenLogprobs] = field(default_factory=dict)
    """By row."""
    prompt_logprobs: dict[int, list[TokenLogprobs]] = field(default_factory=dict)
    """By row: entries for positions start + 1 … of the prompt."""
    seconds: float = 0.0
    """Time that the device took."""


@dataclass
class Flight:
    """A step between `launch` and `collect`."""

    plan: StepPlan
    wanted: Wanted
    logits: torch.Tensor
    sample_slots: torch.Tensor
    begun: torch.cuda.Event | float
    ended: torch.cuda.Event | float = 0.0
    tokens: torch.Tensor | None = None
    """On the host, once `ended` was reached."""
    logprobs: tuple[list[int], LogprobTensors] | None = None
    prompts: list[tuple[int, LogprobTensors]] = field(default_factory=list)
    bucket: Bucket | None = None
    shared_read_tokens: int = 0
    """Reads of cached tokens that it saves, because its kernels read common prefixes once."""


class Runner:
    """Owns the decoder, the pool's tensors, the page table and the graphs."""

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
        launches: LaunchTable | None = None,
    ) -> None:
        """`launches`: measured launch configurations; None = those that come with the kernels.

        Raises Refusal for a launch that no kernel takes.
        """
        spec = decoder.spec
        self.device = device
        self.block_size = block_size
        self._kv_dtype = kv_dtype
        self._decoder = decoder
        self._max_tokens, self._max_sequences = max_batched_tokens, max_sequences
        shape = AttentionShape(
            query_heads=spec.query_heads,
            kv_heads=spec.kv_heads,
            head_size=spec.head_size,
            page_size=block_size,
            dtype=decoder.dtype,
            kv_dtype=kv_dtype,
        )
        self.launches = launches_for(launches, shape, device)
        with refuses_launches(self.launches):
            self._attention = PagedAttention(
                shape,
                device=device,
                max_tokens=max_batched_tokens,
                max_sequences=max_sequences,
                launch_table=self.launches.table,
            )
        self.pages = PageTable(max_sequences, -(-max_length // block_size), device)
        self.graphs = StepGraphs()
        self.graphs.little_tokens = _LITTLE_BYTES // (2 * spec.kv_heads * spec.head_size * kv_dtype.itemsize)
        self._on_gpu = device.type == "cuda"
        self.overlaps = self._on_gpu
        """Whether a step may be launched before the one before it was collected."""
        self._large = self._staging(max_batched_tokens, max_sequences, _PAGE_UPDATES[1])
        self._small = self._large
        if self._on_gpu:
            tokens = min(MAX_GRAPH_TOKENS, max_batched_tokens)
            self._small = self._staging(tokens, min(tokens, max_sequences), _PAGE_UPDATES[0])
        self._turn = 0
        if self._on_gpu:
            self._homes = [torch.empty(max_sequences, dtype=torch.int64, pin_memory=True) for _ in range(2)]
            self._marks = [
                torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
                for _ in range(_MARKS)
            ]
        self._marked = 0
        # The largest logit of each row of a graph's step: its token, where nothing but greedy choices are asked for.
        self._greedy = torch.zeros(self._small.sequences, dtype=torch.int64, device=device)
        self.pool: list[torch.Tensor] = []
        self.make_pool(blocks)

    @property
    def attention_backend(self) -> str:
        """Name of the attention backend in use."""
        return self._attention.backend

    def make_pool(self, blocks: int) -> None:
        """Allocates the cache, one tensor per layer; graphs captured on an earlier one are dropped with it."""
        spec = self._decoder.spec
        self.graphs.drop()
        self.pool = []
        size = (blocks, 2, spec.kv_heads, self.block_size, spec.head_size)
        self.pool = [torch.zeros(size, dtype=self._kv_dtype, device=self.device) for _ in range(spec.layers)]

    def capture(self, wanted: Sequence[Bucket] | None = None) -> None:
        """Captures the graphs of small steps, all of them or those named; largest first."""
        with torch.inference_mode():
            some = buckets(self._small.tokens, self._max_sequences) if wanted is None else wanted
            self.graphs.capture(some, self._padding_step)

    def capture_largest(self) -> None:
        """The largest graph of each kind, to see how much memory they take."""
        self.capture(largest_buckets(self._small.tokens, self._max_sequences))

    def run_largest(self) -> None:
        """Runs the largest step there is, to see how much memory it takes, and compiles what larger steps need."""
        with torch.inference_mode():
            logits = self._largest_step()
            # Drawing takes sums in double precision of some rows at a time.
            logits[:256].softmax(dim=1).double().cumsum(dim=1)
            torch.cuda.synchronize(self.device)

    def rehearse(self) -> None:
        """Goes through the largest step and those of all graphs, with two layers, to show which kernels they launch.

        For `octavo_kernels.compile_ahead.recording`, in which these do not run.
        """
        with torch.inference_mode(), self._decoder.cut_to(2):
            self._largest_step()
            for bucket in buckets(self._small.tokens, self._max_sequences):
                self._padding_step(bucket)

    def step(self, plan: StepPlan) -> StepResult:
        """Computes a plan and samples for the rows that reach their last known token."""
        flight = self.launch(plan)
        self.sample(flight)
        return self.collect(flight)

    def launch(self, plan: StepPlan) -> Flight:
        """Queues the model's work for a plan. Tokens that a step before it sampled need not be known yet."""
        with torch.inference_mode():
            wanted = wanted_rows(plan)
            bucket = self.graphs.find(plan) if self._on_gpu and len(wanted.rows) <= len(plan) else None
            staging = self._large if bucket is None else self._small
            arrays = staging.begin()
            tokens, sequences = plan.tokens, len(plan)
            if bucket is not None:
                tokens, sequences = bucket.tokens, bucket.sequences
            elif self._on_gpu:
                sequences = min(self._max_sequences, max(_EAGER_SEQUENCES, 1 << (len(plan) - 1).bit_length()))
            self._fill(arrays, plan, wanted, staging, tokens, sequences)
            updates = self.pages.collect(plan, arrays.places, arrays.pages)
            count = len(wanted.places)
            tensors = staging.tensors
            begun = self._mark()
            if bucket is not None:
                arrays.places[updates:] = self.pages.spare
                staging.send()
                logits = self.graphs.replay(bucket)[: len(wanted.rows)]
                flight = Flight(plan, wanted, logits, tensors.sample_slots[:count], begun, bucket=bucket)
                if plan.groups is not None and bucket.kind == "shared":
                    flight.shared_read_tokens = plan.groups.saved_tokens
                if count and _all_greedy(plan, logits.shape[1]):
                    flight.tokens = self._home(self._greedy[:count])
                    flight.ended = self._mark()
                return flight
            staging.send()
            self.pages.write(tensors.places[:updates], tensors.pages[:updates])
            if staging is not self._small:
                staging.last_tokens.copy_(self._small.last_tokens)
            rows = self._logit_rows(tensors, wanted, tokens)
            shared = self._on_gpu and plan.groups is not None
            saved = plan.groups.saved_tokens if shared and plan.groups is not None else 0
            kv_tokens = int(plan.starts.sum()) + plan.tokens
            logits = self._forward(tensors, tokens, sequences, rows, shared=shared, kv_tokens=kv_tokens)
            return Flight(plan, wanted, logits, tensors.sample_slots[:count], begun, shared_read_tokens=saved)

    def sample(self, flight: Flight) -> None:
        """Queues sampling; all tokens of earlier steps must be appended to their requests by now.

        Where all rows are greedy and follow no rule of their own, a graph has chosen already.
        """
        if flight.tokens is not None:
            return
        with torch.inference_mode():
            plan, wanted, logits = flight.plan, flight.wanted, flight.logits
            for row, place, count in wanted.prompts:
                flight.prompts.append((row, self._prompt_logprobs(plan, row, logits[place : place + count])))
            rows = np.flatnonzero(plan.samples)
            if len(rows):
                flight.tokens = self._choose(flight, rows)
            flight.ended = self._mark()

    def collect(self, flight: Flight) -> StepResult:
        """Waits for the step's tokens."""
        if isinstance(flight.ended, torch.cuda.Event) and isinstance(flight.begun, torch.cuda.Event):
            flight.ended.synchronize()
            seconds = flight.begun.elapsed_time(flight.ended) / 1000
        else:
            assert isinstance(flight.ended, float)
            assert isinstance(flight.begun, float)
            seconds = flight.ended - flight.begun
        plan = flight.plan
        tokens = np.full(len(plan), -1, np.int64)
        if flight.tokens is not None:
            tokens[plan.samples] = flight.tokens.numpy()
        logprobs: dict[int, TokenLogprobs] = {}
        if flight.logprobs is not None:
            asked, found = flight.logprobs
            counts = [plan.requests[row].sampling.logprobs for row in asked]
            logprobs = dict(zip(asked, found.entries(counts), strict=True))
        prompts = {}
        for row, found in flight.prompts:
            count = plan.requests[row].sampling.prompt_logprobs
            prompts[row] = found.entries([count] * len(found.tokens))
        return StepResult(tokens, logprobs, prompts, seconds)

    def forget_pages(self) -> None:
        """Clears the page table; only while no request is living."""
        self.pages.forget()

    def _staging(self, tokens: int, sequences: int, updates: int) -> Staging:
        return Staging(
            tokens=tokens, sequences=sequences, updates=updates, slots=self._max_sequences, device=self.device
        )

    def _mark(self) -> torch.cuda.Event | float:
        if not self._on_gpu:
            return time.monotonic()
        self._marked = (self._marked + 1) % _MARKS
        event = self._marks[self._marked]
        event.record()
        return event

    def _logit_rows(self, tensors: Tensors, wanted: Wanted, tokens: int) -> torch.Tensor | None:
        """None where every token's logits are wanted, in their order."""
        if len(wanted.rows) == tokens:
            return None
        if len(wanted.rows) <= len(tensors.logit_rows):
            return tensors.logit_rows[: len(wanted.rows)]
        return to_device(wanted.rows, self.device)

    def _send_padding(self, staging: Staging, tokens: int, sequences: int) -> None:
        none = np.zeros(0, np.int64)
        arrays, plan = staging.begin(), empty_plan(SlotTable(1))
        self._fill(arrays, plan, Wanted(none, none, []), staging, tokens, sequences)
        arrays.places[:] = self.pages.spare
        staging.send()

    def _largest_step(self) -> torch.Tensor:
        """The largest step there is, of padding, and the plans of attention for fewer sequences."""
        staging = self._large
        self._send_padding(staging, staging.tokens, staging.sequences)
        tensors, sequences = staging.tensors, _EAGER_SEQUENCES
        while sequences < self._max_sequences:
            self._plan_attention(tensors, staging.tokens, sequences)
            sequences *= 2
        return self._forward(tensors, staging.tokens, staging.sequences, tensors.logit_rows)

    def _padding_step(self, bucket: Bucket) -> torch.Tensor:
        """A step of a bucket's size that consists of padding; a captured one computes whatever is sent later.

        It ends with the largest logits as last tokens; rows that are sampled otherwise overwrite theirs after it.
        """
        if not (self._on_gpu and torch.cuda.is_current_stream_capturing()):
            self._send_padding(self._small, bucket.tokens, bucket.sequences)
        tensors, shared = self._small.tensors, bucket.kind == "shared"
        self.pages.write(tensors.places, tensors.pages)
        rows = tensors.logit_rows[: bucket.sequences]
        kv_tokens = self.graphs.little_tokens if bucket.kind == "little" else None
        logits = self._forward(
            tensors, bucket.tokens, bucket.sequences, rows, shared=shared, exact=True, kv_tokens=kv_tokens
        )
        chosen = largest(logits)
        self._small.last_tokens.index_copy_(0, tensors.sample_slots[: bucket.sequences], chosen)
        self._greedy[: bucket.sequences].copy_(chosen)
        return logits

    def _fill(
        self, arrays: Arrays, plan: StepPlan, wanted: Wanted, staging: Staging, tokens: int, sequences: int
    ) -> None:
        fill(
            arrays,
            plan,
            wanted,
            block_size=self.block_size,
            tokens=tokens,
            sequences=sequences,
            first_source=staging.slots + 1,
        )

    def _plan_attention(
        self,
        tensors: Tensors,
        tokens: int,
        sequences: int,
        *,
        shared: bool = False,
        exact: bool = False,
        kv_tokens: int | None = None,
    ) -> None:
        """exact: for this number of tokens, which graphs are captured for; else for one of few numbers above it.
        kv_tokens: cached tokens, the new ones included, at most; None = what the page table has room for.
        """
        bound = tokens
        if self._on_gpu and not exact:
            bound = min(-(-tokens // _EAGER_TOKENS) * _EAGER_TOKENS, self._max_tokens)
        self._attention.plan(
            tensors.starts[: sequences + 1],
            tensors.lengths[:sequences],
            self.pages.table,
            tensors.slots[:sequences],
            tokens=bound,
            kv_tokens=kv_tokens,
            groups=SharedPrefixes(tensors.group_starts, tensors.group_lengths) if shared else None,
        )

    def _forward(
        self,
        tensors: Tensors,
        tokens: int,
        sequences: int,
        logit_rows: torch.Tensor | None,
        *,
        shared: bool = False,
        exact: bool = False,
        kv_tokens: int | None = None,
    ) -> torch.Tensor:
        """Plans attention and runs the model on what the staging area holds."""
        self._plan_attention(tensors, tokens, sequences, shared=shared, exact=exact, kv_tokens=kv_tokens)
        step = StepTensors(
            tokens=tensors.table[tensors.sources[:tokens]],
            positions=tensors.positions[:tokens],
            slot_mapping=tensors.slot_mapping[:tokens],
            logit_rows=logit_rows,
        )
        return self._decoder.forward(step, self._attention, self.pool)

    def _choose(self, flight: Flight, rows: npt.NDArray[np.int64]) -> torch.Tensor:
        """Takes log-probabilities first, then samples; keeps the tokens on the device and sends a copy home."""
        plan, table = flight.plan, flight.plan.table
        slots, places = plan.slots[rows], flight.wanted.places
        logits = flight.logits
        if len(places) != logits.shape[0]:
            logits = logits[to_device(places, self.device)]
        requests = plan.requests if len(rows) == len(plan) else [plan.requests[row] for row in rows.tolist()]
        asked: list[int] = []
        raw = None
        if table.special[slots].any():
            asked = [place for place, request in enumerate(requests) if request.sampling.logprobs >= 0]
            raw = logits[to_device(np.array(asked, np.int64), self.device)].log_softmax(dim=1) if asked else None
            self._mask(logits, requests, plan.alive[rows])
        chosen = choose(logits, requests, table.rules(slots))
        self._small.last_tokens.index_copy_(0, flight.sample_slots, chosen)
        if raw is not None:
            most = max(requests[place].sampling.logprobs for place in asked)
            own = chosen[to_device(np.array(asked, np.int64), self.device)]
            flight.logprobs = ([int(rows[place]) for place in asked], logprob_tensors(raw, own, most))
        return self._home(chosen)

    def _home(self, chosen: torch.Tensor) -> torch.Tensor:
        """The tokens in host memory, sooner or later; valid until the next but one step is sampled."""
        if not self._on_gpu:
            return chosen
        self._turn = 1 - self._turn
        return self._homes[self._turn][: len(chosen)].copy_(chosen, non_blocking=True)

    def _mask(self, logits: torch.Tensor, requests: Sequence[object], alive: npt.NDArray[np.bool_]) -> None:
        """Forbids, in the rows of living requests with a grammar, what it does not allow next."""
        states = []
        for row, request in enumerate(requests):
            grammar = getattr(request, "grammar", None)
            if grammar is not None and alive[row]:
                states.append((row, grammar))
        if states:
            # The device still computes the logits meanwhile: nothing before this line waits for them.
            masks = states[0][1].owner.masks([state for _, state in states])
            apply_masks(logits, [row for row, _ in states], masks)

    def _prompt_logprobs(self, plan: StepPlan, row: int, logits: torch.Tensor) -> LogprobTensors:
        """Of the prompt tokens that follow a row's positions; `logits` `[count, vocabulary]`."""
        request, start = plan.requests[row], int(plan.starts[row])
        end = min(start + int(plan.counts[row]) + 1, request.prompt_length)
        following = to_device(request.tokens[start + 1 : end].astype(np.int64), self.device)
        rows = logits[: len(following)].log_softmax(dim=1)
        return logprob_tensors(rows, following, request.sampling.prompt_logprobs)


def _all_greedy(plan: StepPlan, columns: int) -> bool:
    """Whether each sampling row takes its largest logit of all `columns`, and nothing else is asked of its logits."""
    table, slots = plan.table, plan.slots[plan.samples]
    sizes = table.vocabulary[slots]
    ruled = table.special[slots] | table.adjusted[slots] | (table.temperature[slots] > 0)
    return not bool((ruled | ((sizes > 0) & (sizes < columns))).any())
