"""What a benchmark asks for: prompts and lengths, the same for the same seed. Pure.

A session is what one user does: a list of turns, one after the other. All workloads but `agents` have sessions of one
turn.

- random: prompts of random tokens; lengths within a range around what is asked for.
- sharegpt: lengths as in conversations with people. The means are those that Kwon et al. publish for ShareGPT
  ("Efficient Memory Management for Large Language Model Serving with PagedAttention", SOSP 2023, figure 11: 161.31
  tokens in, 337.99 out). The figure shows long tails and no further numbers: lengths are log-normal with a spread of
  our choice, cut to 4 … 1,024 in and 4 … 1,024 out, and the means hold after the cut.
- shared-prefix: all prompts begin with the same tokens.
- agents: each session begins with the tokens that all share and grows: a turn's prompt is the whole session so far, the
  answers included, and a new input.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from random import Random

WORKLOADS = ("random", "sharegpt", "shared-prefix", "agents")
SHAREGPT_MEANS = (161.31, 337.99)
_SHAREGPT_SPREAD = (1.1, 0.8)
"""Standard deviations of the logarithms."""
_SHAREGPT_LEAST, _SHAREGPT_MOST = 4, 1024
_FIRST_ID = 10
"""Lower ids are often control tokens."""


@dataclass(frozen=True)
class Wanted:
    """A workload's numbers; lengths in tokens."""

    workload: str = "random"
    sessions: int = 64
    input_tokens: int = 512
    output_tokens: int = 128
    range_percent: int = 0
    """Lengths are spread evenly over so many percent to either side."""
    prefix_tokens: int = 2048
    """What prompts share, in the workloads that share something."""
    turns: int = 6
    """Of each session of the workload `agents`."""
    vocabulary: int = 20_000
    """Token ids are below it."""
    seed: int = 0


@dataclass(frozen=True)
class Turn:
    """One request of a session: tokens that it adds to what was said before, and how many it asks for."""

    added: Sequence[int]
    output_tokens: int


Session = Sequence[Turn]


def sessions(wanted: Wanted) -> list[Session]:
    """All sessions of a workload. Raises ValueError for a name that is none."""
    random = Random(wanted.seed)
    if wanted.workload not in WORKLOADS:
        raise ValueError(f"workload {wanted.workload!r} is none of {', '.join(WORKLOADS)}")
    shares = wanted.workload in ("shared-prefix", "agents")
    prefix = _tokens(random, wanted.prefix_tokens, wanted) if shares else []
    found: list[Session] = []
    for _ in range(wanted.sessions):
        count = wanted.turns if wanted.workload == "agents" else 1
        turns = []
        for turn in range(count):
            lengths = _sharegpt(random) if wanted.workload == "sharegpt" else _ranged(random, wanted)
            added = _tokens(random, lengths[0], wanted)
            turns.append(Turn(prefix + added if turn == 0 else added, lengths[1]))
        found.append(turns)
    return found


def longest(wanted: Sequence[Session]) -> int:
    """Tokens of the longest session, answers included: what a model must be able to hold."""
    return max(sum(len(turn.added) + turn.output_tokens for turn in session) for session in wanted)


def arrivals(count: int, per_second: float, seed: int) -> list[float]:
    """Seconds at which sessions begin: a Poisson process of this rate, 0 = all at once."""
    if per_second <= 0:
        return [0.0] * count
    random, at, found = Random(seed + 1), 0.0, []
    for _ in range(count):
        at += random.expovariate(per_second)
        found.append(at)
    return found


def lognormal_centre(mean: float, spread: float, least: int, most: int) -> float:
    """The logarithm's mean with which a log-normal, cut to least … most by moving what lies outside, has this mean."""
    low, high = math.log(least) - 5, math.log(most) + 5
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if _cut_mean(middle, spread, least, most) < mean else (low, middle)
    return (low + high) / 2


def _cut_mean(centre: float, spread: float, least: float, most: float) -> float:
    """Mean of min(max(X, least), most) for a log-normal X."""

    def below(value: float, shift: float = 0.0) -> float:
        return 0.5 * math.erfc(-((math.log(value) - centre) / spread - shift) / math.sqrt(2))

    inside = math.exp(centre + spread**2 / 2) * (below(most, spread) - below(least, spread))
    return least * below(least) + inside + most * (1 - below(most))


def _sharegpt(random: Random) -> tuple[int, int]:
    return (_length(random, 0), _length(random, 1))


def _length(random: Random, place: int) -> int:
    spread = _SHAREGPT_SPREAD[place]
    centre = _SHAREGPT_CENTRES[place]
    return round(min(max(random.lognormvariate(centre, spread), _SHAREGPT_LEAST), _SHAREGPT_MOST))


def _ranged(random: Random, wanted: Wanted) -> tuple[int, int]:
    def one(length: int) -> int:
        by = length * wanted.range_percent // 100
        return max(1, random.randint(length - by, length + by))

    return (one(wanted.input_tokens), one(wanted.output_tokens))


def _tokens(random: Random, count: int, wanted: Wanted) -> list[int]:
    return random.choices(range(min(_FIRST_ID, wanted.vocabulary - 1), wanted.vocabulary), k=count)


_SHAREGPT_CENTRES = tuple(
    lognormal_centre(mean, spread, _SHAREGPT_LEAST, _SHAREGPT_MOST)
    for mean, spread in zip(SHAREGPT_MEANS, _SHAREGPT_SPREAD, strict=True)
)
