"""`octavo top`: a live table of services: replicas, use of the KV cache, queue, tokens per second."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Mapping
from typing import Any

import aiohttp
from octavo_operator.cluster.client import Client, connect
from octavo_operator.cluster.resources import PODS, SERVICES
from octavo_operator.plan import server_contract as contract
from octavo_operator.scaling.observe import target
from octavo_operator.settings import account_folder
from rich.console import Console
from rich.live import Live

from .context import raw
from .load import Key, Load, table

SELECTOR = f"{contract.ROLE_LABEL}={contract.ROLE_SERVER}"
DIRECT_SECONDS = 2.0
"""How long a pod may take to answer before the way through the API server is tried."""
ONCE_SECONDS = 2.0
"""Between the two looks that give one table its rate."""


class Looker:
    """Reads services and their pods' metrics: straight where pods can be reached, else through the API server."""

    def __init__(self, client: Client, session: aiohttp.ClientSession, namespace: str | None) -> None:
        """`namespace` None = all of them."""
        self._client, self._session, self._namespace = client, session, namespace
        self._reachable = True

    async def look(self) -> tuple[list[dict[str, Any]], dict[Key, Load]]:
        """All services, and the load of each. Raises ApiError."""
        services = await self._client.list(SERVICES, self._namespace)
        pods = await self._client.list(PODS, self._namespace, selector=SELECTOR)
        runtimes = {_key(item): _runtime(item) for item in services}
        owned = [(pod, _owner(pod)) for pod in pods if _owner(pod) in runtimes]
        texts = await asyncio.gather(*(self._scrape(pod, runtimes[key]) for pod, key in owned))
        loads: dict[Key, Load] = {}
        now = time.monotonic()
        for (pod, key), text in zip(owned, texts, strict=True):
            if target(pod, runtimes[key]) is not None:
                loads.setdefault(key, Load(now)).add(text, runtimes[key])
        return services, loads

    async def _scrape(self, pod: Mapping[str, Any], runtime: str) -> str | None:
        place = target(dict(pod), runtime)
        if place is None:
            return None
        if self._reachable:
            try:
                async with self._session.get(place.url) as answer:
                    return await answer.text() if answer.status == 200 else None
            except (aiohttp.ClientError, TimeoutError):
                # From outside of the cluster no pod answers: the others are not tried for two seconds each.
                self._reachable = False
        meta = pod["metadata"]
        path = (
            f"/api/v1/namespaces/{meta['namespace']}/pods/{meta['name']}:{contract.PORT}/proxy{contract.METRICS_PATH}"
        )
        return await raw(path)


def _key(item: Mapping[str, Any]) -> Key:
    return item["metadata"]["namespace"], item["metadata"]["name"]


def _owner(pod: Mapping[str, Any]) -> Key:
    return pod["metadata"]["namespace"], pod["metadata"]["labels"].get(contract.SERVICE_LABEL, "")


def _runtime(service: Mapping[str, Any]) -> str:
    return str((service["spec"].get("engine") or {}).get("runtime") or "Octavo")


async def top(namespace: str | None, seconds: float, once: bool, console: Console) -> None:
    """Until interrupted; with `once`, two looks for one table. Raises ApiError."""
    timeout = aiohttp.ClientTimeout(total=DIRECT_SECONDS)
    async with connect(account_folder(os.environ)) as client, aiohttp.ClientSession(timeout=timeout) as session:
        looker = Looker(client, session, namespace)
        services, before = await looker.look()
        if once:
            if before:
                await asyncio.sleep(ONCE_SECONDS)
            services, loads = await looker.look()
            console.print(table(services, loads, before))
            if not services:
                console.print(f"no InferenceService in {namespace or 'any namespace'}")
            return
        with Live(table(services, before, {}), console=console, auto_refresh=False) as live:
            while True:
                await asyncio.sleep(seconds)
                services, loads = await looker.look()
                live.update(table(services, loads, before), refresh=True)
                before = loads
