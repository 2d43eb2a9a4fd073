"""Deployments, one per node type in use, and the stored pod templates that they apply verbatim."""

from __future__ import annotations

from collections.abc import Iterable

from octavo_operator.api.inference_service import InferenceServiceSpec
from octavo_operator.api.operation_section import Adoption, RolloutStrategy

from . import server_contract as contract
from .facts import Facts, Manifest
from .node_types import NodeType
from .objects import owned
from .pod_template import Replica, render, spec_inputs
from .quantities import quantity

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


def live_revision(facts: Facts, label: str, template: str) -> Manifest | None:
    """The stored template, if it is one: it holds inputs and template."""
    name = revision_name(facts.service["metadata"]["name"], label, template)
    found = facts.owned_of("ControllerRevision").get(name)
    data = (found or {}).get("data")
    return found if isinstance(data, dict) and {"inputs", "template"} <= data.keys() else None


def current_inputs(facts: Facts, deployment: Manifest) -> Manifest | None:
    """Inputs of the template that a live Deployment applies."""
    stored = live_revision(facts, type_label(deployment), template_label(deployment))
    return stored["data"]["inputs"] if stored else None


def keep_inputs(facts: Facts, replica: Replica) -> tuple[Replica, bool]:
    """(replica, whether something newer is available).

    With rollout.adopt NextRollout, image and block size stay as they run until the spec itself changes the pod.
    """
    name = deployment_name(replica.service, replica.node_type.label)
    live = facts.owned_of("Deployment").get(name)
    inputs = current_inputs(facts, live) if live else None
    if inputs is None or inputs.get("spec") != spec_inputs(replica.spec) or inputs == replica.inputs():
        return replica, False
    if replica.spec.rollout.adopt == Adoption.IMMEDIATELY:
        return replica, False
    kept = Replica(replica.service, replica.spec, replica.node_type, str(inputs["image"]), int(inputs["blockSize"]))
    return kept, True


def stored(facts: Facts, label: str, template: str, number: int, inputs: Manifest, pod: Manifest) -> Manifest:
    """A ControllerRevision that keeps a rendered pod template beside its inputs."""
    return owned(
        facts,
        "apps/v1",
        "ControllerRevision",
        revision_name(facts.service["metadata"]["name"], label, template),
        labels={contract.NODE_TYPE_LABEL: label, contract.TEMPLATE_LABEL: template},
        revision=number,
        data={"inputs": inputs, "template": pod},
    )


def _again(facts: Facts, live: Manifest) -> Manifest:
    labels = live["metadata"].get("labels") or {}
    label, template = str(labels.get(contract.NODE_TYPE_LABEL, "")), str(labels.get(contract.TEMPLATE_LABEL, ""))
    data = live["data"]
    return stored(facts, label, template, int(live["revision"]), data["inputs"], data["template"])


def revisions(facts: Facts, replicas: Iterable[Replica]) -> dict[str, Manifest]:
    """Stored templates by name: those wanted, those in use, and the last few before them."""
    live = {
        name: item for name, item in facts.owned_of("ControllerRevision").items() if isinstance(item.get("data"), dict)
    }
    live = {name: item for name, item in live.items() if {"inputs", "template"} <= item["data"].keys()}
    service = facts.service["metadata"]["name"]
    used = {
        revision_name(service, type_label(item), template_label(item)) for item in facts.owned_of("Deployment").values()
    }
    for pod in facts.pods:
        labels = pod["metadata"].get("labels") or {}
        used.add(
            revision_name(service, labels.get(contract.NODE_TYPE_LABEL, ""), labels.get(contract.TEMPLATE_LABEL, ""))
        )
    wanted: dict[str, Manifest] = {}
    number = max((int(item["revision"]) for item in live.values()), default=0)
    for replica in replicas:
        name = revision_name(service, replica.node_type.label, replica.name())
        if name in live:
            wanted[name] = _again(facts, live[name])
            continue
        number += 1
        wanted[name] = stored(facts, replica.node_type.label, replica.name(), number, replica.inputs(), render(replica))
    newest_first = sorted(live, key=lambda name: (-int(live[name]["revision"]), name))
    idle = [name for name in newest_first if name not in used and name not in wanted][:KEPT_REVISIONS]
    for name in newest_first:
        if name not in wanted and (name in used or name in idle):
            wanted[name] = _again(facts, live[name])
    return dict(sorted(wanted.items()))


def _requests(pod: Manifest) -> dict[str, str]:
    found: dict[str, str] = {}
    for container in pod.get("spec", {}).get("containers") or ():
        for name, amount in ((container.get("resources") or {}).get("requests") or {}).items():
            total = (quantity(found.get(name, "0")) or 0) + (quantity(amount) or 0)
            found[name] = f"{int(total * 1_000_000)}u"
    return found


def room(facts: Facts, node_type: NodeType, template: Manifest) -> int:
    """How many more of these pods the schedulable nodes of a type can take, as far as requests are known."""
    needs = {name: quantity(amount) or 0 for name, amount in _requests({"spec": template["spec"]}).items()}
    total = 0
    everyone = {(p["metadata"].get("namespace"), p["metadata"]["name"]): p for p in (*facts.neighbours, *facts.pods)}
    for node in facts.nodes:
        if node["metadata"]["name"] not in node_type.nodes or node.get("spec", {}).get("unschedulable"):
            continue
        free = {k: quantity(v) or 0 for k, v in (node.get("status", {}).get("allocatable") or {}).items()}
        here = [p for p in everyone.values() if p.get("spec", {}).get("nodeName") == node["metadata"]["name"]]
        for pod in here:
            if pod.get("status", {}).get("phase") in ("Succeeded", "Failed"):
                continue
            for name, amount in _requests(pod).items():
                free[name] = free.get(name, 0) - (quantity(amount) or 0)
        slots = [int(free.get(name, 0) // amount) for name, amount in needs.items() if amount]
        total += max(0, min(slots, default=0))
    return total


def strategy(wanted: RolloutStrategy, spare: int, live: Manifest | None, rolling: bool) -> Manifest:
    """How pods are replaced. While a rollout runs its strategy stays, or taking the spare would change it half-way."""
    surge = wanted == RolloutStrategy.SURGE or (wanted == RolloutStrategy.AUTO and spare > 0)
    if wanted == RolloutStrategy.AUTO and live is not None and not rolling:
        update = live.get("spec", {}).get("strategy", {}).get("rollingUpdate") or {}
        surge = update.get("maxSurge") == 1 if update else surge
    pair = {"maxSurge": 1, "maxUnavailable": 0} if surge else {"maxSurge": 0, "maxUnavailable": 1}
    return {"type": "RollingUpdate", "rollingUpdate": pair}


def deployment(facts: Facts, spec: InferenceServiceSpec, label: str, pod: Manifest, count: int, spare: int) -> Manifest:
    """The Deployment of a node type with a stored pod template."""
    name = facts.service["metadata"]["name"]
    live = facts.owned_of("Deployment").get(deployment_name(name, label))
    template = pod["metadata"]["labels"][contract.TEMPLATE_LABEL]
    # The choice is made when a rollout begins, and kept until the next.
    begins = live is None or template_label(live) != template
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
        "strategy": strategy(spec.rollout.strategy, spare, live, begins),
        "template": pod,
    }
    labels = {contract.ROLE_LABEL: contract.ROLE_SERVER, contract.NODE_TYPE_LABEL: label}
    return owned(facts, "apps/v1", "Deployment", deployment_name(name, label), labels=labels, spec=body)
