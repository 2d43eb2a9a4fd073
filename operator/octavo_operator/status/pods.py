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


def fault(pod: Manifest) -> Fault | None:
    """What keeps a pod from serving, in the server's own words where it left any; None while it just starts."""
    status, name = pod.get("status", {}), pod["metadata"]["name"]
    for container in [*(status.get("initContainerStatuses") or ()), *(status.get("containerStatuses") or ())]:
        state, last = container.get("state", {}), container.get("lastState", {})
        ended = state.get("terminated") or last.get("terminated") or {}
        waiting = state.get("waiting") or {}
        # A container that ended well (an init container) or runs again keeps nobody waiting.
        if "running" in state or (state.get("terminated") or {}).get("exitCode") == 0:
            continue
        told = _told(state) or _told(last)
        if told is not None:
            return Fault(told.reason, f"pod {name}: {told.message}")
        if waiting.get("reason") in _FAULTS:
            code = f" (last exit code {ended['exitCode']})" if "exitCode" in ended else ""
            return Fault(
                waiting["reason"], f"pod {name}: {waiting.get('message') or waiting['reason']}{code}; see its log"
            )
        if state.get("terminated"):
            return Fault("ContainerEnded", f"pod {name} ended with exit code {ended.get('exitCode')}; see its log")
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
