"""A collection of the API server kept in memory: list, watch, list again when the watch can't go on."""

import asyncio
import logging
import random
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from typing import cast

from .api import OUTAGE, ApiClient, ApiError, Object

log = logging.getLogger(__name__)

WATCH_SECONDS = 240
RETRY_SECONDS = (0.1, 5.0)
GONE = 410


class Reflector:
    """Objects of one collection by (namespace, name).

    Calls `changed(old, new)` after each change: old is None for a new object, new is None for a deleted one. An object
    that was deleted and created anew under its name is reported as deleted first.
    """

    def __init__(
        self, client: ApiClient, path: str, changed: Callable[[Object | None, Object | None], None],
        *, field_selector: str = "",
    ) -> None:  # fmt: skip
        self.objects: dict[tuple[str, str], Object] = {}
        self.synced = asyncio.Event()
        self._client = client
        self._path = path
        self._changed = changed
        self._params = {"fieldSelector": field_selector} if field_selector else {}

    async def run(self) -> None:
        """Follow the collection until cancelled; outages are waited out."""
        delay = RETRY_SECONDS[0]
        version = ""
        while True:
            try:
                if not version:
                    version = await self._list()
                    delay = RETRY_SECONDS[0]
                version = await self._follow(version)
                delay = RETRY_SECONDS[0]
            except ApiError as error:
                log.warning("%s: %s (%s)", self._path, error, error.code)
                version = "" if error.code == GONE else version
            except OUTAGE as error:
                log.info("%s: no answer from the API server: %s", self._path, error or type(error).__name__)
                # A new server may have lost history (a restored store): the list tells what is true.
                version = ""
            await asyncio.sleep(delay * (0.5 + random.random()))
            delay = min(delay * 2, RETRY_SECONDS[1])

    async def _list(self) -> str:
        answer = await self._client.get(self._path, self._params)
        found = {key_of(item): item for item in answer.get("items") or []}
        for key in [key for key in self.objects if key not in found]:
            self._set(key, None)
        for key, item in found.items():
            self._set(key, item)
        self.synced.set()
        return str(answer["metadata"]["resourceVersion"])

    async def _follow(self, version: str) -> str:
        params = self._params | {
            "resourceVersion": version, "allowWatchBookmarks": "true",
            "timeoutSeconds": str(WATCH_SECONDS + random.randrange(60)),
        }  # fmt: skip
        async with aclosing(cast("AsyncGenerator[Object, None]", self._client.watch(self._path, params))) as events:
            async for event in events:
                kind, item = event["type"], event["object"]
                if kind == "ERROR":
                    raise ApiError(
                        int(item.get("code", 500)), str(item.get("reason", "")), str(item.get("message", ""))
                    )
                version = str(item["metadata"]["resourceVersion"])
                if kind != "BOOKMARK":
                    self._set(key_of(item), None if kind == "DELETED" else item)
        return version

    def _set(self, key: tuple[str, str], item: Object | None) -> None:
        old = self.objects.get(key)
        if old is not None and item is not None and old["metadata"]["uid"] != item["metadata"]["uid"]:
            del self.objects[key]
            self._changed(old, None)
            old = None
        if item is None:
            self.objects.pop(key, None)
        else:
            self.objects[key] = item
        if old is not item:
            self._changed(old, item)


def key_of(item: Object) -> tuple[str, str]:
    """(namespace, name) of an object."""
    return str(item["metadata"].get("namespace", "")), str(item["metadata"]["name"])
