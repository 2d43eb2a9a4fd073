"""From objects of the API server to what the policy looks at. Pure."""

from __future__ import annotations

import ipaddress
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Any

from octavo_operator.api.inference_service import InferenceServiceSpec
from octavo_operator.api.operation_section import MAX_REPLICAS, ScalingMode
from octavo_operator.plan import server_contract as contract
from octavo_operator.status.pods import is_ready

from .policy import Fleet, Pod, PolicySettings, Wake
from .scraper import Target
from .window import Seen, Unknown

Object = dict[str, Any]


def servers(pods: Sequence[Object]) -> list[Object]:
    """Server pods that are not ending: the others count neither as supply nor as load."""
    return [
        pod
        for pod in pods
        if _labels(pod).get(contract.ROLE_LABEL) == contract.ROLE_SERVER
        and not pod["metadata"].get("deletionTimestamp")
        and pod.get("status", {}).get("phase") not in ("Failed", "Succeeded")
    ]


def target(pod: Object, runtime: str) -> Target | None:
    """Where a serving pod's metrics are; None while it does not serve."""
    try:
        address = ipaddress.ip_address(pod.get("status", {}).get("podIP") or "")
    except ValueError:
        return None
    if not is_ready(pod):
        return None
    host = f"[{address}]" if address.version == 6 else str(address)
    return Target(pod["metadata"]["uid"], f"http://{host}:{contract.PORT}{contract.METRICS_PATH}", runtime)


def observe(replicas: int, pods: Sequence[Object], seen: Callable[[str], Seen], wake: Wake | None) -> Fleet:
    """The fleet as of now; `seen` gives the signals of a pod's UID, `replicas` is the count in force."""
    found = tuple(_pod(pod, seen) for pod in servers(pods))
    serving = {pod.template for pod in found}
    return Fleet(replicas, found, None, wake, rolling=len(serving) > 1)


def _pod(pod: Object, seen: Callable[[str], Seen]) -> Pod:
    labels, ready = _labels(pod), is_ready(pod)
    return Pod(
        pod["metadata"]["name"],
        labels.get(contract.NODE_TYPE_LABEL, ""),
        labels.get(contract.TEMPLATE_LABEL, ""),
        (_since(pod, "Ready") or 0.0) if ready else None,
        seen(pod["metadata"]["uid"]) if ready else Unknown("it does not serve yet"),
        None if ready or pod.get("spec", {}).get("nodeName") else _since(pod, "PodScheduled", "Unschedulable"),
        _startup_seconds(pod) if ready else None,
    )


def _startup_seconds(pod: Object) -> float | None:
    """From created to serving. A container that was started again became ready anew: that tells nothing."""
    statuses = pod.get("status", {}).get("containerStatuses") or ()
    begun, ready = pod["metadata"].get("creationTimestamp"), _since(pod, "Ready")
    if begun is None or ready is None or any(item.get("restartCount") for item in statuses):
        return None
    return max(0.0, ready - datetime.fromisoformat(begun).timestamp())


def _labels(pod: Mapping[str, Any]) -> Mapping[str, str]:
    return pod["metadata"].get("labels") or {}


def _since(pod: Object, kind: str, reason: str | None = None) -> float | None:
    for condition in pod.get("status", {}).get("conditions") or ():
        if condition.get("type") == kind and reason in (None, condition.get("reason")):
            text = condition.get("lastTransitionTime")
            return datetime.fromisoformat(text).timestamp() if text else None
    return None


def engaged(spec: InferenceServiceSpec, wake: Wake | None) -> bool:
    """Whether load has a say: the service leaves a range, or another scaler wants a recommendation."""
    scaling = spec.scaling
    if scaling.mode == ScalingMode.EXTERNAL:
        return True
    if scaling.mode != ScalingMode.OPERATOR:
        return False
    sleeps = scaling.min_replicas == 0 and wake is not None
    return sleeps or (scaling.max_replicas or 1) > max(1, scaling.min_replicas)


def policy_settings(spec: InferenceServiceSpec) -> PolicySettings:
    """The policy's settings from the spec. Another scaler has bounds of its own."""
    scaling = spec.scaling
    most = scaling.max_replicas or max(1, scaling.min_replicas)
    if scaling.mode == ScalingMode.EXTERNAL and scaling.max_replicas is None:
        most = MAX_REPLICAS
    return PolicySettings(
        scaling.min_replicas,
        most,
        scaling.target_utilization_percent / 100,
        None if scaling.scale_down_seconds is None else float(scaling.scale_down_seconds),
        float(scaling.idle_seconds),
    )
