"""From facts to the plan of one service."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from pydantic import ValidationError

from octavo_operator.api.base import Switch
from octavo_operator.api.engine_section import Runtime
from octavo_operator.api.inference_service import InferenceService, InferenceServiceSpec
from octavo_operator.api.operation_section import RolloutStrategy, ScalingMode
from octavo_operator.api.placement_section import ImagePolicy
from octavo_operator.status.conditions import Verdict, conditions, timestamp, transitions
from octavo_operator.status.pods import is_ready, refused_pods
from octavo_operator.status.projection import View, project

from . import objects
from . import server_contract as contract
from .defaults import with_defaults
from .deployments import known_types
from .drift import stamped
from .facts import CatalogueImage, Event, Facts, Manifest, Plan, PlanSettings
from .fleet import Fleet, fetch_image, plan_fleet
from .image_choice import no_runtime_image
from .model_check import check_model
from .node_types import NodeType
from .pod_template import fetches_for_itself, limits_traffic
from .policy import refusals
from .resolution import Resolution, images_told, resolve, resolve_blindly
from .rollout import label_of
from .support import unsupported_fields
from .tuning import Measured, Tuning, measured, measured_hits, plan_tuning

LARGE_BLOCK_TOKENS = 64
"""Larger blocks often hold more than what prompts share."""

NAMED_NODES = 3
"""Of replicas that are held; more would make the message a list."""


@dataclass(frozen=True)
class _Scaling:
    desired: int
    verdict: Verdict
    seed: int | None = None


def _scaling(spec: InferenceServiceSpec, running: int) -> _Scaling:
    scaling = spec.scaling
    if scaling.mode == ScalingMode.OPERATOR:
        if scaling.min_replicas == 0:
            message = "scaling.minReplicas 0 acts as 1: nothing could wake the service yet"
            return _Scaling(1, Verdict("ScalingActive", False, "NoWakeSource", message))
        message = f"the service runs at scaling.minReplicas ({scaling.min_replicas}) until its load is known"
        return _Scaling(scaling.min_replicas, Verdict("ScalingActive", False, "NotScaledByLoad", message))
    who = "replicas" if scaling.mode == ScalingMode.FIXED else "replicas, which an HPA, KEDA or kubectl scale may set"
    verdict = Verdict("ScalingActive", False, scaling.mode.value, f"mode {scaling.mode.value}: the count is {who}")
    if spec.replicas is None:
        seed = max(1, running)
        return _Scaling(seed, verdict, seed)
    return _Scaling(spec.replicas, verdict)


def _pinned(spec: InferenceServiceSpec) -> CatalogueImage | None:
    if spec.image.policy != ImagePolicy.PINNED or spec.image.reference is None:
        return None
    runtime = spec.engine.runtime.value
    return CatalogueImage("pinned", spec.image.reference, spec.image.cuda_version, runtime=runtime)


def _support(spec: InferenceServiceSpec, settings: PlanSettings) -> tuple[Verdict, bool]:
    refused = refusals(spec, settings)
    if refused:
        message = f"the administrator does not allow this: {'; '.join(refused)}; no replica is started from this spec"
        return Verdict("SpecHonoured", False, "NotAllowed", message), False
    found = unsupported_fields(spec)
    if not found:
        return Verdict("SpecHonoured", True, "Honoured", "every field has effect"), True
    text = ", ".join(f"{item.field} ({item.value})" for item in found)
    if any(item.essential for item in found):
        message = f"this version can't act on: {text}; no replica is started from this spec; change these fields"
        return Verdict("SpecHonoured", False, "UnsupportedFields", message), False
    return Verdict(
        "SpecHonoured", False, "FieldsWithoutEffect", f"these fields have no effect in this version: {text}"
    ), True


def _check_image(facts: Facts, resolution: Resolution, pinned: CatalogueImage | None) -> str | None:
    """Octavo's image that checks the model; one of its own programs, whatever will serve."""
    plain = fetch_image(facts.settings.images)
    chosen = [pinned, *(item.choice.image for item in resolution.types)]
    own = [item.image for item in chosen if item is not None and item.runtime == Runtime.OCTAVO.value]
    return (own[0] if own and pinned else None) or plain or next(iter(own), None)


def _malformed(facts: Facts, error: ValidationError) -> Plan:
    first = error.errors()[0]
    where = ".".join(str(part) for part in first["loc"])
    message = f"{where}: {first['msg']}; correct the field, or upgrade the CRDs together with the operator"
    before = facts.service.get("status") or {}
    generation = int(facts.service["metadata"].get("generation", 0))
    verdicts = [Verdict(kind, False, "InvalidSpec", message) for kind in ("SpecHonoured", "Ready")]
    kept = {key: value for key, value in before.items() if key != "conditions"}
    found = conditions(verdicts, before.get("conditions") or (), generation, facts.now)
    news = tuple(Event(*item) for item in transitions(before.get("conditions") or (), found))
    return Plan((), {**kept, "conditions": found, "observedGeneration": generation}, news, prune=False)


