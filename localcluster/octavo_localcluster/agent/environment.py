"""The environment of a container, as the kubelet makes it from the pod and from what the pod refers to."""

import base64
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from .api import Object
from .downward import field_value, resource_value
from .expand import expand

_NAME = re.compile(r"[^=\x00]+")


class ConfigError(Exception):
    """A container that can't be created as its pod stands; the message is the one of its waiting state."""


@dataclass(frozen=True)
class References:
    """ConfigMaps and Secrets of the pod's namespace by name; a name that is looked up and missing is None."""

    config_maps: Mapping[str, Object | None] = field(default_factory=dict)
    secrets: Mapping[str, Object | None] = field(default_factory=dict)


@dataclass(frozen=True)
class PodFacts:
    """What the node adds to a pod's own fields."""

    pod_ip: str
    host_ip: str
    allocatable: dict[str, str] = field(default_factory=dict)


def referenced(container: Object) -> tuple[set[str], set[str]]:
    """Names of the ConfigMaps and Secrets that a container's environment reads."""
    config_maps: set[str] = set()
    secrets: set[str] = set()
    for source in container.get("envFrom") or []:
        if "configMapRef" in source:
            config_maps.add(source["configMapRef"]["name"])
        if "secretRef" in source:
            secrets.add(source["secretRef"]["name"])
    for entry in container.get("env") or []:
        value_from = entry.get("valueFrom") or {}
        if "configMapKeyRef" in value_from:
            config_maps.add(value_from["configMapKeyRef"]["name"])
        if "secretKeyRef" in value_from:
            secrets.add(value_from["secretKeyRef"]["name"])
    return config_maps, secrets


def resolve_environment(
    pod: Object, container: Object, references: References, facts: PodFacts, base: Mapping[str, str],
    rewrite: Callable[[str], str] = lambda text: text,
) -> dict[str, str]:  # fmt: skip
    """`base` overlaid with envFrom, then env in order. Raises ConfigError when something needed is missing.

    `rewrite` sees what the pod wrote, before `$(NAME)` is expanded; values of `base` are never rewritten.
    """
    result = dict(base)
    for source in container.get("envFrom") or []:
        prefix = source.get("prefix", "")
        for key, value in _all_keys(pod, source, references).items():
            if _NAME.fullmatch(prefix + key):
                result[prefix + key] = rewrite(value)
    for entry in container.get("env") or []:
        value_from = entry.get("valueFrom")
        if value_from:
            found = _value_from(pod, container, value_from, references, facts)
            if found is not None:
                result[entry["name"]] = rewrite(found)
        else:
            result[entry["name"]] = expand(rewrite(entry.get("value") or ""), result)
    return result


def service_links(services: Iterable[Object], namespace: str) -> dict[str, str]:
    """`<NAME>_SERVICE_HOST` and its companions for each Service of a namespace that has a ClusterIP."""
    result: dict[str, str] = {}
    for service in services:
        address = service["spec"].get("clusterIP") or "None"
        ports = service["spec"].get("ports") or []
        if service["metadata"]["namespace"] != namespace or address == "None" or not ports:
            continue
        name = service["metadata"]["name"].upper().replace("-", "_")
        result[f"{name}_SERVICE_HOST"] = address
        result[f"{name}_SERVICE_PORT"] = str(ports[0]["port"])
        for index, port in enumerate(ports):
            protocol, number = port.get("protocol", "TCP"), port["port"]
            if port.get("name"):
                result[f"{name}_SERVICE_PORT_{port['name'].upper().replace('-', '_')}"] = str(number)
            url = f"{protocol.lower()}://{address}:{number}"
            if index == 0:
                result[f"{name}_PORT"] = url
            prefix = f"{name}_PORT_{number}_{protocol}"
            result |= {
                prefix: url,
                f"{prefix}_PROTO": protocol.lower(), f"{prefix}_PORT": str(number), f"{prefix}_ADDR": address,
            }  # fmt: skip
    return result


def decoded(secret: Object) -> dict[str, bytes]:
    """The data of a Secret."""
    return {key: base64.b64decode(value) for key, value in (secret.get("data") or {}).items()}


def _all_keys(pod: Object, source: Object, references: References) -> dict[str, str]:
    if "configMapRef" in source:
        reference = source["configMapRef"]
        config_map = references.config_maps.get(reference["name"])
        if config_map is not None:
            return dict(config_map.get("data") or {})
        kind = "configmap"
    else:
        reference = source["secretRef"]
        secret = references.secrets.get(reference["name"])
        if secret is not None:
            return {key: value.decode(errors="surrogateescape") for key, value in decoded(secret).items()}
        kind = "secret"
    if reference.get("optional"):
        return {}
    raise ConfigError(f'{kind} "{reference["name"]}" not found')


def _value_from(pod: Object, container: Object, source: Object, references: References, facts: PodFacts) -> str | None:
    namespace = pod["metadata"]["namespace"]
    if "fieldRef" in source:
        try:
            return field_value(pod, source["fieldRef"]["fieldPath"], pod_ip=facts.pod_ip, host_ip=facts.host_ip)
        except ValueError as error:
            raise ConfigError(str(error)) from None
    if "resourceFieldRef" in source:
        try:
            return resource_value(pod, container["name"], source["resourceFieldRef"], facts.allocatable)
        except ValueError as error:
            raise ConfigError(str(error)) from None
    if "configMapKeyRef" in source:
        reference, kind, title = source["configMapKeyRef"], "configmap", "ConfigMap"
        config_map = references.config_maps.get(reference["name"])
        data = None if config_map is None else dict(config_map.get("data") or {})
    elif "secretKeyRef" in source:
        reference, kind, title = source["secretKeyRef"], "secret", "Secret"
        secret = references.secrets.get(reference["name"])
        data = None if secret is None else {k: v.decode(errors="surrogateescape") for k, v in decoded(secret).items()}
    else:
        raise ConfigError(f"env valueFrom {', '.join(source)} is not supported by the local cluster")
    if data is not None and reference["key"] in data:
        return str(data[reference["key"]])
    if reference.get("optional"):
        return None
    if data is None:
        raise ConfigError(f'{kind} "{reference["name"]}" not found')
    raise ConfigError(f"couldn't find key {reference['key']} in {title} {namespace}/{reference['name']}")
