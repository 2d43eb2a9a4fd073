"""Events on InferenceServices: one object per thing to say, counted up when it is said again."""

from __future__ import annotations

import logging
from collections import OrderedDict
from datetime import datetime
from typing import Any

from octavo_operator.cluster.client import ApiError, Client
from octavo_operator.cluster.resources import EVENTS, SERVICES
from octavo_operator.plan import Event
from octavo_operator.plan.facts import digest
from octavo_operator.plan.server_contract import FIELD_MANAGER
from octavo_operator.status.conditions import timestamp

log = logging.getLogger("octavo.events")
Object = dict[str, Any]
_REMEMBERED = 4096
_MAX_MESSAGE = 1024


class Recorder:
    """Records events. Its memory of counts is bounded and ends with the process, as Events themselves do."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._counts: OrderedDict[str, tuple[int, str]] = OrderedDict()

    async def tell(self, service: Object, event: Event, now: datetime) -> None:
        """Record one event; its loss ends nothing, since the conditions hold the fact."""
        meta, instant = service["metadata"], timestamp(now)
        # At most 253 characters: 63 of the service and 17 of the digest.
        name = f"{meta['name']}.{digest([meta['uid'], event.type, event.reason, event.message], 16)}"
        count, first = self._counts.pop(name, (0, instant))
        self._counts[name] = (count + 1, first)
        while len(self._counts) > _REMEMBERED:
            self._counts.popitem(last=False)
        body = {
            "apiVersion": EVENTS.api_version,
            "kind": EVENTS.kind,
            "metadata": {"name": name, "namespace": meta["namespace"]},
            "involvedObject": {
                "apiVersion": SERVICES.api_version,
                "kind": SERVICES.kind,
                **{key: meta[key] for key in ("name", "namespace", "uid")},
            },
            "type": event.type,
            "reason": event.reason,
            "message": event.message[:_MAX_MESSAGE],
            "source": {"component": FIELD_MANAGER},
            "reportingComponent": FIELD_MANAGER,
            "firstTimestamp": first,
            "lastTimestamp": instant,
            "count": count + 1,
        }
        try:
            await self._client.record(EVENTS, body)
        except ApiError as error:
            log.warning(
                "%s/%s: the event %s was not recorded: %s", meta["namespace"], meta["name"], event.reason, error
            )
