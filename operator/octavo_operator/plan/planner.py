"""From facts to the plan of one service."""

from __future__ import annotations

from dataclasses import dataclass

from pydantic import ValidationError

from octavo_operator.api.inference_service import InferenceService, InferenceServiceSpec
from octavo_operator.api.model_section import claim_path
from octavo_operator.api.operation_section import ScalingMode
from octavo_operator.api.placement_section import ImagePolicy
from octavo_operator.status.conditions import Verdict, conditions, transitions
from octavo_operator.status.projection import TypeInUse, View, project

from . import objects
from . import server_contract as contract
from .block_size import choose_block_size
from .check_job import CheckResult, check_job, check_name, read_check
from .deployments import (
    current_inputs,
    deployment,
    deployment_name,
    keep_inputs,
    live_revision,
    revision_name,
    revisions,
    room,
    template_label,
    type_label,
)
from .drift import stamped
from .facts import CatalogueImage, Event, Facts, Manifest, Plan
from .node_types import CPU_PRODUCT, Resolution, resolve
from .pod_template import Replica, fetches_for_itself, limits_traffic
from .spread import spread
from .stranded import movable, stranded
from .support import unsupported_fields


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
        message = (
            f"the service runs at scaling.minReplicas ({scaling.min_replicas}); this version does not scale by load"
        )
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
    return CatalogueImage("pinned", spec.image.reference, spec.image.cuda_version)


def _support(spec: InferenceServiceSpec) -> tuple[Verdict, bool]:
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
    plain = next((image.image for image in facts.settings.images if image.cuda is None), None)
    chosen = resolution.types[0].choice.image if resolution.types else None
    return (pinned.image if pinned else None) or plain or (chosen.image if chosen else None)


def _model_verdict(facts: Facts, spec: InferenceServiceSpec, result: CheckResult) -> Verdict:
    where = claim_path(spec.model.uri)
    if where is not None and result.proven is None:
        known = {claim["metadata"]["name"] for claim in facts.claims}
        if known and where.claim not in known:
            message = f"model.uri names the claim {where.claim}, which does not exist in this namespace; create it"
            return Verdict("ModelReady", False, "ClaimNotFound", message)
    message = result.message
    if result.proven is False and result.retry_seconds is not None:
        message += f"; it is checked again every {facts.settings.check_retry_seconds} s"
    secret = spec.model.secret_ref
    if result.proven is False and secret is not None and secret.name not in message:
        message += f" (model.secretRef {secret.name})"
    return Verdict("ModelReady", result.proven, result.reason, message)


@dataclass(frozen=True)
class _Fleet:
    manifests: tuple[Manifest, ...]
    types: tuple[TypeInUse, ...]
    newer: bool = False
    requeue_seconds: float | None = None


def _held(facts: Facts, spec: InferenceServiceSpec, live: Manifest, current: bool) -> tuple[Manifest, TypeInUse] | None:
    """A live Deployment as it runs, from its stored template; None when that was lost."""
    label, template = type_label(live), template_label(live)
    kept, inputs = live_revision(facts, label, template), current_inputs(facts, live)
    if kept is None or inputs is None:
        return None
    count = int(live["spec"].get("replicas", 0))
    shown = TypeInUse(
        label,
        template,
        current,
        count,
        str(inputs["nodeType"][0]),
        "",
        "",
        str(inputs["image"]),
        int(inputs["blockSize"]),
        "held",
    )
    return deployment(facts, spec, label, kept["data"]["template"], count, 0), shown


def _fleet(facts: Facts, spec: InferenceServiceSpec, resolution: Resolution, total: int, *, may_start: bool) -> _Fleet:
    service = facts.service["metadata"]["name"]
    live = facts.owned_of("Deployment")
    candidates: dict[str, tuple[Replica, bool]] = {}
    for node_type in resolution.types:
        image = node_type.choice.image
        assert image is not None, "a resolved type has an image"
        size, _ = choose_block_size(spec.engine.kv_cache.block_size)
        replica = Replica(service, spec, node_type, image.image, size)
        candidates[node_type.label] = keep_inputs(facts, replica)
    if not may_start or not candidates:
        held = [found for item in live.values() if (found := _held(facts, spec, item, current=False))]
        stored = revisions(facts, ())
        return _Fleet((*stored.values(), *(manifest for manifest, _ in held)), tuple(shown for _, shown in held))
    stored = revisions(facts, [replica for replica, _ in candidates.values()])
    templates = {
        label: stored[revision_name(service, label, replica.name())]["data"]["template"]
        for label, (replica, _) in candidates.items()
    }
    spare = {item.label: room(facts, item, templates[item.label]) for item in resolution.types}
    running = {type_label(item): int(item["spec"].get("replicas", 0)) for item in live.values()}
    # Replicas on types that the spec no longer admits, or whose nodes are gone, move to types that it admits.
    kept = {label: count for label, count in running.items() if label in candidates}
    waiting, due = stranded(kept, facts.pods, facts.now)
    kept = movable(kept, waiting, spare)
    cost = {item.label: item.cost for item in resolution.types}
    shares = spread(total, kept, spare, cost)
    in_use = {label for label in candidates if label in shares}
    manifests: list[Manifest] = []
    shown: list[TypeInUse] = []
    pods = {(pod["metadata"].get("labels") or {}).get(contract.NODE_TYPE_LABEL) for pod in facts.pods}
    for label, (replica, _) in sorted(candidates.items()):
        has = deployment_name(service, label) in live
        if label not in in_use and not (has and (running.get(label) or label in pods)):
            continue
        count = shares.get(label, 0)
        manifests.append(deployment(facts, spec, label, templates[label], count, spare[label]))
        if count:
            node_type = replica.node_type
            reason = choose_block_size(spec.engine.kv_cache.block_size)[1]
            shown.append(
                TypeInUse(
                    label,
                    replica.name(),
                    True,
                    count,
                    node_type.hardware.product,
                    node_type.driver,
                    node_type.cuda,
                    replica.image,
                    replica.block_size_tokens,
                    reason,
                )
            )
    ready = sum(
        _serves(pod)
        for pod in facts.pods
        if (pod["metadata"].get("labels") or {}).get(contract.NODE_TYPE_LABEL) in in_use
    )
    for item in live.values():
        # The old type keeps its replicas until the new ones serve.
        if (
            type_label(item) not in candidates
            and ready < total
            and (held_one := _held(facts, spec, item, current=False))
        ):
            manifests.append(held_one[0])
            shown.append(held_one[1])
    needed = {
        revision_name(service, m["metadata"]["labels"][contract.NODE_TYPE_LABEL], template_label(m)) for m in manifests
    } | set(facts.owned_of("ControllerRevision"))
    chosen = [item for name, item in stored.items() if name in needed]
    newer = any(newer for _, newer in candidates.values())
    return _Fleet((*chosen, *manifests), tuple(shown), newer, due)