def _resolve(facts: Facts, spec: InferenceServiceSpec, pinned: CatalogueImage | None) -> Resolution:
    runtime = spec.engine.runtime
    images = tuple(item for item in facts.settings.images if item.runtime == runtime.value)
    if not facts.settings.reads_nodes:
        found = resolve_blindly(spec.placement, images, pinned, runtime)
    else:
        known = known_types(facts, spec)
        found = resolve(spec.placement, facts.views, images, pinned, known, facts.classes, runtime)
    if runtime != Runtime.OCTAVO and not images and pinned is None and not found.types:
        # Also where no node fits, or nodes can't be read: it would stand in the way next.
        lacking = no_runtime_image(runtime)
        return replace(found, image_reason=lacking.reason, image_message=lacking.message)
    return found


def resolution_of(facts: Facts) -> tuple[NodeType, ...]:
    """Node types that a service's placement admits now; empty for a malformed object."""
    try:
        spec = with_defaults(InferenceService.parse(facts.service).spec, facts.settings)
    except ValidationError:
        return ()
    return _resolve(facts, spec, _pinned(spec)).types


def _held(facts: Facts, resolution: Resolution) -> str:
    """Which replicas are held, where they run, what is wrong there, and what a new start would meet."""
    types, products = resolution.held, resolution.held_products
    pods = [pod for pod in facts.pods if label_of(pod, contract.NODE_TYPE_LABEL) in types]
    nodes = sorted({str(pod["spec"]["nodeName"]) for pod in pods if pod.get("spec", {}).get("nodeName")})
    where = f" on {', '.join(nodes[:NAMED_NODES])}{' and others' if len(nodes) > NAMED_NODES else ''}" if nodes else ""
    seen = [facts.views_by_name[name] for name in nodes if name in facts.views_by_name]
    notes = [note for item in seen for note in item.notes]
    notes += [note for note in resolution.notes if any(product in note for product in products)]
    told = "".join(f"; {note}" for note in [*dict.fromkeys(notes)][:NAMED_NODES])
    message = (
        f"replicas on {', '.join(products)} (node type {', '.join(types)}) are held as they run{where}: none of its"
        f" nodes can be seen with labels that fit{told}; bring the nodes or their labels back, or change placement"
    )
    if not resolution.types and resolution.image_reason not in ("Resolved", "NoNodeFits"):
        message += f"; started anew they would not run: {resolution.image_message}"
    return message


def _node_verdicts(facts: Facts, resolution: Resolution) -> list[Verdict]:
    if not facts.sees_nodes:
        return [
            Verdict("NodeTypesResolved", None, "NoNodeListed", "no node has been listed yet"),
            Verdict("ImageResolved", None, resolution.image_reason, resolution.image_message),
        ]
    resolved = bool(resolution.types)
    image = Verdict("ImageResolved", resolved, resolution.image_reason, resolution.image_message)
    if resolution.held:
        if not resolved:
            image = Verdict("ImageResolved", True, "Held", "images stay as they were chosen while nodes could be seen")
        return [Verdict("NodeTypesResolved", False, "TypeHeld", _held(facts, resolution)), image]
    return [
        Verdict("NodeTypesResolved", resolved or resolution.reason == "NoImage", resolution.reason, resolution.message),
        image,
    ]


def _tuned(
    facts: Facts,
    spec: InferenceServiceSpec,
    resolution: Resolution,
    fleet: Fleet,
    known: Mapping[str, Measured],
    tuning: Tuning,
) -> Verdict:
    cache = spec.engine.kv_cache
    newer = [*(f"image {image}" for image in fleet.newer), *fleet.newer_sizes]
    if newer:
        message = f"taken up at the next rollout (rollout.adopt): {', '.join(newer)}"
        return Verdict("Tuned", True, "UpdateAvailable", message)
    if spec.engine.runtime != Runtime.OCTAVO and not cache.block_size:
        message = f"the runtime {spec.engine.runtime.value} chooses its block size itself"
        return Verdict("Tuned", True, "OtherRuntime", message)
    if cache.block_size > LARGE_BLOCK_TOKENS and cache.prefix_caching == Switch.ENABLED:
        message = (
            f"engine.kvCache.blockSize is {cache.block_size}: prompts that share a prefix of fewer than "
            f"{cache.block_size} tokens get nothing from the prefix cache, and of longer ones whole blocks alone; use "
            f"{LARGE_BLOCK_TOKENS} or less where short prefixes are shared"
        )
        hits = measured_hits(facts.profiles, cache.block_size)
        message += f"; {hits}" if hits else ""
        return Verdict("Tuned", True, "BlocksLargerThanPrefixes", message)
    if cache.block_size:
        return Verdict("Tuned", True, "Explicit", "engine.kvCache.blockSize is set")
    in_use = {label: item for label, item in known.items() if label in fleet.room}
    if in_use and not tuning.waiting and all(item.exact for item in in_use.values()):
        words = "; ".join(f"blockSize: {item.block_size_tokens} – {item.reason}" for item in in_use.values())
        return Verdict("Tuned", True, "Measured", words)
    if tuning.waiting:
        sizes = ", ".join(f"{item.block_size_tokens}, {item.reason}" for item in in_use.values()) or "16, the default"
        return Verdict("Tuned", False, "Calibrating", f"block size {sizes}, meanwhile; {tuning.waiting}")
    only_cpu = bool(resolution.types) and all(item.key.is_cpu for item in resolution.types)
    if only_cpu:
        return Verdict("Tuned", True, "DefaultBlockSize", "a CPU runs well with the default block size of 16")
    return Verdict("Tuned", False, "DefaultBlockSize", "block size 16 is the default; nothing was measured")


