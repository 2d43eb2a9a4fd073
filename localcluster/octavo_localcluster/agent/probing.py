"""Asks one running container's probes, and says when an answer changes something."""

import asyncio
import random
from collections.abc import Callable
from dataclasses import dataclass

from .handlers import Target, call
from .probe_state import ProbeSettings, ProbeState


@dataclass(frozen=True)
class ProbeListener:
    """What to call: `started()` once, `ready(bool)` on each change, `failed(kind, message, grace)` when the container
    must end.

    `unhealthy(kind, message)` hears of each single failure.
    """

    started: Callable[[], None]
    ready: Callable[[bool], None]
    failed: Callable[[str, str, float | None], None]
    unhealthy: Callable[[str, str], None]


async def run_probes(target: Target, listener: ProbeListener, *, started: bool, ready: bool) -> None:
    """Run startup, then liveness and readiness, until cancelled. `started` and `ready` are what is known already."""
    container = target.container
    startup = container.get("startupProbe")
    if startup and not started:
        await _startup(target, listener)
    listener.started()
    async with asyncio.TaskGroup() as group:
        if container.get("readinessProbe"):
            group.create_task(_readiness(target, listener, ready))
        else:
            listener.ready(True)
        if container.get("livenessProbe"):
            group.create_task(_liveness(target, listener))


async def _startup(target: Target, listener: ProbeListener) -> None:
    probe = target.container["startupProbe"]
    settings = ProbeSettings.of(probe)
    state = ProbeState(None)
    await asyncio.sleep(settings.initial_delay_seconds)
    while True:
        ok, message = await call(probe, target, settings.timeout_seconds)
        state = state.observe(ok, settings)
        if state.result:
            return
        if not ok:
            listener.unhealthy("Startup", message)
        if state.result is False:
            listener.failed("startup", message, settings.grace_seconds)
            # The container ends now; its end cancels this task.
            await asyncio.Event().wait()
        await asyncio.sleep(settings.period_seconds)


async def _readiness(target: Target, listener: ProbeListener, ready: bool) -> None:
    probe = target.container["readinessProbe"]
    settings = ProbeSettings.of(probe)
    state = ProbeState(ready)
    await asyncio.sleep(settings.initial_delay_seconds)
    while True:
        ok, message = await call(probe, target, settings.timeout_seconds)
        before, state = state.result, state.observe(ok, settings)
        if not ok:
            listener.unhealthy("Readiness", message)
        if state.result != before:
            listener.ready(bool(state.result))
        # As the kubelet since 1.33: an unready container is asked again soon, whatever the period.
        await asyncio.sleep(settings.period_seconds if state.result else min(settings.period_seconds, 1.0))


async def _liveness(target: Target, listener: ProbeListener) -> None:
    probe = target.container["livenessProbe"]
    settings = ProbeSettings.of(probe)
    state = ProbeState(True)
    # Many containers that start together are not all asked in the same moment.
    await asyncio.sleep(settings.initial_delay_seconds + random.random() * min(settings.period_seconds, 1.0))
    while True:
        ok, message = await call(probe, target, settings.timeout_seconds)
        state = state.observe(ok, settings)
        if not ok:
            listener.unhealthy("Liveness", message)
        if state.result is False:
            listener.failed("liveness", message, settings.grace_seconds)
            await asyncio.Event().wait()
        await asyncio.sleep(settings.period_seconds)
