"""The rights that the operator needs: its start gate asks for each, and the chart grants exactly these."""

from __future__ import annotations

from dataclasses import dataclass

from .resources import OWNED

_READ = ("get", "list", "watch")
_OWN = (*_READ, "create", "patch", "delete")


@dataclass(frozen=True)
class Permission:
    """One right; `resource` may name a subresource as `resource/subresource`."""

    group: str
    resource: str
    verb: str


def _rights(group: str, resource: str, verbs: tuple[str, ...]) -> tuple[Permission, ...]:
    return tuple(Permission(group, resource, verb) for verb in verbs)


WATCHED = (
    *_rights("serving.octavo.dev", "inferenceservices", (*_READ, "patch")),
    *_rights("serving.octavo.dev", "inferenceservices/status", ("patch",)),
    *_rights("serving.octavo.dev", "tuningprofiles", (*_READ, "create", "patch")),
    *_rights("serving.octavo.dev", "tuningprofiles/status", ("patch",)),
    *(right for item in OWNED for right in _rights(item.group, item.plural, _OWN)),
    *_rights("", "pods", (*_READ, "patch")),
    *_rights("", "persistentvolumeclaims", _READ),
    *_rights("", "events", ("create", "patch")),
)
"""In every watched namespace, or in all."""
NODE_RIGHTS = _rights("", "nodes", _READ)
"""By a ClusterRole, unless nodes.access is off."""
OWN_NAMESPACE = _rights("coordination.k8s.io", "leases", ("get", "create", "update"))
"""In the operator's own namespace."""