def _waiting(spec: InferenceServiceSpec, fleet: Fleet) -> str:
    """What a rollout waits for; empty when it does not wait."""
    products = ", ".join(dict.fromkeys(item.product for item in fleet.types if item.current)) or "node"
    if fleet.in_vain:
        return (
            f"no node of type {products} could hold the new replica, also if an old one ended: too little "
            f"{fleet.in_vain}; the old ones serve on; lower placement.resources or engine.parallelism, or add a node"
        )
    if fleet.waits_until is None:
        return ""
    if spec.rollout.strategy == RolloutStrategy.SURGE:
        return f"the new replica waits for a free {products}; the old ones serve on (rollout.strategy Surge)"
    until = timestamp(fleet.waits_until)
    return (
        f"the new replica waits for a free {products} until {until} (rollout.waitSeconds {spec.rollout.wait_seconds}), "
        "while the old one serves; then the old one ends first, and nothing serves until the new one is ready"
    )


def plan(facts: Facts) -> Plan:
    """The objects, status and events of one service; errors of the spec become conditions, never exceptions."""
    try:
        asked = InferenceService.parse(facts.service).spec
    except ValidationError as error:
        return _malformed(facts, error)
    service, settings = facts.service["metadata"]["name"], facts.settings
    # What the administrator gives needs no leave of the administrator.
    honoured, runnable = _support(asked, settings)
    spec = with_defaults(asked, settings)
    before = facts.service.get("status") or {}
    live = facts.owned_of("Deployment")
    scaling = _scaling(spec, sum(int(item["spec"].get("replicas", 0)) for item in live.values()))
    pinned = _pinned(spec)
    resolution = _resolve(facts, spec, pinned)
    verdicts = [honoured, *_node_verdicts(facts, resolution)]
    manifests = [objects.service_account(facts), objects.service(facts), objects.disruption_budget(facts)]
    if limits_traffic(spec):
        manifests.append(objects.network_policy(facts, settings, fetches_for_itself(spec)))
    may_check = runnable and bool(resolution.types or resolution.held)
    model = check_model(facts, spec, _check_image(facts, resolution, pinned) if may_check else None)
    manifests += model.jobs
    verdicts.append(model.verdict)
    known = measured(facts, spec, resolution.types, model.shape)
    may_start = runnable and model.proven
    fleet = plan_fleet(facts, spec, resolution, scaling.desired, may_start=may_start, known_sizes=known)
    used = {item.label for item in fleet.types}
    in_use = [item for item in resolution.types if item.label in used]
    if in_use:
        at = next(number for number, verdict in enumerate(verdicts) if verdict.type == "ImageResolved")
        verdicts[at] = Verdict("ImageResolved", True, *images_told(in_use))
    servers = [
        pod
        for pod in facts.pods
        if label_of(pod, contract.ROLE_LABEL) == contract.ROLE_SERVER
        and pod.get("status", {}).get("phase") not in ("Failed", "Succeeded")
    ]
    # Replicas come first: nothing is measured before one of them serves.
    serving = any(map(is_ready, servers))
    tuning = plan_tuning(facts, spec, resolution.types, model.shape, fleet.room if serving else {})
    manifests += tuning.jobs
    delays = (model.requeue_seconds, fleet.requeue_seconds, tuning.requeue_seconds)
    requeue = min((seconds for seconds in delays if seconds is not None), default=None)
    verdicts += [_tuned(facts, spec, resolution, fleet, known, tuning), scaling.verdict]
    status = project(
        View(
            service,
            int(facts.service["metadata"].get("generation", 0)),
            f"http://{service}.{facts.service['metadata']['namespace']}.svc.{settings.cluster_domain}",
            objects.server_labels(service),
            scaling.desired,
            facts.now,
            tuple(verdicts),
            fleet.types,
            servers,
            before,
            contract.TEMPLATE_LABEL,
            contract.NODE_TYPE_LABEL,
            _waiting(spec, fleet),
            refused_pods(live.values()),
            fleet.leaves_gap,
            "Unschedulable" if fleet.in_vain else "WaitingForAccelerator",
        )
    )
    news = tuple(Event(*item) for item in transitions(before.get("conditions") or (), status["conditions"]))
    everything = tuple(
        stamped(item) if item["kind"] != "Job" or not _marked(item) else item for item in (*manifests, *fleet.manifests)
    )
    return Plan(everything, status, news, facts.sees_nodes, requeue, scaling.seed, tuning.profiles, fleet.spare)


def _marked(item: Manifest) -> bool:
    return contract.MANIFEST_HASH in (item["metadata"].get("annotations") or {})
