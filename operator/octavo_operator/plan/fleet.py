"""The Deployments of a service: which node type gets how many replicas, and what happens to types that are left."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime

from octavo_operator.api.engine_section import Runtime
from octavo_operator.api.inference_service import InferenceServiceSpec
from octavo_operator.api.operation_section import RolloutStrategy
from octavo_operator.status.pods import is_ready
from octavo_operator.status.projection import TypeInUse

from . import server_contract as contract
from .block_size import choose_block_size
from .deployments import (
    Rolling,
    Template,
    choose_template,
    deployment,
    lacking,
    revision_name,
    revisions,
    stored_templates,
    template_label,
    type_label,
)
from .facts import CatalogueImage, Facts, Manifest
from .inventory import room
from .model_source import is_fetched
from .node_types import NodeType
from .pod_template import Replica
from .resolution import Resolution
from .rollout import Scene, gives_way_at, hand_over, has_place, is_server, label_of, surges, waits_since
from .spread import spread
from .stranded import movable, stranded
from .tuning import Measured

LOOK_AGAIN_SECONDS = 30.0
"""Between two looks for room for replicas that the scheduler can't place."""


@dataclass(frozen=True)
class Fleet:
    """Objects, and what status shows of them."""

    manifests: tuple[Manifest, ...]
    types: tuple[TypeInUse, ...]
    newer: tuple[str, ...] = ()
    """Images that a new rollout would take."""
    requeue_seconds: float | None = None
    waits_until: datetime | None = None
    """When a rollout that waits for an accelerator gives way; None while none waits."""
    leaves_gap: bool = False
    in_vain: str = ""
    """What a new replica lacks on every node, also if the old ones ended; empty while none waits in vain."""
    newer_sizes: tuple[str, ...] = ()
    """Block sizes that a new rollout would take, with their reason."""
    room: Mapping[str, int] = field(default_factory=dict)
    """Replicas that could start now, by type in use."""
    spare: int | None = None
    """Replicas that would find a node at once; None while it does not matter or nodes can't be seen."""


@dataclass
class _Draft:
    facts: Facts
    spec: InferenceServiceSpec
    manifests: list[Manifest] = field(default_factory=list)
    shown: list[TypeInUse] = field(default_factory=list)
    rollings: list[Rolling] = field(default_factory=list)

    def add(
        self, template: Template, count: int, spare: int, shown: TypeInUse | None, nodes: Sequence[str] = ()
    ) -> None:
        made, rolling = deployment(self.facts, self.spec, template, count, spare, nodes)
        self.manifests.append(made)
        self.rollings.append(rolling)
        if shown is not None and count:
            self.shown.append(shown)

    def keep(self, live: Manifest, count: int, current: bool) -> None:
        """A live Deployment as it runs; from its own template when the stored one was lost."""
        label, name = type_label(live), template_label(live)
        service = self.facts.service["metadata"]["name"]
        stored = stored_templates(self.facts).get(revision_name(service, label, name))
        inputs = stored["data"]["inputs"] if stored else _inputs_shown(live)
        pod = stored["data"]["template"] if stored else live["spec"]["template"]
        product = (inputs.get("nodeType") or {}).get("product", "") if isinstance(inputs.get("nodeType"), dict) else ""
        shown = TypeInUse(
            label,
            name,
            current,
            count,
            str(product),
            "",
            "",
            str(inputs.get("image", "")),
            int(inputs.get("blockSize", 0)),
            "held",
        )
        self.add(Template(label, name, inputs, pod), count, 0, shown)


def fetch_image(images: Sequence[CatalogueImage]) -> str | None:
    """Octavo's image for work beside serving: the one for CPUs, else any."""
    own = [item for item in images if item.runtime == Runtime.OCTAVO.value]
    return next((item.image for item in sorted(own, key=lambda item: item.cuda is not None)), None)


def _inputs_shown(live: Manifest) -> Manifest:
    """What a live Deployment itself tells of the inputs of its template."""
    containers: Sequence[Manifest] = live["spec"]["template"].get("spec", {}).get("containers") or ({},)
    return {"image": containers[0].get("image", "")}


