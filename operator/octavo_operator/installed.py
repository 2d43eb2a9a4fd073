"""The operator that runs in a cluster, as the chart installed it: its flags and its catalogue."""

from __future__ import annotations

from dataclasses import dataclass

from .cluster.client import Client
from .cluster.resources import BY_KIND, CONFIG_MAPS
from .settings import Unavailable

SELECTOR = "app.kubernetes.io/name=octavo-operator"
_WAY_OUT = "give --catalogue FILE, the chart's images.yaml"


@dataclass(frozen=True)
class Installed:
    """What one running operator was told."""

    where: str
    """`namespace/name` of its Deployment."""
    flags: tuple[str, ...]
    """Arguments after the command `run`, its catalogue left out."""
    catalogue: str
    """The YAML of its images."""


async def find_installed(client: Client) -> Installed:
    """The one operator of the cluster. Raises Unavailable when there is none or several, ApiError."""
    found = await client.list(BY_KIND["Deployment"], selector=SELECTOR)
    names = [f"{item['metadata']['namespace']}/{item['metadata']['name']}" for item in found]
    if len(found) != 1:
        many = (
            f"several operators are installed ({', '.join(sorted(names))})"
            if found
            else "no operator is installed here"
        )
        raise Unavailable(f"{many} (Deployments with {SELECTOR}); {_WAY_OUT}")
    pod = found[0]["spec"]["template"]["spec"]
    flags = _flags(pod["containers"][0].get("args") or ())
    volume = next((item["configMap"]["name"] for item in pod.get("volumes") or () if "configMap" in item), None)
    if volume is None:
        raise Unavailable(f"the operator {names[0]} mounts no catalogue; {_WAY_OUT}")
    config = await client.get(CONFIG_MAPS, found[0]["metadata"]["namespace"], volume)
    text = (config.get("data") or {}).get("images.yaml")
    if text is None:
        raise Unavailable(f"ConfigMap {volume} of the operator {names[0]} holds no images.yaml; {_WAY_OUT}")
    return Installed(names[0], flags, text)


def _flags(arguments: list[str] | tuple[str, ...]) -> tuple[str, ...]:
    """Those that a plan depends on; addresses and the catalogue's path are of the pod alone."""
    kept: list[str] = []
    rest = iter(arguments)
    for argument in rest:
        name, given, _ = argument.partition("=")
        if name in ("--catalogue", "--host", "--port", "--log-level"):
            if not given:
                next(rest, None)
        elif argument != "run":
            kept.append(argument)
    return tuple(kept)
