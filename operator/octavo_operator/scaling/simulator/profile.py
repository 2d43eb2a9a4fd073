"""How fast one replica is: the few constants from which the time of a step follows."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any


class ProfileError(ValueError):
    """A profile that can't be used; the text names file, field and way out."""


@dataclass(frozen=True)
class Profile:
    """One replica on one type of node.

    A step with n decoding sequences, K cached tokens and p prompt tokens takes
    step_seconds + n · sequence_seconds + K · cached_token_seconds + p · prompt_token_seconds.
    """

    name: str = "l4-8b"
    capacity_tokens: float = 38_000.0
    """KV cache."""
    max_sequences: int = 256
    step_seconds: float = 0.055
    """Reading the weights once."""
    sequence_seconds: float = 1e-5
    cached_token_seconds: float = 4.4e-7
    prompt_token_seconds: float = 2.7e-4
    chunk_tokens: int = 512
    """Most prompt tokens in one step."""
    startup_seconds: float = 90.0
    """From asked for to ready."""
    cost_per_hour: float = 1.0

    def __post_init__(self) -> None:
        """Refuse constants that are not positive."""
        for item in fields(self):
            value = getattr(self, item.name)
            if (isinstance(value, (int, float)) and value < 0) or (value == 0 and item.name not in _MAY_BE_ZERO):
                raise ProfileError(f"profile {self.name!r}: {item.name} is {value}; it must be above 0")

    def dump(self) -> dict[str, Any]:
        """As a profile file holds it."""
        return asdict(self)


_MAY_BE_ZERO = {"sequence_seconds", "cached_token_seconds", "startup_seconds"}


PROFILES = {
    "l4-8b": Profile(),
    "h100-8b": Profile(
        name="h100-8b",
        capacity_tokens=410_000.0,
        max_sequences=512,
        step_seconds=0.0075,
        sequence_seconds=2e-5,
        cached_token_seconds=5.5e-8,
        prompt_token_seconds=4e-5,
        chunk_tokens=2048,
        cost_per_hour=4.0,
    ),
}
"""Estimates from published bandwidths and compute of the cards for a model of 8 billion weights in bfloat16."""


def read_profile(path: Path) -> Profile:
    """From a JSON file: an object with fields of Profile, or a result of the server's own benchmark."""
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ProfileError(f"{path}: can't be read as JSON ({error})") from error
    if isinstance(data, dict) and isinstance(data.get("rows"), list):
        return calibrated(data, path.stem)
    known = {item.name for item in fields(Profile)}
    if not isinstance(data, dict) or not data.keys() <= known:
        raise ProfileError(f"{path}: give an object with some of {', '.join(sorted(known))}")
    return Profile(**data)


def calibrated(result: Mapping[str, Any], name: str) -> Profile:
    """From a result of the serving benchmark: its figures for one stream, 16 streams and a prefill of 512 tokens.

    Takes the first rows whose unit is tok/s and whose name tells which of the three it is.
    """
    found: dict[str, float] = {}
    for row in result["rows"]:
        if row.get("unit") != "tok/s":
            continue
        for key in ("one stream", "16 streams", "prefill"):
            if str(row["name"]).startswith(key):
                found.setdefault(key, float(row["value"]))
    missing = [key for key in ("one stream", "16 streams", "prefill") if not found.get(key)]
    if missing:
        raise ProfileError(f"{name}: no row in tok/s for {', '.join(missing)}; give a profile file instead")
    one, sixteen = 1 / found["one stream"], 16 / found["16 streams"]
    each = max(0.0, (sixteen - one) / 15)
    return Profile(
        name=name,
        step_seconds=one - each if one > each else one,
        sequence_seconds=each,
        cached_token_seconds=0.0,
        prompt_token_seconds=1 / found["prefill"],
        startup_seconds=15.0,
    )
