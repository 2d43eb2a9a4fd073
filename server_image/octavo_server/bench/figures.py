"""From what happened to each request to percentiles, as an object for JSON and as a table for people. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

SHARES = {"p50": 0.5, "p90": 0.9, "p95": 0.95, "p99": 0.99}
TIMES = {
    "time_to_first_token_ms": "time to first token, ms",
    "inter_token_ms": "between tokens, ms",
    "end_to_end_ms": "end to end, ms",
}
_COUNTS = {
    "requests": "requests that ended",
    "failed": "failed",
    "unfinished": "not ended in time",
    "seconds": "seconds",
    "prompt_tokens": "prompt tokens",
    "cached_tokens": "of them from the prefix cache",
    "generated_tokens": "generated tokens",
    "requests_per_second": "requests per second",
    "generated_tokens_per_second": "generated tokens per second",
    "tokens_per_second": "tokens in and out per second",
}


@dataclass
class Record:
    """One request; times in seconds of one clock."""

    sent: float
    prompt_tokens: int
    first: float = 0.0
    last: float = 0.0
    tokens: int = 0
    """Generated."""
    cached_tokens: int = 0
    gaps: list[float] = field(default_factory=list)
    """Between two arrivals of tokens."""
    ended: bool = False
    error: str = ""

    def arrived(self, at: float, tokens: int = 1) -> None:
        """Tokens came."""
        if self.first:
            self.gaps.append(at - self.last)
        else:
            self.first = at
        self.last = at
        self.tokens += tokens


def percentile(ordered: Sequence[float], share: float) -> float:
    """Of sorted values, by linear interpolation between the nearest two; there must be one."""
    return float(np.quantile(ordered, share))


def spread(values: Iterable[float]) -> dict[str, float] | None:
    """Mean, percentiles and maximum in milliseconds of values in seconds; None without any."""
    ordered = sorted(1000 * value for value in values)
    if not ordered:
        return None
    found = {"mean": sum(ordered) / len(ordered)}
    found |= {name: percentile(ordered, share) for name, share in SHARES.items()}
    found["max"] = ordered[-1]
    return {name: round(value, 4) for name, value in found.items()}


def summary(records: Sequence[Record], seconds: float) -> dict[str, Any]:
    """The figures of a run that took so long."""
    ended = [record for record in records if record.ended]
    prompts = sum(record.prompt_tokens for record in ended)
    generated = sum(record.tokens for record in records)
    failed = [record for record in records if record.error]
    return {
        "requests": len(ended),
        "failed": len(failed),
        "unfinished": len(records) - len(ended) - len(failed),
        "first_failure": failed[0].error if failed else "",
        "seconds": round(seconds, 4),
        "prompt_tokens": prompts,
        "cached_tokens": sum(record.cached_tokens for record in ended),
        "generated_tokens": generated,
        "requests_per_second": round(len(ended) / seconds, 4),
        "generated_tokens_per_second": round(generated / seconds, 2),
        "tokens_per_second": round((prompts + generated) / seconds, 2),
        "time_to_first_token_ms": spread(record.first - record.sent for record in ended if record.first),
        "inter_token_ms": spread(gap for record in ended for gap in record.gaps),
        "end_to_end_ms": spread(record.last - record.sent for record in ended if record.first),
    }


def table(found: Mapping[str, Any]) -> str:
    """A summary for a terminal."""
    lines = []
    width = max(map(len, (*_COUNTS.values(), *TIMES.values())))
    for name, text in _COUNTS.items():
        if name in found and (found[name] or name not in ("failed", "unfinished", "cached_tokens")):
            value = found[name]
            shown = f"{value:,}" if isinstance(value, int) else f"{value:,.2f}"
            lines.append(f"{text:{width}}  {shown:>12}")
    columns = ("mean", *SHARES, "max")
    lines += ["", " " * width + "".join(f"{column:>11}" for column in columns)]
    for name, text in TIMES.items():
        if values := found.get(name):
            lines.append(f"{text:{width}}" + "".join(f"{values[column]:>11,.2f}" for column in columns))
    if found.get("first_failure"):
        lines += ["", f"first failure: {found['first_failure']}"]
    return "\n".join(lines)
