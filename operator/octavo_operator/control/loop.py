"""The operator's life: gate, leadership, indexes, watches and workers; ends when any of them ends."""

from __future__ import annotations

import asyncio
import logging
import time
from datetime import UTC, datetime

from octavo_operator import metrics
from octavo_operator.cluster.client import ApiError, Client, Object, connect
from octavo_operator.cluster.gate import missing_rights
from octavo_operator.cluster.lease import Leadership
from octavo_operator.cluster.resources import SERVICES, Resource, watched
from octavo_operator.cluster.watches import watch
from octavo_operator.plan import PlanSettings
from octavo_operator.settings import Settings, SettingsError

from .health import Health, serve
from .indexes import Indexes, Key
from .queue import WorkQueue
from .reconcile import Reconciler

log = logging.getLogger("octavo.control")
GATE_TRIES = 5
RETRY_SECONDS = 2.0


def _now() -> datetime:
    return datetime.now(UTC)


async def fill(client: Client, indexes: Indexes, settings: Settings) -> set[Key]:
    """List every watched kind into the indexes; returns the services whose facts changed. Raises ApiError."""
    concerned: set[Key] = set()
    for resource in watched(settings.nodes_access):
        for namespace in settings.namespaces if resource.namespaced and settings.namespaces else (None,):
            concerned |= indexes.replace(resource, await client.list(resource, namespace), namespace)
    return concerned


def plan_settings(settings: Settings) -> PlanSettings:
    """The part of the settings that reaches plans."""
    return PlanSettings(settings.lease.namespace, settings.monitoring_namespace, settings.images)


async def _pass_gate(client: Client, settings: Settings) -> None:
    missing: list[str] = []
    for _ in range(GATE_TRIES):
        try:
            missing = await missing_rights(client, settings)
        except ApiError as error:
            log.warning("rights can't be asked for yet: %s", error)
            missing = [str(error)]
        if not missing:
            return
        # Rules that were created a moment ago reach the API server's authoriser a little later.
        await asyncio.sleep(RETRY_SECONDS)
    raise SettingsError("the operator's account lacks rights; grant these (the chart does): " + "; ".join(missing))


async def _first_fill(client: Client, indexes: Indexes, settings: Settings) -> None:
    while True:
        try:
            await fill(client, indexes, settings)
            return
        except ApiError as error:
            hint = "; are the CRDs installed (kubectl apply -k crds/)?" if error.code == 404 else ""
            log.warning("the cluster's objects can't be listed yet: %s%s", error, hint)
            await asyncio.sleep(RETRY_SECONDS)


async def _work(queue: WorkQueue[Key], reconciler: Reconciler) -> None:
    while True:
        key = await queue.take()
        try:
            with metrics.RECONCILE_SECONDS.time():
                again = await reconciler.reconcile(key)
            queue.succeed(key)
            if again is not None:
                queue.add_after(key, again)
        except ApiError as error:
            metrics.RECONCILE_ERRORS.labels(error.reason).inc()
            log.warning("%s/%s: %s; again in %.1f s", *key, error, queue.retry(key))
        except Exception:
            # A fault of ours in one service must not hide the others.
            metrics.RECONCILE_ERRORS.labels("Internal").inc()
            log.exception("%s/%s: reconciling failed; again in %.1f s", *key, queue.retry(key))
        finally:
            queue.done(key)


async def _resync(client: Client, indexes: Indexes, settings: Settings, queue: WorkQueue[Key]) -> None:
    """A watch that was cut off may miss a deletion: complete lists put the indexes right."""
    while True:
        await asyncio.sleep(settings.resync_seconds)
        try:
            for key in await fill(client, indexes, settings):
                queue.add(key)
        except ApiError as error:
            log.warning("the resync was put off: %s", error)
            continue
        for key in indexes.services():
            queue.add(key)


async def _gauges(indexes: Indexes, queue: WorkQueue[Key]) -> None:
    while True:
        metrics.QUEUE_DEPTH.set(queue.depth())
        metrics.QUEUE_AGE_SECONDS.set(queue.oldest_seconds())
        counts = {"True": 0, "False": 0, "Unknown": 0}
        for item in indexes.all(SERVICES.kind):
            found = (item.get("status") or {}).get("conditions") or ()
            state = next((c["status"] for c in found if c["type"] == "NodeTypesResolved"), "Unknown")
            counts[state] += 1
        for state, count in counts.items():
            metrics.SERVICES_BY_STATE.labels(state).set(count)
        await asyncio.sleep(1)


async def run(settings: Settings) -> None:
    """Work until told to stop. Raises SettingsError, ApiError (no credentials) or LeaseLost."""
    async with connect(settings.account_folder) as client:
        health = Health()
        async with serve(health, settings.host, settings.port):
            await _pass_gate(client, settings)
            health.state = "standing by for the Lease"
            health.ready = True
            leadership = Leadership(client, settings.lease, time.monotonic, _now)
            await leadership.acquire()
            metrics.LEADER.set(1)
            health.ready, health.state = False, "listing the cluster's objects"
            indexes = Indexes()
            queue: WorkQueue[Key] = WorkQueue(time.monotonic)
            keep = asyncio.create_task(leadership.keep(), name="lease")
            await _first_fill(client, indexes, settings)
            for key in indexes.services():
                queue.add(key)
            log.info("working: %d InferenceServices, %d nodes", len(indexes.services()), len(indexes.all("Node")))

            def changed(resource: Resource, item: Object, deleted: bool) -> None:
                for key in indexes.remove(resource, item) if deleted else indexes.store(resource, item):
                    queue.add(key)

            reconciler = Reconciler(client, indexes, plan_settings(settings), _now)
            watching = asyncio.create_task(watch(settings, changed, asyncio.Event()), name="watches")
            tasks = [keep, watching, asyncio.create_task(_gauges(indexes, queue), name="gauges")]
            tasks += [
                asyncio.create_task(_work(queue, reconciler), name=f"worker {n}") for n in range(settings.workers)
            ]
            tasks.append(asyncio.create_task(_resync(client, indexes, settings, queue), name="resync"))
            health.ready, health.state = True, "working"
            done, pending = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            health.ready, health.state = False, "stopping"
            for task in pending:
                task.cancel()
            await asyncio.gather(*pending, return_exceptions=True)
            for task in done:
                task.result()
            await leadership.release()
