"""How replicas give way to newer ones: whether a new one starts first, and how many of the old ones stay meanwhile."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta

from octavo_operator.api.operation_section import RolloutSection, RolloutStrategy

from . import server_contract as contract
from .manifest import Manifest
from .stranded import unschedulable_since


@dataclass(frozen=True)
class Scene:
    """What is seen of replicas that shall be replaced."""

    replicas: int
    """Wanted in all."""
    spare: int
    """How many more of the new pods could start at once."""
    old_ready: int
    """Old pods that serve."""
    waits_since: datetime | None
    """Since when a new pod has been waiting for a node; None when none waits."""
    now: datetime
    in_vain: bool = False
    """Whether no node could hold a new pod even if the old ones ended."""


def surges(section: RolloutSection, scene: Scene, before: bool | None) -> bool:
    """Whether a new pod starts before an old one ends. `before` is what a running rollout does; None when it begins.

    Auto surges where there is room. Without room, several replicas give way one by one. A single one lets the new pod
    wait – another service may leave, a node may be added – and gives way after waitSeconds. What serves never ends
    for a new pod that would find no node even then.
    """
    if section.strategy != RolloutStrategy.AUTO:
        return section.strategy == RolloutStrategy.SURGE
    if scene.in_vain and scene.old_ready > 0:
        return True
    if scene.waits_since is not None and (
        scene.old_ready == 0 or scene.now >= gives_way_at(section, scene.waits_since)
    ):
        return False
    if before is not None:
        return before
    if scene.spare > 0:
        return True
    return scene.old_ready > 0 and scene.replicas <= 1 and section.wait_seconds > 0


def hand_over(total: int, leaving: int, arrived_ready: int, surge: bool) -> tuple[int, int]:
    """(replicas that stay on types that are left, replicas wanted on the types that take over).

    Deployments know nothing of each other; this does between them what maxSurge and maxUnavailable do within one.
    """
    give = 0 if surge else 1
    stay = min(leaving, max(0, total - arrived_ready - give))
    if stay == 0:
        return 0, total
    return stay, max(0, min(total, total - stay + (1 - give)))


def gives_way_at(section: RolloutSection, since: datetime) -> datetime:
    """When old pods end so that a new one that waits since then can start."""
    return since + timedelta(seconds=section.wait_seconds)


def waits_since(pods: Iterable[Manifest]) -> datetime | None:
    """Since when the longest of these pods has been unschedulable; None when none is."""
    return min((since for pod in pods if (since := unschedulable_since(pod)) is not None), default=None)


def label_of(pod: Manifest, name: str) -> str:
    """A label of a pod; empty when it has none."""
    return str((pod["metadata"].get("labels") or {}).get(name, ""))


def is_alive(pod: Manifest) -> bool:
    """Whether a pod is neither on its way out nor at its end."""
    ended = pod.get("status", {}).get("phase") in ("Failed", "Succeeded")
    return not pod["metadata"].get("deletionTimestamp") and not ended


def has_place(pod: Manifest) -> bool:
    """Whether a pod was given a node."""
    return bool(pod.get("spec", {}).get("nodeName"))


def is_server(pod: Manifest) -> bool:
    """Whether a pod belongs to a server Deployment and is alive."""
    return label_of(pod, contract.ROLE_LABEL) == contract.ROLE_SERVER and is_alive(pod)
