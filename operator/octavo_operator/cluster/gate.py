"""The start gate: every right that the operator needs is asked for before it works."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from octavo_operator.settings import Settings

from .client import ApiError, Client
from .permissions import NODE_RIGHTS, OWN_NAMESPACE, WATCHED, Permission

TRIES = 4


def wanted_rights(settings: Settings) -> list[tuple[str | None, Permission]]:
    """Each right with the namespace in which it is needed; None = in all."""
    spaces: Sequence[str | None] = settings.namespaces or (None,)
    rights: list[tuple[str | None, Permission]] = [(space, right) for space in spaces for right in WATCHED]
    rights += [(settings.lease.namespace, right) for right in OWN_NAMESPACE]
    if settings.nodes_access:
        rights += [(None, right) for right in NODE_RIGHTS]
    return rights


async def _answer(client: Client, body: dict[str, Any]) -> dict[str, Any]:
    """Ask once more, and again, for what got no answer: of so many questions one is easily lost on a bad connection."""
    for left in range(TRIES - 1, -1, -1):
        try:
            return await client.request("POST", "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews", body)
        except ApiError as error:
            if error.code == 401 or not left:
                raise
    raise AssertionError("the last try returns or raises")


async def missing_rights(client: Client, settings: Settings) -> list[str]:
    """A line per right that the operator's account lacks; raises ApiError."""
    limit = asyncio.Semaphore(8)

    async def ask(namespace: str | None, right: Permission) -> str | None:
        resource, _, subresource = right.resource.partition("/")
        attributes = {"group": right.group, "resource": resource, "verb": right.verb}
        if subresource:
            attributes["subresource"] = subresource
        if namespace is not None:
            attributes["namespace"] = namespace
        body = {
            "apiVersion": "authorization.k8s.io/v1",
            "kind": "SelfSubjectAccessReview",
            "spec": {"resourceAttributes": attributes},
        }
        async with limit:
            answer = await _answer(client, body)
        if answer.get("status", {}).get("allowed"):
            return None
        where = f"in namespace {namespace}" if namespace else "in all namespaces"
        return f'apiGroups: ["{right.group}"], resources: ["{right.resource}"], verbs: ["{right.verb}"] {where}'

    answers = await asyncio.gather(*(ask(namespace, right) for namespace, right in wanted_rights(settings)))
    return [answer for answer in answers if answer is not None]
