"""What the operator keeps of an object: the parts that plans read, with equal texts kept once.

Thousands of objects say the same words. Each arrives as a text of its own, so that without this every object would
bring its own copy of every field's name.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import Any

from octavo_operator.cluster.resources import NODES, PODS, Resource
from octavo_operator.plan.server_contract import SERVICE_LABEL

Object = dict[str, Any]

_POD_SPEC = ("nodeName", "containers", "initContainers", "overhead", "resources")
_CONTAINER_STATUS = ("name", "ready", "restartCount", "started", "state", "lastState")
_POD_STATUS = ("phase", "reason", "message", "conditions", "podIP", "startTime")
_NODE_STATUS = ("allocatable", "conditions")
_NEIGHBOUR = ("name", "namespace", "uid", "resourceVersion", "deletionTimestamp")
_LONGEST_SHARED = 256
"""Longer texts are rarely equal."""


def _only(item: Object, keys: Iterable[str]) -> Object:
    return {key: item[key] for key in keys if key in item}


def shared(value: Any) -> Any:
    """An equal value whose short texts are the same objects as in all others."""
    kind = type(value)
    if kind is dict:
        return {sys.intern(key): shared(part) for key, part in value.items()}
    if kind is str:
        return sys.intern(value) if len(value) <= _LONGEST_SHARED else value
    return [shared(part) for part in value] if kind is list else value


def _pod_spec(item: Object) -> Object:
    spec = _only(item.get("spec", {}), _POD_SPEC)
    for key in ("containers", "initContainers"):
        if spec.get(key):
            spec[key] = [{part: each.get(part) for part in ("name", "resources")} for each in spec[key]]
    return spec


def _pod_status(item: Object) -> Object:
    status = item.get("status", {})
    kept = _only(status, _POD_STATUS)
    for key in ("containerStatuses", "initContainerStatuses"):
        if status.get(key):
            kept[key] = [_only(each, _CONTAINER_STATUS) for each in status[key]]
    return kept


def trimmed(resource: Resource, item: Object) -> Object:
    """What plans read of an object; of other people's pods only what they take from a node."""
    metadata = {key: value for key, value in item["metadata"].items() if key != "managedFields"}
    kept = {**item, "apiVersion": resource.api_version, "kind": resource.kind, "metadata": metadata}
    if resource is NODES:
        kept["status"] = _only(item.get("status", {}), _NODE_STATUS)
    if resource is PODS:
        kept["spec"] = _pod_spec(item)
        if SERVICE_LABEL in (metadata.get("labels") or {}):
            kept["status"] = _pod_status(item)
        else:
            kept["status"] = {"phase": item.get("status", {}).get("phase")}
            kept["metadata"] = _only(metadata, _NEIGHBOUR)
    found: Object = shared(kept)
    return found
