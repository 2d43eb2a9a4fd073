"""The objects that a service owns beside its Deployments and Jobs, and what all owned objects carry."""

from __future__ import annotations

from typing import Any

from octavo_operator.api.base import API_VERSION
from octavo_operator.api.inference_service import KIND

from . import server_contract as contract
from .facts import Facts, Manifest, PlanSettings

_SERVER_ROLE = {contract.ROLE_LABEL: contract.ROLE_SERVER}


def owned(
    facts: Facts, api_version: str, kind: str, name: str, *, labels: Manifest | None = None, **body: Any
) -> Manifest:
    """A manifest with owner reference and the labels of all owned objects."""
    service = facts.service["metadata"]
    metadata: Manifest = {
        "name": name,
        "namespace": service["namespace"],
        "labels": {
            contract.SERVICE_LABEL: service["name"],
            contract.MANAGED_BY_LABEL: contract.FIELD_MANAGER,
            **(labels or {}),
        },
        "ownerReferences": [
            {
                "apiVersion": API_VERSION,
                "kind": KIND,
                "name": service["name"],
                "uid": service["uid"],
                "controller": True,
            }
        ],
    }
    return {"apiVersion": api_version, "kind": kind, "metadata": metadata, **body}


def server_labels(service: str) -> dict[str, str]:
    """Labels that select the server pods of all node types."""
    return {contract.SERVICE_LABEL: service, **_SERVER_ROLE}


def service_account(facts: Facts) -> Manifest:
    """Identity of the pods; it has no rights and no token is mounted."""
    body: Manifest = {"automountServiceAccountToken": False}
    if facts.settings.pull_secrets:
        # Here, and not in pod templates: new pods take them, and no running one is replaced.
        body["imagePullSecrets"] = [{"name": name} for name in facts.settings.pull_secrets]
    return owned(facts, "v1", "ServiceAccount", facts.service["metadata"]["name"], **body)


def service(facts: Facts) -> Manifest:
    """The address of a service: port 80 to the server pods of all node types."""
    name = facts.service["metadata"]["name"]
    port = {"name": contract.PORT_NAME, "port": 80, "targetPort": contract.PORT_NAME, "protocol": "TCP"}
    return owned(
        facts, "v1", "Service", name, spec={"type": "ClusterIP", "selector": server_labels(name), "ports": [port]}
    )


def disruption_budget(facts: Facts) -> Manifest:
    """One replica at a time may be evicted; a sick one always."""
    name = facts.service["metadata"]["name"]
    spec = {
        "maxUnavailable": 1,
        "unhealthyPodEvictionPolicy": "AlwaysAllow",
        "selector": {"matchLabels": server_labels(name)},
    }
    return owned(facts, "policy/v1", "PodDisruptionBudget", name, spec=spec)


def network_policy(facts: Facts, settings: PlanSettings, outward: bool) -> Manifest:
    """Who reaches the pods of a service, and what they reach; `outward` opens the way to its source."""
    name = facts.service["metadata"]["name"]
    others = (settings.operator_namespace, settings.monitoring_namespace, settings.gateway_namespace)
    namespaces = {*others} - {None, "", facts.service["metadata"]["namespace"]}
    peers: list[Manifest] = [{"podSelector": {}}]
    peers += [
        {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": namespace}}}
        for namespace in sorted(str(entry) for entry in namespaces)
    ]
    egress: list[Manifest] = [{"ports": [{"port": 53, "protocol": "UDP"}, {"port": 53, "protocol": "TCP"}]}]
    if outward:
        egress.append({"ports": [{"port": 443, "protocol": "TCP"}]})
        egress += [
            {"to": [{"ipBlock": {"cidr": entry.cidr}}], "ports": [{"port": entry.port, "protocol": "TCP"}]}
            for entry in settings.egress
        ]
    spec = {
        "podSelector": {"matchLabels": {contract.SERVICE_LABEL: name}},
        "policyTypes": ["Ingress", "Egress"],
        "ingress": [{"from": peers, "ports": [{"port": contract.PORT_NAME, "protocol": "TCP"}]}],
        "egress": egress,
    }
    return owned(facts, "networking.k8s.io/v1", "NetworkPolicy", name, spec=spec)
