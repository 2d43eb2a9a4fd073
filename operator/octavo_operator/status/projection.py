"""The status of a service from what was planned and what its pods show."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from .conditions import Verdict, conditions
from .pods import Fault, first_fault, is_ready

Manifest = dict[str, Any]


@dataclass(frozen=True)
class TypeInUse:
    """One node type with its replicas, as status shows it."""

    label: str
    template: str
    """Label of the template that its pods shall have."""
    current: bool
    """Whether that template is of the current generation of the spec."""
    replicas: int
    product: str = ""
    driver: str = ""
    cuda: str = ""
    image: str = ""
    block_size_tokens: int = 0
    block_size_reason: str = ""
    image_mode: str = ""
    """How the driver runs the image: Native, MinorVersion, CPU or Pinned."""
    kernel_fallback: str = ""
    """Why slower kernels may run; empty when the fast ones do."""


@dataclass(frozen=True)
class View:
    """Everything that status speaks of."""

    service: str
    generation: int
    address: str
    selector: Mapping[str, str]
    desired: int
    now: datetime
    verdicts: tuple[Verdict, ...]
    """Conditions that are settled before pods are looked at."""
    types: tuple[TypeInUse, ...] = ()
    pods: Sequence[Manifest] = ()
    """Server pods."""
    before: Mapping[str, Any] = field(default_factory=dict)
    template_label: str = ""
    node_type_label: str = ""
    waiting: str = ""
    """What a rollout waits for; empty when it does not wait."""
    refusal: Fault | None = None
    """Why pods can't even be made."""
    leaves_gap: bool = False
    """Whether the only replica ends before the new one serves."""
    waiting_reason: str = "WaitingForAccelerator"
    """Reason that goes with `waiting`."""


_WITHOUT_EFFECT_ON_READY = ("Tuned", "ScalingActive")
_HARMLESS = ("FieldsWithoutEffect", "TypeHeld")
"""Reasons of conditions that are false and keep no replica from serving."""


def _blocker(verdicts: Iterable[Verdict]) -> Verdict | None:
    """The first condition that keeps replicas from starting."""
    for verdict in verdicts:
        if (
            verdict.state is not True
            and verdict.type not in _WITHOUT_EFFECT_ON_READY
            and verdict.reason not in _HARMLESS
        ):
            return verdict
    return None


def _waits_for(view: View, pods: Iterable[Manifest]) -> str:
    """Products that pods without a node wait for."""
    labels = {_labels(pod).get(view.node_type_label) for pod in pods if not pod.get("spec", {}).get("nodeName")}
    return ", ".join(dict.fromkeys(item.product for item in view.types if item.label in labels))


def _labels(pod: Manifest) -> dict[str, str]:
    return pod["metadata"].get("labels") or {}


def _pod_verdicts(view: View) -> list[Verdict]:
    wanted = {item.label: item.template for item in view.types if item.current}
    alive = [pod for pod in view.pods if not pod["metadata"].get("deletionTimestamp")]
    serving = [pod for pod in alive if is_ready(pod)]
    current = [
        pod
        for pod in alive
        if _labels(pod).get(view.template_label) == wanted.get(_labels(pod).get(view.node_type_label, ""), "-")
    ]
    fresh = sum(map(is_ready, current))
    old = len(alive) - len(current)
    blocked = _blocker(view.verdicts)
    trouble = first_fault(current) or view.refusal or first_fault(alive)
    if trouble is not None and trouble.reason == "WaitingForAccelerator":
        trouble = Fault(trouble.reason, f"no accelerator is free: waiting for {_waits_for(view, alive) or 'one'}")
    if view.waiting:
        trouble = Fault(view.waiting_reason, view.waiting)
    count = f"{fresh} of {view.desired} replicas of the current template serve"
    available = Verdict(
        "Available",
        bool(serving),
        "Serving" if serving else "NoReplica",
        "requests are answered" if serving else "no replica serves; see Ready for the reason",
    )
    complete = fresh >= view.desired and old == 0
    if blocked is not None:
        return [
            available,
            Verdict("Ready", False, blocked.reason, blocked.message),
            Verdict(
                "Progressing", blocked.state is None or blocked.reason == "Fetching", blocked.reason, blocked.message
            ),
        ]
    if complete:
        reason = "Ready" if view.desired else "ScaledToZero"
        return [
            available,
            Verdict("Ready", True, reason, count),
            Verdict("Progressing", True, "Complete", "every replica has the current template"),
        ]
    if trouble is not None:
        return [
            available,
            Verdict("Ready", False, trouble.reason, f"{count}; {trouble.message}"),
            Verdict("Progressing", False, trouble.reason, trouble.message),
        ]
    ending = f", {old} of an older template still run" if old else ""
    reason = "RollingOut" if old else "Starting"
    if view.leaves_gap and not serving:
        reason, ending = "Replacing", "; the only replica ended to make room, and nothing serves until the new one does"
    return [
        available,
        Verdict("Ready", False, reason, count + ending),
        Verdict("Progressing", True, reason, count + ending),
    ]


def project(view: View) -> Manifest:
    """The complete status; equal to the live one when nothing changed."""
    alive = [pod for pod in view.pods if not pod["metadata"].get("deletionTimestamp")]
    types: list[Manifest] = []
    for item in sorted(view.types, key=lambda item: item.label):
        here = [pod for pod in alive if _labels(pod).get(view.node_type_label) == item.label]
        types.append(
            {
                "name": item.label,
                "product": item.product,
                "driver": item.driver,
                "cuda": item.cuda,
                "image": item.image,
                "blockSize": item.block_size_tokens,
                "blockSizeReason": item.block_size_reason,
                "replicas": item.replicas,
                "readyReplicas": sum(map(is_ready, here)),
                **({"imageMode": item.image_mode} if item.image_mode else {}),
                **({"kernelFallback": item.kernel_fallback} if item.kernel_fallback else {}),
            }
        )
    scaling = {key: value for key, value in (view.before.get("scaling") or {}).items() if key != "desired"}
    return {
        "conditions": conditions(
            [*view.verdicts, *_pod_verdicts(view)], view.before.get("conditions") or (), view.generation, view.now
        ),
        "observedGeneration": view.generation,
        "replicas": len(alive),
        "readyReplicas": sum(map(is_ready, alive)),
        "selector": ",".join(f"{key}={value}" for key, value in sorted(view.selector.items())),
        "address": view.address,
        "nodeTypes": types,
        "scaling": {"desired": view.desired, **scaling},
    }
