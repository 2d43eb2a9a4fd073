"""Deployments, one per node type in use, and the stored pod templates that they apply verbatim."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime

from octavo_operator.api.inference_service import InferenceServiceSpec
from octavo_operator.api.operation_section import Adoption
from octavo_operator.status.pods import is_ready

from . import server_contract as contract
from .facts import Facts, Manifest
from .inventory import room, scarce, without
from .node_types import KnownType, NodeType, TypeKey
from .objects import owned
from .pod_template import Replica, render, spec_inputs
from .rollout import Scene, has_place, is_server, label_of, surges, waits_since

KEPT_REVISIONS = 3


def deployment_name(service: str, label: str) -> str:
    """One Deployment per service and node type."""
    return f"{service}-{label}"


def revision_name(service: str, label: str, template: str) -> str:
    """One stored pod template per node type and inputs."""
    return f"{service}-{label}-{template}"


def type_label(deployment: Manifest) -> str:
    """Node type's label of a live Deployment."""
    return str((deployment["metadata"].get("labels") or {}).get(contract.NODE_TYPE_LABEL, ""))


def template_label(deployment: Manifest) -> str:
    """Template's label of a live Deployment."""
    labels = deployment.get("spec", {}).get("template", {}).get("metadata", {}).get("labels") or {}
    return str(labels.get(contract.TEMPLATE_LABEL, ""))


def reaches_the_host(template: object) -> bool:
    """Whether a pod template asks for the host's files, namespaces or privileges, which no version of ours does."""
    pod = template.get("spec") if isinstance(template, dict) else None
    if not isinstance(pod, dict) or any(pod.get(key) for key in ("hostNetwork", "hostPID", "hostIPC")):
        return True
    if any("hostPath" in volume for volume in pod.get("volumes") or ()):
        return True
    containers = [*(pod.get("initContainers") or ()), *(pod.get("containers") or ())]
    return any(
        (each.get("securityContext") or {}).get("privileged")
        or (each.get("securityContext") or {}).get("allowPrivilegeEscalation") is not False
        or any(port.get("hostPort") for port in each.get("ports") or ())
        for each in containers
    )


def stored_templates(facts: Facts) -> dict[str, Manifest]:
    """Stored templates by name, newest first; objects that are none of ours are left out.

    A stored template is applied as it stands, so one that somebody else wrote must gain its writer nothing.
    """
    found = [
        item
        for item in facts.owned_of("ControllerRevision").values()
        if isinstance(item.get("data"), dict)
        and {"inputs", "template"} <= item["data"].keys()
        and not reaches_the_host(item["data"]["template"])
    ]
    found.sort(key=lambda item: (-int(item["revision"]), str(item["metadata"]["name"])))
    return {item["metadata"]["name"]: item for item in found}


def _marks(stored: Manifest) -> tuple[str, str]:
    labels = stored["metadata"].get("labels") or {}
    return str(labels.get(contract.NODE_TYPE_LABEL, "")), str(labels.get(contract.TEMPLATE_LABEL, ""))


def known_types(facts: Facts, spec: InferenceServiceSpec) -> tuple[KnownType, ...]:
    """Types with a Deployment, and types with a stored template that the spec wants again.

    With rollout.adopt NextRollout a stored template stays – and with it image and block size – as long as the spec asks
    for nothing else; a new catalogue or a new version of the operator changes nothing by itself.
    """
    service, wanted = facts.service["metadata"]["name"], spec_inputs(spec)
    templates, keeps = stored_templates(facts), spec.rollout.adopt == Adoption.NEXT_ROLLOUT
    found: dict[str, KnownType] = {}
    for item in facts.owned_of("Deployment").values():
        label = type_label(item)
        stored = templates.get(revision_name(service, label, template_label(item)))
        key = TypeKey.parse(stored["data"]["inputs"].get("nodeType")) if stored else None
        if stored is not None and key is not None:
            fitting = [other for other in (stored, *templates.values()) if _wants(other, label, wanted)]
            image = (fitting or [stored])[0]["data"]["inputs"].get("image", "")
            found[label] = KnownType(label, key, str(image), True, keeps and bool(fitting))
    for stored in templates.values():
        label = _marks(stored)[0]
        key = TypeKey.parse(stored["data"]["inputs"].get("nodeType"))
        if keeps and label not in found and key is not None and _wants(stored, label, wanted):
            found[label] = KnownType(label, key, str(stored["data"]["inputs"].get("image", "")), False, True)
    return tuple(found.values())


def _wants(stored: Manifest, label: str, wanted: Manifest) -> bool:
    return _marks(stored)[0] == label and stored["data"]["inputs"].get("spec") == wanted


@dataclass(frozen=True)
class Template:
    """The pod template of a node type, stored or about to be."""

    label: str
    name: str
    """10 hex digits."""
    inputs: Manifest
    pod: Manifest


def choose_template(facts: Facts, spec: InferenceServiceSpec, node_type: NodeType, fresh: Replica) -> Template:
    """What runs if the spec wants it, else what was stored for this very spec, else a fresh one."""
    label, service = node_type.label, facts.service["metadata"]["name"]
    templates = stored_templates(facts)
    if spec.rollout.adopt == Adoption.NEXT_ROLLOUT:
        wanted = spec_inputs(spec)
        fitting = [item for item in templates.values() if _wants(item, label, wanted)]
        live = facts.owned_of("Deployment").get(deployment_name(service, label))
        present = template_label(live) if live else ""
        chosen = next((item for item in fitting if _marks(item)[1] == present), next(iter(fitting), None))
        if chosen is not None:
            return Template(label, _marks(chosen)[1], chosen["data"]["inputs"], chosen["data"]["template"])
    same = templates.get(revision_name(service, label, fresh.name()))
    if same is not None:
        return Template(label, fresh.name(), same["data"]["inputs"], same["data"]["template"])
    return Template(label, fresh.name(), fresh.inputs(), render(fresh))


