"""One container of a pod while it runs: its process, its probes, its end."""

import asyncio
import logging
import signal
import time
from collections.abc import Callable, Coroutine
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from .api import Object
from .backoff import Backoff, BackoffPolicy
from .handlers import Target, call
from .launch import Launch
from .logs import epoch, last_lines
from .podstatus import container_id
from .probing import ProbeListener, run_probes
from .process import ContainerProcess, Exit, ProcessSpec
from .record import ContainerRecord

log = logging.getLogger(__name__)

MESSAGE_LIMIT_BYTES = 4096
KILL_WAIT_SECONDS = 2.0


def now_text() -> str:
    """The present time as pods' status has it."""
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


class Container:
    """A container with its record; `changed()` is called whenever the record changed.

    `event(type, reason, message)` reports to the user.
    """

    def __init__(
        self, spec: Object, record: ContainerRecord, folder: Path, uid: str, pod_ip: str, policy: BackoffPolicy,
        changed: Callable[[], None], event: Callable[[str, str, str], None],
    ) -> None:  # fmt: skip
        self.spec = spec
        self.record = record
        self.folder = folder
        self.uid = uid
        self.pod_ip = pod_ip
        self.policy = policy
        self.changed = changed
        self.event = event
        self.ended = asyncio.Event()
        self.stop_by: float | None = None
        self._process: ContainerProcess | None = None
        self._launch: Launch | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._stopping: asyncio.Task[None] | None = None
        self._starting: asyncio.Task[None] | None = None

    @property
    def name(self) -> str:
        """Name of the container."""
        return self.record.name

    def attempt_folder(self, attempt: int) -> Path:
        """Where one run keeps its state."""
        return self.folder / "containers" / self.name / str(attempt)

    def log_path(self, attempt: int) -> Path:
        """Where one run's log lies."""
        return self.folder / "logs" / self.name / f"{attempt}.log"

    async def start(self, launch: Launch) -> None:
        """Start the next run."""
        record = self.record
        if record.attempt >= 0:
            record.delay_seconds = Backoff(record.delay_seconds).after_start(self.policy).delay_seconds
            record.last = record.ended
        record.attempt += 1
        record.phase, record.ended, record.ready, record.started = "running", None, False, False
        record.waiting = None
        record.started_at = now_text()
        self.changed()
        launch.save(self.attempt_folder(record.attempt))
        # An agent that stops in this moment must still learn of the process, or nobody would end it.
        self._starting = self._spawn(self._run(launch))
        await asyncio.shield(self._starting)

    async def settled(self) -> None:
        """Wait until a start that is under way is done."""
        if self._starting is not None:
            await asyncio.wait([self._starting])

    async def _run(self, launch: Launch) -> None:
        record = self.record
        process = await ContainerProcess.start(self.attempt_folder(record.attempt), launch.process)
        self.event("Normal", "Started", f"Started container {self.name}")
        self._attach(process, launch)

    def adopt(self) -> None:
        """Go on with a run of a former agent, or take note of how it ended."""
        folder = self.attempt_folder(self.record.attempt)
        try:
            launch = Launch.load(folder)
        except KeyError:
            # That agent ended before it could start what it had announced.
            launch = Launch(ProcessSpec([""], {}, "/", ""), self.spec, folder / "none")
        self._attach(ContainerProcess.adopt(folder), launch)

    def _attach(self, process: ContainerProcess, launch: Launch) -> None:
        self._process, self._launch = process, launch
        self.ended = asyncio.Event()
        self.stop_by = None
        self._stopping = None
        if process.started:
            self.record.started_at = process.started.partition(".")[0] + "Z"
        self._spawn(self._follow(process, launch))
        self.changed()

    def _spawn(self, coroutine: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.create_task(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def _follow(self, process: ContainerProcess, launch: Launch) -> None:
        watcher = asyncio.create_task(self._after_start(launch)) if process.shim_pid else None
        try:
            exit_ = await process.wait()
        finally:
            if watcher is not None:
                watcher.cancel()
                await asyncio.wait([watcher])
        self._finish(exit_, launch)

    async def _after_start(self, launch: Launch) -> None:
        hook = (launch.container.get("lifecycle") or {}).get("postStart")
        target = Target(self.pod_ip, launch.container, launch.process)
        if hook and not self.record.started:
            ok, message = await call(hook, target, 3600.0)
            if not ok:
                self.event("Warning", "FailedPostStartHook", message)
                self.stop(f"FailedPostStartHook: {message}", None)
                return
        listener = ProbeListener(self._started, self._ready, self._failed, self._unhealthy)
        try:
            await run_probes(target, listener, started=self.record.started, ready=self.record.ready)
        except* OSError as errors:
            log.warning("probes of %s: %s", self.name, errors.exceptions)

    def _started(self) -> None:
        if not self.record.started:
            self.record.started = True
            self.changed()

    def _ready(self, ready: bool) -> None:
        if self.record.ready != ready:
            self.record.ready = ready
            self.changed()

    def _unhealthy(self, kind: str, message: str) -> None:
        self.event("Warning", "Unhealthy", f"{kind} probe failed: {message}")

    def _failed(self, kind: str, message: str, grace: float | None) -> None:
        self.event("Normal", "Killing", f"Container {self.name} failed {kind} probe, will be restarted")
        self.stop(f"{kind} probe failed: {message}", grace)

    def stop(self, why: str, grace_seconds: float | None) -> None:
        """Begin to end the present run: preStop, SIGTERM, and after the grace period SIGKILL. May be called again.

        A later call with a shorter grace period brings the end forward; None keeps what is set, or the pod's own
        period.
        """
        if self._process is None or self.ended.is_set():
            return
        grace = self.default_grace_seconds if grace_seconds is None else grace_seconds
        by = time.monotonic() + grace
        self.stop_by = by if self.stop_by is None or (grace_seconds is not None and by < self.stop_by) else self.stop_by
        if self._stopping is None:
            log.info("ending container %s of pod %s: %s", self.name, self.uid, why)
            self._stopping = self._spawn(self._stop(self._process, self._launch))

    default_grace_seconds = 30.0

    async def _stop(self, process: ContainerProcess, launch: Launch | None) -> None:
        hook = None if launch is None else (launch.container.get("lifecycle") or {}).get("preStop")
        if hook and launch is not None:
            target = Target(self.pod_ip, launch.container, launch.process)
            running = asyncio.create_task(call(hook, target, 86400.0))
            await self._until(lambda: running.done())
            if running.done():
                ok, message = running.result()
                if not ok:
                    self.event("Warning", "FailedPreStopHook", message)
            else:
                running.cancel()
            # As the kubelet: a hook that used up the grace period still leaves the program a moment for SIGTERM.
            assert self.stop_by is not None
            self.stop_by = max(self.stop_by, time.monotonic() + KILL_WAIT_SECONDS)
        process.send(signal.SIGTERM)
        await self._until(lambda: False)
        while not self.ended.is_set():
            process.send(signal.SIGKILL)
            try:
                await asyncio.wait_for(self.ended.wait(), 1.0)
            except TimeoutError:
                log.warning("container %s of pod %s outlives SIGKILL", self.name, self.uid)

    async def _until(self, done: Callable[[], bool]) -> None:
        """Wait for the end of the container, of the grace period, or for `done`."""
        while not self.ended.is_set() and not done():
            assert self.stop_by is not None
            left = self.stop_by - time.monotonic()
            if left <= 0:
                return
            try:
                await asyncio.wait_for(self.ended.wait(), min(left, 0.25))
            except TimeoutError:
                continue

    def _finish(self, exit_: Exit, launch: Launch) -> None:
        record = self.record
        finished = exit_.finished or now_text()
        if exit_.lost:
            reason, message = "ContainerStatusUnknown", "The container ended while no node agent was there to see it"
        elif exit_.error:
            reason, message = "StartError", f'failed to start "{launch.process.argv[0]}": {exit_.error}'
        else:
            reason = "Completed" if exit_.code == 0 else "Error"
            message = self._message(exit_, launch)
        ended: Object = {
            "exitCode": exit_.code, "reason": reason, "startedAt": record.started_at,
            "finishedAt": finished.partition(".")[0].rstrip("Z") + "Z",
            "containerID": container_id(self.uid, self.name, record.attempt),
        }  # fmt: skip
        if message:
            ended["message"] = message
        record.phase, record.ended, record.ended_at = "ended", ended, epoch(finished)
        record.ready = record.started = False
        ran = record.ended_at - epoch(record.started_at)
        record.delay_seconds = Backoff(record.delay_seconds).after_exit(ran, self.policy).delay_seconds
        self._process = None
        self.ended.set()
        self.changed()

    def _message(self, exit_: Exit, launch: Launch) -> str:
        try:
            with open(launch.termination_log, "rb") as file:
                message = file.read(MESSAGE_LIMIT_BYTES).decode(errors="replace")
        except OSError:
            message = ""
        fallback = self.spec.get("terminationMessagePolicy") == "FallbackToLogsOnError"
        if not message and fallback and exit_.code != 0:
            return last_lines(self.log_path(self.record.attempt))
        return message
