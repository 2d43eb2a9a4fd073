"""What one reading of a pod's metrics is. Each way in which it can fail is a type, so that none is taken for 0."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Sample:
    """A complete reading of one pod."""

    time: float
    """Seconds on the reader's clock at which the answer arrived."""
    active_tokens: float
    """KV tokens held by living requests."""
    capacity_tokens: float
    """KV tokens that the pod can hold; above 0."""
    running: float
    waiting: float
    finished_total: float | None = None
    """Counter of requests that ended; None where the runtime does not count them."""
    received_total: float | None = None
    """Counter of accepted requests; None where the runtime does not count them."""
    preemptions_total: float | None = None
    """Counter of requests that lost their place in the cache."""


@dataclass(frozen=True, slots=True)
class Partial:
    """An answer that lacks figures the policy can't do without: the pod still loads, or its runtime has none."""

    time: float
    missing: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Absent:
    """No usable answer: refused, timed out, not text, or an error status."""

    time: float
    why: str


Reading = Sample | Partial | Absent
