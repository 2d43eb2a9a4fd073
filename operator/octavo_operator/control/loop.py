"""The operator's life: gate, leadership, indexes, watches and workers; ends when any of them ends."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime
from typing import Any

from octavo_operator import metrics
from octavo_operator.cluster.client import ApiError, Client, connect
from octavo_operator.cluster.gate import missing_rights
from octavo_operator.cluster.lease import Leadership, LeaseLost
from octavo_operator.cluster.resources import NODES, PROFILES, SERVICES, Resource, watched
from octavo_operator.cluster.watches import Watches
from octavo_operator.plan import PlanSettings
from octavo_operator.scaling.autoscaler import Autoscaler
from octavo_operator.scaling.leaving import DeletionCosts
from octavo_operator.settings import Settings, SettingsError

from .condition_series import conditions_of, node_types_of
from .health import Health, serve
from .indexes import Indexes, Key
from .listing import Relister, first_fill
from .live_series import LiveSeries
from .progress import ProgressWatch
from .queue import WorkQueue
from .reconcile import Reconciler
from .trim import trimmed
from .waves import NodeWaves

log = logging.getLogger("octavo.control")
GATE_TRIES = 5
RETRY_SECONDS = 2.0
FIRST_STREAMING_VERSION = (1, 34)


def _now() -> datetime:
    return datetime.now(UTC)


def plan_settings(settings: Settings) -> PlanSettings:
    """The part of the settings that reaches plans."""
    return PlanSettings(
        settings.lease.namespace,
        settings.monitoring_namespace,
        settings.images,
        reads_nodes=settings.nodes_access,
        image_prefixes=settings.image_prefixes,
        token_endpoints=settings.token_endpoints,
        file_prefixes=settings.file_prefixes,
        argument_prefixes=settings.argument_prefixes,
        cache_claim=settings.cache_claim,
        hub_endpoint=settings.hub_endpoint,
        priority_class=settings.priority_class,
        priority_classes=settings.priority_classes,
        tolerations=settings.tolerations,
        resources=settings.resources,
        gateway_namespace=settings.gateway_namespace,
        calibration=settings.calibration,
        calibration_seconds=settings.calibration_seconds,
        calibration_priority_class=settings.calibration_priority_class,
        egress=settings.egress,
        pull_secrets=settings.pull_secrets,
        proxy=settings.proxy,
    )


async def _pass_gate(client: Client, settings: Settings) -> None:
    missing: list[str] = []
    tries = 0
    while tries < GATE_TRIES:
        try:
            missing = await missing_rights(client, settings)
        except ApiError as error:
            if error.code == 401:
                raise
            log.warning("rights can't be asked for yet: %s", error)
        else:
            if not missing:
                return
            tries += 1
        # Rules that were created a moment ago reach the API server's authoriser a little later.
        await asyncio.sleep(RETRY_SECONDS)
    raise SettingsError("the operator's account lacks rights; grant these (the chart does): " + "; ".join(missing))


async def _work(queue: WorkQueue[Key], reconciler: Reconciler, waves: NodeWaves) -> None:
    while True:
        key = await queue.take()
        used = time.thread_time()
        try:
            with metrics.RECONCILE_SECONDS.time():
                again = await reconciler.reconcile(key)
            queue.succeed(key)
            if again is not None:
                queue.add_after(key, again)
        except ApiError as error:
            metrics.RECONCILE_ERRORS.labels(error.reason).inc()
            log.warning("%s/%s: %s; again in %.1f s", *key, error, queue.retry(key))
        except Exception as error:
            # A fault of ours in one service must not hide the others.
            metrics.RECONCILE_ERRORS.labels("InternalError").inc()
            log.exception("%s/%s: reconciling failed; again in %.1f s", *key, queue.retry(key))
            await reconciler.tell_fault(key, error)
        finally:
            queue.done(key)
            # Others' work in the waits for the API server is counted with it: on the side of too much time for them.
            waves.took(time.thread_time() - used)


def failing_calibrations(profiles: Iterable[Mapping[str, Any]]) -> int:
    """Profiles that hold failures; a result takes their place."""
    return sum(bool((item.get("status") or {}).get("failures")) for item in profiles)


async def _gauges(indexes: Indexes, queue: WorkQueue[Key]) -> None:
    live = (
        LiveSeries(metrics.SERVICE_CONDITION, conditions_of),
        LiveSeries(metrics.NODE_TYPE_REPLICAS, node_types_of),
    )
    while True:
        for series in live:
            series.show(indexes.all(SERVICES.kind))
        metrics.CALIBRATIONS_FAILING.set(failing_calibrations(indexes.all(PROFILES.kind)))
        metrics.QUEUE_DEPTH.set(queue.depth())
        metrics.QUEUE_AGE_SECONDS.set(queue.oldest_seconds())
        metrics.NODES_UNREAD.set(sum(bool(view.notes) for view in indexes.views()))
        slow = 0
        counts = {"True": 0, "False": 0, "Unknown": 0}
        for item in indexes.all(SERVICES.kind):
            found = (item.get("status") or {}).get("conditions") or ()
            state = next((c["status"] for c in found if c["type"] == "NodeTypesResolved"), "Unknown")
            counts[state] += 1
            slow += any(c["reason"] == "KernelFallback" for c in found)
        metrics.SERVICES_WITH_FALLBACK.set(slow)
        for state, count in counts.items():
            metrics.SERVICES_BY_STATE.labels(state).set(count)
        await asyncio.sleep(1)


async def _streams_lists(client: Client) -> bool:
    """Whether the API server sends what exists as events of a watch."""
    try:
        return await client.server_version() >= FIRST_STREAMING_VERSION
    except ApiError as error:
        log.warning("the API server's version can't be asked (%s); kinds are listed instead", error)
        return False


async def _keep_leading(leadership: Leadership) -> None:
    try:
        await leadership.keep()
    except LeaseLost as error:
        # At once and without a farewell: a successor may be at work, and the API server may not answer.
        log.critical("%s; the process ends, so that no two operators write", error)
        logging.shutdown()
        sys.stderr.flush()
        os._exit(1)


async def _lead(client: Client, settings: Settings, health: Health, leadership: Leadership) -> None:
    """Work as the leader until cancelled."""
    indexes, queue, waves = Indexes(), WorkQueue[Key](time.monotonic), NodeWaves(time.monotonic)
    relister = Relister(client, indexes, settings, queue)

    def changed(resource: Resource, item: dict[str, Any], event: str | None) -> None:
        for key in indexes.remove(resource, item) if event == "DELETED" else indexes.store(resource, item):
            if resource is NODES:
                # Nodes change in waves: a wave is answered once, and a user's edit does not wait behind it.
                if queue.seconds_until(key) > waves.length():
                    queue.add_after(key, waves.wait())
            else:
                queue.add(key, urgent=resource is SERVICES)
        if event is None:
            relister.wish(resource)

    scaler = Autoscaler(indexes, queue.add)
    progress = ProgressWatch(indexes, queue.add)
    planner = progress.planner(scaler.plan)
    marks = DeletionCosts(client, scaler.load)
    reconciler = Reconciler(
        client, indexes, plan_settings(settings), _now, queue.add, relister.wish, planner, marks.prepare
    )
    scaler.facts = reconciler.facts
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(_keep_leading(leadership), name="lease")
        await first_fill(client, indexes, settings)
        log.info("working: %d InferenceServices, %d nodes", len(indexes.services()), len(indexes.all("Node")))
        for key in indexes.services():
            queue.add(key)
        streams = await _streams_lists(client)
        tasks.create_task(Watches(settings, changed, trimmed, streams).run(), name="watches")
        # What went between the first list and the watches' own is found by one more list.
        for resource in watched(settings.nodes_access):
            relister.wish(resource)
        tasks.create_task(relister.run(), name="lists")
        tasks.create_task(scaler.run(), name="scaling")
        tasks.create_task(progress.run(), name="progress")
        tasks.create_task(_gauges(indexes, queue), name="gauges")
        for number in range(settings.workers):
            tasks.create_task(_work(queue, reconciler, waves), name=f"worker {number}")
        health.ready, health.state = True, "working"


async def _live(client: Client, settings: Settings, health: Health) -> None:
    await _pass_gate(client, settings)
    health.ready, health.state = True, "standing by for the Lease"
    leadership = Leadership(client, settings.lease, time.monotonic, _now)
    await leadership.acquire()
    client.may_write = leadership.proven
    metrics.LEADER.set(1)
    health.ready, health.state = False, "listing the cluster's objects"
    try:
        await _lead(client, settings, health, leadership)
    finally:
        health.ready, health.state = False, "stopping"
        await leadership.release()


def _on_signals(tell: Callable[[], object]) -> None:
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, tell)


async def run(settings: Settings) -> None:
    """Work until told to stop. Raises SettingsError, or ApiError when there are no usable credentials."""
    stop = asyncio.Event()
    _on_signals(stop.set)
    health = Health()
    async with connect(settings.account_folder) as client, serve(health, settings.host, settings.port):
        living = asyncio.create_task(_live(client, settings, health), name="operator")
        stopping = asyncio.create_task(stop.wait(), name="stop")
        await asyncio.wait({living, stopping}, return_when=asyncio.FIRST_COMPLETED)
        if stop.is_set():
            log.info("told to stop")
        for task in (living, stopping):
            task.cancel()
        ended, _ = await asyncio.gather(living, stopping, return_exceptions=True)
    if isinstance(ended, Exception):
        raise ended
    log.info("stopped")
