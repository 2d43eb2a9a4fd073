"""One reconciliation: facts → plan → apply what differs → prune → status if changed → events."""

from __future__ import annotations

import logging
from collections.abc import Callable
from datetime import datetime
from typing import Any

from octavo_operator.cluster.client import ApiError, Client
from octavo_operator.cluster.resources import BY_KIND, EVENTS, SERVICES
from octavo_operator.plan import Event, Facts, Plan, PlanSettings, difference, plan
from octavo_operator.plan.server_contract import FIELD_MANAGER
from octavo_operator.status.conditions import Verdict, conditions

from .indexes import Indexes, Key

log = logging.getLogger("octavo.reconcile")
Object = dict[str, Any]
INVALID = (400, 403, 422)
"""Refusals that trying again does not change."""


class Reconciler:
    """Brings the cluster to the plan of one service."""

    def __init__(self, client: Client, indexes: Indexes, settings: PlanSettings, now: Callable[[], datetime]) -> None:
        self._client, self._indexes, self._settings, self._now = client, indexes, settings, now

    def facts(self, key: Key) -> Facts | None:
        """What the indexes hold about the service; None when it is gone or going."""
        service = self._indexes.service(key)
        if service is None or service["metadata"].get("deletionTimestamp"):
            return None
        own = self._indexes.pods(key)
        mine = {pod["metadata"]["uid"] for pod in own}
        return Facts(
            service,
            self._now(),
            self._settings,
            self._indexes.owned(key, service["metadata"]["uid"]),
            own,
            self._indexes.all("Node"),
            self._indexes.all("PersistentVolumeClaim", key[0]),
            [pod for pod in self._indexes.all("Pod") if pod["metadata"]["uid"] not in mine],
        )

    async def reconcile(self, key: Key) -> float | None:
        """Returns seconds after which to come again, if time alone changes the plan; raises ApiError."""
        facts = self.facts(key)
        if facts is None:
            return None
        wanted = plan(facts)
        if wanted.seed_replicas is not None:
            self._keep(await self._client.seed_replicas(SERVICES, facts.service, wanted.seed_replicas))
        try:
            for manifest in wanted.objects:
                await self._apply(facts, manifest)
        except ApiError as error:
            if error.code not in INVALID:
                raise
            await self._refused(facts, wanted, error)
            return None
        if wanted.prune:
            await self._prune(facts, wanted)
        await self._status(facts, wanted.status, wanted.events)
        return wanted.requeue_seconds

    async def _apply(self, facts: Facts, manifest: Object) -> None:
        resource = BY_KIND[manifest["kind"]]
        live = facts.owned_of(manifest["kind"]).get(manifest["metadata"]["name"])
        why = difference(manifest, live)
        if why is None:
            return
        log.info("%s %s: applied, since %s", manifest["kind"], _name(manifest), why)
        live = await self._client.apply(resource, manifest)
        left = difference(manifest, live)
        if left is not None and "template" in manifest.get("spec", {}):
            # Server-side apply leaves what others added to the template.
            log.info("%s %s: template replaced, since %s", manifest["kind"], _name(manifest), left)
            live = await self._client.replace_template(resource, live, manifest["spec"]["template"]["spec"])
        self._keep(live)

    async def _prune(self, facts: Facts, wanted: Plan) -> None:
        kept = {(item["kind"], item["metadata"]["name"]) for item in wanted.objects}
        for item in facts.owned:
            if (item["kind"], item["metadata"]["name"]) not in kept:
                log.info("%s %s: deleted, since the plan no longer holds it", item["kind"], _name(item))
                resource = BY_KIND[item["kind"]]
                await self._client.delete(resource, item)
                self._indexes.remove(resource, item)

    async def _status(self, facts: Facts, status: Object, events: tuple[Event, ...]) -> None:
        if status == facts.service.get("status"):
            return
        try:
            self._keep(await self._client.apply_status(SERVICES, facts.service, status))
        except ApiError as error:
            if error.code == 404:
                return  # deleted in the meantime
            raise
        for event in events:
            await self._tell(facts, event)

    async def _refused(self, facts: Facts, wanted: Plan, error: ApiError) -> None:
        """The API server will not have an object: say so, and wait for something to change."""
        log.warning("%s: the API server refused an object: %s", _name(facts.service), error)
        message = f"the API server refused an object of this service: {error.message}"
        kinds = ("Progressing", "Ready")
        verdicts = [Verdict(kind, False, error.reason, message[:1024]) for kind in kinds]
        generation = int(facts.service["metadata"].get("generation", 0))
        before = (facts.service.get("status") or {}).get("conditions") or ()
        said = conditions(verdicts, [item for item in before if item["type"] in kinds], generation, facts.now)
        others = [item for item in wanted.status["conditions"] if item["type"] not in kinds]
        found = sorted([*others, *said], key=lambda item: str(item["type"]))
        warning = Event("Warning", error.reason, message[:1024])
        await self._status(facts, {**wanted.status, "conditions": found}, (warning,))

    async def _tell(self, facts: Facts, event: Event) -> None:
        meta, now = facts.service["metadata"], facts.now.strftime("%Y-%m-%dT%H:%M:%SZ")
        body = {
            "apiVersion": "v1",
            "kind": "Event",
            "metadata": {"generateName": f"{meta['name']}-", "namespace": meta["namespace"]},
            "involvedObject": {
                "apiVersion": SERVICES.api_version,
                "kind": SERVICES.kind,
                **{key: meta[key] for key in ("name", "namespace", "uid", "resourceVersion")},
            },
            "type": event.type,
            "reason": event.reason,
            "message": event.message[:1024],
            "source": {"component": FIELD_MANAGER},
            "firstTimestamp": now,
            "lastTimestamp": now,
            "count": 1,
        }
        try:
            await self._client.create(EVENTS, meta["namespace"], body)
        except ApiError as error:
            # An event is a courtesy: the condition holds the fact, so its loss ends nothing.
            log.warning("%s: the event %s was not recorded: %s", _name(facts.service), event.reason, error)

    def _keep(self, live: Object) -> None:
        self._indexes.store(BY_KIND[live["kind"]], live)


def _name(item: Object) -> str:
    return f"{item['metadata'].get('namespace')}/{item['metadata']['name']}"