def _shown(node_type: NodeType, template: Template, count: int, reason: str) -> TypeInUse:
    inputs, key = template.inputs, node_type.key
    return TypeInUse(
        template.label,
        template.name,
        True,
        count,
        key.product,
        node_type.driver,
        node_type.cuda,
        str(inputs.get("image", "")),
        int(inputs.get("blockSize", 0)),
        reason,
        node_type.choice.fit,
        node_type.choice.fallback,
    )


def plan_fleet(
    facts: Facts,
    spec: InferenceServiceSpec,
    resolution: Resolution,
    total: int,
    *,
    may_start: bool,
    known_sizes: Mapping[str, Measured] | None = None,
) -> Fleet:
    """Spread `total` replicas over the resolved types; without `may_start` what runs is held as it is.

    `known_sizes`: measured block sizes by label of the type.
    """
    service = facts.service["metadata"]["name"]
    live = {type_label(item): item for item in facts.owned_of("Deployment").values()}
    running = {label: int(item["spec"].get("replicas", 0)) for label, item in live.items()}
    draft = _Draft(facts, spec)
    if not may_start:
        for item in live.values():
            draft.keep(item, running[type_label(item)], current=False)
        return _finished(draft, revisions(facts, ()))
    known = known_sizes or {}
    other = is_fetched(spec.model) and spec.engine.runtime != Runtime.OCTAVO
    fetcher = fetch_image(facts.settings.images) or "" if other else ""
    types = {item.label: item for item in resolution.types}
    templates: dict[str, Template] = {}
    why: dict[str, str] = {}
    newer_sizes: dict[str, str] = {}
    for label, node_type in types.items():
        image = node_type.choice.image
        assert image is not None, "a resolved type has an image"
        size, reason = choose_block_size(spec.engine.kv_cache.block_size, spec.engine.runtime, known.get(label))
        measured = known.get(label)
        table = measured.launch_table if measured is not None and measured.block_size_tokens == size else ""
        fresh = Replica(service, spec, node_type, image.image, size, fetcher, table, facts.settings.proxy)
        templates[label] = choose_template(facts, spec, node_type, fresh)
        why[label] = reason
        if int(templates[label].inputs.get("blockSize", 0)) != size:
            newer_sizes[label] = f"blockSize {size} – {reason}"
            why[label] = f"as it was chosen first; {size} at the next rollout: {reason}"[:256]
        elif templates[label].inputs.get("launchTable", "") != table:
            newer_sizes[label] = f"launch configurations for blockSize {size} – {reason}"
    spare = {
        label: room(
            [facts.views_by_name[name] for name in node_type.nodes], facts.usage, templates[label].pod.get("spec", {})
        )
        for label, node_type in types.items()
    }
    kept = {label: count for label, count in running.items() if label in types or label in resolution.held}
    waiting, due = stranded(kept, facts.pods, facts.now)
    if waiting:
        # Room elsewhere is told by no event of this service.
        due = min(due or LOOK_AGAIN_SECONDS, LOOK_AGAIN_SECONDS)
    kept = movable(kept, waiting, spare)
    leaving = {label: count for label, count in running.items() if label not in kept}
    takers = [(item.nodes, templates[label].pod.get("spec", {})) for label, item in types.items()]
    staying, wanted = _hand_over(draft, kept, leaving, sum(spare.values()), total, takers)
    # At one price the order of the types decides, so that whole accelerators come before slices.
    cost = {item.label: rank for rank, item in enumerate(resolution.types)}
    shares = spread(wanted, kept, spare, cost)
    with_pods = {label_of(pod, contract.NODE_TYPE_LABEL) for pod in facts.pods}
    for label in sorted({*types, *live}):
        if label in types:
            count = shares.get(label, 0)
            if count or (label in live and (running[label] or label in with_pods)):
                shown = _shown(types[label], templates[label], count, why[label])
                draft.add(templates[label], count, spare[label], shown, types[label].nodes)
        elif label in resolution.held:
            draft.keep(live[label], shares.get(label, 0), current=True)
        elif staying.get(label) or running[label] or label in with_pods:
            draft.keep(live[label], staying.get(label, 0), current=False)
    stored = revisions(facts, templates.values())
    newer = tuple(dict.fromkeys(item.newer for item in resolution.types if item.newer and shares.get(item.label)))
    made = _finished(draft, stored, newer, due)
    sizes = tuple(dict.fromkeys(text for label, text in newer_sizes.items() if shares.get(label)))
    in_use = {label: places for label, places in spare.items() if shares.get(label)}
    total_spare = sum(spare.values()) if facts.settings.reads_nodes else None
    return replace(made, newer_sizes=sizes, room=in_use, spare=total_spare)


