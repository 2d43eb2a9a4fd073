"""Complete lists: they fill the indexes at first, and afterwards tell what a watch can't – objects that went while
nobody watched."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Sequence
from functools import partial

from octavo_operator.cluster.client import ApiError, Client
from octavo_operator.cluster.resources import Resource, watched
from octavo_operator.settings import Settings

from .indexes import Indexes, Key
from .queue import WorkQueue
from .trim import trimmed

log = logging.getLogger("octavo.listing")
RETRY_SECONDS = 2.0
GATHER_SECONDS = 1.0
"""Several wishes within this time become one list."""
SPREAD_SECONDS = 10.0


async def fill(client: Client, indexes: Indexes, settings: Settings, resource: Resource) -> set[Key]:
    """List a kind into the indexes; returns the services whose facts changed. Raises ApiError."""
    concerned: set[Key] = set()
    for namespace in settings.namespaces if resource.namespaced and settings.namespaces else (None,):
        found = await client.snapshot(resource, namespace, keep=partial(trimmed, resource))
        concerned |= indexes.replace(resource, found.items, namespace, found.version)
    return concerned


async def first_fill(client: Client, indexes: Indexes, settings: Settings) -> None:
    """Fill the indexes, however long the API server or the CRDs are awaited."""
    while True:
        try:
            for resource in watched(settings.nodes_access):
                await fill(client, indexes, settings, resource)
            return
        except ApiError as error:
            hint = "; are the CRDs installed (kubectl apply -k crds/)?" if error.code == 404 else ""
            log.warning("the cluster's objects can't be listed yet: %s%s", error, hint)
            await asyncio.sleep(RETRY_SECONDS)


class Relister:
    """Lists kinds again: on a wish, and all of them from time to time."""

    def __init__(self, client: Client, indexes: Indexes, settings: Settings, queue: WorkQueue[Key]) -> None:
        self._client, self._indexes, self._settings, self._queue = client, indexes, settings, queue
        self._wished: set[Resource] = set()
        self._wake = asyncio.Event()

    def wish(self, resource: Resource) -> None:
        """A watch of this kind began anew: what was deleted before is told by no event."""
        self._wished.add(resource)
        self._wake.set()

    async def run(self) -> None:
        """For ever."""
        while True:
            try:
                async with asyncio.timeout(self._settings.resync_seconds):
                    await self._wake.wait()
                everything = False
                await asyncio.sleep(GATHER_SECONDS)
            except TimeoutError:
                everything = True
            self._wake.clear()
            wished, self._wished = self._wished, set()
            await self._list(watched(self._settings.nodes_access) if everything else tuple(wished))
            if everything:
                # Spread, so that a resync of many services is no burst.
                spread = min(SPREAD_SECONDS, self._settings.resync_seconds / 4)
                for key in self._indexes.services():
                    self._queue.add_after(key, random.random() * spread)

    async def _list(self, resources: Sequence[Resource]) -> None:
        """Kind by kind, so that what one list told is not lost with the next one's failure."""
        for number, resource in enumerate(resources):
            try:
                concerned = await fill(self._client, self._indexes, self._settings, resource)
            except ApiError as error:
                log.warning("the objects could not be listed again yet: %s", error)
                for left in resources[number:]:
                    self.wish(left)
                await asyncio.sleep(RETRY_SECONDS)
                return
            for key in concerned:
                self._queue.add(key)
