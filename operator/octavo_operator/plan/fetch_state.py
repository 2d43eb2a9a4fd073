"""What is told of model files while pods fetch them, and of the claim that keeps them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from octavo_operator.api.inference_service import InferenceServiceSpec
from octavo_operator.api.operation_section import ScalingMode
from octavo_operator.status.conditions import Verdict

from . import server_contract as contract
from .facts import Facts, Manifest
from .model_source import is_fetched
from .quantities import quantity
from .rollout import is_server

_SINGLE_NODE = ("ReadWriteOnce", "ReadWriteOncePod")
_GIB = 1024**3


def is_fetching(pod: Manifest) -> bool:
    """Whether the container that fetches runs in this pod."""
    found = pod.get("status", {}).get("initContainerStatuses") or ()
    return any(
        item.get("name") == contract.FETCH_CONTAINER and "running" in (item.get("state") or {}) for item in found
    )


def fetching(facts: Facts, spec: InferenceServiceSpec) -> Verdict | None:
    """ModelReady while pods fetch the model; None when none does."""
    if not is_fetched(spec.model):
        return None
    pods = sorted(
        (pod for pod in facts.pods if is_server(pod) and is_fetching(pod)), key=lambda pod: str(pod["metadata"]["name"])
    )
    if not pods:
        return None
    told = [(pod, facts.progress.get(pod["metadata"]["uid"])) for pod in pods]
    # The pod that is furthest behind is the one that is waited for.
    pod, report = min(told, key=lambda item: _share(item[1]))
    more = f" (and {len(pods) - 1} more)" if len(pods) > 1 else ""
    words = in_words(report) if report else "its size is not known yet"
    message = f"{words}; pod {pod['metadata']['name']}{more} fetches {spec.model.uri}"
    return Verdict("ModelReady", False, "Fetching", message)


def _share(report: Mapping[str, Any] | None) -> float:
    if not report or not report.get("totalBytes"):
        return 0.0
    return float(report["presentBytes"]) / float(report["totalBytes"])


def in_words(report: Mapping[str, Any]) -> str:
    """`37 % of 15.2 GiB`; without speed and time left, so that status is written once a percent and not more often."""
    total = int(report.get("totalBytes") or 0)
    if not total:
        return "its size is not known yet"
    words = f"{int(100 * _share(report))} % of {size(total)}"
    if report.get("state") == "Waiting":
        words += ", another pod fetches the rest"
    elif report.get("state") == "Verifying":
        words += ", verifying"
    if report.get("interruptions"):
        words += ", resumed after the connection broke"
    return words


def size(count: int) -> str:
    """`15.2 GiB` or `94 MiB`."""
    return f"{count / _GIB:.1f} GiB" if count >= _GIB else f"{count / 1024**2:.0f} MiB"


def claim_trouble(facts: Facts, spec: InferenceServiceSpec, size_bytes: int) -> Verdict | None:
    """What speaks against model.cacheClaim before a pod starts; None when nothing does or nothing is known."""
    name = spec.model.cache_claim
    if name is None or not is_fetched(spec.model) or not facts.claims:
        return None
    claim = next((item for item in facts.claims if item["metadata"]["name"] == name), None)
    if claim is None:
        message = f"model.cacheClaim names the claim {name}, which does not exist in this namespace; create it"
        return Verdict("ModelReady", False, "ClaimNotFound", message)
    capacity = str((claim.get("status", {}).get("capacity") or {}).get("storage", ""))
    room = int(quantity(capacity) or 0)
    if size_bytes and room and room < size_bytes:
        message = f"the model has {size(size_bytes)} and the claim {name} (model.cacheClaim) {size(room)}; enlarge it"
        return Verdict("ModelReady", False, "NoSpaceLeft", message)
    return None


def claim_warning(facts: Facts, spec: InferenceServiceSpec) -> Verdict | None:
    """A claim for one node at a time under a service with several replicas: they share a node, or wait for ever."""
    name = spec.model.cache_claim
    claim = next((item for item in facts.claims if item["metadata"]["name"] == name), None)
    modes = (claim or {}).get("spec", {}).get("accessModes") or ()
    if claim is None or not modes or not set(modes) <= set(_SINGLE_NODE) or most_replicas(spec) < 2:
        return None
    message = (
        f"the claim {name} (model.cacheClaim) is {', '.join(modes)}: all replicas must run on one node, and a replica "
        "elsewhere does not start; use a ReadWriteMany claim, or none"
    )
    return Verdict("ModelReady", True, "ClaimOnOneNode", message)


def most_replicas(spec: InferenceServiceSpec) -> int:
    """Replicas that the service may have."""
    if spec.scaling.mode == ScalingMode.OPERATOR:
        return max(spec.scaling.min_replicas, spec.scaling.max_replicas or 1)
    return max(spec.replicas or 1, spec.scaling.max_replicas or 1)
