"""The decision in force, laid over a plan: the planner gets a count, the status gets the reasons. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any

from octavo_operator.api.operation_section import ScalingMode
from octavo_operator.plan import Event, Facts, Plan
from octavo_operator.status.conditions import Verdict, conditions, timestamp

from .policy import Change, Reason, State
from .policy.state import KEPT_CHANGES

Object = dict[str, Any]
_HELD = {
    Reason.METRICS_MISSING: "held: metrics of some replicas are missing, so that their load is unknown",
    Reason.WAITING_FOR_ACCELERATOR: "more replicas are needed and no node with a free accelerator was found",
    Reason.NO_WAKE_SOURCE: "scaling.minReplicas 0 acts as 1: nothing could wake the service yet",
}
"""Sentences without numbers: a condition is written only when the state changes."""


@dataclass(frozen=True)
class Decision:
    """What status tells of the last decision."""

    desired: int
    reason: Reason
    low: int
    high: int
    capacities: tuple[tuple[str, str, int], ...] = ()
    """(node type, template, tokens), as published."""
    changes: tuple[Change, ...] = ()


def count_in_force(status: Mapping[str, Any], running: int, low: int, high: int) -> int:
    """Where a scaler that has just started begins: with what is, within the bounds. No mode switch moves the count."""
    present = (status.get("scaling") or {}).get("desired")
    if present is None:
        return max(1, low, min(high, running))
    # A service that sleeps goes on sleeping.
    return max(low, min(high, int(present)))


def for_planning(service: Object, decision: Decision) -> Object:
    """The service as the planner shall see it: with this count."""
    scaling = {**(service["spec"].get("scaling") or {}), "mode": ScalingMode.FIXED.value}
    return {**service, "spec": {**service["spec"], "scaling": scaling, "replicas": decision.desired}}


def with_decision(wanted: Plan, facts: Facts, decision: Decision) -> Plan:
    """The plan with the decision in its status, and an event for each change that status did not hold yet."""
    before = facts.service.get("status") or {}
    generation = int(facts.service["metadata"].get("generation", 0))
    [told] = conditions([_verdict(decision)], before.get("conditions") or (), generation, facts.now)
    found = [told if item["type"] == told["type"] else item for item in wanted.status["conditions"]]
    old = (before.get("scaling") or {}).get("changes") or []
    fresh = [item for item in map(_change, decision.changes) if item not in old]
    scaling: Object = {"desired": decision.desired}
    changes = (old + fresh)[-KEPT_CHANGES:]
    if changes:
        scaling["changes"] = changes
    if decision.capacities:
        scaling["capacities"] = _capacities(decision)
    events = [
        Event(
            "Normal",
            "ScaledUp" if item["to"] > item["from"] else "ScaledDown",
            f"from {item['from']} to {item['to']} replicas ({item['reason']}): {item['message']}",
        )
        for item in fresh
    ]
    status = {**wanted.status, "conditions": found, "scaling": scaling}
    return replace(wanted, status=status, events=(*wanted.events, *events), seed_replicas=None)


def with_capacities(wanted: Plan, decision: Decision | None) -> Plan:
    """The plan of a service whose count another scaler sets: what was learned is kept in its status all the same."""
    if decision is None or not decision.capacities:
        return wanted
    scaling = {**(wanted.status.get("scaling") or {}), "capacities": _capacities(decision)}
    return replace(wanted, status={**wanted.status, "scaling": scaling})


def _capacities(decision: Decision) -> list[Object]:
    return [{"nodeType": kind, "template": name, "tokens": tokens} for kind, name, tokens in decision.capacities]


def _verdict(decision: Decision) -> Verdict:
    held = _HELD.get(decision.reason)
    if held is not None:
        return Verdict("ScalingActive", False, decision.reason.value, held)
    text = f"between {decision.low} and {decision.high} replicas by load; the last changes are in status.scaling"
    return Verdict("ScalingActive", True, "ScaledByLoad", text)


def _change(change: Change) -> Object:
    return {
        "time": timestamp(datetime.fromtimestamp(change.time, UTC)),
        "from": change.before,
        "to": change.after,
        "reason": change.reason,
        "message": change.message[:1024],
    }


def state_from(status: Mapping[str, Any]) -> State:
    """What status kept of the policy's state. Changes stay in status alone."""
    scaling = status.get("scaling") or {}
    return State.load({"capacities": scaling.get("capacities") or ()})


def published(state: State, before: tuple[tuple[str, str, int], ...]) -> tuple[tuple[str, str, int], ...]:
    """Learned capacities for status: one that moved by less than a tenth stays as it is."""
    known = {(kind, template): tokens for kind, template, tokens in before}
    found = []
    for (kind, template), uses in sorted(state.uses.items()):
        tokens = round(sum(uses) / len(uses))
        old = known.get((kind, template))
        if kind and template:
            found.append((kind, template, old if old and abs(tokens / old - 1.0) < 0.1 else tokens))
    return tuple(found)
