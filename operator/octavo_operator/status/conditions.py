"""Conditions in a fixed order, with times that move only when a status changes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from .reasons import REASONS

ORDER = (
    "Available",
    "Ready",
    "SpecHonoured",
    "NodeTypesResolved",
    "ImageResolved",
    "Tuned",
    "ModelReady",
    "Progressing",
    "ScalingActive",
)
_MAX_MESSAGE = 2048
_DEGRADED = ("KernelFallback", "ClaimOnOneNode", "BlocksLargerThanPrefixes")
"""Reasons of conditions that are true and still worth a warning: nothing degrades in silence."""


@dataclass(frozen=True)
class Verdict:
    """One aspect: True, False or unknown (None), with a word for programs and a sentence for people."""

    type: str
    state: bool | None
    reason: str
    message: str

    @property
    def status(self) -> str:
        """As the API spells it."""
        return "Unknown" if self.state is None else str(self.state)


def timestamp(now: datetime) -> str:
    """RFC 3339 in UTC, in whole seconds."""
    return now.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def conditions(
    verdicts: Iterable[Verdict], before: Sequence[dict[str, Any]], generation: int, now: datetime
) -> list[dict[str, Any]]:
    """The conditions to write; lastTransitionTime is kept while a status stays."""
    known = {condition.get("type"): condition for condition in before}
    found: list[dict[str, Any]] = []
    for verdict in sorted(verdicts, key=lambda verdict: ORDER.index(verdict.type)):
        old = known.get(verdict.type, {})
        same = old.get("status") == verdict.status and old.get("lastTransitionTime")
        message = verdict.message
        found.append(
            {
                "type": verdict.type,
                "status": verdict.status,
                "observedGeneration": generation,
                "lastTransitionTime": old["lastTransitionTime"] if same else timestamp(now),
                "reason": verdict.reason,
                "message": message if len(message) <= _MAX_MESSAGE else message[: _MAX_MESSAGE - 1] + "…",
            }
        )
    return found


def transitions(before: Sequence[dict[str, Any]], after: Sequence[dict[str, Any]]) -> list[tuple[str, str, str]]:
    """(event type, reason, message) of each condition whose status or reason changed in a way worth telling."""
    known = {condition.get("type"): condition for condition in before}
    told: list[tuple[str, str, str]] = []
    for condition in after:
        old = known.get(condition["type"])
        changed = old is None or (old.get("status"), old.get("reason")) != (condition["status"], condition["reason"])
        good = condition["status"] == "True" and condition["reason"] not in _DEGRADED
        # A first look at a service that just starts is no news; neither is tuning.
        quiet = condition["type"] in ("Tuned", "ScalingActive") and condition["reason"] not in _DEGRADED
        if not changed or quiet or condition["status"] == "Unknown":
            continue
        if old is None and (good or condition["type"] in ("Available", "Ready", "Progressing")):
            continue
        # A word that is not in the list is the server's own or the API server's, and never good news.
        known_reason = REASONS.get(condition["reason"])
        calm = good or (known_reason is not None and not known_reason.is_fault)
        told.append(
            ("Normal" if calm else "Warning", condition["reason"], f"{condition['type']}: {condition['message']}")
        )
    return told
