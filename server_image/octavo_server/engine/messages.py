"""Messages between API processes and the engine process.

One Unix socket per API process; a frame is a 4-byte big-endian length and a msgpack array `[kind, fields…]` in the
order of the dataclass. The engine owns every request: an id lives from its Submit to its Finished, which the engine
sends exactly once. A lost connection aborts all requests of that connection. Outputs for unknown ids are dropped by
the API process (they belong to requests it has aborted).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, overload

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt


@dataclass(frozen=True)
class SamplingParams:
    """How tokens of one request are drawn. Defaults are greedy-free OpenAI defaults."""

    temperature: float = 1.0
    """0 = greedy."""
    top_k: int = 0
    """0 = all tokens."""
    top_p: float = 1.0
    min_p: float = 0.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    seed: int = 0
    """64 bits; the API process draws them from the system when the request gives none."""
    choice_index: int = 0
    """Random numbers are keyed by (seed, choice index, position)."""
    logprobs: int = -1
    """-1 = none, 0 = the drawn token's alone, k = the k most likely as well."""
    prompt_logprobs: int = -1
    logit_bias: dict[int, float] = field(default_factory=dict)
    stop_token_ids: list[int] = field(default_factory=list)
    """End-of-sequence ids of the model included, unless ignore_eos."""
    min_tokens: int = 0
    """Stop token ids have probability 0 before that many tokens."""
    allowed_token_ids: list[int] = field(default_factory=list)
    """Only these may be drawn; empty = all."""
    bad_words: list[list[int]] = field(default_factory=list)
    """Sequences of tokens of which the last is not drawn after the others, unless nothing else can be."""
    vocabulary_size: int = 0
    """Ids from here on have no token and are never drawn; 0 = the model has as many tokens as logits."""


@dataclass(frozen=True)
class Submit:
    """API → engine: a new request."""

    request_id: int
    """API process number in the upper 16 bits; unique among living requests."""
    prompt_token_ids: bytes
    """int32, little endian."""
    sampling: SamplingParams
    max_new_tokens: int
    block_digests: list[bytes] = field(default_factory=list)
    """SHA-256 chain of the prompt's full blocks, see engine/digests.py; empty = the engine computes it."""
    digest_seed: bytes = b""
    """Parent of the first block: hash of adapter and salt (digests.digest_seed); the engine extends the chain over
    generated tokens. Empty = no adapter, no salt."""
    priority: int = 0
    """Lower runs first."""
    resume_token_ids: bytes = b""
    """Tokens already generated and sent before an engine restart (int32): they count as generated and are not sent
    again."""
    grammar: str = ""
    """What the answer must fit, in llguidance's notation (text/grammar.py); empty = nothing."""


@dataclass(frozen=True)
class Abort:
    """API → engine: stop now. Also sent when a stop string was found."""

    request_id: int
    kept_tokens: int
    """Generated tokens that count for usage; cache entries past them are withdrawn."""


@dataclass(frozen=True)
class TokenLogprobs:
    """Log-probabilities at one position: the token's own, then the most likely ones."""

    token_id: int
    logprob: float
    rank: int
    top_ids: list[int]
    top_logprobs: list[float]


@dataclass(frozen=True)
class RequestOutput:
    """New tokens of one request in one step."""

    request_id: int
    token_ids: list[int]
    """New tokens; a stop token that ends the request is the last of them."""
    logprobs: list[TokenLogprobs]
    """Empty unless asked for; else one entry per token."""
    prompt_logprobs: list[TokenLogprobs | None] | None = None
    """Once, with the first output, when asked for; entry 0 is None."""
    cached_tokens: int = -1
    """Prompt tokens found in the prefix cache; -1 after the first output."""


class PlainOutputs(Sequence[RequestOutput]):
    """Outputs of one token without anything else, as arrays, and others as they are.

    A step has hundreds of the first kind: they become objects only for those who look at them.
    request_ids: uint64, tokens: int64, both `[plain]`.
    """

    def __init__(
        self, request_ids: npt.NDArray[np.uint64], tokens: npt.NDArray[np.int64], others: list[RequestOutput]
    ) -> None:
        self.request_ids, self.tokens, self.others = request_ids, tokens, others

    def __len__(self) -> int:
        return len(self.others) + len(self.tokens)

    def __iter__(self) -> Iterator[RequestOutput]:
        yield from self.others
        for request_id, token in zip(self.request_ids.tolist(), self.tokens.tolist(), strict=True):
            yield RequestOutput(request_id, [token], [])

    @overload
    def __getitem__(self, index: int) -> RequestOutput: ...

    @overload
    def __getitem__(self, index: slice) -> list[RequestOutput]: ...

    def __getitem__(self, index: int | slice) -> RequestOutput | list[RequestOutput]:
        return list(self)[index]


@dataclass(frozen=True)
class Outputs:
    """Engine → API: all outputs of one step for this API process."""

    outputs: Sequence[RequestOutput]
    """A list once it was decoded; on the socket, tokens that come alone are two arrays (engine/codec.py)."""


@dataclass(frozen=True)
class Finished:
    """Engine → API: the request is over and its blocks are free. Exactly once per Submit."""

    request_id: int
    reason: str
    """`stop` (a stop token id), `length`, `abort`, `error`, `grammar` (the request's own grammar leads nowhere or needs
    more than the limits; `message` is llguidance's)."""
    message: str = ""
    stop_token_id: int = -1


@dataclass(frozen=True)
class Progress:
    """Engine → API while starting: what is being done."""

    stage: str
    percent: int


@dataclass(frozen=True)
class Ready:
    """Engine → API: a token was generated, requests may come."""

    model_name: str
    vocabulary_size: int
    max_length_tokens: int
    block_size_tokens: int
    capacity_tokens: int
    """Tokens of all pages but page 0."""
    device: str
    dtype: str
    quantization: str
    attention_backend: str
    fallback_reasons: list[str]
    launch_source: str = "SafeDefaults"
    """Where launch configurations come from: `LaunchTable` (--launch-table), `Shipped` or `SafeDefaults`."""
    launch_message: str = ""
    """The same in words."""


@dataclass(frozen=True)
class StartupFailed:
    """Engine → API: the engine cannot start for a reason that a person must mend; the server exits with code 2."""

    reason: str
    message: str


@dataclass(frozen=True)
class Stats:
    """Engine → API, at most every 250 ms and at once on change to idle: gauges, and counters since engine start."""

    running: int
    waiting: int
    active_blocks: int
    cached_blocks: int
    free_blocks: int
    allocated_slots: int
    used_slots: int
    preemptions_total: int
    prefix_queried_tokens_total: int
    prefix_hit_tokens_total: int
    prompt_tokens_total: int
    generation_tokens_total: int
    steps_total: int
    queue_seconds: list[float]
    """Times from arrival to first scheduling of requests scheduled since the last Stats."""
    prefix_evicted_blocks_total: int = 0
    shared_read_tokens_total: int = 0
    """Cached tokens that steps did not have to read again, because requests share them."""


Message = Submit | Abort | Outputs | Finished | Progress | Ready | StartupFailed | Stats
