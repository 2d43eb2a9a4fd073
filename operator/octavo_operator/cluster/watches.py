"""Watches by kopf: it follows the API server and tells every change. Nothing else of its handler model is used, so it
leaves no finalizer and no annotation on users' objects."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any

import kopf

from octavo_operator.settings import Settings

from .client import in_cluster_address
from .resources import Resource, watched

Changed = Callable[[Resource, dict[str, Any], bool], None]
"""Called with the kind, the object and whether it was deleted."""


def _registry(settings: Settings, changed: Changed) -> kopf.OperatorRegistry:
    registry = kopf.OperatorRegistry()

    @kopf.on.startup(registry=registry)
    def configure(settings: kopf.OperatorSettings, **_: Any) -> None:
        settings.posting.enabled = False
        # The kinds are known and the start gate has seen them, so that no right to list CRDs is needed.
        settings.scanning.disabled = True
        settings.watching.server_timeout = 300
        settings.watching.connect_timeout = 10
        settings.networking.request_timeout = 30
        settings.process.ultimate_exiting_timeout = 10

    @kopf.on.login(registry=registry)
    def login(**arguments: Any) -> kopf.ConnectionInfo | None:
        token = settings.account_folder / "token"
        if not token.exists():
            return kopf.login_with_kubeconfig(**arguments)
        return kopf.ConnectionInfo(
            server=in_cluster_address(),
            ca_path=str(settings.account_folder / "ca.crt"),
            scheme="Bearer",
            token=token.read_text().strip(),
        )

    def follow(resource: Resource) -> None:
        names = (resource.group, resource.version, resource.plural) if resource.group else ("v1", resource.plural)

        async def told(event: Any, **_: Any) -> None:
            changed(resource, dict(event["object"]), event["type"] == "DELETED")

        kopf.on.event(*names, registry=registry, id=f"watch-{resource.plural}")(told)

    for resource in watched(settings.nodes_access):
        follow(resource)
    return registry


async def watch(settings: Settings, changed: Changed, ready: asyncio.Event) -> None:
    """Follow all watched kinds until the process is told to stop; returns then."""
    logging.getLogger("kopf").setLevel(logging.WARNING)
    await kopf.operator(
        registry=_registry(settings, changed),
        clusterwide=not settings.namespaces,
        namespaces=settings.namespaces,
        standalone=True,
        ready_flag=ready,
    )
