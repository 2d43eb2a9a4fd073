"""One reconciliation: facts → plan → apply what differs → prune → status if changed → events."""

from __future__ import annotations

import logging
import time
from collections.abc import Awaitable, Callable
from datetime import datetime
from typing import Any

from octavo_operator import metrics
from octavo_operator.cluster.client import ApiError, Client
from octavo_operator.cluster.resources import BY_KIND, CLAIMS, PROFILES, SERVICES, Resource
from octavo_operator.plan import Event, Facts, Plan, PlanSettings, difference, plan
from octavo_operator.plan.server_contract import FIELD_MANAGER, MANAGED_BY_LABEL, MANIFEST_HASH, SERVICE_LABEL
from octavo_operator.status.conditions import Verdict, conditions

from .events import Recorder
from .indexes import Indexes, Key
from .trim import trimmed

log = logging.getLogger("octavo.reconcile")
Object = dict[str, Any]
INVALID = (400, 403, 413, 422)
"""Refusals that trying again does not change."""
CONTESTED_SECONDS = 60.0
"""How long a manifest that the cluster does not keep as applied is left alone."""


class Reconciler:
    """Brings the cluster to the plan of one service."""

    def __init__(
        self,
        client: Client,
        indexes: Indexes,
        settings: PlanSettings,
        now: Callable[[], datetime],
        ask: Callable[[Key], None] = lambda _key: None,
        relist: Callable[[Resource], None] = lambda _resource: None,
        planned: Callable[[Facts], Plan] = plan,
        prepare: Callable[[Facts, Plan], Awaitable[None]] | None = None,
    ) -> None:
        """`ask` queues a service, `relist` wishes for a complete list of a kind, `planned` makes the plan; `prepare`
        comes before a plan is applied."""
        self._client, self._indexes, self._settings, self._now = client, indexes, settings, now
        self._ask, self._relist, self._planned, self._prepare = ask, relist, planned, prepare
        self._recorder = Recorder(client)
        self._contested: dict[tuple[str, str], tuple[str, float]] = {}
        # TuningProfiles that were planned and are on their way to the API server: services that are reconciled
        # meanwhile see whose turn it is, and one calibration runs per profile.
        self._claims: dict[Key, Object] = {}

    def facts(self, key: Key) -> Facts | None:
        """What the indexes hold about the service; None when it is gone or going."""
        service = self._indexes.service(key)
        if service is None or service["metadata"].get("deletionTimestamp"):
            return None
        return Facts(
            service,
            self._now(),
            self._settings,
            self._indexes.owned(key, service["metadata"]["uid"]),
            self._indexes.pods(key),
            claims=self._indexes.all(CLAIMS.kind, key[0]),
            profiles=self._profiles(key[0]),
            known_views=self._indexes.views(),
            known_classes=self._indexes.classes(),
            known_usage=self._indexes.usage(),
        )

    def _profiles(self, namespace: str) -> list[Object]:
        known = self._indexes.all(PROFILES.kind, namespace)
        if not self._claims:
            return known
        claimed = [item for key, item in self._claims.items() if key[0] == namespace]
        return list({item["metadata"]["name"]: item for item in (*known, *claimed)}.values())

    async def reconcile(self, key: Key) -> float | None:
        """Returns seconds after which to come again, if time alone changes the plan; raises ApiError."""
        facts = self.facts(key)
        if facts is None:
            return None
        wanted = self._planned(facts)
        claims = {(item["metadata"]["namespace"], item["metadata"]["name"]): item for item in wanted.profiles}
        self._claims |= claims
        try:
            return await self._bring(facts, wanted)
        finally:
            for claim in claims:
                self._claims.pop(claim, None)

    async def _bring(self, facts: Facts, wanted: Plan) -> float | None:
        """Makes the plan true; as reconcile."""
        if wanted.seed_replicas is not None:
            self._keep(await self._client.seed_replicas(SERVICES, facts.service, wanted.seed_replicas))
        if self._prepare is not None:
            await self._prepare(facts, wanted)
        try:
            for manifest in wanted.objects:
                await self._apply(facts, manifest)
        except ApiError as error:
            if error.code not in INVALID:
                raise
            await self._refused(facts, wanted, error)
            return None
        for profile in wanted.profiles:
            await self._write_profile(profile)
        if wanted.prune:
            await self._prune(facts, wanted)
        await self._status(facts, wanted.status, wanted.events)
        return wanted.requeue_seconds

    async def _apply(self, facts: Facts, manifest: Object) -> None:
        resource = BY_KIND[manifest["kind"]]
        why = difference(manifest, facts.owned_of(manifest["kind"]).get(manifest["metadata"]["name"]))
        if why is None or self._is_contested(manifest):
            return
        self._refuse_taken(facts, manifest)
        log.info("%s %s: applied, since %s", manifest["kind"], _name(manifest), why)
        live = await self._client.apply(resource, manifest)
        left = difference(manifest, live)
        if left is not None and "template" in manifest.get("spec", {}):
            # Server-side apply leaves what others added to the template.
            log.info("%s %s: template replaced, since %s", manifest["kind"], _name(manifest), left)
            live = await self._client.replace_template(resource, live, manifest["spec"]["template"]["spec"])
            left = difference(manifest, live)
        self._keep(live)
        if left is not None:
            metrics.RECONCILE_ERRORS.labels("Contested").inc()
            log.warning(
                "%s %s: the cluster does not keep what was applied (%s); an admission webhook may change it; next try "
                "in %.0f s",
                manifest["kind"],
                _name(manifest),
                left,
                CONTESTED_SECONDS,
            )
            self._contested[_mark(manifest)] = (_hash(manifest), time.monotonic() + CONTESTED_SECONDS)

    async def _write_profile(self, profile: Object) -> None:
        """Spec first, then status: an API server takes them apart."""
        log.info("TuningProfile %s: written", _name(profile))
        live = await self._client.apply(PROFILES, {key: part for key, part in profile.items() if key != "status"})
        if profile["status"]:
            live = await self._client.apply_status(PROFILES, live, profile["status"])
        self._keep(live)

    def _refuse_taken(self, facts: Facts, manifest: Object) -> None:
        """Raise when the name belongs to an object that is not this service's: applying would take it over, and the
        end of the service would be its end."""
        meta, service = manifest["metadata"], facts.service["metadata"]
        found = self._indexes.get(manifest["kind"], (meta["namespace"], meta["name"]))
        if found is None:
            return
        owners = found["metadata"].get("ownerReferences") or ()
        if any(owner.get("uid") == service["uid"] for owner in owners):
            return
        what = f"{manifest['kind']} {meta['name']}"
        if any(owner.get("kind") == SERVICES.kind and owner.get("name") == service["name"] for owner in owners):
            raise ApiError(409, "Conflict", f"{what} belongs to a deleted service of this name and will go")
        labels = found["metadata"].get("labels") or {}
        ours = labels.get(MANAGED_BY_LABEL) == FIELD_MANAGER and labels.get(SERVICE_LABEL) == service["name"]
        if owners or not ours:
            message = f"{what} exists and is not this service's; rename the InferenceService, or remove that object"
            raise ApiError(422, "NameTaken", message)

    def _is_contested(self, manifest: Object) -> bool:
        found = self._contested.get(_mark(manifest))
        if found is None:
            return False
        if found[0] == _hash(manifest) and time.monotonic() < found[1]:
            return True
        del self._contested[_mark(manifest)]
        return False

    async def _prune(self, facts: Facts, wanted: Plan) -> None:
        kept = {(item["kind"], item["metadata"]["name"]) for item in wanted.objects}
        for item in facts.owned:
            if (item["kind"], item["metadata"]["name"]) not in kept:
                log.info("%s %s: deleted, since the plan no longer holds it", item["kind"], _name(item))
                resource = BY_KIND[item["kind"]]
                await self._client.delete(resource, item)
                self._indexes.forget(resource, item)

    async def _status(self, facts: Facts, status: Object, events: tuple[Event, ...]) -> None:
        if status == facts.service.get("status"):
            return
        try:
            self._keep(await self._client.apply_status(SERVICES, facts.service, status))
        except ApiError as error:
            if error.code == 404:
                # Deleted, and nobody told: its kind is listed anew.
                self._relist(SERVICES)
                return
            raise
        for event in events:
            await self._recorder.tell(facts.service, event, facts.now)

    async def _refused(self, facts: Facts, wanted: Plan, error: ApiError) -> None:
        """The API server will not have an object: say so, and wait for something to change."""
        log.warning("%s: an object was refused: %s", _name(facts.service), error)
        metrics.RECONCILE_ERRORS.labels(error.reason).inc()
        taken = error.reason == "NameTaken"
        message = error.message if taken else f"the API server refused an object of this service: {error.message}"
        await self._tell(facts, wanted.status, ("Ready", "Progressing"), error.reason, message)

    async def tell_fault(self, key: Key, error: Exception) -> None:
        """Show an unexpected error of the operator in the service's conditions."""
        facts = self.facts(key)
        if facts is None:
            return
        message = f"the operator failed on this service and tries again; {type(error).__name__}: {error}"
        try:
            status = facts.service.get("status") or {}
            # What serves goes on serving: Ready is touched only where nothing was ever said of it.
            unsaid = not any(item["type"] == "Ready" for item in status.get("conditions") or ())
            kinds = ("Ready", "Progressing") if unsaid else ("Progressing",)
            await self._tell(facts, status, kinds, "InternalError", message)
        except ApiError as second:
            log.warning("%s: the fault could not be told: %s", _name(facts.service), second)

    async def _tell(self, facts: Facts, status: Object, kinds: tuple[str, ...], reason: str, message: str) -> None:
        generation = int(facts.service["metadata"].get("generation", 0))
        before = (facts.service.get("status") or {}).get("conditions") or ()
        verdicts = [Verdict(kind, False, reason, message[:1024]) for kind in kinds]
        said = conditions(verdicts, [item for item in before if item["type"] in kinds], generation, facts.now)
        mine = {item["type"]: item for item in said}
        # Each stays in its place, so that a status that says the same is the same.
        found = [mine.pop(item["type"], item) for item in status.get("conditions") or ()]
        warning = Event("Warning", reason, message[:1024])
        await self._status(facts, {**status, "conditions": [*found, *mine.values()]}, (warning,))

    def _keep(self, live: Object) -> None:
        # The answer may hold what others changed meanwhile, and the watch's older word of it will be dropped.
        resource = BY_KIND[live["kind"]]
        for key in self._indexes.store(resource, trimmed(resource, live)):
            self._ask(key)


def _name(item: Object) -> str:
    return f"{item['metadata'].get('namespace')}/{item['metadata']['name']}"


def _mark(manifest: Object) -> tuple[str, str]:
    return manifest["kind"], _name(manifest)


def _hash(manifest: Object) -> str:
    return str((manifest["metadata"].get("annotations") or {}).get(MANIFEST_HASH))
