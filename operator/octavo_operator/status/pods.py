"""What the pods of a service tell: how many serve, and what keeps the others from it."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

Manifest = dict[str, Any]

_FAULTS = (
    "CrashLoopBackOff",
    "ImagePullBackOff",
    "ErrImagePull",
    "InvalidImageName",
    "CreateContainerConfigError",
    "CreateContainerError",
)
_NO_ACCELERATOR = re.compile(r"Insufficient (nvidia|amd)\.com/")


@dataclass(frozen=True)
class Fault:
    """Why a pod does not serve."""

    reason: str
    message: str


def is_ready(pod: Manifest) -> bool:
    """Whether a pod serves: Ready and not on its way out."""
    conditions = pod.get("status", {}).get("conditions") or ()
    ready = any(c.get("type") == "Ready" and c.get("status") == "True" for c in conditions)
    return ready and not pod["metadata"].get("deletionTimestamp")


def _told(state: Manifest) -> Fault | None:
    ended = state.get("terminated") or {}
    try:
        value = json.loads(ended.get("message") or "")
    except ValueError:
        return None
    if not isinstance(value, dict) or not isinstance(value.get("reason"), str):
        return None
    return Fault(value["reason"], str(value.get("message", "")))


def _container_fault(name: str, container: Manifest) -> Fault | None:
    """The same word through all phases of a crash loop (ended, waiting, running again), or status would flap."""
    state, last = container.get("state", {}), container.get("lastState", {})
    ended = state.get("terminated") or last.get("terminated") or {}
    waiting = state.get("waiting") or {}
    failed = "exitCode" in ended and ended["exitCode"] != 0
    if container.get("ready") or (ended and not failed) or ("running" in state and not failed):
        return None
    told = _told(state) or _told(last)
    if told is not None:
        return Fault(told.reason, f"pod {name}: {told.message}")
    loops = waiting.get("reason") == "CrashLoopBackOff" or (failed and int(container.get("restartCount", 0)) > 1)
    if failed or loops:
        code = f" with exit code {ended['exitCode']}" if failed else ""
        words = f"pod {name}: its container ended{code} and is started again; see kubectl logs {name} --previous"
        return Fault("CrashLoopBackOff" if loops else "ContainerEnded", words)
    if waiting.get("reason") in _FAULTS:
        return Fault(waiting["reason"], f"pod {name}: {waiting.get('message') or waiting['reason']}")
    return None


def refused_pods(deployments: Iterable[Manifest]) -> Fault | None:
    """What keeps a Deployment from making pods at all: a missing priority class, a quota, an admission rule."""
    for item in sorted(deployments, key=lambda item: str(item["metadata"]["name"])):
        for condition in item.get("status", {}).get("conditions") or ():
            if condition.get("type") == "ReplicaFailure" and condition.get("status") == "True":
                return Fault("PodRefused", f"the API server refuses its pods: {condition.get('message', '')}")
    return None


def fault(pod: Manifest) -> Fault | None:
    """What keeps a pod from serving, in the server's own words where it left any; None while it just starts."""
    status, name = pod.get("status", {}), pod["metadata"]["name"]
    for container in [*(status.get("initContainerStatuses") or ()), *(status.get("containerStatuses") or ())]:
        found = _container_fault(name, container)
        if found is not None:
            return found
    for condition in status.get("conditions") or ():
        if condition.get("type") == "PodScheduled" and condition.get("status") == "False":
            if _NO_ACCELERATOR.search(condition.get("message", "")):
                return Fault("WaitingForAccelerator", f"pod {name} waits for a free accelerator")
            return Fault("Unschedulable", f"pod {name} waits for a node: {condition.get('message', '')}")
    return None


def first_fault(pods: Iterable[Manifest]) -> Fault | None:
    """The fault of the first pod by name that has one, so that the message stays while the state stays."""
    for pod in sorted(pods, key=lambda pod: str(pod["metadata"]["name"])):
        if not pod["metadata"].get("deletionTimestamp") and not is_ready(pod):
            found = fault(pod)
            if found is not None:
                return found
    return None
