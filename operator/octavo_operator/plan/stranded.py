"""Replicas that the scheduler cannot place: services planned at the same moment may have counted on the same room."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from datetime import datetime, timedelta

from . import server_contract as contract
from .manifest import Manifest

PATIENCE = timedelta(seconds=15)
"""How long a pod may be unschedulable before its replica moves; less would fight autoscaled nodes."""


def unschedulable_since(pod: Manifest) -> datetime | None:
    """Since when the scheduler has found no node for a pod; None when it has, or has not tried."""
    if pod["metadata"].get("deletionTimestamp") or pod.get("spec", {}).get("nodeName"):
        return None
    for condition in pod.get("status", {}).get("conditions") or ():
        if condition.get("type") == "PodScheduled" and condition.get("reason") == "Unschedulable":
            text = condition.get("lastTransitionTime")
            return datetime.fromisoformat(text) if text else None
    return None


def stranded(running: Mapping[str, int], pods: Iterable[Manifest], now: datetime) -> tuple[Counter[str], float | None]:
    """Replicas by node type that wait too long for a node, and seconds until the next one does (None: no other).

    running: replicas by type. A pod that surges beyond them in a rollout is no replica yet: it may wait.
    """
    waiting: Counter[str] = Counter()
    placed: Counter[str] = Counter()
    waits: list[float] = []
    for pod in pods:
        label, since = (pod["metadata"].get("labels") or {}).get(contract.NODE_TYPE_LABEL), unschedulable_since(pod)
        if label is None or pod["metadata"].get("deletionTimestamp"):
            continue
        if pod.get("spec", {}).get("nodeName"):
            placed[label] += 1
        elif since is not None and now - since >= PATIENCE:
            waiting[label] += 1
        elif since is not None:
            waits.append((since + PATIENCE - now).total_seconds())
    found = {label: min(count, running.get(label, 0) - placed[label]) for label, count in waiting.items()}
    return Counter({label: count for label, count in found.items() if count > 0}), min(waits, default=None)


def movable(running: Mapping[str, int], waiting: Mapping[str, int], spare: Mapping[str, int]) -> dict[str, int]:
    """What each type keeps when its stranded replicas go where there is room; each without room elsewhere stays."""
    kept = dict(running)
    for label in sorted(waiting):
        room = sum(count for other, count in spare.items() if other != label and count > 0)
        kept[label] = max(0, kept.get(label, 0) - min(waiting[label], room))
    return kept
