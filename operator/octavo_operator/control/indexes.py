"""Objects of the cluster in memory, and which services a change concerns. Holds what the watches and writes brought."""

from __future__ import annotations

from bisect import insort
from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Any

from octavo_operator.cluster.resources import NODES, OWNED, PODS, SERVICES, Resource
from octavo_operator.plan.inventory import Amounts, NodeClass, NodeView, classes
from octavo_operator.plan.inventory import view as read_node
from octavo_operator.plan.server_contract import SERVICE_LABEL

from .interest import Interest
from .usage import Usage

Object = dict[str, Any]
Key = tuple[str, str]
"""Namespace and name of an InferenceService."""


def _version(item: Object) -> int:
    # Opaque by contract of old; ordered by contract since Kubernetes 1.35.
    return int(item["metadata"].get("resourceVersion") or 0)


def node_matters(item: Object) -> tuple[Any, ...]:
    """The part of a Node that plans read; heartbeats change none of it."""
    spec, status = item.get("spec", {}), item.get("status", {})
    ready = [c.get("status") for c in status.get("conditions") or () if c.get("type") == "Ready"]
    return (
        item["metadata"].get("labels"),
        spec.get("taints"),
        spec.get("unschedulable"),
        status.get("allocatable"),
        ready,
    )


class Indexes:
    """All watched objects by kind, namespace and name; owned objects and pods also by their service."""

    def __init__(self) -> None:
        self._items: dict[str, dict[Key, Object]] = defaultdict(dict)
        self._interest, self._usage = Interest(), Usage()
        self._views: dict[str, NodeView] = {}
        self._node_names: list[str] = []
        self._sorted_views: tuple[NodeView, ...] | None = None
        self._classes: list[NodeClass] = []
        self._by_service: dict[Key, dict[tuple[str, str], Object]] = defaultdict(dict)
        # UIDs that were told as deleted, with the version of that word: a list that is older still holds the object.
        self._gone: dict[str, dict[str, int]] = defaultdict(dict)

    def store(self, resource: Resource, item: Object) -> set[Key]:
        """Keep an object, cut to what plans read (`trimmed`), unless a newer state of it is known; returns the services
        to reconcile."""
        key = _key(item)
        known = self._items[resource.kind].get(key)
        if known is not None and _version(known) >= _version(item):
            return set()
        if _version(item) <= self._gone[resource.kind].get(item["metadata"]["uid"], -1):
            return set()
        before: set[Key] = set()
        if known is not None:
            former = self._unlink(resource, known)
            # An object whose label was changed or taken away concerns the service that it leaves, too.
            before = {former} if former is not None else set()
        self._items[resource.kind][key] = item
        service = _service_of(item)
        if service is not None:
            self._by_service[service][(resource.kind, key[1])] = item
        if resource is NODES:
            if known is not None and node_matters(known) == node_matters(item):
                return set()
            return self._interest.concerned(self._read_node(key[1], item))
        if resource is SERVICES:
            self._interest.add(key, item.get("spec") or {})
        elif resource is PODS:
            self._usage.put(key, item)
        return before | self._concerned(resource, item)

    def _read_node(self, name: str, item: Object | None) -> list[NodeView]:
        """Take over a Node (None: it is gone); returns its states before and after."""
        before = self._views.get(name)
        states = [] if before is None else [before]
        if item is not None:
            self._views[name] = read_node(item)
            states.append(self._views[name])
            if before is None:
                insort(self._node_names, name)
        elif before is not None:
            del self._views[name]
            self._node_names.remove(name)
        self._sorted_views = None
        return states

    def views(self) -> tuple[NodeView, ...]:
        """Nodes, read, in the order of their names."""
        if self._sorted_views is None:
            self._sorted_views = tuple(map(self._views.__getitem__, self._node_names))
            self._classes = classes(self._sorted_views)
        return self._sorted_views

    def classes(self) -> list[NodeClass]:
        """Nodes by class."""
        self.views()
        return self._classes

    def usage(self) -> Mapping[str, Amounts]:
        """What pods take from each node."""
        return self._usage.by_node

    def get(self, kind: str, key: Key) -> Object | None:
        """Any object of a watched kind."""
        return self._items[kind].get(key)

    def _unlink(self, resource: Resource, known: Object) -> Key | None:
        service = _service_of(known)
        if service is not None:
            self._by_service[service].pop((resource.kind, known["metadata"]["name"]), None)
            if not self._by_service[service]:
                del self._by_service[service]
        return service

    def remove(self, resource: Resource, item: Object) -> set[Key]:
        """A watch told that an object was deleted: no older word brings it back; a newer one of the same name stays."""
        self._gone[resource.kind][item["metadata"]["uid"]] = _version(item)
        return self.forget(resource, item)

    def forget(self, resource: Resource, item: Object) -> set[Key]:
        """Take an object out that is gone or about to go; a newer one of the same name stays."""
        key = _key(item)
        known = self._items[resource.kind].get(key)
        if known is None or known["metadata"]["uid"] != item["metadata"]["uid"]:
            return set()
        del self._items[resource.kind][key]
        self._unlink(resource, known)
        if resource is NODES:
            return self._interest.concerned(self._read_node(key[1], None))
        if resource is SERVICES:
            self._interest.remove(key)
        elif resource is PODS:
            self._usage.drop(key)
        return self._concerned(resource, known)

    def replace(self, resource: Resource, items: Iterable[Object], namespace: str | None, version: int) -> set[Key]:
        """Take a complete list of a kind: what is not in it is gone, unless it came after the list was made.

        `version`: the list's own. While a list is on its way watches go on, and they may know better. Returns the
        services to reconcile.
        """
        items = list(items)
        listed = {_key(item) for item in items}
        concerned: set[Key] = set()
        for key, known in list(self._items[resource.kind].items()):
            if key not in listed and namespace in (None, key[0]) and _version(known) <= version:
                concerned |= self.forget(resource, known)
        for item in items:
            concerned |= self.store(resource, item)
        gone = self._gone[resource.kind]
        for uid in [uid for uid, told in gone.items() if told <= version]:
            del gone[uid]
        return concerned

    def _concerned(self, resource: Resource, item: Object) -> set[Key]:
        if resource is SERVICES:
            return {_key(item)}
        service = _service_of(item)
        if service is not None:
            return {service}
        if resource in OWNED:
            # Somebody else's object under a name that a service needs: it came, or is out of the way now.
            return {_key(item)} & self._items[SERVICES.kind].keys()
        if resource.kind in ("PersistentVolumeClaim", "TuningProfile"):
            return {key for key in self._items[SERVICES.kind] if key[0] == item["metadata"].get("namespace")}
        return set()

    def service(self, key: Key) -> Object | None:
        return self._items[SERVICES.kind].get(key)

    def services(self) -> list[Key]:
        return list(self._items[SERVICES.kind])

    def all(self, kind: str, namespace: str | None = None) -> list[Object]:
        return [item for key, item in self._items[kind].items() if namespace in (None, key[0])]

    def owned(self, key: Key, uid: str) -> list[Object]:
        """Objects whose controlling owner is the service with this UID."""
        return [
            item
            for (kind, _), item in self._by_service.get(key, {}).items()
            if kind != "Pod"
            and any(owner.get("uid") == uid for owner in item["metadata"].get("ownerReferences") or ())
            and not item["metadata"].get("deletionTimestamp")
        ]

    def pods(self, key: Key) -> list[Object]:
        return [item for (kind, _), item in self._by_service.get(key, {}).items() if kind == "Pod"]


def _key(item: Object) -> Key:
    return item["metadata"].get("namespace", ""), item["metadata"]["name"]


def _service_of(item: Object) -> Key | None:
    name = (item["metadata"].get("labels") or {}).get(SERVICE_LABEL)
    return (item["metadata"].get("namespace", ""), name) if name else None