def _hand_over(
    draft: _Draft,
    kept: dict[str, int],
    leaving: dict[str, int],
    spare: int,
    total: int,
    takers: Sequence[tuple[Sequence[str], Manifest]],
) -> tuple[dict[str, int], int]:
    """(replicas by type that is left, replicas wanted on the others); they stay while no type takes over.

    takers: nodes and pod of each type that may take over.
    """
    facts, leaves = draft.facts, sum(leaving.values())
    if not leaves:
        return {}, total
    if not takers:
        return leaving, max(0, total - leaves)
    servers = [pod for pod in facts.pods if is_server(pod)]
    left = [pod for pod in servers if label_of(pod, contract.NODE_TYPE_LABEL) in leaving]
    taking = [pod for pod in servers if label_of(pod, contract.NODE_TYPE_LABEL) not in leaving]
    ready = sum(map(is_ready, taking))
    waiting = waits_since(taking)
    # What was decided before shows in the counts: one more than wanted in all is surging, fewer that serve or are left
    # is giving way.
    before: bool | None = None
    if leaves + sum(kept.values()) > total and any(kept.values()):
        before = True
    elif leaves + ready < total and taking:
        before = False
    seeking = not spare and sum(map(has_place, taking)) < total
    lacks = [lacking(facts, nodes, pod, left) for nodes, pod in takers] if seeking else []
    in_vain = lacks[0] if lacks and all(lacks) else ""
    scene = Scene(total, spare, sum(map(is_ready, left)), waiting, facts.now, bool(in_vain))
    surge = surges(draft.spec.rollout, scene, before)
    stay, wanted = hand_over(total, leaves, ready, surge)
    if surge and waiting is not None:
        draft.rollings.append(Rolling(waiting, False, in_vain))
    if not surge and total == 1 and not stay:
        draft.rollings.append(Rolling(None, not ready))
    return spread(stay, leaving, {}, {}), wanted


def _finished(
    draft: _Draft, stored: dict[str, Manifest], newer: tuple[str, ...] = (), due: float | None = None
) -> Fleet:
    facts, service = draft.facts, draft.facts.service["metadata"]["name"]
    needed = {revision_name(service, type_label(item), template_label(item)) for item in draft.manifests} | set(
        facts.owned_of("ControllerRevision")
    )
    waits = [rolling.waits_since for rolling in draft.rollings if rolling.waits_since is not None]
    in_vain = next((rolling.in_vain for rolling in draft.rollings if rolling.in_vain), "")
    until = gives_way_at(draft.spec.rollout, min(waits)) if waits and not in_vain else None
    if in_vain:
        due = min(due or LOOK_AGAIN_SECONDS, LOOK_AGAIN_SECONDS)
    due_times = [] if due is None else [due]
    if until is not None and draft.spec.rollout.strategy == RolloutStrategy.AUTO:
        due_times.append(max(0.1, (until - facts.now).total_seconds()))
    return Fleet(
        (*(item for name, item in stored.items() if name in needed), *draft.manifests),
        tuple(draft.shown),
        newer,
        min(due_times, default=None),
        until,
        any(rolling.leaves_gap for rolling in draft.rollings),
        in_vain,
    )
