"""The Job that proves a model before a replica starts, and what its pods say."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime

from octavo_operator.api.inference_service import InferenceServiceSpec
from octavo_operator.api.placement_section import CPUPolicy

from . import server_contract as contract
from .admission import VENDOR_TAINTS
from .affinity import vendor_toleration
from .facts import Facts, Manifest, digest
from .model_source import credentials, escaped, for_runtime, is_fetched, model_location, model_volume
from .objects import owned
from .pods import environment, place, pod_of, program_container, scratch

_WAITING_FAULTS = (
    "CreateContainerConfigError",
    "CreateContainerError",
    "ErrImagePull",
    "ImagePullBackOff",
    "InvalidImageName",
)


@dataclass(frozen=True)
class CheckResult:
    """What is known of a model: True = proven, False = refused, None = not yet known."""

    proven: bool | None
    reason: str
    message: str
    retry_seconds: float | None = None
    """When to try again after a refusal; 0 = now; None while an attempt is running."""
    size_bytes: int = 0
    """Size of the model's files; 0 = not told."""
    shape: Mapping[str, int] = field(default_factory=dict)
    """layers, queryHeads, kvHeads, headSize; empty = not told."""


def check_mark(spec: InferenceServiceSpec) -> str:
    """8 hex digits of what is checked: another model, revision, secret, format or length is another check."""
    model = spec.model
    secret = model.secret_ref.name if model.secret_ref else None
    parts = [model.uri, model.revision, secret, model.format.value, model.max_length]
    # What is new counts only where it is used, so that a later version of the operator checks nothing again.
    return digest([*parts, *filter(None, [model.endpoint, *for_runtime(spec.engine.runtime)])], 8)


def check_name(service: str, mark: str, attempt: int) -> str:
    """Name of the Job of an attempt; service names leave no room for a number behind the mark."""
    return f"{service}-check-{mark if attempt == 1 else digest([mark, attempt], 8)}"


def attempt_of(job: Manifest) -> int:
    """Which attempt a check Job is; 1 when it does not say."""
    text = str((job["metadata"].get("annotations") or {}).get(contract.ATTEMPT_ANNOTATION, "1"))
    return int(text) if re.fullmatch("[0-9]{1,6}", text) else 1


def live_check(facts: Facts, spec: InferenceServiceSpec) -> Manifest | None:
    """The Job of the latest attempt, if there is one."""
    mark = check_mark(spec)
    jobs = [
        job
        for job in facts.owned_of("Job").values()
        if (job["metadata"].get("labels") or {}).get(contract.CHECK_LABEL) == mark
    ]
    return max(jobs, key=attempt_of, default=None)


def check_job(facts: Facts, spec: InferenceServiceSpec, image: str, attempt: int) -> Manifest:
    """The Job of an attempt; a Job's template can't change, so one that exists is taken as it is."""
    service, model = facts.service["metadata"]["name"], spec.model
    mark = check_mark(spec)
    name = check_name(service, mark, attempt)
    labels = {contract.SERVICE_LABEL: service, contract.ROLE_LABEL: contract.ROLE_CHECK, contract.CHECK_LABEL: mark}
    labels[contract.MANAGED_BY_LABEL] = contract.FIELD_MANAGER
    live = facts.owned_of("Job").get(name)
    if live is not None:
        job = owned(facts, "batch/v1", "Job", name, labels=labels, spec=live["spec"])
        kept = (contract.MANIFEST_HASH, contract.ATTEMPT_ANNOTATION)
        marks = {key: text for key, text in (live["metadata"].get("annotations") or {}).items() if key in kept}
        if marks:
            job["metadata"]["annotations"] = marks
        return job
    source = model.uri if is_fetched(model) else model_location(model)
    arguments = ["fetch", "--check", "--model", escaped(source), "--format", model.format.value]
    arguments += ["--max-length", str(model.max_length), *for_runtime(spec.engine.runtime)]
    if model.revision:
        arguments += ["--revision", escaped(model.revision)]
    volumes, mounts = scratch()
    # The claim of a cache is not mounted: on a volume for one node at a time it could keep the check from starting.
    model_volumes, model_mounts = ([], []) if is_fetched(model) else model_volume(model)
    container = program_container(
        contract.CHECK_CONTAINER,
        image,
        arguments,
        [*environment(), *credentials(model, facts.settings.proxy)],
        {"requests": {"cpu": "100m", "memory": "256Mi"}},
        mounts + model_mounts,
    )
    pod: Manifest = {
        **pod_of(service),
        "restartPolicy": "Never",
        "containers": [container],
        "volumes": volumes + model_volumes,
    }
    place(pod, spec.placement)
    if model_volumes and spec.placement.cpu != CPUPolicy.REQUIRED:
        # A volume of accelerators' nodes can be mounted nowhere else; the check itself takes no accelerator.
        found = pod.setdefault("tolerations", [])
        found += [item for item in map(vendor_toleration, VENDOR_TAINTS) if item not in found]
    template = {"metadata": {"labels": labels}, "spec": pod}
    job = owned(facts, "batch/v1", "Job", name, labels=labels, spec={"backoffLimit": 1, "template": template})
    if attempt > 1:
        job["metadata"]["annotations"] = {contract.ATTEMPT_ANNOTATION: str(attempt)}
    return job


