"""The engine inside a program: `LLM(model).generate(prompts, params)`.

    from octavo_server import LLM, GenerationParams

    llm = LLM("path/to/model")
    for generation in llm.generate(["A sheet folded three times is"], GenerationParams(max_tokens=32)):
        print(generation.text)

No server, no second process: the calls of one program take turns. Steps are as long as prompts need them, because
nobody waits for the next token of a stream.
"""

from __future__ import annotations

import secrets
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

import numpy as np

from octavo_server.config import CacheConfig, EngineConfig, ModelConfig, SchedulerConfig
from octavo_server.engine.core import Addressed, Engine
from octavo_server.engine.messages import (
    Abort,
    Finished,
    Outputs,
    PlainOutputs,
    Progress,
    Ready,
    RequestOutput,
    SamplingParams,
    Submit,
    TokenLogprobs,
)
from octavo_server.engine.startup import start
from octavo_server.progress_bar import Bar

if TYPE_CHECKING:
    from octavo_server.text.stops import StopMatcher
    from octavo_server.text.tokenizer import TextTokenizer

_CONNECTION = 0


@dataclass(frozen=True)
class GenerationParams:
    """How one prompt is continued; names and defaults are those of the HTTP interface."""

    max_tokens: int = 16
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    seed: int | None = None
    """None = random."""
    stop: Sequence[str] = ()
    stop_token_ids: Sequence[int] = ()
    ignore_eos: bool = False
    min_tokens: int = 0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    logprobs: int = -1
    """-1 = none, 0 = the drawn token's alone, k = the k most likely as well."""
    cache_salt: str = ""
    """Prompts share cached blocks only with the same salt."""


@dataclass
class Generation:
    """What one prompt got."""

    prompt_token_ids: list[int]
    token_ids: list[int] = field(default_factory=list)
    text: str = ""
    """Empty where the model has no tokenizer."""
    finish_reason: str = ""
    """`stop`, `length` or `error`."""
    message: str = ""
    """Why it ended with `error`."""
    logprobs: list[TokenLogprobs] = field(default_factory=list)
    cached_tokens: int = 0
    """Prompt tokens that were found in the prefix cache."""
    first_token_seconds: float = 0.0
    """From the call of generate."""


class LLM:
    """A loaded model. Raises Refusal or ModelError, with reason and way out, when it can't be loaded.

    model: a folder (safetensors) or a GGUF file. The other arguments are the flags of `octavo-server serve`.
    """

    def __init__(
        self,
        model: str | Path,
        *,
        device: str = "Auto",
        dtype: str = "Auto",
        quantization: str = "None",
        load_format: str = "Auto",
        max_length: int = 0,
        block_size: int = 16,
        kv_dtype: str = "Auto",
        memory_percent: int = 92,
        pool_bytes: int = 0,
        prefix_caching: bool = True,
        max_batched_tokens: int = 8192,
        max_sequences: int = 1024,
        max_step_milliseconds: float = float("inf"),
        cpu_threads: int = 0,
        compile_processes: int = 0,
    ) -> None:
        config = EngineConfig(
            ModelConfig(
                str(model),
                max_length_tokens=max_length,
                dtype=dtype,
                quantization=quantization,
                load_format=load_format,
            ),
            CacheConfig(block_size, kv_dtype, memory_percent, pool_bytes, prefix_caching),
            SchedulerConfig(max_batched_tokens, max_sequences, max_step_milliseconds),
            device=device,
            cpu_threads=cpu_threads,
            compile_processes=compile_processes,
        )
        self.engine: Engine
        self.ready: Ready
        self.start_seconds: dict[str, float] = {}
        """Time that each stage of the start took."""
        begun, stage = time.monotonic(), ""

        def note(progress: Progress) -> None:
            nonlocal begun, stage
            now = time.monotonic()
            if stage:
                self.start_seconds[stage] = self.start_seconds.get(stage, 0.0) + now - begun
            begun, stage = now, progress.stage

        self.engine, self.ready = start(config, note)
        note(Progress("", 100))
        self._path = Path(model)
        self._tokenizer: TextTokenizer | None = None
        self._next_id = 0

    @property
    def tokenizer(self) -> TextTokenizer:
        """Loaded when it is first needed; prompts of token ids and no stop strings need none. Raises TokenizerError."""
        if self._tokenizer is None:
            from octavo_server.text.tokenizer import load_tokenizer

            self._tokenizer = load_tokenizer(self._path)
        return self._tokenizer

    def generate(
        self,
        prompts: str | Sequence[str] | Sequence[Sequence[int]],
        params: GenerationParams | Sequence[GenerationParams] | None = None,
        *,
        progress: bool = True,
        detokenize: bool = True,
    ) -> list[Generation]:
        """Continues all prompts, texts or token ids, and returns when all have ended, in their order.

        params: one for all, or one each. detokenize: False leaves the texts empty and needs no tokenizer.
        """
        texts: list[str | Sequence[int]] = [prompts] if isinstance(prompts, str) else list(prompts)
        if params is None or isinstance(params, GenerationParams):
            params = [params or GenerationParams()] * len(texts)
        if len(params) != len(texts):
            raise ValueError(f"params has {len(params)} entries for {len(texts)} prompts; give one, or one per prompt")
        run = _Run(self, progress_to=sys.stderr if progress else None, detokenize=detokenize)
        return run.generate([self._ids(one) for one in texts], params)

    def _ids(self, prompt: str | Sequence[int]) -> list[int]:
        if isinstance(prompt, str):
            return self.tokenizer.encode(prompt, add_special_tokens=True)
        return list(prompt)

    def take_id(self) -> int:
        """A request id that was not used before."""
        self._next_id += 1
        return self._next_id


