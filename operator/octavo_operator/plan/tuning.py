"""Measured block sizes: which TuningProfile counts for a node type, and the calibration Job that makes one.

A profile is made once per key and namespace, by the first service that needs it; others with the same key wait for it
and use it. It belongs to nobody, so that it outlives the service that had it measured.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from octavo_operator.api.engine_section import Runtime
from octavo_operator.api.inference_service import InferenceServiceSpec
from octavo_operator.status.conditions import timestamp

from . import server_contract as contract
from .calibration import CalibrationResult, calibration_job, job_name, read_calibration
from .facts import CatalogueImage, Facts, Manifest
from .manifest import digest
from .node_types import NodeType

API_VERSION, KIND = "serving.octavo.dev/v1alpha1", "TuningProfile"
CLAIM_MARGIN_SECONDS = 900.0
"""Beyond its budget a calibration may wait for a node and an image so long before another service takes it over."""
LONGEST_RETRY_SECONDS = 24 * 3600
KEPT_FAILURES = 10


@dataclass(frozen=True)
class Measured:
    """What is known of a node type's block size."""

    block_size_tokens: int
    reason: str
    exact: bool = True
    """Whether it was measured for this very key; else it is estimated from a near one."""
    launch_table: str = ""
    """Launch configurations measured with it; empty = none."""


@dataclass(frozen=True)
class Tuning:
    """Steps towards measured block sizes."""

    jobs: tuple[Manifest, ...] = ()
    profiles: tuple[Manifest, ...] = ()
    """Profiles to write, complete with status: only those that differ from what is there."""
    waiting: str = ""
    """What is being measured or waited for; empty when nothing is."""
    requeue_seconds: float | None = None


@dataclass(frozen=True)
class _Draft:
    jobs: list[Manifest] = field(default_factory=list)
    profiles: list[Manifest] = field(default_factory=list)
    waiting: list[str] = field(default_factory=list)
    due: list[float] = field(default_factory=list)


def _catalogued(facts: Facts, node_type: NodeType) -> CatalogueImage | None:
    """The catalogue's entry of the image that serves there: what is inside of others is not known."""
    image = node_type.choice.image
    return next((item for item in facts.settings.images if image and item.image == image.image), None)


def profile_spec(facts: Facts, spec: InferenceServiceSpec, node_type: NodeType, shape: Mapping[str, int]) -> Manifest:
    """The key of a node type, a model's shape and the versions of what is measured."""
    image = _catalogued(facts, node_type)
    key: Manifest = {
        "product": node_type.key.product,
        "shape": {
            **{name: int(shape[name]) for name in ("layers", "queryHeads", "kvHeads", "headSize")},
            "dtype": spec.engine.dtype.value,
            "cacheDtype": spec.engine.kv_cache.dtype.value,
        },
        "kernelsVersion": contract.KERNELS_VERSION,
        "tritonVersion": (image.triton if image else "") or "none",
    }
    if not node_type.key.is_cpu:
        key |= {"computeCapability": node_type.key.capability, "driverCuda": node_type.cuda}
    return {name: value for name, value in key.items() if value}


def profile_name(key: Manifest) -> str:
    """One name per key."""
    return f"tuned-{digest(key, 10)}"


def tunes(facts: Facts, spec: InferenceServiceSpec, node_type: NodeType, shape: Mapping[str, int]) -> bool:
    """Whether block sizes are measured for this service on this type."""
    mode = facts.settings.calibration
    if mode == "Off" or (mode == "Accelerators" and node_type.key.is_cpu):
        return False
    if _catalogued(facts, node_type) is None:
        return False
    free = spec.engine.runtime == Runtime.OCTAVO and not spec.engine.kv_cache.block_size
    return free and all(shape.get(name, 0) > 0 for name in ("layers", "queryHeads", "kvHeads", "headSize"))


def measured(
    facts: Facts, spec: InferenceServiceSpec, types: Sequence[NodeType], shape: Mapping[str, int]
) -> dict[str, Measured]:
    """By label of the type: the block size of its profile, else an estimate from the nearest one."""
    found: dict[str, Measured] = {}
    for node_type in types:
        if not tunes(facts, spec, node_type, shape):
            continue
        key = profile_spec(facts, spec, node_type, shape)
        done = [item for item in facts.profiles if (item.get("status") or {}).get("blockSize")]
        exact = next((item for item in done if item.get("spec") == key), None)
        near = min((item for item in done if _is_near(item, key)), key=lambda item: _distance(item, key), default=None)
        chosen = exact or near
        if chosen is not None:
            status = chosen["status"]
            when = str(status.get("measuredAt", ""))[:10]
            words = f"measured {when} on {chosen['spec']['product']}: {status.get('summary', '')}"
            if exact is None:
                words = f"estimated from {chosen['metadata']['name']}, {words}"
            size, table = int(status["blockSize"]), _launch_table(status)
            found[node_type.label] = Measured(size, words[:256], exact is not None, table)
    return found


def _launch_table(status: Manifest) -> str:
    """The profile's launch configurations; empty for a text that no server would start with."""
    text = str(status.get("launchTable") or "")
    try:
        return text if text and isinstance(json.loads(text), dict) else ""
    except ValueError:
        return ""


def _is_near(profile: Manifest, key: Manifest) -> bool:
    """Same accelerator and size of heads: the same kernels with other counts."""
    other = profile.get("spec") or {}
    same = other.get("product") == key["product"]
    return bool(same and (other.get("shape") or {}).get("headSize") == key["shape"]["headSize"])


