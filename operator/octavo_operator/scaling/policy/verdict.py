"""What the policy answers: a count, and why."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from .state import State


class Reason(StrEnum):
    """Why the count is what it is; words for programs."""

    SETTLED = "Settled"
    DEMAND_GREW = "DemandGrew"
    DEMAND_FELL = "DemandFell"
    PREEMPTIONS = "Preemptions"
    RISE_LIMITED = "RiseLimited"
    WITHIN_BOUNDS = "WithinBounds"
    AT_MAXIMUM = "AtMaximum"
    METRICS_MISSING = "MetricsMissing"
    STARTING = "Starting"
    ROLLING_OUT = "RollingOut"
    WATCHING = "Watching"
    WAITING_FOR_ACCELERATOR = "WaitingForAccelerator"
    IDLE = "Idle"
    WOKEN = "Woken"
    NO_WAKE_SOURCE = "NoWakeSource"


@dataclass(frozen=True)
class Numbers:
    """What a decision was made from."""

    demand_tokens: float = 0.0
    """Tokens of KV cache that the load asks for."""
    capacity_tokens: float | None = None
    """Sustained by one replica; None while no replica tells."""
    needed: float | None = None
    """Replicas, before rounding; None while nothing is known."""
    at_once: float | None = None
    """The same without what is kept for the largest demand of late."""
    steady: float | None = None
    """The part of it that the whole window bears out: what removals are judged by."""
    falling: bool = False
    """Whether the load falls steadily."""
    active_tokens: float = 0.0
    waiting: float = 0.0
    arrivals_per_second: float = 0.0
    steady_arrivals: float = 0.0
    """Of the whole window."""
    residency_token_seconds: float | None = None
    ready: int = 0
    pending: int = 0
    unknown: int = 0


@dataclass(frozen=True)
class Recommendation:
    """The count to have now."""

    desired: int
    reason: Reason
    message: str
    state: State
    numbers: Numbers
