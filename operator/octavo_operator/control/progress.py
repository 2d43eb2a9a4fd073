"""Asks pods that fetch their model how far they are, and queues their service when its words change."""

from __future__ import annotations

import asyncio
import ipaddress
import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import aiohttp

from octavo_operator.cluster.resources import PODS
from octavo_operator.plan import Facts, Plan
from octavo_operator.plan import server_contract as contract
from octavo_operator.plan.fetch_state import in_words, is_fetching

from .indexes import Indexes, Key

ASK_SECONDS = 5.0
_AT_ONCE = 32
_LIMIT_BYTES = 4096
_NUMBERS = ("presentBytes", "totalBytes", "interruptions")


class ProgressWatch:
    """`run` beside the workers; `planner` in the place of a planner's function."""

    def __init__(self, indexes: Indexes, ask: Callable[[Key], None]) -> None:
        """`ask` queues a service whose pods have news."""
        self._indexes, self._ask = indexes, ask
        self._reports: dict[str, Mapping[str, Any]] = {}

    def planner(self, plan: Callable[[Facts], Plan]) -> Callable[[Facts], Plan]:
        """The same planner with what is known of fetches among its facts."""

        def with_progress(facts: Facts) -> Plan:
            uids = {pod["metadata"]["uid"] for pod in facts.pods}
            mine = {uid: report for uid, report in self._reports.items() if uid in uids}
            return plan(replace(facts, progress=mine) if mine else facts)

        return with_progress

    async def run(self) -> None:
        """For ever."""
        limit = asyncio.Semaphore(_AT_ONCE)
        timeout = aiohttp.ClientTimeout(total=2.0)
        async with aiohttp.ClientSession(timeout=timeout, trust_env=False) as session:
            while True:
                await self.look(session, limit)
                await asyncio.sleep(ASK_SECONDS)

    async def look(self, session: aiohttp.ClientSession, limit: asyncio.Semaphore) -> None:
        """One round over all pods that fetch."""
        pods = [pod for pod in self._indexes.all(PODS.kind) if is_fetching(pod)]
        uids = {pod["metadata"]["uid"] for pod in pods}
        self._reports = {uid: report for uid, report in self._reports.items() if uid in uids}

        async def one(pod: dict[str, Any]) -> None:
            async with limit:
                report = await _asked(session, pod)
            if report is None:
                return
            uid = pod["metadata"]["uid"]
            before, self._reports[uid] = self._reports.get(uid), report
            service = (pod["metadata"].get("labels") or {}).get(contract.SERVICE_LABEL)
            if service and (before is None or in_words(before) != in_words(report)):
                self._ask((pod["metadata"]["namespace"], service))

        await asyncio.gather(*map(one, pods))


async def _asked(session: aiohttp.ClientSession, pod: dict[str, Any]) -> Mapping[str, Any] | None:
    """A pod's report; None when it gives none: an older image, or the fetch has just begun or ended."""
    try:
        address = ipaddress.ip_address(pod.get("status", {}).get("podIP") or "")
        host = f"[{address}]" if address.version == 6 else str(address)
        url = f"http://{host}:{contract.PORT}{contract.PROGRESS_PATH}"
        async with session.get(url, allow_redirects=False) as answer:
            if answer.status != 200:
                return None
            report = json.loads(await answer.content.read(_LIMIT_BYTES))
    except (ValueError, TimeoutError, aiohttp.ClientError):
        return None
    numbers = isinstance(report, dict) and all(isinstance(report.get(name, 0), int) for name in _NUMBERS)
    return report if numbers else None
