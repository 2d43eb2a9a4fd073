"""The settings of `octavo-server bench serve | throughput | latency`, as tables."""

from __future__ import annotations

from octavo_server.bench.workloads import WORKLOADS, Wanted
from octavo_server.flags import Option
from octavo_server.options import SERVE as SERVER

_WORK = "workload"
_LOAD = "load"
_ENGINE_NAMES = (
    "model", "max-length", "device", "dtype", "quantization", "load-format", "kernel-cache", "cpu-threads", "kv-dtype",
    "block-size", "memory-percent", "pool-bytes", "prefix-caching", "max-batched-tokens", "max-step-milliseconds",
    "max-sequences",
)  # fmt: skip
_ENGINE = tuple(option for option in SERVER if option.name in _ENGINE_NAMES)
_INPUT = Option("input-tokens", "of a prompt; of a turn's input for agents", _WORK, "integer", Wanted.input_tokens,
                minimum=1, maximum=1_000_000, metavar="TOKENS")  # fmt: skip
_OUTPUT = Option("output-tokens", "of an answer; ends of sequence are ignored", _WORK, "integer", Wanted.output_tokens,
                 minimum=1, maximum=1_000_000, metavar="TOKENS")  # fmt: skip
_VOCABULARY = Option("vocabulary", "random token ids are below it; 0 = the model's own, over HTTP 20000", _WORK,
                     "integer", 0, minimum=0, maximum=10_000_000, metavar="COUNT")  # fmt: skip
_SEED = Option("seed", "the same seed gives the same prompts, lengths and arrivals", _WORK, "integer", 0, minimum=0)
_WORKLOAD = (
    Option("workload", "random prompts; lengths as in ShareGPT; prompts that begin alike; agents whose sessions grow",
           _WORK, "choice", Wanted.workload, WORKLOADS),
    Option("sessions", "in all; a session of agents has several requests", _WORK, "integer", Wanted.sessions,
           minimum=1, maximum=1_000_000, metavar="COUNT"),
    _INPUT,
    _OUTPUT,
    Option("range-percent", "lengths are spread evenly over so much to either side", _WORK, "integer", 0, minimum=0,
           maximum=100, metavar="PERCENT"),
    Option("prefix-tokens", "that prompts share, for shared-prefix and agents", _WORK, "integer", Wanted.prefix_tokens,
           minimum=0, maximum=1_000_000, metavar="TOKENS"),
    Option("turns", "requests of a session of agents", _WORK, "integer", Wanted.turns, minimum=1, maximum=1000,
           metavar="COUNT"),
    _VOCABULARY,
    _SEED,
)  # fmt: skip
_TEMPERATURE = Option("temperature", "0 = the most likely token", _WORK, "number", 0.0, minimum=0, maximum=10)
_LIMITS = (
    Option("limit-seconds", "what has not ended then is dropped and told", _LOAD, "number", 600.0, minimum=0.1,
           maximum=86_400, metavar="SECONDS"),
    Option("output", "file for the figures as JSON", _LOAD, metavar="FILE"),
    Option("report", "what is printed: a table for people, or the JSON object", _LOAD, "choice", "Table",
           ("Table", "JSON")),
    Option("progress", "a bar on standard error", _LOAD, "choice", "Enabled", ("Enabled", "Disabled")),
)  # fmt: skip
_ARRIVALS = (
    Option("rate", "sessions that begin per second, at random times (Poisson): open loop; 0 = all at once", _LOAD,
           "number", 0.0, minimum=0, maximum=1_000_000, metavar="PER_SECOND"),
    Option("concurrency", "sessions at once: closed loop; 0 = no limit", _LOAD, "integer", 0, minimum=0,
           maximum=100_000, metavar="COUNT"),
)  # fmt: skip

SERVE = (
    Option("url", "the server, such as http://127.0.0.1:8000; its key comes from OCTAVO_API_KEY", _LOAD, required=True,
           metavar="URL"),
    Option("api-key", "key of the server", _LOAD, secret=True),
    Option("served-name", "model to ask for; empty = the first that the server names", _LOAD, metavar="NAME"),
    *_WORKLOAD, _TEMPERATURE, *_ARRIVALS, *_LIMITS,
)  # fmt: skip
THROUGHPUT = (*_ENGINE, *_WORKLOAD, _TEMPERATURE, *_ARRIVALS, *_LIMITS)
LATENCY = (
    *_ENGINE, _INPUT, _OUTPUT, _VOCABULARY, _SEED, _TEMPERATURE,
    Option("batch", "requests that run together", _LOAD, "integer", 8, minimum=1, maximum=65_536, metavar="COUNT"),
    Option("repeats", "measured batches", _LOAD, "integer", 10, minimum=1, maximum=100_000, metavar="COUNT"),
    Option("warm-ups", "batches before them", _LOAD, "integer", 2, minimum=0, maximum=1000, metavar="COUNT"),
    *_LIMITS,
)  # fmt: skip
"""Of several batches of the same size, one after the other."""
TABLES = {"serve": SERVE, "throughput": THROUGHPUT, "latency": LATENCY}