def _serves(pod: Manifest) -> bool:
    found = pod.get("status", {}).get("conditions") or ()
    return any(c.get("type") == "Ready" and c.get("status") == "True" for c in found)


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


def plan(facts: Facts) -> Plan:
    """The objects, status and events of one service; errors of the spec become conditions, never exceptions."""
    try:
        spec = InferenceService.parse(facts.service).spec
    except ValidationError as error:
        return _malformed(facts, error)
    service, settings = facts.service["metadata"]["name"], facts.settings
    before = facts.service.get("status") or {}
    live = facts.owned_of("Deployment")
    scaling = _scaling(spec, sum(int(item["spec"].get("replicas", 0)) for item in live.values()))
    pinned = _pinned(spec)
    honoured, runnable = _support(spec)
    resolution = resolve(spec.placement, facts.nodes, settings.images, pinned)
    resolved = bool(resolution.types)
    verdicts = [honoured]
    node_state = None if not facts.nodes else resolved or resolution.reason == "NoImage"
    nodes_message = resolution.message if facts.nodes else "no node has been listed yet"
    verdicts.append(
        Verdict("NodeTypesResolved", node_state, resolution.reason if facts.nodes else "NoNodeListed", nodes_message)
    )
    verdicts.append(
        Verdict(
            "ImageResolved",
            True if resolved else (False if facts.nodes else None),
            resolution.image_reason,
            resolution.image_message,
        )
    )
    manifests = [objects.service_account(facts), objects.service(facts), objects.disruption_budget(facts)]
    if limits_traffic(spec):
        manifests.append(objects.network_policy(facts, settings, fetches_for_itself(spec)))
    check_image = _check_image(facts, resolution, pinned)
    requeue: float | None = None
    if not runnable or not resolved or check_image is None:
        verdicts.append(
            Verdict("ModelReady", None, "NotChecked", "the model is checked once node type and image are known")
        )
        proven = False
        if check_name(service, spec) in facts.owned_of("Job"):
            manifests.append(check_job(facts, spec, ""))
    else:
        result = read_check(facts, spec)
        proven = result.proven is True
        verdicts.append(_model_verdict(facts, spec, result))
        if result.retry_seconds == 0:
            # Left out of this plan, the failed Job is pruned; the next plan starts a fresh one.
            requeue = 1.0
        else:
            manifests.append(check_job(facts, spec, check_image))
            requeue = result.retry_seconds
    fleet = _fleet(facts, spec, resolution, scaling.desired, may_start=runnable and proven)
    waits = [seconds for seconds in (requeue, fleet.requeue_seconds) if seconds is not None]
    requeue = min(waits, default=None)
    if fleet.newer:
        tuned = Verdict(
            "Tuned",
            True,
            "UpdateAvailable",
            "a newer image or block size is taken up at the next rollout (rollout.adopt)",
        )
    elif spec.engine.kv_cache.block_size:
        tuned = Verdict("Tuned", True, "Explicit", "engine.kvCache.blockSize is set")
    else:
        only_cpu = resolved and all(item.hardware.product == CPU_PRODUCT for item in resolution.types)
        why = (
            "a CPU runs well with the default block size of 16"
            if only_cpu
            else "block size 16 is the default; nothing was measured"
        )
        tuned = Verdict("Tuned", only_cpu, "DefaultBlockSize", why)
    verdicts += [tuned, scaling.verdict]
    servers = [
        pod
        for pod in facts.pods
        if (pod["metadata"].get("labels") or {}).get(contract.ROLE_LABEL) == contract.ROLE_SERVER
        and pod.get("status", {}).get("phase") not in ("Failed", "Succeeded")
    ]
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
        )
    )
    news = tuple(Event(*item) for item in transitions(before.get("conditions") or (), status["conditions"]))
    everything = tuple(
        stamped(item) if item["kind"] != "Job" or not _marked(item) else item for item in (*manifests, *fleet.manifests)
    )
    return Plan(everything, status, news, bool(facts.nodes), requeue, scaling.seed)


def _marked(item: Manifest) -> bool:
    return contract.MANIFEST_HASH in (item["metadata"].get("annotations") or {})