def stored(facts: Facts, template: Template, number: int) -> Manifest:
    """A ControllerRevision that keeps a rendered pod template beside its inputs."""
    return owned(
        facts,
        "apps/v1",
        "ControllerRevision",
        revision_name(facts.service["metadata"]["name"], template.label, template.name),
        labels={contract.NODE_TYPE_LABEL: template.label, contract.TEMPLATE_LABEL: template.name},
        revision=number,
        data={"inputs": template.inputs, "template": template.pod},
    )


def revisions(facts: Facts, wanted: Iterable[Template]) -> dict[str, Manifest]:
    """Stored templates by name: those wanted, those in use, and the last few before them."""
    live, service = stored_templates(facts), facts.service["metadata"]["name"]
    used = {
        revision_name(service, type_label(item), template_label(item)) for item in facts.owned_of("Deployment").values()
    }
    used |= {
        revision_name(service, label_of(pod, contract.NODE_TYPE_LABEL), label_of(pod, contract.TEMPLATE_LABEL))
        for pod in facts.pods
    }
    found: dict[str, Manifest] = {}
    number = max((int(item["revision"]) for item in live.values()), default=0)
    for template in wanted:
        name = revision_name(service, template.label, template.name)
        if name not in live:
            number += 1
        found[name] = stored(facts, template, int(live[name]["revision"]) if name in live else number)
    idle = [name for name in live if name not in used and name not in found][:KEPT_REVISIONS]
    for name, item in live.items():
        if name not in found and (name in used or name in idle):
            data = item["data"]
            again = Template(*_marks(item), data["inputs"], data["template"])
            found[name] = stored(facts, again, int(item["revision"]))
    return dict(sorted(found.items()))


@dataclass(frozen=True)
class Rolling:
    """What a Deployment's rollout looks like, for status."""

    waits_since: datetime | None = None
    """Since when a new pod has been waiting for a node while the old ones stay for it."""
    leaves_gap: bool = False
    """Whether its only replica ends before the new one starts."""
    in_vain: str = ""
    """What no node has enough of for the new pod, also if the old ones ended; they serve on."""


def lacking(facts: Facts, nodes: Sequence[str], pod_spec: Manifest, leaving: Iterable[Manifest]) -> str:
    """What keeps a pod from every one of these nodes even if the service's pods that leave had ended; empty where it
    would fit, or where nothing is known of nodes."""
    views = [facts.views_by_name[name] for name in nodes]
    ending = [pod for pod in facts.pods if pod["metadata"].get("deletionTimestamp")]
    usage = without(facts.usage, [*leaving, *ending])
    if not views or room(views, usage, pod_spec):
        return ""
    if not any(view.is_open for view in views):
        return "nodes that are open for pods"
    return ", ".join(scarce(views, usage, pod_spec)) or "all that it asks for on one node"


def deployment(
    facts: Facts,
    spec: InferenceServiceSpec,
    template: Template,
    count: int,
    spare: int,
    nodes: Sequence[str] = (),
) -> tuple[Manifest, Rolling]:
    """The Deployment of a node type with a pod template, and how it rolls over to it.

    nodes: names of the nodes that its pods may use, as far as they are known.
    """
    name, label = facts.service["metadata"]["name"], template.label
    live = facts.owned_of("Deployment").get(deployment_name(name, label))
    here = [pod for pod in facts.pods if is_server(pod) and label_of(pod, contract.NODE_TYPE_LABEL) == label]
    new = [pod for pod in here if label_of(pod, contract.TEMPLATE_LABEL) == template.name]
    old = [pod for pod in here if pod not in new]
    # A waiting pod without older ones beside it is no rollout: nothing would be gained by another strategy.
    waiting = waits_since(new) if old else None
    begins = live is None or template_label(live) != template.name
    update = {} if live is None or begins else live.get("spec", {}).get("strategy", {}).get("rollingUpdate") or {}
    before = None if "maxSurge" not in update else update["maxSurge"] == 1
    seeking = bool(old) and not spare and sum(map(has_place, new)) < count
    lacks = lacking(facts, nodes, template.pod.get("spec", {}), old) if seeking else ""
    scene = Scene(count, spare, sum(map(is_ready, old)), waiting, facts.now, bool(lacks))
    surge = surges(spec.rollout, scene, before)
    selector = {
        contract.SERVICE_LABEL: name,
        contract.ROLE_LABEL: contract.ROLE_SERVER,
        contract.NODE_TYPE_LABEL: label,
    }
    body = {
        "replicas": count,
        "revisionHistoryLimit": 2,
        # Loading a model takes minutes; readiness, not this deadline, tells what is wrong.
        "progressDeadlineSeconds": 1800,
        "selector": {"matchLabels": selector},
        "strategy": {
            "type": "RollingUpdate",
            "rollingUpdate": {"maxSurge": 1, "maxUnavailable": 0} if surge else {"maxSurge": 0, "maxUnavailable": 1},
        },
        "template": template.pod,
    }
    labels = {contract.ROLE_LABEL: contract.ROLE_SERVER, contract.NODE_TYPE_LABEL: label}
    made = owned(facts, "apps/v1", "Deployment", deployment_name(name, label), labels=labels, spec=body)
    gap = not surge and count == 1 and bool(old or (begins and live is not None))
    return made, Rolling(waiting if surge else None, gap, lacks if surge else "")
