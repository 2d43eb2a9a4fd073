"""A cluster in memory: an API server at the client's seam, and the controllers, scheduler and kubelets behind it.

It is small where it may be and strict where it counts: server-side apply with removal of fields that are no longer
applied, immutable fields, resource versions, generations, owner references, rolling updates within maxSurge and
maxUnavailable, scheduling by affinity, taints and resources. One `tick` is five seconds; nothing sleeps.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

from octavo_operator.cluster.client import ApiError, Snapshot
from octavo_operator.cluster.resources import BY_KIND, NODES, PODS, SERVICES, Resource, watched
from octavo_operator.control.indexes import Indexes, Key
from octavo_operator.control.reconcile import Reconciler
from octavo_operator.plan import PlanSettings
from octavo_operator.plan.inventory import requests_of, usage_of, view
from octavo_operator.plan.manifest import digest
from octavo_operator.status.conditions import timestamp
from octavo_operator.status.pods import is_ready

Object = dict[str, Any]
TICK = timedelta(seconds=5)
START = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)


def _without(live: Any, old: Any, new: Any) -> Any:
    """`live` without what was applied before and is not any more."""
    if not (isinstance(live, dict) and isinstance(old, dict)):
        return live
    kept = {}
    for key, value in live.items():
        if key in old and key not in (new if isinstance(new, dict) else {}):
            continue
        kept[key] = _without(value, old.get(key), (new or {}).get(key)) if key in old else value
    return kept


def _merged(live: Any, new: Any) -> Any:
    if isinstance(live, dict) and isinstance(new, dict):
        return {**live, **{key: _merged(live.get(key), value) for key, value in new.items()}}
    return copy.deepcopy(new)


class World:
    """Objects, time, and everything that happens without the operator."""

    def __init__(self) -> None:
        self.now = START
        self.objects: dict[tuple[str, str, str], Object] = {}
        self.applied: dict[tuple[str, str, str], Object] = {}
        self.watchers: list[Callable[[Resource, Object, str], None]] = []
        self.ready_after_ticks = 2
        self.serves: Callable[[Object], bool] = lambda _pod: True
        """Whether a started pod becomes ready."""
        self.check_result: Callable[[Object], Object] = lambda _pod: {"ok": True, "reason": "ModelFound", "message": ""}
        self._version, self._uid = 0, 0
        self._age: dict[str, int] = {}

    # Objects

    def put(self, resource: Resource, item: Object) -> Object:
        meta = item["metadata"]
        key = (resource.kind, meta.get("namespace", ""), meta["name"])
        known = self.objects.get(key)
        self._version += 1
        if known is None:
            self._uid += 1
            meta = {**meta, "uid": f"uid-{self._uid}", "creationTimestamp": timestamp(self.now), "generation": 1}
        elif known.get("spec") != item.get("spec"):
            meta = {**meta, "generation": known["metadata"].get("generation", 1) + 1}
        kept = {**item, "kind": resource.kind, "apiVersion": resource.api_version}
        self.objects[key] = {**kept, "metadata": {**meta, "resourceVersion": str(self._version)}}
        self._tell(resource, self.objects[key], "ADDED" if known is None else "MODIFIED")
        return copy.deepcopy(self.objects[key])

    def remove(self, resource: Resource, namespace: str, name: str) -> None:
        key = (resource.kind, namespace, name)
        gone = self.objects.pop(key, None)
        self.applied.pop(key, None)
        if gone is not None:
            self._version += 1
            gone["metadata"]["resourceVersion"] = str(self._version)
            self._tell(resource, gone, "DELETED")

    def get(self, kind: str, name: str, namespace: str = "team") -> Object:
        return self.objects[kind, namespace, name]

    def of_kind(self, kind: str) -> list[Object]:
        return [item for (found, _, _), item in sorted(self.objects.items()) if found == kind]

    def snapshot(self, kind: str) -> Snapshot:
        return Snapshot(copy.deepcopy(self.of_kind(kind)), self._version)

    def _tell(self, resource: Resource, item: Object, event: str) -> None:
        for watcher in list(self.watchers):
            watcher(resource, copy.deepcopy(item), event)

    # What a user does

    def user_applies(self, name: str, spec: Object) -> None:
        known = self.objects.get(("InferenceService", "team", name))
        base = copy.deepcopy(known) if known else {"metadata": {"name": name, "namespace": "team"}}
        self.put(SERVICES, {**base, "spec": copy.deepcopy(spec)})

    def add_node(self, name: str, labels: Object | None = None, taints: Any = (), **resources: str) -> None:
        amounts = {"cpu": "64", "memory": "512Gi", "pods": "110"}
        amounts |= {key.replace("gpu", "nvidia.com/gpu"): value for key, value in resources.items()}
        spec = {"taints": list(taints)} if taints else {}
        body = {"metadata": {"name": name, "labels": labels or {}}, "spec": spec, "status": {"allocatable": amounts}}
        self.put(NODES, body)

    def change_node(self, name: str, **parts: Any) -> None:
        """New labels, spec or status of a node."""
        node = copy.deepcopy(self.objects["Node", "", name])
        if "labels" in parts:
            node["metadata"]["labels"] = parts.pop("labels")
        self.put(NODES, {**node, **parts})

    # What the cluster does

    def pods(self, name: str | None = None) -> list[Object]:
        """Server pods that are not on their way out."""
        return [
            pod
            for pod in self.of_kind("Pod")
            if pod["metadata"]["labels"].get("serving.octavo.dev/role") == "server"
            and not pod["metadata"].get("deletionTimestamp")
            and name in (None, pod["metadata"]["labels"]["serving.octavo.dev/service"])
        ]

    def ready(self, name: str | None = None) -> int:
        return sum(map(is_ready, self.pods(name)))

    def tick(self) -> None:
        self.now += TICK
        self._collect()
        for item in self.of_kind("Deployment"):
            self._roll(item)
        for item in self.of_kind("Job"):
            self._run_job(item)
        self._schedule()
        self._start_pods()

    def _collect(self) -> None:
        for pod in self.of_kind("Pod"):
            if pod["metadata"].get("deletionTimestamp"):
                self.remove(PODS, pod["metadata"]["namespace"], pod["metadata"]["name"])
        uids = {item["metadata"]["uid"] for item in self.objects.values()}
        for (kind, namespace, name), item in sorted(self.objects.items()):
            owners = item["metadata"].get("ownerReferences") or ()
            if owners and not any(owner["uid"] in uids for owner in owners):
                self.remove(BY_KIND[kind], namespace, name)

    def _create_pod(self, owner: Object, template: Object, suffix: str) -> None:
        self._uid += 1
        meta = {
            **template["metadata"],
            "name": f"{owner['metadata']['name']}-{suffix}-{self._uid}",
            "namespace": owner["metadata"]["namespace"],
            "ownerReferences": [
                {"kind": owner["kind"], "name": owner["metadata"]["name"], "uid": owner["metadata"]["uid"]}
            ],
        }
        body = {"metadata": meta, "spec": copy.deepcopy(template["spec"]), "status": {"phase": "Pending"}}
        self.put(PODS, body)

    def _end_pod(self, pod: Object) -> None:
        going = copy.deepcopy(pod)
        going["metadata"]["deletionTimestamp"] = timestamp(self.now)
        self.put(PODS, going)

    def _roll(self, item: Object) -> None:
        spec, uid = item["spec"], item["metadata"]["uid"]
        mark = digest(spec["template"], 6)
        mine = [
            pod
            for pod in self.of_kind("Pod")
            if pod["metadata"]["ownerReferences"][0]["uid"] == uid and not pod["metadata"].get("deletionTimestamp")
        ]
        new = [pod for pod in mine if f"-{mark}-" in pod["metadata"]["name"]]
        old = [pod for pod in mine if pod not in new]
        wanted, update = spec["replicas"], spec["strategy"]["rollingUpdate"]
        least = max(0, wanted - update["maxUnavailable"])
        for _ in range(min(wanted - len(new), wanted + update["maxSurge"] - len(mine))):
            self._create_pod(item, spec["template"], mark)
        for pod in sorted(new, key=is_ready)[: max(0, len(new) - wanted)]:
            self._end_pod(pod)
        spare = len(mine) - least - sum(not is_ready(pod) for pod in new)
        sick = [pod for pod in old if not is_ready(pod)][: max(0, spare)]
        ready = sum(map(is_ready, mine))
        well = [pod for pod in old if is_ready(pod)][: max(0, min(spare - len(sick), ready - least))]
        for pod in (*sick, *well):
            self._end_pod(pod)

    def _run_job(self, item: Object) -> None:
        uid, status = item["metadata"]["uid"], item.get("status") or {}
        if status.get("conditions"):
            return
        pods = [pod for pod in self.of_kind("Pod") if pod["metadata"]["ownerReferences"][0]["uid"] == uid]
        ended = [pod for pod in pods if pod["status"]["phase"] in ("Succeeded", "Failed")]
        if not pods:
            self._create_pod(item, item["spec"]["template"], "x")
        elif ended:
            kind = "Complete" if ended[0]["status"]["phase"] == "Succeeded" else "Failed"
            done = {"type": kind, "status": "True", "lastTransitionTime": timestamp(self.now)}
            self.put(BY_KIND["Job"], {**copy.deepcopy(item), "status": {"conditions": [done]}})

    def _fits(self, pod: Object, node: Object, usage: Any) -> str:
        """Why a pod can't run on a node; empty when it can."""
        spec, labels = pod["spec"], node["metadata"].get("labels") or {}
        if any(labels.get(key) != value for key, value in (spec.get("nodeSelector") or {}).items()):
            return "node selector"
        affinity = spec.get("affinity", {}).get("nodeAffinity", {})
        required = affinity.get("requiredDuringSchedulingIgnoredDuringExecution", {}).get("nodeSelectorTerms")
        if required and not any(all(_matches(rule, labels) for rule in term["matchExpressions"]) for term in required):
            return "node affinity"
        for taint in node.get("spec", {}).get("taints") or ():
            if not any(
                t.get("key") in (None, taint["key"])
                and (t.get("operator") == "Exists" or t.get("value", "") == taint.get("value", ""))
                and t.get("effect") in (None, taint["effect"])
                for t in spec.get("tolerations") or ()
            ):
                return "taint"
        free = view(node)
        if not free.is_open:
            return "unschedulable"
        for name, amount in requests_of(spec).items():
            if free.allocatable.get(name, 0) - usage.get(free.name, {}).get(name, 0) < amount:
                return f"Insufficient {name}"
        return ""

    def _schedule(self) -> None:
        for pod in self.of_kind("Pod"):
            if pod["spec"].get("nodeName") or pod["metadata"].get("deletionTimestamp"):
                continue
            usage = usage_of(self.of_kind("Pod"))
            why = {node["metadata"]["name"]: self._fits(pod, node, usage) for node in self.of_kind("Node")}
            place = next((name for name in sorted(why) if not why[name]), None)
            placed = copy.deepcopy(pod)
            if place is not None:
                placed["spec"]["nodeName"] = place
                placed["status"].pop("conditions", None)
            elif not pod["status"].get("conditions"):
                message = f"0/{len(why)} nodes are available: " + ", ".join(sorted(set(why.values())))
                mark = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": message}
                placed["status"]["conditions"] = [{**mark, "lastTransitionTime": timestamp(self.now)}]
            else:
                continue
            self.put(PODS, placed)

    def _start_pods(self) -> None:
        for pod in self.of_kind("Pod"):
            if not pod["spec"].get("nodeName") or pod["status"]["phase"] in ("Succeeded", "Failed"):
                continue
            uid = pod["metadata"]["uid"]
            age = self._age[uid] = self._age.get(uid, 0) + 1
            started = copy.deepcopy(pod)
            if pod["metadata"]["labels"].get("serving.octavo.dev/role") == "check":
                told = self.check_result(pod)
                end = {"exitCode": 0 if told["ok"] else 2, "message": json.dumps(told)}
                started["status"] = {
                    "phase": "Succeeded" if told["ok"] else "Failed",
                    "containerStatuses": [{"name": "check", "state": {"terminated": end}}],
                }
            elif age >= self.ready_after_ticks and not is_ready(pod) and self.serves(pod):
                started["status"] = {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}
            else:
                continue
            self.put(PODS, started)


