"""Grammars in the engine: compiled beside the steps, cached, advanced token by token, turned into masks of tokens.

The tokenizer is loaded when the first grammar arrives. A compiled grammar stays in the cache untouched; each request
walks on a copy, which shares what was learned about the lexer.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from threading import Lock
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import torch

if TYPE_CHECKING:
    # Imported when the first grammar comes: the engine runs without llguidance where nobody sends one.
    from llguidance import LLExecutor, LLMatcher, LLParserLimits, LLTokenizer

CACHED_GRAMMARS = 64
LIMITS: LLParserLimits | None = None
"""Bounds on a grammar's work; None = those of text/grammar.py."""
_COMPILING_THREADS = 2
_MASKING_THREADS = 8


@dataclass
class GrammarState:
    """How far one request is in its grammar."""

    owner: Grammars
    text: str
    matcher: LLMatcher

    @property
    def error(self) -> str:
        """Why it can't go on; empty while it can."""
        return self.matcher.get_error() if self.matcher.is_error() else ""

    @property
    def complete(self) -> bool:
        """Nothing but the end may follow."""
        return bool(self.matcher.is_stopped())

    def accept(self, tokens: Sequence[int]) -> None:
        """Moves on by tokens that were sampled under its mask, or sent before a restart."""
        self.matcher.consume_tokens(list(tokens))


class Grammars:
    """Compiles and caches; fills masks. `load` gives the tokenizer and runs once, in a thread."""

    def __init__(self, load: Callable[[], LLTokenizer]) -> None:
        self._load = load
        self._lock = Lock()
        self._tokenizer: LLTokenizer | None = None
        self._cache: OrderedDict[str, Future[LLMatcher]] = OrderedDict()
        self._pool = ThreadPoolExecutor(_COMPILING_THREADS, "grammar")
        self._executor: LLExecutor | None = None

    def start(self, text: str) -> Future[LLMatcher]:
        """The compiled grammar, sooner or later; an error of the grammar is one of the matcher, not an exception."""
        known = self._cache.get(text)
        if known is None:
            known = self._cache[text] = self._pool.submit(self._compile, text)
            if len(self._cache) > CACHED_GRAMMARS:
                self._cache.popitem(last=False)
        self._cache.move_to_end(text)
        return known

    def begin(self, text: str, compiled: Future[LLMatcher]) -> GrammarState:
        """A request's own state at the start of its answer. Raises what loading the tokenizer raised."""
        try:
            state = GrammarState(self, text, compiled.result().deep_copy())
        except Exception:
            self.forget(text)
            raise
        if state.error:
            self.forget(text)
        return state

    def forget(self, text: str) -> None:
        """Drops a grammar whose lexer came to its limits: the next request starts with a fresh one."""
        self._cache.pop(text, None)

    def masks(self, states: Sequence[GrammarState]) -> npt.NDArray[np.int32]:
        """Allowed tokens, one bit each, `[len(states), words of 32 tokens]`; all bits for a state in error."""
        from llguidance import LLExecutor
        from llguidance.numpy import allocate_token_bitmask, fill_next_token_bitmask, fill_next_token_bitmask_par

        assert self._tokenizer is not None
        masks = allocate_token_bitmask(len(states), self._tokenizer.vocab_size)
        if len(states) == 1:
            fill_next_token_bitmask(states[0].matcher, masks)
        else:
            if self._executor is None:
                self._executor = LLExecutor(_MASKING_THREADS)
            rows = [(state.matcher, row) for row, state in enumerate(states)]
            fill_next_token_bitmask_par(self._executor, rows, masks)
        for row, state in enumerate(states):
            if state.error:
                masks[row] = -1
        return masks

    def _compile(self, text: str) -> LLMatcher:
        from llguidance import LLMatcher

        from octavo_server.text import grammar

        with self._lock:
            if self._tokenizer is None:
                self._tokenizer = self._load()
        return LLMatcher(self._tokenizer, text, log_level=0, limits=LIMITS or grammar.LIMITS)


def apply_masks(logits: torch.Tensor, rows: Sequence[int], masks: npt.NDArray[np.int32]) -> None:
    """Sets what a mask forbids to −inf, in place and in these rows alone; ids beyond the mask are forbidden, too.

    logits: float32 `[batch, vocabulary]`; masks: int32 `[len(rows), words]`, bit b of word w for token 32 w + b.
    """
    words = _send(masks, logits.device)
    bits = torch.arange(32, dtype=torch.int32, device=logits.device)
    allowed = ((words[:, :, None] >> bits) & 1).flatten(1).bool()
    width = min(allowed.shape[1], logits.shape[1])
    index = _send(np.array(rows, np.int64), logits.device)
    kept = logits[index]
    kept[:, :width].masked_fill_(~allowed[:, :width], float("-inf"))
    kept[:, width:] = float("-inf")
    logits[index] = kept


def _send(values: npt.NDArray[Any], device: torch.device) -> torch.Tensor:
    tensor = torch.from_numpy(values)
    return tensor if device.type == "cpu" else tensor.pin_memory().to(device, non_blocking=True)
