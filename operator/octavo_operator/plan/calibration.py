"""The calibration Job: on a node of the type, in the image that serves there, beside the serving replicas."""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from octavo_operator.api.engine_section import BLOCK_SIZES_TOKENS
from octavo_operator.api.inference_service import InferenceServiceSpec

from . import server_contract as contract
from .affinity import affinity
from .facts import Facts, Manifest
from .node_types import NodeType
from .objects import owned
from .pods import environment, place, pod_of, program_container, scratch
from .stranded import unschedulable_since

WAIT_FOR_NODE_SECONDS = 120.0
"""A calibration that finds no node by then gives way: replicas come first."""
WAIT_FOR_POD_SECONDS = 60.0
"""Within which a Job has a pod, or something does not let it have one."""
OVERTIME_SECONDS = 600.0
"""Beyond its budget a calibration may take so long to start Python and to compile its first kernels."""
_WAITING_FAULTS = ("ErrImagePull", "ImagePullBackOff", "InvalidImageName", "CreateContainerError")


@dataclass(frozen=True)
class CalibrationResult:
    """How a calibration ended."""

    found: dict[str, Any] | None
    """Its result; None when it failed."""
    reason: str = ""
    message: str = ""


def job_name(service: str, profile: str) -> str:
    """Name of the Job that measures a profile for a service."""
    return f"{service}-{profile}"


def calibration_job(
    facts: Facts, spec: InferenceServiceSpec, node_type: NodeType, profile: str, key: Manifest
) -> Manifest:
    """The Job; one that exists is taken as it is, since its template can't change."""
    service = facts.service["metadata"]["name"]
    name = job_name(service, profile)
    labels = {
        contract.SERVICE_LABEL: service,
        contract.ROLE_LABEL: contract.ROLE_CALIBRATION,
        contract.MANAGED_BY_LABEL: contract.FIELD_MANAGER,
    }
    live = facts.owned_of("Job").get(name)
    if live is not None:
        job = owned(facts, "batch/v1", "Job", name, labels=labels, spec=live["spec"])
        mark = (live["metadata"].get("annotations") or {}).get(contract.MANIFEST_HASH)
        if mark:
            job["metadata"]["annotations"] = {contract.MANIFEST_HASH: mark}
        return job
    shape = key["shape"]
    numbers = ",".join(str(shape[part]) for part in ("layers", "queryHeads", "kvHeads", "headSize"))
    cpu = node_type.key.is_cpu
    arguments = ["calibrate", "--shape", numbers, "--device", "CPU" if cpu else "Auto"]
    arguments += ["--dtype", shape["dtype"], "--kv-dtype", shape["cacheDtype"]]
    arguments += ["--budget-seconds", str(facts.settings.calibration_seconds)]
    resources: Manifest = {"requests": {"cpu": "500m" if cpu else "1", "memory": "1Gi" if cpu else "4Gi"}}
    if not cpu:
        resources["requests"][node_type.key.resource] = "1"
        resources["limits"] = {node_type.key.resource: "1"}
    image = node_type.choice.image
    assert image is not None, "a resolved type has an image"
    volumes, mounts = scratch()
    container = program_container(
        contract.CALIBRATION_CONTAINER,
        image.image,
        arguments,
        environment(),
        resources,
        mounts,
    )
    pod: Manifest = {
        **pod_of(service),
        "restartPolicy": "Never",
        "affinity": affinity(node_type.key),
        "containers": [container],
        "volumes": volumes,
    }
    place(pod, spec.placement, node_type.key)
    if facts.settings.calibration_priority_class:
        # Below every replica: one that needs the place takes it.
        pod["priorityClassName"] = facts.settings.calibration_priority_class
    template = {"metadata": {"labels": labels}, "spec": pod}
    return owned(facts, "batch/v1", "Job", name, labels=labels, spec={"backoffLimit": 0, "template": template})


def read_calibration(facts: Facts, job: Manifest) -> CalibrationResult | None:
    """How a calibration ended; None while it runs."""
    name = job["metadata"]["name"]
    pods = [
        pod
        for pod in facts.pods
        if any(o.get("name") == name and o.get("kind") == "Job" for o in pod["metadata"].get("ownerReferences") or ())
    ]
    ended = [result for pod in pods if (result := _pod_ended(facts, pod)) is not None]
    if ended:
        return next((result for result in ended if result.found is not None), ended[0])
    done = {c["type"] for c in job.get("status", {}).get("conditions") or () if c.get("status") == "True"}
    if done & {"Failed", "Complete"}:
        return CalibrationResult(None, "CalibrationFailed", "the calibration ended and its pod is gone")
    made = job["metadata"].get("creationTimestamp")
    if not pods and made and _age(facts, made) > WAIT_FOR_POD_SECONDS:
        why = (
            f"no pod was made for the Job {name}; an admission rule, a quota or a missing priority class may refuse it"
        )
        return CalibrationResult(None, "PodRefused", f"{why}: kubectl describe job {name}")
    return None


def _pod_ended(facts: Facts, pod: Manifest) -> CalibrationResult | None:
    """How a calibration's pod ended or why it never will; None while it runs."""
    status = pod.get("status", {})
    taken = next((c for c in status.get("conditions") or () if c.get("type") == "DisruptionTarget"), None)
    for container in status.get("containerStatuses") or ():
        state = container.get("state", {})
        ended, running, waiting = state.get("terminated"), state.get("running"), state.get("waiting") or {}
        if ended is not None:
            result = _ended(ended)
            return _displaced(taken) if result.found is None and taken is not None else result
        if waiting.get("reason") in _WAITING_FAULTS:
            message = f"the pod can't start: {waiting.get('message') or waiting['reason']}"
            return CalibrationResult(None, str(waiting["reason"]), message)
        budget = facts.settings.calibration_seconds + OVERTIME_SECONDS
        if running is not None and running.get("startedAt") and _age(facts, running["startedAt"]) > budget:
            message = (
                f"it did not end within {budget:.0f} s (calibration.seconds and {OVERTIME_SECONDS:.0f} s for compiling)"
            )
            return CalibrationResult(None, "TookTooLong", message)
    if taken is not None and taken.get("status") == "True":
        return _displaced(taken)
    since = unschedulable_since(pod)
    if since is not None and (facts.now - since).total_seconds() > WAIT_FOR_NODE_SECONDS:
        return CalibrationResult(None, "NoFreeNode", f"no node was free for {WAIT_FOR_NODE_SECONDS:.0f} s")
    return None


def _displaced(condition: Manifest) -> CalibrationResult:
    """Somebody else needed the place: a replica, a drain of the node."""
    return CalibrationResult(None, "GaveWay", f"it gave way: {condition.get('message') or condition.get('reason', '')}")


def _age(facts: Facts, since: str) -> float:
    return (facts.now - datetime.fromisoformat(since.replace("Z", "+00:00"))).total_seconds()


def _ended(state: Manifest) -> CalibrationResult:
    try:
        told = json.loads(state.get("message") or "")
    except ValueError:
        told = None
    if not isinstance(told, dict):
        message = f"it ended with exit code {state.get('exitCode')} ({state.get('reason', 'Error')}) and no result"
        return CalibrationResult(None, "CalibrationFailed", message)
    if told.get("ok") is True and told.get("blockSize") in BLOCK_SIZES_TOKENS:
        return CalibrationResult(told)
    return CalibrationResult(None, str(told.get("reason") or "CalibrationFailed"), str(told.get("message", "")))
