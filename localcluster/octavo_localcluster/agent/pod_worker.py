"""One pod on this node, from its binding to its deletion."""

import asyncio
import logging
import shutil
import time
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .addresses import AddressPool
from .api import OUTAGE, ApiClient, ApiError, Object
from .backoff import BackoffPolicy
from .container import Container, now_text
from .environment import ConfigError, PodFacts, References, referenced, service_links
from .events import EventRecorder
from .launch import ImageError, NodeFacts, build_launch
from .lifecycle import ContainerView, Plan, decide
from .logs import KEPT_ATTEMPTS, epoch
from .podstatus import back_off_message, pod_status
from .record import ContainerRecord, PodRecord
from .unsupported import REASON, unsupported_fields
from .volumes import PodVolumes, VolumeError

log = logging.getLogger(__name__)

RETRY_SECONDS = (0.25, 5.0)
CREATE_RETRY_SECONDS = 2.0
IMAGE_BACK_OFF_SECONDS = 10.0
FORCED_GRACE_SECONDS = 1.0


@dataclass(frozen=True)
class NodeContext:
    """What all pods of a node share."""

    name: str
    address: str
    client: ApiClient
    events: EventRecorder
    facts: NodeFacts
    allocatable: dict[str, str]
    pods_folder: Path
    addresses: AddressPool
    services: Mapping[tuple[str, str], Object]
    rename: Callable[[str], str]
    backoff: BackoffPolicy
    refresh_seconds: float


