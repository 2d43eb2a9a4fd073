"""Whether a live object differs from its desired manifest.

Subset comparison: the API server adds defaults, so only fields that the manifest names are compared – with quantities
by value, and lists of maps by their items' names. In a pod template every container and volume must be ours.
"""

from __future__ import annotations

from typing import Any

from .facts import Manifest, digest
from .quantities import quantity
from .server_contract import MANIFEST_HASH

_ITEM_KEYS = ("name", "type", "mountPath", "containerPort", "uid", "key")
_CLOSED_LISTS = ("containers", "initContainers", "volumes", "ephemeralContainers")


def stamped(manifest: Manifest) -> Manifest:
    """The manifest with the annotation that holds its own hash."""
    metadata = manifest["metadata"]
    annotations = {key: value for key, value in (metadata.get("annotations") or {}).items() if key != MANIFEST_HASH}
    plain = {**manifest, "metadata": {**metadata, "annotations": annotations}}
    return {**plain, "metadata": {**metadata, "annotations": {**annotations, MANIFEST_HASH: digest(plain, 16)}}}


def _item_key(items: list[Any]) -> str | None:
    for key in _ITEM_KEYS:
        values = [item.get(key) if isinstance(item, dict) else None for item in items]
        if values and None not in values and len(set(map(str, values))) == len(values):
            return key
    return None


def _amounts(path: str) -> bool:
    return path.endswith((".requests", ".limits", ".allocatable", ".capacity"))


def _compare(desired: Any, live: Any, path: str) -> str | None:
    if isinstance(desired, dict):
        if not isinstance(live, dict):
            # An empty map is dropped by the API server.
            return None if not desired and live is None else f"{path} is missing"
        for name, value in desired.items():
            there = f"{path}.{name}" if path else name
            if (
                _amounts(path)
                and name in live
                and quantity(value) is not None
                and quantity(value) == quantity(live[name])
            ):
                continue
            found = _compare(value, live.get(name), there)
            if found:
                return found
            if name in _CLOSED_LISTS and isinstance(value, list):
                ours = {item.get("name") for item in value}
                foreign = [str(item.get("name")) for item in live.get(name) or () if item.get("name") not in ours]
                if foreign:
                    return f"{there} has foreign entries: {', '.join(foreign)}"
        if "containers" in desired:
            for name in _CLOSED_LISTS:
                if name not in desired and live.get(name):
                    return f"{path}.{name} has foreign entries"
        return None
    if isinstance(desired, list):
        if not isinstance(live, list):
            return None if not desired and live is None else f"{path} is missing"
        key = _item_key(desired)
        if key is not None:
            by_key = {str(item.get(key)): item for item in live if isinstance(item, dict)}
            for item in desired:
                if str(item[key]) not in by_key:
                    return f"{path}[{item[key]}] is missing"
                found = _compare(item, by_key[str(item[key])], f"{path}[{item[key]}]")
                if found:
                    return found
            return None
        if len(desired) != len(live):
            return f"{path} has {len(live)} entries instead of {len(desired)}"
        pairs = enumerate(zip(desired, live, strict=True))
        return next((found for i, (a, b) in pairs if (found := _compare(a, b, f"{path}[{i}]"))), None)
    if desired == live and isinstance(desired, bool) == isinstance(live, bool):
        return None
    # The API server leaves out fields that hold their zero value.
    if live is None and desired in (None, "", 0, False):
        return None
    return f"{path} is {live!r} instead of {desired!r}"


def difference(desired: Manifest, live: Manifest | None) -> str | None:
    """Why the live object must be applied again; None when it is as desired."""
    if live is None:
        return "it does not exist"
    marks = [(item["metadata"].get("annotations") or {}).get(MANIFEST_HASH) for item in (desired, live)]
    if marks[0] != marks[1]:
        return "its manifest changed"
    return _compare({key: value for key, value in desired.items() if key not in ("apiVersion", "kind")}, live, "")