class _Run:
    """One call of generate."""

    def __init__(self, llm: LLM, *, progress_to: TextIO | None, detokenize: bool) -> None:
        self._llm = llm
        self._detokenize = detokenize
        self._bar = None if progress_to is None else Bar(progress_to)
        self._living: dict[int, tuple[Generation, StopMatcher | None, Any]] = {}
        self._begun = time.monotonic()

    def generate(self, prompts: list[list[int]], params: Sequence[GenerationParams]) -> list[Generation]:
        engine = self._llm.engine
        generations = [Generation(ids) for ids in prompts]
        numbers = dict(zip(map(id, generations), (self._llm.take_id() for _ in generations), strict=True))
        try:
            for generation, one in zip(generations, params, strict=True):
                number = numbers[id(generation)]
                matcher, detokenizer = self._text_tools(one)
                self._living[number] = (generation, matcher, detokenizer)
                self._take(engine.submit(_CONNECTION, self._submit(number, generation.prompt_token_ids, one)))
            done = 0
            while self._living:
                self._take(engine.step())
                if self._bar is not None:
                    done = sum(len(one.token_ids) for one in generations)
                    self._bar.show(len(generations) - len(self._living), len(generations), done)
        finally:
            # An interrupt leaves nothing behind.
            for number in list(self._living):
                engine.abort(_CONNECTION, Abort(number, 0))
            if self._bar is not None:
                self._bar.end()
        return generations

    def _text_tools(self, params: GenerationParams) -> tuple[StopMatcher | None, Any]:
        if not self._detokenize and not params.stop:
            return None, None
        from octavo_server.text.detokenizer import Detokenizer
        from octavo_server.text.stops import StopMatcher

        tokenizer = self._llm.tokenizer
        detokenizer = Detokenizer(tokenizer.text_bytes, strip_first_space=tokenizer.strips_first_space)
        return StopMatcher(params.stop, after=params.min_tokens), detokenizer

    def _submit(self, number: int, ids: list[int], params: GenerationParams) -> Submit:
        from octavo_server.engine.digests import digest_seed

        stops = list(params.stop_token_ids)
        vocabulary = 0
        if self._detokenize or params.stop:
            tokenizer = self._llm.tokenizer
            vocabulary = min(tokenizer.vocabulary_size, self._llm.ready.vocabulary_size)
            stops += [] if params.ignore_eos else sorted(tokenizer.eos_ids - set(stops))
        sampling = SamplingParams(
            temperature=params.temperature,
            top_k=params.top_k,
            top_p=params.top_p,
            min_p=params.min_p,
            presence_penalty=params.presence_penalty,
            frequency_penalty=params.frequency_penalty,
            repetition_penalty=params.repetition_penalty,
            seed=secrets.randbits(64) if params.seed is None else params.seed,
            logprobs=params.logprobs,
            stop_token_ids=stops,
            min_tokens=params.min_tokens,
            vocabulary_size=vocabulary,
        )
        data = np.array(ids, dtype="<i4").tobytes()
        seed = digest_seed("", params.cache_salt) if params.cache_salt else b""
        return Submit(number, data, sampling, params.max_tokens, digest_seed=seed)

    def _take(self, messages: list[Addressed]) -> None:
        for _, message in messages:
            if isinstance(message, Outputs):
                for number, token, output in _tokens(message.outputs):
                    if number in self._living:
                        self._add(number, token, output)
            elif isinstance(message, Finished) and message.request_id in self._living:
                generation, matcher, _ = self._living.pop(message.request_id)
                generation.finish_reason, generation.message = message.reason, message.message
                generation.text += matcher.flush() if matcher is not None else ""

    def _add(self, number: int, token: int, output: RequestOutput | None) -> None:
        generation, matcher, detokenizer = self._living[number]
        if not generation.token_ids:
            generation.first_token_seconds = time.monotonic() - self._begun
        generation.token_ids.append(token)
        if output is not None:
            generation.logprobs += output.logprobs
            generation.cached_tokens = max(generation.cached_tokens, output.cached_tokens)
        if matcher is not None:
            found = matcher.feed(detokenizer.feed(token))
            generation.text += found.text
            if found.stop is not None:
                generation.finish_reason = "stop"
                del self._living[number]
                self._llm.engine.abort(_CONNECTION, Abort(number, len(generation.token_ids)))


def _tokens(outputs: Sequence[RequestOutput]) -> Iterator[tuple[int, int, RequestOutput | None]]:
    """(request id, token, the output when it holds more than the token)."""
    others = outputs.others if isinstance(outputs, PlainOutputs) else outputs
    for output in others:
        for token in output.token_ids:
            yield output.request_id, token, output
    if isinstance(outputs, PlainOutputs):
        for number, token in zip(outputs.request_ids.tolist(), outputs.tokens.tolist(), strict=True):
            yield number, token, None


__all__ = ["LLM", "Generation", "GenerationParams"]