def _instant(text: str) -> datetime:
    return datetime.fromisoformat(text.replace("Z", "+00:00"))


def _told(text: str) -> Manifest | None:
    try:
        value = json.loads(text)
    except ValueError:
        return None
    return value if isinstance(value, dict) and isinstance(value.get("reason"), str) else None


def _pod_result(pod: Manifest) -> CheckResult | None:
    """What one check pod says; None while it says nothing."""
    status = pod.get("status", {})
    for container in status.get("containerStatuses") or ():
        state = container.get("state", {})
        waiting, ended = state.get("waiting", {}), state.get("terminated")
        if waiting.get("reason") in _WAITING_FAULTS:
            message = f"the check pod can't start: {waiting.get('message') or waiting['reason']}"
            return CheckResult(False, waiting["reason"], message)
        if ended is not None:
            told = _told(ended.get("message") or "")
            if told is not None:
                fine = told.get("ok") is True and ended.get("exitCode") == 0
                size = told.get("sizeBytes")
                message = str(told.get("message", ""))
                shape = told.get("shape") or {}
                known = isinstance(shape, dict) and all(isinstance(part, int) for part in shape.values())
                return CheckResult(
                    fine,
                    told["reason"],
                    message,
                    size_bytes=size if isinstance(size, int) else 0,
                    shape=shape if known else {},
                )
            if ended.get("exitCode") == 0:
                return CheckResult(True, "ModelFound", "the model was checked")
            what = f"exit code {ended.get('exitCode')} ({ended.get('reason', 'Error')})"
            return CheckResult(False, "CheckFailed", f"the check ended without a result: {what}; see the pod's log")
    for condition in status.get("conditions") or ():
        if condition.get("type") == "PodScheduled" and condition.get("status") == "False":
            return CheckResult(
                None, "CheckUnschedulable", f"the check pod waits for a node: {condition.get('message', '')}"
            )
    return None


def read_check(facts: Facts, spec: InferenceServiceSpec) -> CheckResult:
    """The result of the model's check from the Job and its pods."""
    job = live_check(facts, spec)
    if job is None:
        return CheckResult(None, "CheckPending", f"the model {spec.model.uri} is being checked")
    name = job["metadata"]["name"]
    ended = {c["type"]: c for c in job.get("status", {}).get("conditions") or () if c.get("status") == "True"}
    pods = [
        pod
        for pod in facts.pods
        if any(o.get("name") == name and o.get("kind") == "Job" for o in pod["metadata"].get("ownerReferences") or ())
    ]
    pods.sort(key=lambda pod: (str(pod["metadata"].get("creationTimestamp", "")), str(pod["metadata"]["name"])))
    results = [result for pod in pods if (result := _pod_result(pod)) is not None]
    proven = next((result for result in results if result.proven), None)
    if proven or "Complete" in ended:
        return proven or CheckResult(True, "ModelFound", "the model was checked")
    # A second attempt that has not spoken yet does not hide what the first one said.
    told = [result for result in results if result.proven is not None] or results
    result = told[-1] if told else CheckResult(None, "CheckPending", f"the model {spec.model.uri} is being checked")
    if "Failed" not in ended:
        return result
    since = (
        facts.now - _instant(ended["Failed"].get("lastTransitionTime") or job["metadata"]["creationTimestamp"])
    ).total_seconds()
    wait = min(
        facts.settings.check_longest_retry_seconds, facts.settings.check_retry_seconds * 2 ** (attempt_of(job) - 1)
    )
    rest = max(0.0, wait - since)
    if result.proven is None:
        result = CheckResult(False, "CheckFailed", f"the check Job {name} failed and its pods are gone")
    return CheckResult(False, result.reason, result.message, rest)
