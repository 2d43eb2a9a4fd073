"""One living request: its tokens, how far they are computed, and the blocks it holds."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from octavo_server.engine.counts import TokenCounts
from octavo_server.engine.digests import TOKEN_BYTES, RecentChains, digest_seed, extend
from octavo_server.engine.grammars import GrammarState
from octavo_server.engine.messages import SamplingParams, Submit, TokenLogprobs
from octavo_server.engine.slots import STOP_IDS, SlotTable

_LIMITS: dict[str, tuple[str, Callable[[float], bool]]] = {
    "temperature": ("0 or more", lambda value: 0 <= value < float("inf")),
    "top_k": ("a whole number, 0 or more", lambda value: value >= 0 and value == int(value)),
    "top_p": ("above 0, at most 1", lambda value: 0 < value <= 1),
    "min_p": ("0 to 1", lambda value: 0 <= value <= 1),
    "presence_penalty": ("-100 to 100", lambda value: abs(value) <= 100),
    "frequency_penalty": ("-100 to 100", lambda value: abs(value) <= 100),
    "repetition_penalty": ("above 0, at most 100", lambda value: 0 < value <= 100),
    "seed": ("0 to 2^64 - 1", lambda value: 0 <= value < 2**64),
    "choice_index": ("0 to 2^32 - 1", lambda value: 0 <= value < 2**32),
    "logprobs": ("-1 or more", lambda value: value >= -1),
    "prompt_logprobs": ("-1 or more", lambda value: value >= -1),
    "min_tokens": ("0 or more", lambda value: value >= 0),
    "vocabulary_size": ("0 or more", lambda value: value >= 0),
}
"""What each number of SamplingParams may be; NaN fails every comparison."""


@dataclass(eq=False)
class Request:
    """State of a request between its Submit and its Finished.

    buffer: int32 `[max_length]`, prompt and answer; read it through `tokens`. While it runs, its other numbers stand
    in its slot's row of `table`, its last tokens among them.
    """

    request_id: int
    connection: int
    sampling: SamplingParams
    buffer: npt.NDArray[np.int32]
    prompt_length: int
    waiting_length: int
    """Known tokens while it has no slot."""
    max_length: int
    """Known tokens at which the request ends: prompt + max_new_tokens, cut to the model's limit."""
    priority: int
    arrival: int
    arrived_seconds: float
    digest_chain: list[bytes]
    digest_parent: bytes
    blocks: list[int] = field(default_factory=list)
    """They only grow between an admission and the end or a preemption."""
    slot: int = -1
    table: SlotTable | None = None
    first_output_sent: bool = False
    scheduled_once: bool = False
    cached_tokens: int = -1
    prompt_logprobs: list[TokenLogprobs | None] = field(default_factory=list)
    stop_ids: frozenset[int] = frozenset()
    grammar: GrammarState | None = None
    """Set once it is compiled; the request waits for that outside of the scheduler."""
    _counts: dict[int, TokenCounts] = field(default_factory=dict, init=False, repr=False)

    @property
    def length(self) -> int:
        """Known tokens, of prompt and answer."""
        return int(self.table.known[self.slot]) if self.table is not None and self.slot >= 0 else self.waiting_length

    @property
    def tokens(self) -> npt.NDArray[np.int32]:
        """int32 `[max_length]`: the first `length` are known."""
        if self.table is not None and self.slot >= 0:
            self.table.fetch(self.slot)
        return self.buffer

    @property
    def generated(self) -> int:
        """Number of generated tokens."""
        return self.length - self.prompt_length

    @property
    def computed(self) -> int:
        """Tokens that launched steps write into the cache; 0 while it waits."""
        return int(self.table.computed[self.slot]) if self.table is not None and self.slot >= 0 else 0

    @property
    def looked_at(self) -> bool:
        """Whether each of its tokens needs more than a comparison with its stop ids."""
        sampling = self.sampling
        return (
            self.grammar is not None
            or sampling.logprobs >= 0
            or sampling.prompt_logprobs >= 0
            or len(self.stop_ids) > STOP_IDS
        )

    @property
    def adjusted(self) -> bool:
        """Whether its logits are changed by something that other rows do not share."""
        sampling = self.sampling
        return bool(
            sampling.repetition_penalty != 1.0
            or sampling.presence_penalty != 0.0
            or sampling.frequency_penalty != 0.0
            or sampling.logit_bias
            or sampling.bad_words
            or sampling.allowed_token_ids
            or (sampling.min_tokens and self.stop_ids)
        )

    @property
    def order(self) -> tuple[int, int]:
        """Sort key: what runs first and is preempted last."""
        return (self.priority, self.arrival)

    def counts(self, first: int) -> TokenCounts:
        """Tokens from position `first` on; always ask for the same beginnings."""
        counts = self._counts.setdefault(first, TokenCounts())
        end = self.length
        if first + counts.taken < end:
            counts.take(self.tokens[first + counts.taken : end])
        return counts

    def leave_slot(self) -> None:
        """Gives its slot back and remembers what stood there."""
        assert self.table is not None, "it never had a slot"
        self.waiting_length = self.length
        self.table.give_back(self.slot)
        self.slot = -1

    def digest(self, index: int, block_size: int) -> bytes:
        """Digest of full block `index`, extending the chain over generated tokens where needed."""
        while len(self.digest_chain) <= index:
            at = len(self.digest_chain)
            parent = self.digest_chain[-1] if self.digest_chain else self.digest_parent
            block = self.table.recent_block(self.slot, at, block_size) if self.table and self.slot >= 0 else None
            if block is None:
                block = self.tokens[at * block_size : (at + 1) * block_size].tobytes()
            self.digest_chain.append(extend(parent, block))
        return self.digest_chain[index]


