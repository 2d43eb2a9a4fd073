"""Watches by kopf: it follows the API server and tells every change. Nothing else of its handler model is used, so it
leaves no finalizer and no annotation on users' objects.

kopf runs in a thread with an event loop of its own. It takes over the signals and, at its end, cancels every task of
the loop it runs in; apart from the operator's loop it can do neither, and it can be started again when it fails.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import logging
import random
import threading
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

import kopf

from octavo_operator.plan.server_contract import FIELD_MANAGER
from octavo_operator.settings import Settings

from .client import in_cluster_address
from .resources import Resource, watched

log = logging.getLogger("octavo.watches")
Changed = Callable[[Resource, dict[str, Any], str | None], None]
"""Called with the kind, the object and ADDED, MODIFIED, DELETED, or None for an object of a fresh list."""
Keep = Callable[[Resource, dict[str, Any]], dict[str, Any]]
"""What is kept of an object."""
LONGEST_RETRY_SECONDS = 5.0
_JOIN_SECONDS = 3.0
_NEWS_PER_TURN = 50


class _Backoffs:
    """Waits of kopf's requests, without end: an API server that is away for long ends no watch."""

    def __iter__(self) -> Iterator[float]:
        wait = 0.25
        while True:
            yield wait * (0.5 + random.random() / 2)
            wait = min(LONGEST_RETRY_SECONDS, wait * 2)


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Connection(kopf.ConnectionInfo):
    """kopf's connection under the operator's own name."""

    def as_http_headers(self) -> dict[str, str]:
        return {**super().as_http_headers(), "User-Agent": FIELD_MANAGER}


class _NoMemory(kopf.DiffBaseStorage):
    """kopf's memory of an object's last state, for handlers of differences. There are none of them here, and a copy of
    each object that changes would be made for nothing."""

    def build(self, *, body: kopf.Body, extra_fields: object = None) -> kopf.BodyEssence:
        return kopf.BodyEssence()

    def fetch(self, *, body: kopf.Body) -> kopf.BodyEssence | None:
        return None

    def store(self, *, body: kopf.Body, patch: kopf.Patch, essence: kopf.BodyEssence) -> None:
        pass


def _registry(settings: Settings, changed: Changed, keep: Keep, streams: bool) -> kopf.OperatorRegistry:
    registry = kopf.OperatorRegistry()

    @kopf.on.startup(registry=registry)
    async def configure(settings: kopf.OperatorSettings, **_: Any) -> None:
        settings.posting.enabled = False
        settings.persistence.diffbase_storage = _NoMemory()
        # The kinds are known and have been listed before, so that no right to list CRDs is needed.
        settings.scanning.disabled = True
        settings.watching.server_timeout = 300
        settings.watching.connect_timeout = 10
        settings.watching.chunk_size = 500
        # Else kopf lists each kind first, whole and in one piece: hundreds of MiB where there are thousands of objects.
        settings.watching.initial_streaming = streams
        settings.networking.request_timeout = 30
        settings.networking.error_backoffs = _Backoffs()
        settings.queueing.idle_timeout = 0.1
        settings.process.ultimate_exiting_timeout = None

    @kopf.on.login(registry=registry)
    async def login(**arguments: Any) -> kopf.ConnectionInfo | None:
        token = settings.account_folder / "token"
        if token.exists():
            return _Connection(
                server=in_cluster_address(),
                ca_path=str(settings.account_folder / "ca.crt"),
                scheme="Bearer",
                token=token.read_text().strip(),
            )
        found = kopf.login_with_kubeconfig(**arguments)
        if found is None:
            return None
        return _Connection(**{item.name: getattr(found, item.name) for item in dataclasses.fields(found)})

    def follow(resource: Resource) -> None:
        names = (resource.group, resource.version, resource.plural) if resource.group else ("v1", resource.plural)

        async def told(event: Any, **_: Any) -> None:
            # Cut here already: after a start thousands of objects come at once and wait for the operator's loop.
            changed(resource, keep(resource, dict(event["object"])), event["type"])

        kopf.on.event(*names, registry=registry, id=f"watch-{resource.plural}")(told)

    for resource in watched(settings.nodes_access):
        follow(resource)
    return registry


def _quiet(record: logging.LogRecord) -> bool:
    return "OS signals are ignored" not in record.getMessage()


class Watches:
    """The thread in which kopf follows all watched kinds; `changed` is called in the loop that made this object."""

    def __init__(self, settings: Settings, changed: Changed, keep: Keep, streams: bool = False) -> None:
        """`keep` is called in kopf's thread. `streams`: whether the API server sends what exists as events of a watch
        (Kubernetes 1.34 and later)."""
        self._settings, self._streams = settings, streams
        self._owner = asyncio.get_running_loop()
        self._changed, self._keep = changed, keep
        self._stopped = threading.Event()
        self._ended = asyncio.Event()
        self._end: Callable[[], object] | None = None
        self._news: deque[tuple[Resource, dict[str, Any], str | None]] = deque()
        self._thread = threading.Thread(target=self._work, name="watches", daemon=True)

    def _pass_on(self, resource: Resource, item: dict[str, Any], event: str | None) -> None:
        if not self._stopped.is_set():
            # The owner's loop is woken once for all that waits: a wake is a call to the system, in which this thread
            # and the loop's wait for each other, thousands of times in a wave of changes.
            self._news.append((resource, item, event))
            if len(self._news) == 1:
                self._owner.call_soon_threadsafe(self._tell)

    def _tell(self) -> None:
        """Some of the news, in the owner's loop; the rest in its next turn, so that others get theirs between."""
        try:
            for _ in range(min(len(self._news), _NEWS_PER_TURN)):
                self._changed(*self._news.popleft())
        finally:
            if self._news:
                self._owner.call_soon(self._tell)

    async def _follow(self) -> None:
        stop, loop = asyncio.Event(), asyncio.get_running_loop()
        self._end = lambda: loop.call_soon_threadsafe(stop.set)
        if self._stopped.is_set():
            return
        await kopf.operator(
            registry=_registry(self._settings, self._pass_on, self._keep, self._streams),
            clusterwide=not self._settings.namespaces,
            namespaces=self._settings.namespaces,
            standalone=True,
            stop_flag=stop,
        )

    def _work(self) -> None:
        try:
            self._follow_again_and_again()
        finally:
            with contextlib.suppress(RuntimeError):  # The owner's loop may have closed.
                self._owner.call_soon_threadsafe(self._ended.set)

    def _follow_again_and_again(self) -> None:
        for name in ("kopf", "kopf.objects"):
            logging.getLogger(name).setLevel(logging.WARNING)
        logging.getLogger("kopf._core.reactor.running").addFilter(_quiet)
        for wait in _Backoffs():
            try:
                asyncio.run(self._follow())
            except Exception:
                log.exception("the watches ended")
            if self._stopped.wait(wait):
                return
            log.warning("the watches are started again")

    async def run(self) -> None:
        """Watch until cancelled."""
        self._thread.start()
        try:
            await self._ended.wait()
            raise RuntimeError("the watches' thread ended by itself; its reason stands in the log above")
        finally:
            self._stopped.set()
            if self._end is not None:
                with contextlib.suppress(RuntimeError):  # Its loop has ended already.
                    self._end()
            await asyncio.to_thread(self._thread.join, _JOIN_SECONDS)
