"""Which fields of a pod this node can't honour. Nothing is ignored in silence: a pod that needs one of them waits and
says so.

Some isolation fields are accepted without effect, because every restricted pod sets them; NOT_ENFORCED lists them, and
each Node carries the list in an annotation.
"""

from collections.abc import Iterator

from .api import Object

REASON = "UnsupportedField"
ANNOTATION = "localcluster.octavo.dev/not-enforced"
NOT_ENFORCED = (
    "securityContext.runAsNonRoot", "securityContext.runAsUser", "securityContext.runAsGroup",
    "securityContext.supplementalGroups", "securityContext.fsGroup", "securityContext.seccompProfile",
    "securityContext.capabilities", "securityContext.readOnlyRootFilesystem", "resources.limits", "resources.requests",
    "volumeMounts.readOnly", "emptyDir.medium", "emptyDir.sizeLimit", "imagePullPolicy", "imagePullSecrets",
    "NetworkPolicy",
)  # fmt: skip

_VOLUMES = {"emptyDir", "configMap", "secret", "projected", "downwardAPI", "persistentVolumeClaim"}
_SOURCES = {"serviceAccountToken", "configMap", "secret", "downwardAPI"}
_POD_FLAGS = ("hostNetwork", "hostPID", "hostIPC", "shareProcessNamespace")
_POD_FIELDS = ("dnsConfig", "hostAliases", "runtimeClassName", "ephemeralContainers", "resourceClaims", "resources")
_SECURITY = {
    "runAsNonRoot", "runAsUser", "runAsGroup", "supplementalGroups", "supplementalGroupsPolicy", "fsGroup",
    "fsGroupChangePolicy", "seccompProfile", "capabilities", "readOnlyRootFilesystem", "allowPrivilegeEscalation",
}  # fmt: skip
_HANDLERS = {"exec", "httpGet", "tcpSocket", "sleep"}
_PROBE_HANDLERS = {"exec", "httpGet", "tcpSocket"}
_PROBE_FIELDS = {
    "initialDelaySeconds", "periodSeconds", "timeoutSeconds", "successThreshold", "failureThreshold",
    "terminationGracePeriodSeconds",
}  # fmt: skip


def unsupported_fields(pod: Object) -> list[str]:
    """Paths of fields, as `spec.volumes[0].hostPath`, that this node does not implement."""
    spec = pod["spec"]
    found = [f"spec.{name}" for name in (*_POD_FLAGS, *_POD_FIELDS) if spec.get(name)]
    if spec.get("hostUsers") is False:
        found.append("spec.hostUsers")
    if (spec.get("os") or {}).get("name", "linux") != "linux":
        found.append("spec.os")
    found += _security(spec.get("securityContext") or {}, "spec.securityContext")
    for index, volume in enumerate(spec.get("volumes") or []):
        found += _volume(volume, f"spec.volumes[{index}]")
    for kind in ("initContainers", "containers"):
        for index, container in enumerate(spec.get(kind) or []):
            found += _container(container, f"spec.{kind}[{index}]")
    return found


def _volume(volume: Object, path: str) -> Iterator[str]:
    yield from (f"{path}.{kind}" for kind in volume if kind != "name" and kind not in _VOLUMES)
    for index, source in enumerate((volume.get("projected") or {}).get("sources") or []):
        yield from (f"{path}.projected.sources[{index}].{kind}" for kind in source if kind not in _SOURCES)


def _container(container: Object, path: str) -> Iterator[str]:
    for name in ("restartPolicy", "restartPolicyRules", "volumeDevices", "stdin", "tty", "resizePolicy"):
        if container.get(name) and name != "resizePolicy":
            yield f"{path}.{name}"
    yield from _security(container.get("securityContext") or {}, f"{path}.securityContext")
    for index, mount in enumerate(container.get("volumeMounts") or []):
        if mount.get("mountPropagation") not in (None, "None"):
            yield f"{path}.volumeMounts[{index}].mountPropagation"
    for index, port in enumerate(container.get("ports") or []):
        if port.get("hostPort"):
            yield f"{path}.ports[{index}].hostPort"
    for name in ("startupProbe", "readinessProbe", "livenessProbe"):
        for kind in container.get(name) or {}:
            if kind not in _PROBE_HANDLERS | _PROBE_FIELDS:
                yield f"{path}.{name}.{kind}"
    lifecycle = container.get("lifecycle") or {}
    for name in lifecycle:
        if name not in ("preStop", "postStart"):
            yield f"{path}.lifecycle.{name}"
            continue
        yield from (f"{path}.lifecycle.{name}.{kind}" for kind in lifecycle[name] if kind not in _HANDLERS)


def _security(context: Object, path: str) -> Iterator[str]:
    for name, value in context.items():
        if name in _SECURITY or (name == "privileged" and not value):
            continue
        yield f"{path}.{name}"
