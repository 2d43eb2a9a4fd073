"""`octavo-operator explain SERVICE`: what the operator would do for a service now, and why. Only reads."""

from __future__ import annotations

import time
from datetime import UTC, datetime

from .cluster.client import connect
from .cluster.resources import NODES, watched
from .control.indexes import Indexes
from .control.listing import fill
from .control.loop import plan_settings
from .control.reconcile import Reconciler
from .plan import difference
from .plan.node_report import findings, report
from .plan.planner import resolution_of
from .scaling.autoscaler import Autoscaler
from .settings import Settings, Unavailable


async def explain_nodes(settings: Settings) -> str:
    """A text for people about every node. Raises Unavailable when Nodes may not be read, ApiError."""
    if not settings.nodes_access:
        raise Unavailable("--nodes-access Disabled: the operator may not read nodes; explain a service instead")
    async with connect(settings.account_folder) as client:
        indexes = Indexes()
        await fill(client, indexes, settings, NODES)
    own = [item for item in settings.images if item.runtime == "Octavo"]
    return report(findings(indexes.views(), own))


async def explain(settings: Settings, namespace: str, name: str) -> str:
    """A text for people. Raises Unavailable when there is no such service, ApiError."""
    began = time.monotonic()
    async with connect(settings.account_folder) as client:
        indexes = Indexes()
        for resource in watched(settings.nodes_access):
            await fill(client, indexes, settings, resource)
        reconciler = Reconciler(client, indexes, plan_settings(settings), lambda: datetime.now(UTC))
        facts = reconciler.facts((namespace, name))
        if facts is None:
            known = ", ".join("/".join(key) for key in sorted(indexes.services())) or "none"
            raise Unavailable(f"no InferenceService {namespace}/{name}; there are: {known}")
    # With the count in force, as the operator plans; a decision of its own would need the pods' metrics.
    wanted = Autoscaler(indexes, lambda _key: None).plan(facts)
    lines = [f"InferenceService {namespace}/{name}", "", "Conditions"]
    lines += [
        f"  {item['type']:<18} {item['status']:<8} {item['reason']}: {item['message']}"
        for item in wanted.status["conditions"]
    ]
    lines += ["", "Node types"]
    for item in wanted.status.get("nodeTypes") or ():
        lines.append(
            f"  {item['name']}: {item.get('replicas', 0)} replicas, image {item.get('image')},"
            f" block size {item.get('blockSize')} ({item.get('blockSizeReason')})"
        )
    lines += ["", "Types that the placement admits, cheapest first"]
    admitted = resolution_of(facts)
    for kind in admitted:
        driver = f", driver {kind.driver or 'unknown'} for CUDA up to {kind.cuda or 'unknown'}" if kind.cuda else ""
        mode = kind.choice.fit or "none"
        lines.append(
            f"  {kind.label}: {kind.key.product}, {len(kind.nodes)} nodes{driver}; mode {mode}; {kind.choice.message}"
        )
        if kind.choice.upgrade:
            lines.append(f"    {kind.choice.upgrade}")
    lines += [] if admitted else ["  none: no node that can be seen is what the placement asks for"]
    lines += ["", "Last changes of the count"]
    changes = (wanted.status.get("scaling") or {}).get("changes") or ()
    lines += [
        f"  {item['time']}  {item['from']} → {item['to']}  {item['reason']}: {item['message']}" for item in changes
    ]
    lines += [] if changes else ["  none"]
    lines += ["", "Objects"]
    for manifest in wanted.objects:
        live = facts.owned_of(manifest["kind"]).get(manifest["metadata"]["name"])
        state = difference(manifest, live) or "as it should be"
        lines.append(f"  {manifest['kind']} {manifest['metadata']['name']}: {state}")
    lines.append(f"\nread and planned in {time.monotonic() - began:.2f} s")
    return "\n".join(lines)