class PodWorker:
    """Runs one pod; a task calls run(), everybody else only set_pod(), removed() and the readers."""

    def __init__(self, node: NodeContext, pod: Object, record: PodRecord | None) -> None:
        self.node = node
        self.pod = pod
        self.uid = str(pod["metadata"]["uid"])
        self.folder = node.pods_folder / self.uid
        self.record = record or PodRecord(
            namespace=pod["metadata"]["namespace"], name=pod["metadata"]["name"], uid=self.uid, node=node.name, ip="",
            start_time=now_text(), containers=new_records(pod),
        )  # fmt: skip
        self.containers: dict[str, Container] = {}
        self.gone = False
        self._adopted = record is not None
        self._wake = asyncio.Event()
        self._sent: Object | None = None
        self._blocked: tuple[str, str] | None = None
        self._volumes: PodVolumes | None = None
        self._mounted = False
        self._refresh_at = 0.0
        self._mount_retry_at = 0.0

    def set_pod(self, pod: Object) -> None:
        """Take a newer version of the pod."""
        self.pod = pod
        if self._volumes is not None:
            self._volumes.pod = pod
        for spec in pod["spec"]["containers"]:
            if spec["name"] in self.containers:
                self.containers[spec["name"]].spec = spec
        self._wake.set()

    def removed(self) -> None:
        """The API server knows this pod no more: end it without asking."""
        self.gone = True
        self._wake.set()

    async def run(self) -> None:
        """Work until the pod is gone from the API server and from this machine."""
        delay = RETRY_SECONDS[0]
        while True:
            self._wake.clear()
            wake_at: float | None
            try:
                if self.gone or self.pod["metadata"].get("deletionTimestamp"):
                    await self._terminate()
                    return
                wake_at = await self._sync()
                delay = RETRY_SECONDS[0]
            except (ApiError, *OUTAGE) as error:
                # A 403 right after binding means that the authorizer has not seen it yet.
                log.info("pod %s/%s: %s", self.record.namespace, self.record.name, error or type(error).__name__)
                wake_at = time.time() + delay
                delay = min(delay * 2, RETRY_SECONDS[1])
            timeout = None if wake_at is None else max(0.0, wake_at - time.time())
            try:
                await asyncio.wait_for(self._wake.wait(), timeout)
            except TimeoutError:
                continue

    async def halt(self, grace_seconds: float) -> None:
        """End all processes because the agent stops; the pod stays on this node and is restarted by the next agent."""
        for container in self.containers.values():
            await container.settled()
            container.stop("the node agent stops", grace_seconds)
        await asyncio.gather(*(c.ended.wait() for c in self.containers.values() if c.record.phase == "running"))

    async def _sync(self) -> float | None:
        self._open()
        if self._blocked is not None:
            await self._report()
            return None
        now = time.time()
        wakes: list[float] = []
        if not self.record.outcome:
            deadline = self.pod["spec"].get("activeDeadlineSeconds")
            if deadline is not None:
                due = epoch(self.record.start_time) + float(deadline)
                if due <= now:
                    await self._fail_by_deadline()
                wakes.append(due)
        if not self.record.outcome:
            if await self._mount(now):
                plan = await self._start_containers()
                if plan.wake_at is not None:
                    wakes.append(plan.wake_at)
                wakes.append(await self._refresh(now))
            else:
                wakes.append(self._mount_retry_at)
        await self._report()
        return min(wakes, default=None)

    def _open(self) -> None:
        """Give the pod its folder, address and containers; the second call does nothing."""
        if self.containers or self._blocked:
            return
        fields = unsupported_fields(self.pod)
        if fields:
            message = f"the local cluster's node does not implement {', '.join(fields)}; remove the field"
            self._blocked = (REASON, message + ("s" if len(fields) > 1 else ""))
            self._event("Warning", REASON, message)
            return
        if not self.record.ip:
            self.record.ip = self.node.addresses.take()
        self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        self.record.save(self.folder)
        facts = PodFacts(self.record.ip, self.node.address, self.node.allocatable)
        self._volumes = PodVolumes(self.node.client, self.pod, self.folder, facts)
        for spec in [*(self.pod["spec"].get("initContainers") or []), *self.pod["spec"]["containers"]]:
            container = Container(
                spec, self.record.container(spec["name"]), self.folder, self.uid, self.record.ip, self.node.backoff,
                self._changed, self._event,
            )  # fmt: skip
            container.default_grace_seconds = float(self.pod["spec"].get("terminationGracePeriodSeconds") or 0)
            self.containers[spec["name"]] = container
            if self._adopted and container.record.phase == "running":
                container.adopt()

    def _changed(self) -> None:
        if self.folder.exists():
            self.record.save(self.folder)
        self._wake.set()

    def _event(self, kind: str, reason: str, message: str) -> None:
        self.node.events.add(self.pod, kind, reason, message)

    async def _mount(self, now: float) -> bool:
        if self._mounted:
            return True
        assert self._volumes is not None
        if now < self._mount_retry_at:
            return False
        try:
            await self._volumes.prepare()
        except VolumeError as error:
            self._mount_retry_at = now + CREATE_RETRY_SECONDS
            for record in self.record.containers:
                if record.phase == "new":
                    record.waiting = ("ContainerCreating", str(error))
            self._event("Warning", "FailedMount", str(error))
            return False
        for record in self.record.containers:
            if record.phase == "new":
                record.waiting = None
        self._mounted = True
        self._refresh_at = self._volumes.next_refresh(now, self.node.refresh_seconds)
        return True

    async def _refresh(self, now: float) -> float:
        assert self._volumes is not None
        if now >= self._refresh_at:
            self._refresh_at = now + CREATE_RETRY_SECONDS
            try:
                await self._volumes.refresh()
                self._refresh_at = self._volumes.next_refresh(now, self.node.refresh_seconds)
            except (VolumeError, ValueError, ApiError, *OUTAGE) as error:
                # What is mounted stays in use; the next round tries again.
                log.info("pod %s/%s: volumes not refreshed: %s", self.record.namespace, self.record.name, error)
        return self._refresh_at

    async def _start_containers(self) -> Plan:
        policy = self.pod["spec"].get("restartPolicy", "Always")
        plan = decide(policy, [view(record) for record in self.record.containers], time.time())
        for name in plan.backing_off:
            record = self.record.container(name)
            if record.waiting is None:
                record.waiting = ("CrashLoopBackOff", back_off_message(self.pod, name, record.delay_seconds))
                self._event("Warning", "BackOff", f"Back-off restarting failed container {name}")
        # A quick restart must not hide how the last run ended from those who watch the pod.
        if any(self.record.container(name).phase == "ended" for name in plan.start):
            await self._report()
        for name in plan.start:
            await self._start(self.containers[name])
        if plan.start:
            policy = self.pod["spec"].get("restartPolicy", "Always")
            again = decide(policy, [view(record) for record in self.record.containers], time.time())
            plan.wake_at = again.wake_at
        if plan.outcome:
            await self._end_with(plan.outcome, "", "")
        return plan

    async def _start(self, container: Container) -> None:
        record, spec = container.record, container.spec
        assert self._volumes is not None
        try:
            references = await self._references(spec)
            launch = build_launch(
                self.pod, spec, attempt=record.attempt + 1, pod_folder=self.folder, mounts=self._volumes.mounts(spec),
                node=self.node.facts, facts=PodFacts(self.record.ip, self.node.address, self.node.allocatable),
                references=references, links=self._links(), rename=self.node.rename,
            )  # fmt: skip
        except ConfigError as error:
            self._cannot_start(record, "CreateContainerConfigError", str(error), CREATE_RETRY_SECONDS)
            return
        except ImageError as error:
            seen = record.waiting is not None and record.waiting[0] in ("ErrImagePull", "ImagePullBackOff")
            reason = "ImagePullBackOff" if seen else "ErrImagePull"
            self._cannot_start(record, reason, str(error), IMAGE_BACK_OFF_SECONDS if seen else CREATE_RETRY_SECONDS)
            return
        self._clean_old_attempts(container)
        await container.start(launch)

    def _cannot_start(self, record: ContainerRecord, reason: str, message: str, retry_seconds: float) -> None:
        if record.waiting != (reason, message):
            self._event("Warning", "Failed", f"Error: {message}")
        record.waiting = (reason, message)
        record.retry_at = time.time() + retry_seconds
        self.record.save(self.folder)

    def _links(self) -> dict[str, str]:
        if self.pod["spec"].get("enableServiceLinks") is False:
            return {}
        return service_links(self.node.services.values(), self.record.namespace)

    async def _references(self, spec: Object) -> References:
        config_maps, secrets = referenced(spec)
        return References(
            {name: await self._lookup("configmaps", name) for name in sorted(config_maps)},
            {name: await self._lookup("secrets", name) for name in sorted(secrets)},
        )

    async def _lookup(self, plural: str, name: str) -> Object | None:
        try:
            return await self.node.client.get(f"/api/v1/namespaces/{self.record.namespace}/{plural}/{name}")
        except ApiError as error:
            if error.code == 404:
                return None
            raise

    def _clean_old_attempts(self, container: Container) -> None:
        old = container.record.attempt + 1 - KEPT_ATTEMPTS
        if old >= 0:
            shutil.rmtree(container.attempt_folder(old), ignore_errors=True)
            log_path = container.log_path(old)
            for path in (log_path, log_path.with_name(log_path.name + ".1")):
                path.unlink(missing_ok=True)

    async def _fail_by_deadline(self) -> None:
        self._event("Normal", "DeadlineExceeded", "Pod was active on the node longer than the specified deadline")
        await self._end_with(
            "Failed", "DeadlineExceeded", "Pod was active on the node longer than the specified deadline"
        )

    async def _end_with(self, outcome: str, reason: str, message: str) -> None:
        await self._stop_all(None, reason or "the pod has ended")
        self.record.outcome, self.record.reason, self.record.message = outcome, reason, message
        self.record.save(self.folder)

    async def _stop_all(self, grace_seconds: float | None, why: str) -> None:
        running = [c for c in self.containers.values() if c.record.phase == "running"]
        for container in running:
            container.stop(why, grace_seconds)
        await asyncio.gather(*(container.ended.wait() for container in running))

    async def _terminate(self) -> None:
        """End the pod: processes, last status, API object, folder."""
        if not self._blocked:
            self._open()
        for container in self.containers.values():
            if container.record.phase == "running":
                self._event("Normal", "Killing", f"Stopping container {container.name}")
                container.stop("the pod is deleted", self._grace_seconds())
        while any(c.record.phase == "running" for c in self.containers.values()):
            self._wake.clear()
            await self._try(self._report)
            if any(c.record.phase == "running" for c in self.containers.values()):
                await self._wake.wait()
            for container in self.containers.values():
                container.stop("the pod is deleted", self._grace_seconds())
        if not self.record.outcome and self.containers:
            exits = [int((c.ended or {}).get("exitCode", 137)) for c in self.record.containers if not c.init]
            self.record.outcome = "Succeeded" if exits and not any(exits) else "Failed"
        await self._until_gone(self._report)
        await self._until_gone(self._delete)
        if self.record.ip:
            self.node.addresses.give_back(self.record.ip)
        await asyncio.to_thread(shutil.rmtree, self.folder, ignore_errors=True)

    def _grace_seconds(self) -> float:
        if self.gone:
            return FORCED_GRACE_SECONDS
        return float(self.pod["metadata"].get("deletionGracePeriodSeconds") or FORCED_GRACE_SECONDS)

    async def _try(self, action: Callable[[], Coroutine[Any, Any, None]]) -> bool:
        try:
            await action()
        except (ApiError, *OUTAGE) as error:
            log.info("pod %s/%s: %s", self.record.namespace, self.record.name, error or type(error).__name__)
            # Not found, another pod of that name, or a status that this server refuses: asking again changes nothing.
            return isinstance(error, ApiError) and error.code in (404, 409, 422)
        return True

    async def _until_gone(self, action: Callable[[], Coroutine[Any, Any, None]]) -> None:
        delay = RETRY_SECONDS[0]
        while not self.gone and not await self._try(action):
            await asyncio.sleep(delay)
            delay = min(delay * 2, RETRY_SECONDS[1])

    async def _delete(self) -> None:
        metadata = self.pod["metadata"]
        await self.node.client.delete(
            f"/api/v1/namespaces/{metadata['namespace']}/pods/{metadata['name']}",
            {"apiVersion": "v1", "kind": "DeleteOptions", "gracePeriodSeconds": 0, "preconditions": {"uid": self.uid}},
        )

    async def _report(self) -> None:
        """PATCH the status when it differs from what was sent last."""
        if self.gone:
            return
        status = pod_status(self.pod, self.record, host_ip=self.node.address, now=now_text(), blocked=self._blocked)
        if status == self._sent:
            return
        metadata = self.pod["metadata"]
        answer = await self.node.client.patch(
            f"/api/v1/namespaces/{metadata['namespace']}/pods/{metadata['name']}/status",
            {"metadata": {"uid": self.uid}, "status": status},
        )
        # The next status keeps the transition times of this one, also before the watch has brought it.
        self.pod = {**self.pod, "status": answer.get("status", {})}
        self._sent = status


def new_records(pod: Object) -> list[ContainerRecord]:
    """Records of a pod that has not run yet, init containers first."""
    init = [ContainerRecord(c["name"], init=True) for c in pod["spec"].get("initContainers") or []]
    return init + [ContainerRecord(c["name"], init=False) for c in pod["spec"]["containers"]]


def view(record: ContainerRecord) -> ContainerView:
    """The part of a record that decisions read."""
    return ContainerView(
        name=record.name, init=record.init, phase=record.phase,
        exit_code=int((record.ended or {}).get("exitCode", 0)), ended_at=record.ended_at,
        delay_seconds=record.delay_seconds, retry_at=record.retry_at,
    )  # fmt: skip
