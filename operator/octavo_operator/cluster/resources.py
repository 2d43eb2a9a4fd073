"""The kinds of objects that the operator reads or writes, and their paths in the API."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Resource:
    """One kind."""

    group: str
    version: str
    plural: str
    kind: str
    namespaced: bool = True

    @property
    def api_version(self) -> str:
        return f"{self.group}/{self.version}" if self.group else self.version

    def path(self, namespace: str | None = None, name: str | None = None) -> str:
        """Path below the server's address; without a namespace it reaches over all of them."""
        parts = ["apis", self.group, self.version] if self.group else ["api", self.version]
        if self.namespaced and namespace is not None:
            parts += ["namespaces", namespace]
        parts.append(self.plural)
        if name is not None:
            parts.append(name)
        return "/" + "/".join(parts)


SERVICES = Resource("serving.octavo.dev", "v1alpha1", "inferenceservices", "InferenceService")
PROFILES = Resource("serving.octavo.dev", "v1alpha1", "tuningprofiles", "TuningProfile")
NODES = Resource("", "v1", "nodes", "Node", namespaced=False)
PODS = Resource("", "v1", "pods", "Pod")
CLAIMS = Resource("", "v1", "persistentvolumeclaims", "PersistentVolumeClaim")
EVENTS = Resource("", "v1", "events", "Event")
CONFIG_MAPS = Resource("", "v1", "configmaps", "ConfigMap")
LEASES = Resource("coordination.k8s.io", "v1", "leases", "Lease")
OWNED = (
    Resource("", "v1", "serviceaccounts", "ServiceAccount"),
    Resource("", "v1", "services", "Service"),
    Resource("apps", "v1", "controllerrevisions", "ControllerRevision"),
    Resource("apps", "v1", "deployments", "Deployment"),
    Resource("batch", "v1", "jobs", "Job"),
    Resource("policy", "v1", "poddisruptionbudgets", "PodDisruptionBudget"),
    Resource("networking.k8s.io", "v1", "networkpolicies", "NetworkPolicy"),
)
BY_KIND = {item.kind: item for item in (*OWNED, SERVICES, PROFILES, NODES, PODS, CLAIMS, EVENTS, LEASES)}


def watched(nodes_access: bool) -> tuple[Resource, ...]:
    """Kinds whose objects the indexes hold."""
    return (SERVICES, PROFILES, *OWNED, PODS, CLAIMS, *((NODES,) if nodes_access else ()))