def make_request(
    submit: Submit,
    *,
    connection: int,
    arrival: int,
    now_seconds: float,
    block_size: int,
    max_length: int,
    vocabulary: int,
    chains: RecentChains | None = None,
) -> Request:
    """Checks a Submit and makes its request; raises ValueError with field, value and limit.

    chains: what was hashed for the last prompts.
    """
    prompt = _tokens("prompt_token_ids", submit.prompt_token_ids, vocabulary)
    resumed = _tokens("resume_token_ids", submit.resume_token_ids, vocabulary)
    sampling = submit.sampling
    if len(prompt) == 0:
        raise ValueError("prompt_token_ids is empty; at least one token is needed")
    if submit.max_new_tokens < 1:
        raise ValueError(f"max_new_tokens is {submit.max_new_tokens}; at least 1 is needed")
    if len(prompt) + 1 > max_length:
        raise ValueError(
            f"prompt_token_ids holds {len(prompt)} tokens; with one token to generate, at most {max_length - 1} fit"
        )
    limit = min(len(prompt) + submit.max_new_tokens, max_length)
    if len(prompt) + len(resumed) > limit:
        raise ValueError(
            f"resume_token_ids holds {len(resumed)} tokens, but at most {limit - len(prompt)} are asked for"
        )
    for name, ids in (("logit_bias", sampling.logit_bias), ("stop_token_ids", sampling.stop_token_ids),
                      ("allowed_token_ids", sampling.allowed_token_ids),
                      ("bad_words", [token for word in sampling.bad_words for token in word])):  # fmt: skip
        for token in ids:
            if not isinstance(token, int) or not 0 <= token < vocabulary:
                raise ValueError(f"{name} names token {token!r}; token ids are 0 to {vocabulary - 1}")
    check_sampling(sampling)
    tokens = np.zeros(limit, dtype=np.int32)
    tokens[: len(prompt)] = prompt
    tokens[len(prompt) : len(prompt) + len(resumed)] = resumed
    seed = submit.digest_seed or digest_seed()
    chain = list(submit.block_digests)
    if not chain:
        chain = (chains or RecentChains(block_size)).digests(submit.prompt_token_ids, seed)
    return Request(
        request_id=submit.request_id,
        connection=connection,
        sampling=sampling,
        buffer=tokens,
        prompt_length=len(prompt),
        waiting_length=len(prompt) + len(resumed),
        max_length=limit,
        priority=submit.priority,
        arrival=arrival,
        arrived_seconds=now_seconds,
        digest_chain=chain[: len(prompt) // block_size],
        digest_parent=seed,
        prompt_logprobs=[None],
        stop_ids=frozenset(sampling.stop_token_ids),
    )


def check_sampling(sampling: SamplingParams) -> None:
    """Raises ValueError for a number that would make sampling meaningless (NaN included)."""
    for name, (allowed, holds) in _LIMITS.items():
        value = getattr(sampling, name)
        if not isinstance(value, int | float) or not holds(value):
            raise ValueError(f"{name} is {value!r}; it must be {allowed}")
    for token, bias in sampling.logit_bias.items():
        if not isinstance(bias, int | float) or not abs(bias) < float("inf"):
            raise ValueError(f"logit_bias of token {token} is {bias}; it must be a finite number")


def _tokens(name: str, data: bytes, vocabulary: int) -> npt.NDArray[np.int32]:
    if len(data) % TOKEN_BYTES:
        raise ValueError(f"{name} has {len(data)} bytes; int32 tokens need a multiple of {TOKEN_BYTES}")
    tokens = np.frombuffer(data, dtype="<i4").astype(np.int32)
    if len(tokens) and (tokens.min() < 0 or tokens.max() >= vocabulary):
        wrong = next(int(token) for token in tokens if not 0 <= token < vocabulary)
        raise ValueError(f"{name} holds token {wrong}; token ids are 0 to {vocabulary - 1}")
    return tokens