def _matches(rule: Object, labels: Object) -> bool:
    value, wanted = labels.get(rule["key"]), rule.get("values") or ()
    if rule["operator"] == "In":
        return value in wanted
    if rule["operator"] == "DoesNotExist":
        return value is None
    if rule["operator"] == "NotIn":
        return value not in wanted
    assert rule["operator"] == "Gt", rule
    return value is not None and value.isdecimal() and int(value) > int(wanted[0])


_IMMUTABLE = {"ControllerRevision": ("data",), "Job": ("spec", "template"), "Deployment": ("spec", "selector")}


def _at(item: Object, path: tuple[str, ...]) -> Any:
    for step in path:
        item = item[step]
    return item


class Api:
    """The client's verbs on a world. `on_call` is asked before each call and told after it; it may raise."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.calls: list[str] = []
        self.before: Callable[[int, str], None] = lambda _number, _call: None
        self.after: Callable[[int, str], None] = lambda _number, _call: None

    def _call(self, verb: str, kind: str, name: str, act: Callable[[], Any]) -> Any:
        number, call = len(self.calls), f"{verb} {kind} {name}"
        self.calls.append(call)
        self.before(number, call)
        result = act()
        self.after(number, call)
        return result

    @property
    def writes(self) -> list[str]:
        return [call for call in self.calls if not call.startswith("list ")]

    async def snapshot(self, resource: Resource, namespace: str | None = None) -> Snapshot:
        return self._call("list", resource.kind, "", lambda: self.world.snapshot(resource.kind))

    async def apply(self, resource: Resource, manifest: Object) -> Object:
        meta = manifest["metadata"]
        return self._call("apply", resource.kind, meta["name"], lambda: self._apply(resource, manifest))

    def _apply(self, resource: Resource, manifest: Object) -> Object:
        meta = manifest["metadata"]
        key = (resource.kind, meta.get("namespace", ""), meta["name"])
        live = self.world.objects.get(key)
        if live is None:
            self.world.applied[key] = copy.deepcopy(manifest)
            return self.world.put(resource, copy.deepcopy(manifest))
        path = _IMMUTABLE.get(resource.kind)
        if path and _at(live, path) != _at(manifest, path):
            raise ApiError(422, "Invalid", f"{resource.kind} {meta['name']}: {'.'.join(path)} is immutable")
        merged = _merged(_without(live, self.world.applied.get(key, {}), manifest), manifest)
        self.world.applied[key] = copy.deepcopy(manifest)
        same = {**merged, "metadata": {**merged["metadata"], "resourceVersion": ""}}
        if same == {**live, "metadata": {**live["metadata"], "resourceVersion": ""}}:
            return copy.deepcopy(live)
        return self.world.put(resource, merged)

    async def apply_status(self, resource: Resource, service: Object, status: Object) -> Object:
        meta = service["metadata"]

        def act() -> Object:
            live = self.world.objects.get((resource.kind, meta["namespace"], meta["name"]))
            if live is None or live["metadata"]["uid"] != meta["uid"]:
                raise ApiError(404 if live is None else 409, "NotFound" if live is None else "Conflict", meta["name"])
            return self.world.put(resource, {**copy.deepcopy(live), "status": copy.deepcopy(status)})

        return self._call("status", resource.kind, meta["name"], act)

    async def seed_replicas(self, resource: Resource, service: Object, count: int) -> Object:
        meta = service["metadata"]

        def act() -> Object:
            live = copy.deepcopy(self.world.objects[resource.kind, meta["namespace"], meta["name"]])
            if live["metadata"]["resourceVersion"] != meta["resourceVersion"]:
                raise ApiError(409, "Conflict", meta["name"])
            live["spec"]["replicas"] = count
            return self.world.put(resource, live)

        return self._call("seed", resource.kind, meta["name"], act)

    async def replace_template(self, resource: Resource, live: Object, template_spec: Object) -> Object:
        raise AssertionError("nothing foreign enters a template in this world")

    async def delete(self, resource: Resource, live: Object) -> None:
        meta = live["metadata"]
        key = (resource.kind, meta.get("namespace", ""), meta["name"])

        def act() -> None:
            if key in self.world.objects and self.world.objects[key]["metadata"]["uid"] == meta["uid"]:
                self.world.remove(resource, meta.get("namespace", ""), meta["name"])

        return self._call("delete", resource.kind, meta["name"], act)

    async def record(self, resource: Resource, event: Object) -> Object:
        return self._call("event", resource.kind, event["reason"], lambda: event)


class Operator:
    """The real reconciler and indexes on a world; `deaf` to events when told so."""

    def __init__(self, world: World, settings: PlanSettings, api: Api | None = None) -> None:
        self.world, self.api = world, api or Api(world)
        self.indexes = Indexes()
        self.queue: dict[Key, datetime] = {}
        self.hears: Callable[[Resource, Object, str], bool] = lambda _resource, _item, _event: True
        self.reconciler = Reconciler(self.api, self.indexes, settings, lambda: world.now, self._ask)  # type: ignore[arg-type]

    def _ask(self, key: Key) -> None:
        self.queue[key] = self.world.now

    def _hear(self, resource: Resource, item: Object, event: str) -> None:
        if resource.kind not in {each.kind for each in watched(True)} or not self.hears(resource, item, event):
            return
        act = self.indexes.remove if event == "DELETED" else self.indexes.store
        for key in act(resource, item):
            self._ask(key)

    async def start(self) -> Operator:
        await self.relist()
        self.world.watchers.append(self._hear)
        return self

    def stop(self) -> None:
        if self._hear in self.world.watchers:
            self.world.watchers.remove(self._hear)

    async def relist(self) -> None:
        """A complete list of everything, as at the start and from time to time."""
        for resource in watched(True):
            found = await self.api.snapshot(resource)
            self.indexes.replace(resource, found.items, None, found.version)
        for key in self.indexes.services():
            self._ask(key)

    async def work(self) -> None:
        """Reconcile what is due, until nothing is."""
        for _ in range(50):
            due = sorted(key for key, when in self.queue.items() if when <= self.world.now)
            if not due:
                return
            for key in due:
                del self.queue[key]
                again = await self.reconciler.reconcile(key)
                if again is not None and key not in self.queue:
                    self.queue[key] = self.world.now + timedelta(seconds=again)
        raise AssertionError(f"the operator does not come to rest: {self.api.calls[-20:]}")


async def run(operator: Operator, ticks: int, each: Callable[[], None] = lambda: None) -> None:
    """Let time pass: the operator works, then the cluster does."""
    for _ in range(ticks):
        await operator.work()
        operator.world.tick()
        each()
    await operator.work()


def condition(world: World, name: str, kind: str) -> Object:
    """A condition of a service."""
    found = world.get("InferenceService", name).get("status", {}).get("conditions", ())
    return next((item for item in found if item["type"] == kind), {})
