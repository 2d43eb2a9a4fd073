"""One node: its registration, its pods, its events and its logs."""

import asyncio
import logging
import shutil
import signal
import ssl

from ..agent_config import NodeIdentity
from ..nodes import NodeSpec
from .api import Object
from .log_server import start_log_server
from .node import keep_node
from .pod_worker import NodeContext, PodWorker
from .process import ContainerProcess
from .record import PodRecord, load_record
from .reflector import Reflector

log = logging.getLogger(__name__)


class NodeAgent:
    """Serves one node; `former` holds records, by uid, of pods that an earlier agent ran on it."""

    def __init__(
        self, context: NodeContext, spec: NodeSpec, identity: NodeIdentity, tls: ssl.SSLContext,
        former: dict[str, PodRecord],
    ) -> None:  # fmt: skip
        self.workers: dict[str, PodWorker] = {}
        self._context = context
        self._spec = spec
        self._identity = identity
        self._tls = tls
        self._former = former
        self._tasks: dict[str, asyncio.Task[None]] = {}

    async def run(self) -> None:
        """Work until cancelled; pods' processes are ended by halt(), not by this."""
        server = await start_log_server(self._find, self._identity, self._tls)
        pods = Reflector(
            self._context.client, "/api/v1/pods", self._pod_changed, field_selector=f"spec.nodeName={self._spec.name}"
        )
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(keep_node(self._context.client, self._spec, self._identity))
                group.create_task(self._context.events.run())
                group.create_task(pods.run())
                group.create_task(self._end_orphans(pods))
        finally:
            for task in self._tasks.values():
                task.cancel()
            await server.cleanup()

    async def halt(self, grace_seconds: float) -> None:
        """End all processes of all pods."""
        for task in self._tasks.values():
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks.values())
        await asyncio.gather(*(worker.halt(grace_seconds) for worker in self.workers.values()))

    def _find(self, namespace: str, name: str) -> PodWorker | None:
        found = [w for w in self.workers.values() if (w.record.namespace, w.record.name) == (namespace, name)]
        return found[-1] if found else None

    def _pod_changed(self, old: Object | None, new: Object | None) -> None:
        if new is None:
            assert old is not None
            worker = self.workers.get(old["metadata"]["uid"])
            if worker is not None:
                worker.removed()
            return
        uid = new["metadata"]["uid"]
        if uid in self.workers:
            self.workers[uid].set_pod(new)
            return
        phase = (new.get("status") or {}).get("phase")
        # A record without a worker is left by a former agent, or by a worker that failed.
        former = self._former.pop(uid, None) or load_record(self._context.pods_folder / uid)
        if former is None and phase in ("Succeeded", "Failed") and not new["metadata"].get("deletionTimestamp"):
            return
        worker = PodWorker(self._context, new, former)
        self.workers[uid] = worker
        task = asyncio.create_task(worker.run(), name=f"pod {uid}")
        self._tasks[uid] = task
        task.add_done_callback(lambda done: self._forget(uid, done))

    def _forget(self, uid: str, task: asyncio.Task[None]) -> None:
        if task.cancelled():
            return
        self.workers.pop(uid, None)
        self._tasks.pop(uid, None)
        error = task.exception()
        if error is not None:
            log.error("the worker of pod %s failed: %s", uid, error, exc_info=error)

    async def _end_orphans(self, pods: Reflector) -> None:
        """Once all pods are known, end what an earlier agent left of pods that are gone."""
        await pods.synced.wait()
        for uid, record in list(self._former.items()):
            log.info("pod %s/%s is gone: ending what is left of it", record.namespace, record.name)
            folder = self._context.pods_folder / uid
            for container in record.containers:
                if container.phase == "running":
                    process = ContainerProcess.adopt(folder / "containers" / container.name / str(container.attempt))
                    process.send(signal.SIGKILL)
                    await process.wait()
            self._context.addresses.give_back(record.ip)
            await asyncio.to_thread(shutil.rmtree, folder, ignore_errors=True)
        self._former.clear()
