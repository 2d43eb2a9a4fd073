"""Which pods go when a Deployment shrinks: the idlest. Told to the ReplicaSet by the pods' deletion cost, right before.

Without it a ReplicaSet ends the youngest pod, whatever it is doing, and the others keep the requests that must drain.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from octavo_operator.cluster.client import ApiError, Client
from octavo_operator.cluster.resources import PODS
from octavo_operator.plan import Facts, Plan
from octavo_operator.plan import server_contract as contract
from octavo_operator.status.pods import is_ready

from .observe import servers

log = logging.getLogger("octavo.scaling")
Object = dict[str, Any]
Key = tuple[str, str]
DELETION_COST = "controller.kubernetes.io/pod-deletion-cost"
_LEAVES = "-1000"
_MOST_MARKED = 50
"""In one go; the Deployments that shrink by more are being ended."""


def leaving(pods: Sequence[Object], shrinks: Mapping[str, int], load: Callable[[str], float | None]) -> list[Object]:
    """The pods to go first: of each node type in `shrinks` so many, the idlest first, then the youngest.

    Pods that do not serve go before all others anyway. One whose load is not known is taken to be the busiest.
    """
    found: list[Object] = []
    for label, count in sorted(shrinks.items()):
        members = [pod for pod in pods if _label(pod) == label]
        members.sort(key=lambda pod: str(pod["metadata"].get("creationTimestamp") or ""), reverse=True)
        members.sort(key=lambda pod: (is_ready(pod), _known(load(pod["metadata"]["uid"]))))
        found += members[: min(count, len(members) - 1, _MOST_MARKED)] if len(members) > 1 else []
    return found


def _known(load: float | None) -> float:
    return float("inf") if load is None else load


def _label(pod: Object) -> str:
    return str((pod["metadata"].get("labels") or {}).get(contract.NODE_TYPE_LABEL, ""))


def _cost(pod: Object) -> str | None:
    return (pod["metadata"].get("annotations") or {}).get(DELETION_COST)


def shrinking(facts: Facts, wanted: Plan) -> dict[str, int]:
    """By node type, how many replicas fewer the plan wants than the Deployment has now."""
    live = facts.owned_of("Deployment")
    found: dict[str, int] = {}
    for manifest in wanted.objects:
        before = live.get(manifest["metadata"]["name"]) if manifest["kind"] == "Deployment" else None
        if before is None:
            continue
        fewer = int(before["spec"].get("replicas", 0)) - int(manifest["spec"].get("replicas", 0))
        if fewer > 0 and int(manifest["spec"].get("replicas", 0)) > 0:
            found[_label(manifest)] = fewer
    return found


class DeletionCosts:
    """`prepare` before a plan is applied: marks the pods that shall go, and takes back marks that no longer hold."""

    def __init__(self, client: Client, load: Callable[[Key, str], float | None]) -> None:
        """`load` tells the requests that a pod of a service has."""
        self._client, self._load = client, load

    async def prepare(self, facts: Facts, wanted: Plan) -> None:
        """Writes only when a Deployment shrinks; a mark that can't be set delays no scale-down."""
        shrinks = shrinking(facts, wanted)
        if not shrinks:
            return
        meta = facts.service["metadata"]
        key, pods = (meta["namespace"], meta["name"]), servers(facts.pods)
        go = leaving(pods, shrinks, lambda uid: self._load(key, uid))
        marked = {pod["metadata"]["uid"] for pod in go}
        for pod in go:
            if _cost(pod) != _LEAVES:
                await self._mark(pod, _LEAVES)
        for pod in pods:
            if _cost(pod) == _LEAVES and pod["metadata"]["uid"] not in marked:
                await self._mark(pod, None)

    async def _mark(self, pod: Object, cost: str | None) -> None:
        try:
            await self._client.annotate(PODS, pod, {DELETION_COST: cost})
        except ApiError as error:
            name = f"{pod['metadata']['namespace']}/{pod['metadata']['name']}"
            log.warning("pod %s: its deletion cost was not set (%s); the ReplicaSet chooses who goes", name, error)
