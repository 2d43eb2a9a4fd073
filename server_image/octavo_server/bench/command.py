"""`octavo-server bench serve | throughput | latency`: builds the load, runs it, tells the figures."""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from octavo_server.bench.figures import Record, spread, summary, table
from octavo_server.bench.workloads import Session, Wanted, arrivals, longest, sessions
from octavo_server.contract import ExitCode
from octavo_server.metrics import build_facts
from octavo_server.termination import Refused

if TYPE_CHECKING:
    from octavo_server.llm import LLM

Values = dict[str, Any]
_HTTP_VOCABULARY = 20_000


def bench(kind: str, values: Values) -> ExitCode:
    """Runs one benchmark with its resolved options and prints the figures. Raises Refused for what can't be done."""
    if values["output"] and not Path(values["output"]).absolute().parent.is_dir():
        raise Refused("FileMissing", f"--output {values['output']}: its folder does not exist")
    found = {"serve": _serve, "throughput": _throughput, "latency": _latency}[kind](values)
    secret = ("api_key", "output", "progress", "report")
    settings = {name: value for name, value in values.items() if name not in secret}
    report = {"benchmark": kind, **found, "settings": settings, "versions": dict(build_facts())}
    text = json.dumps(report, indent=2, ensure_ascii=False)
    if values["output"]:
        try:
            Path(values["output"]).write_text(text + "\n", encoding="utf-8")
        except OSError as error:
            raise Refused("FileUnwritable", f"--output {values['output']}: {error.strerror}") from error
    print(text if values["report"] == "JSON" else table(found), flush=True)
    if not found["requests"]:
        reason = found["first_failure"] or f"nothing ended within --limit-seconds {values['limit_seconds']:g}"
        raise Refused("BenchmarkFailed", f"no request ended: {reason}", ExitCode.FAILED)
    return ExitCode.ENDED


def _serve(values: Values) -> Values:
    import uvloop

    from octavo_server.bench.http import Client, Schedule, Target, run

    work = _work(values, values["vocabulary"] or _HTTP_VOCABULARY)
    schedule = Schedule(arrivals(len(work), values["rate"], values["seed"]), values["concurrency"],
                        values["limit_seconds"])  # fmt: skip
    client = Client(Target(values["url"], values["served_name"], values["api_key"]))

    async def load() -> tuple[list[Record], float]:
        settings = {"model": values["served_name"] or await client.model(), "temperature": values["temperature"]}
        return await run(client, work, schedule, settings, vocabulary=values["vocabulary"] or _HTTP_VOCABULARY,
                         progress=values["progress"] == "Enabled")  # fmt: skip

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return summary(*runner.run(load()))


def _throughput(values: Values) -> Values:
    llm = _llm(values)
    work = _work(values, values["vocabulary"] or llm.ready.vocabulary_size)
    _check_length(llm, work)
    from octavo_server.bench.offline import Load

    load = Load(llm, _sampling(values))
    seconds = load.run(
        work,
        arrivals(len(work), values["rate"], values["seed"]),
        concurrency=values["concurrency"],
        limit_seconds=values["limit_seconds"],
        progress=values["progress"] == "Enabled",
    )
    stats = llm.engine.stats([])
    shared = {"shared_read_tokens": stats.shared_read_tokens_total, "preemptions": stats.preemptions_total}
    return {**summary(load.records, seconds), **shared}


def _latency(values: Values) -> Values:
    llm = _llm(values)
    vocabulary = values["vocabulary"] or llm.ready.vocabulary_size
    records: list[Record] = []
    batches: list[float] = []
    from octavo_server.bench.offline import Load

    end = time.monotonic() + values["limit_seconds"]
    for number in range(values["warm_ups"] + values["repeats"]):
        # Other prompts each time, so that nothing is found in the prefix cache.
        wanted = Wanted("random", values["batch"], values["input_tokens"], values["output_tokens"],
                        vocabulary=vocabulary, seed=values["seed"] + number)  # fmt: skip
        work = sessions(wanted)
        _check_length(llm, work)
        load = Load(llm, _sampling(values))
        left = end - time.monotonic()
        if left <= 0:
            break
        took = load.run(work, [0.0] * len(work), concurrency=0, limit_seconds=left, progress=False)
        if number >= values["warm_ups"]:
            records += load.records
            if all(record.ended for record in load.records):
                batches.append(took)
        if values["progress"] == "Enabled":
            print(f"batch {number + 1} of {values['warm_ups'] + values['repeats']}: {took:.3f} s", file=sys.stderr)
    return {**summary(records, max(sum(batches), 1e-9)), "batches": len(batches), "batch_ms": spread(batches)}


def _work(values: Values, vocabulary: int) -> list[Session]:
    if vocabulary < 2:
        raise Refused("InvalidFlag", f"--vocabulary {vocabulary}: at least 2 token ids are needed")
    names = ("workload", "sessions", "input_tokens", "output_tokens", "range_percent", "prefix_tokens", "turns", "seed")
    return sessions(Wanted(**{name: values[name] for name in names}, vocabulary=vocabulary))


def _check_length(llm: LLM, work: Sequence[Session]) -> None:
    needed, most = longest(work), llm.ready.max_length_tokens
    if needed > most:
        raise Refused(
            "MaxLengthTooLong",
            f"the longest session needs {needed} tokens and this engine takes {most}: ask for fewer --input-tokens, "
            "--output-tokens, --prefix-tokens or --turns, or give more --max-length",
        )


def _llm(values: Values) -> LLM:
    """Loads the model of the flags, as `serve` does."""
    if values["kernel_cache"]:
        os.environ["TRITON_CACHE_DIR"] = values["kernel_cache"]
    from octavo_server.engine.sizes import Refusal
    from octavo_server.fetching.resolve import local_path
    from octavo_server.fetching.sources import LocalSource, parse_location
    from octavo_server.llm import LLM
    from octavo_server.weights import ModelError

    place = parse_location(values["model"])
    if not isinstance(place, LocalSource):
        raise Refused("SchemeUnsupported", f"--model {values['model']}: bring it here first with octavo-server fetch")
    names = ("device", "dtype", "quantization", "load_format", "max_length", "kv_dtype", "memory_percent", "pool_bytes",
             "max_batched_tokens", "max_sequences", "cpu_threads")  # fmt: skip
    try:
        return LLM(
            local_path(place, values["model"]),
            **{name: values[name] for name in names},
            block_size=values["block_size"] or 16,
            prefix_caching=values["prefix_caching"] == "Enabled",
            max_step_milliseconds=values["max_step_milliseconds"],
        )
    except (Refusal, ModelError) as error:
        raise Refused(error.reason, error.message) from error


def _sampling(values: Values) -> Any:
    from octavo_server.engine.messages import SamplingParams

    return SamplingParams(temperature=values["temperature"], seed=values["seed"])