def _distance(profile: Manifest, key: Manifest) -> tuple[float, str]:
    ours, theirs = key["shape"], profile["spec"]["shape"]
    ratio = ours["queryHeads"] / ours["kvHeads"] - theirs["queryHeads"] / theirs["kvHeads"]
    heads = abs(ours["kvHeads"] - theirs["kvHeads"])
    return abs(ratio) + heads / max(ours["kvHeads"], theirs["kvHeads"]), str(profile["metadata"]["name"])


def plan_tuning(
    facts: Facts,
    spec: InferenceServiceSpec,
    types: Sequence[NodeType],
    shape: Mapping[str, int],
    spare: Mapping[str, int],
) -> Tuning:
    """The next step for each type in `spare` (replicas that could start there now); off the serving path: only types
    with spare room get a Job."""
    draft = _Draft()
    for node_type in types:
        if node_type.label in spare and tunes(facts, spec, node_type, shape):
            _step(draft, facts, spec, node_type, shape, spare[node_type.label])
    return Tuning(tuple(draft.jobs), tuple(draft.profiles), "; ".join(draft.waiting), min(draft.due, default=None))


def _step(
    draft: _Draft,
    facts: Facts,
    spec: InferenceServiceSpec,
    node_type: NodeType,
    shape: Mapping[str, int],
    spare: int,
) -> None:
    key = profile_spec(facts, spec, node_type, shape)
    service, name = facts.service["metadata"]["name"], profile_name(key)
    profile = next((item for item in facts.profiles if item["metadata"]["name"] == name), None)
    status = (profile or {}).get("status") or {}
    if status.get("blockSize"):
        return
    retry = status.get("retryAfter")
    wait = (_instant(retry) - facts.now).total_seconds() if retry else 0.0
    if wait > 0:
        last = (status.get("failures") or [{}])[-1]
        draft.waiting.append(f"calibration on {node_type.key.product} failed ({last.get('message', '')}); again later")
        draft.due.append(wait)
        return
    job = facts.owned_of("Job").get(job_name(service, name))
    if job is not None:
        result = read_calibration(facts, job)
        if result is None:
            draft.jobs.append(calibration_job(facts, spec, node_type, name, key))
            draft.waiting.append(f"block sizes are being measured on {node_type.key.product}")
            draft.due.append(30.0)
        else:
            # The Job is left out of the plan, and so removed: the profile holds all that it found.
            draft.profiles.append(_told(facts, name, key, status, result, str(_image(job))))
        return
    holder, since = _holder(profile)
    age = (facts.now - since).total_seconds() if since else float("inf")
    if holder and holder != service and age < facts.settings.calibration_seconds + CLAIM_MARGIN_SECONDS:
        draft.waiting.append(f"block sizes are being measured on {node_type.key.product} for the service {holder}")
        draft.due.append(60.0)
        return
    if spare < 1:
        draft.waiting.append(f"block sizes are measured once a {node_type.key.product} is free")
        draft.due.append(60.0)
        return
    draft.profiles.append(_profile(facts, name, key, status, service))
    draft.jobs.append(calibration_job(facts, spec, node_type, name, key))
    draft.waiting.append(f"block sizes are being measured on {node_type.key.product}")


def _image(job: Manifest) -> Any:
    return job["spec"]["template"]["spec"]["containers"][0]["image"]


def _instant(text: str) -> datetime:
    return datetime.fromisoformat(text.replace("Z", "+00:00"))


def _holder(profile: Manifest | None) -> tuple[str, datetime | None]:
    """(service that measures, since when)."""
    marks = ((profile or {}).get("metadata", {}).get("annotations")) or {}
    since = marks.get(contract.CALIBRATING_SINCE)
    return str(marks.get(contract.CALIBRATING, "")), _instant(since) if since else None


def _profile(facts: Facts, name: str, key: Manifest, status: Manifest, holder: str) -> Manifest:
    marks = {contract.CALIBRATING: holder, contract.CALIBRATING_SINCE: timestamp(facts.now)} if holder else {}
    return {
        "apiVersion": API_VERSION,
        "kind": KIND,
        "metadata": {
            "name": name,
            "namespace": facts.service["metadata"]["namespace"],
            "labels": {contract.MANAGED_BY_LABEL: contract.FIELD_MANAGER},
            "annotations": marks,
        },
        "spec": key,
        "status": status,
    }


def _told(facts: Facts, name: str, key: Manifest, status: Manifest, result: CalibrationResult, image: str) -> Manifest:
    if result.found is not None:
        found = result.found
        fresh: Manifest = {
            "blockSize": found["blockSize"],
            "summary": str(found.get("message", ""))[:256],
            "launchTable": str(found.get("launchTable", "")),
            "results": found.get("results") or [],
            "measuredAt": timestamp(facts.now),
            "durationSeconds": int(found.get("seconds") or 0),
            "image": image,
        }
        return _profile(facts, name, key, fresh, "")
    failures = [*(status.get("failures") or []), {
        "time": timestamp(facts.now), "reason": result.reason, "message": result.message[:1024],
    }][-KEPT_FAILURES:]  # fmt: skip
    wait = min(LONGEST_RETRY_SECONDS, 600 * 2 ** (len(failures) - 1))
    retry = timestamp(facts.now + timedelta(seconds=wait))
    return _profile(facts, name, key, {**status, "failures": failures, "retryAfter": retry}, "")
