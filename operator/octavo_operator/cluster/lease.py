"""Leadership by a Lease: taken also by a single replica, renewed under a deadline, given back at a clean end."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from datetime import datetime
from typing import Any

from octavo_operator.settings import LeaseSettings

from .client import ApiError, Client
from .resources import LEASES

log = logging.getLogger("octavo.lease")


class LeaseLost(Exception):
    """Leadership could not be proven in time; the process must end."""


class Leadership:
    """Holds one Lease. A foreign holder counts as alive while its renewals keep arriving, by this process's clock."""

    def __init__(
        self, client: Client, settings: LeaseSettings, clock: Callable[[], float], now: Callable[[], datetime]
    ) -> None:
        self._client, self._settings, self._clock, self._now = client, settings, clock, now
        self._seen: tuple[str, float] = ("", 0.0)
        self._renewed: float | None = None

    def proven(self) -> bool:
        """Whether this process may still act as the leader: its last renewal is young enough."""
        return self._renewed is not None and self._clock() - self._renewed < self._settings.renew_deadline_seconds

    async def _held_now(self) -> bool:
        # Counted from before the request: the Lease can't have been renewed earlier than that.
        asked = self._clock()
        held = await self.try_hold()
        self._renewed = asked if held else None
        return held

    def _spec(self, before: dict[str, Any] | None) -> dict[str, Any]:
        now = self._now().strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        mine = before is not None and before.get("holderIdentity") == self._settings.identity
        return {
            "holderIdentity": self._settings.identity,
            "leaseDurationSeconds": int(self._settings.duration_seconds),
            "renewTime": now,
            "acquireTime": before["acquireTime"] if mine and before and before.get("acquireTime") else now,
            "leaseTransitions": int((before or {}).get("leaseTransitions") or 0) + (0 if mine or before is None else 1),
        }

    async def try_hold(self) -> bool:
        """Take or renew the Lease; False while another holds it. Raises ApiError."""
        where = (self._settings.namespace, self._settings.name)
        timeout = self._settings.renew_deadline_seconds / 2
        try:
            lease = await self._client.request("GET", LEASES.path(*where), timeout_seconds=timeout)
        except ApiError as error:
            if error.code != 404:
                raise
            body = {
                "apiVersion": LEASES.api_version,
                "kind": LEASES.kind,
                "metadata": {"name": self._settings.name, "namespace": self._settings.namespace},
                "spec": self._spec(None),
            }
            await self._client.request("POST", LEASES.path(where[0]), body, timeout_seconds=timeout)
            return True
        spec = lease.get("spec") or {}
        holder = spec.get("holderIdentity") or ""
        if holder and holder != self._settings.identity:
            if self._seen[0] != f"{holder} {spec.get('renewTime')}":
                self._seen = (f"{holder} {spec.get('renewTime')}", self._clock())
            if self._clock() - self._seen[1] < float(spec.get("leaseDurationSeconds") or 0):
                return False
            log.info("the Lease of %s has expired; taking it", holder)
        # The resourceVersion makes a race between two takers end with one winner.
        await self._client.request(
            "PUT", LEASES.path(*where), {**lease, "spec": self._spec(spec)}, timeout_seconds=timeout
        )
        return True

    async def acquire(self) -> None:
        """Wait until the Lease is held."""
        told = False
        while True:
            try:
                if await self._held_now():
                    return
                if not told:
                    log.info("another operator holds the Lease %s; standing by", self._settings.name)
                    told = True
            except ApiError as error:
                log.warning("the Lease could not be taken: %s", error)
            await asyncio.sleep(self._settings.retry_seconds)

    async def keep(self) -> None:
        """Renew for ever; raises LeaseLost."""
        while True:
            await asyncio.sleep(self._settings.retry_seconds)
            renewed = self._renewed
            assert renewed is not None, "keep follows acquire"
            try:
                left = self._settings.renew_deadline_seconds - (self._clock() - renewed)
                async with asyncio.timeout(max(0.0, left)):
                    held = await self._held_now()
            except (ApiError, TimeoutError) as error:
                log.warning("the Lease was not renewed: %s", error or "no answer in time")
                if self._clock() - renewed >= self._settings.renew_deadline_seconds:
                    raise LeaseLost(
                        f"the Lease was not renewed for {self._settings.renew_deadline_seconds:.0f} s"
                    ) from error
                continue
            if not held:
                raise LeaseLost("another operator has taken the Lease")

    async def release(self) -> None:
        """Let a successor take the Lease at once."""
        self._renewed = None
        path = LEASES.path(self._settings.namespace, self._settings.name)
        try:
            lease = await self._client.request("GET", path, timeout_seconds=2)
            if (lease.get("spec") or {}).get("holderIdentity") == self._settings.identity:
                body = {**lease, "spec": {**lease["spec"], "holderIdentity": ""}}
                await self._client.request("PUT", path, body, timeout_seconds=2)
        except ApiError as error:
            log.warning("the Lease was not released, it expires by itself: %s", error)
