"""Events on pods and nodes: what `kubectl describe` shows. They are a help for people, so losing one stops nothing."""

import asyncio
import logging
import secrets

from .api import OUTAGE, ApiClient, ApiError, Object
from .container import now_text

log = logging.getLogger(__name__)

REPEAT_LIMIT = 1000


class EventRecorder:
    """Posts Events of one node; repeats of the same text raise a counter instead of making more objects."""

    def __init__(self, client: ApiClient, node: str) -> None:
        self._client = client
        self._node = node
        self._queue: asyncio.Queue[tuple[Object, str, str, str]] = asyncio.Queue(maxsize=REPEAT_LIMIT)
        self._seen: dict[tuple[str, ...], tuple[str, int]] = {}

    def add(self, pod: Object, kind: str, reason: str, message: str) -> None:
        """Report on a pod; never waits. `kind` is Normal or Warning."""
        if not self._queue.full():
            self._queue.put_nowait((pod, kind, reason, message))

    async def run(self) -> None:
        """Post what was added, until cancelled."""
        while True:
            pod, kind, reason, message = await self._queue.get()
            try:
                await self._post(pod, kind, reason, message)
            except (ApiError, *OUTAGE) as error:
                log.debug("event %s lost: %s", reason, error)

    async def _post(self, pod: Object, kind: str, reason: str, message: str) -> None:
        metadata = pod["metadata"]
        path = f"/api/v1/namespaces/{metadata['namespace']}/events"
        key = (metadata["uid"], kind, reason, message)
        now = now_text()
        if key in self._seen:
            name, count = self._seen[key]
            self._seen[key] = (name, count + 1)
            await self._client.patch(f"{path}/{name}", {"count": count + 1, "lastTimestamp": now})
            return
        name = f"{metadata['name']}.{secrets.token_hex(8)}"
        if len(self._seen) >= REPEAT_LIMIT:
            self._seen.pop(next(iter(self._seen)))
        self._seen[key] = (name, 1)
        reference = {
            "kind": "Pod", "apiVersion": "v1", "namespace": metadata["namespace"], "name": metadata["name"],
            "uid": metadata["uid"],
        }  # fmt: skip
        event = {
            "metadata": {"name": name, "namespace": metadata["namespace"]},
            "involvedObject": reference,
            "type": kind,
            "reason": reason,
            "message": message[:1024],
            "count": 1,
            "firstTimestamp": now,
            "lastTimestamp": now,
            "source": {"component": "octavo-node-agent", "host": self._node},
            "reportingComponent": "octavo-node-agent",
            "reportingInstance": self._node,
        }
        await self._client.create(path, event)
