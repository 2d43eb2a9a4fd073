"""The volumes of one pod as folders of this machine."""

import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .api import ApiClient, ApiError, Object
from .downward import field_value, resource_value
from .environment import PodFacts, decoded
from .payload import File, write_payload

GENERATED = ("configMap", "secret", "projected", "downwardAPI")
DEFAULT_TOKEN_SECONDS = 3600
REFRESH_SHARE = 0.8


class VolumeError(Exception):
    """A volume that can't be mounted now; the message says which and why."""


@dataclass
class _Token:
    value: str
    refresh_at: float


class PodVolumes:
    """Prepares and refreshes the volumes of one pod under `<pod folder>/volumes/<name>`."""

    def __init__(self, client: ApiClient, pod: Object, folder: Path, facts: PodFacts) -> None:
        self.pod = pod
        self.paths: dict[str, Path] = {}
        self._client = client
        self._folder = folder / "volumes"
        self._facts = facts
        self._tokens: dict[tuple[str, int], _Token] = {}

    async def prepare(self) -> None:
        """Make every volume ready. Raises VolumeError, ApiError or an outage; may be called again."""
        self._folder.mkdir(parents=True, exist_ok=True)
        for volume in self.pod["spec"].get("volumes") or []:
            name = volume["name"]
            path = self._folder / name
            try:
                if "emptyDir" in volume:
                    path.mkdir(exist_ok=True)
                elif "persistentVolumeClaim" in volume:
                    await self._link_claim(path, volume["persistentVolumeClaim"]["claimName"])
                else:
                    write_payload(path, await self._files(volume))
            except (VolumeError, ValueError, OSError) as error:
                if isinstance(error, ConnectionError | TimeoutError):
                    raise
                raise VolumeError(f'MountVolume.SetUp failed for volume "{name}": {error}') from None
            self.paths[name] = path

    async def refresh(self) -> None:
        """Bring generated volumes up to date. Raises like prepare(); what is mounted stays."""
        for volume in self.pod["spec"].get("volumes") or []:
            if any(kind in volume for kind in GENERATED):
                write_payload(self._folder / volume["name"], await self._files(volume))

    def next_refresh(self, now: float, period_seconds: float) -> float:
        """When refresh() is due: after the period, or earlier when a token would run out."""
        return min([now + period_seconds, *(token.refresh_at for token in self._tokens.values())])

    def mounts(self, container: Object) -> dict[str, str]:
        """Container path → real path for each mount of a container whose sub-path is final. Creates missing sub-
        folders.
        """
        found = {}
        for mount in container.get("volumeMounts") or []:
            path = self.paths[mount["name"]]
            if mount.get("subPath"):
                path = path / mount["subPath"]
                if not path.exists():
                    path.mkdir(parents=True, exist_ok=True)
            found[mount["mountPath"]] = str(path)
        return found

    async def _link_claim(self, path: Path, claim_name: str) -> None:
        namespace = self.pod["metadata"]["namespace"]
        claim = await self._get(f"/api/v1/namespaces/{namespace}/persistentvolumeclaims/{claim_name}")
        if claim is None:
            raise VolumeError(f'persistentvolumeclaim "{claim_name}" not found')
        if (claim.get("status") or {}).get("phase") != "Bound":
            raise VolumeError(f'persistentvolumeclaim "{claim_name}" is not bound')
        name = claim["spec"]["volumeName"]
        volume = await self._get(f"/api/v1/persistentvolumes/{name}")
        spec = {} if volume is None else volume["spec"]
        source = spec.get("local") or spec.get("hostPath")
        if source is None:
            raise VolumeError(f'persistentvolume "{name}" is neither local nor hostPath: other kinds need a real node')
        link(path, source["path"], f'persistentvolume "{name}"')

    async def _files(self, volume: Object) -> dict[str, File]:
        if "projected" not in volume:
            kind = next(kind for kind in GENERATED if kind in volume)
            source = volume[kind]
            if kind == "secret":
                source = {**source, "name": source["secretName"]}
            return await self._source_files(kind, source, int(source.get("defaultMode", 0o644)))
        files: dict[str, File] = {}
        mode = int(volume["projected"].get("defaultMode", 0o644))
        for entry in volume["projected"].get("sources") or []:
            for kind, source in entry.items():
                files |= await self._source_files(kind, source, mode)
        return files

    async def _source_files(self, kind: str, source: Object, mode: int) -> dict[str, File]:
        namespace = self.pod["metadata"]["namespace"]
        if kind == "serviceAccountToken":
            token = await self._token(source)
            return {source["path"]: File(token.encode(), 0o600)}
        if kind == "downwardAPI":
            return {item["path"]: self._downward(item, mode) for item in source.get("items") or []}
        plural, title = ("configmaps", "configmap") if kind == "configMap" else ("secrets", "secret")
        found = await self._get(f"/api/v1/namespaces/{namespace}/{plural}/{source['name']}")
        if found is None:
            if source.get("optional"):
                return {}
            raise VolumeError(f'{title} "{source["name"]}" not found')
        data = decoded(found) if kind == "secret" else config_map_data(found)
        return select(data, source, mode, f"{title} {namespace}/{source['name']}")

    def _downward(self, item: Object, mode: int) -> File:
        if "fieldRef" in item:
            path = item["fieldRef"]["fieldPath"]
            text = field_value(self.pod, path, pod_ip=self._facts.pod_ip, host_ip=self._facts.host_ip)
        else:
            text = resource_value(self.pod, "", item["resourceFieldRef"], self._facts.allocatable)
        return File(text.encode(), int(item.get("mode") or mode))

    async def _token(self, source: Object) -> str:
        audience, seconds = source.get("audience") or "", int(source.get("expirationSeconds") or DEFAULT_TOKEN_SECONDS)
        now = time.time()
        known = self._tokens.get((audience, seconds))
        if known is not None and now < known.refresh_at:
            return known.value
        metadata = self.pod["metadata"]
        account = self.pod["spec"].get("serviceAccountName") or "default"
        bound = {"kind": "Pod", "apiVersion": "v1", "name": metadata["name"], "uid": metadata["uid"]}
        spec: dict[str, Any] = {"expirationSeconds": seconds, "boundObjectRef": bound}
        spec["audiences"] = [audience] if audience else []
        answer = await self._client.create(
            f"/api/v1/namespaces/{metadata['namespace']}/serviceaccounts/{account}/token",
            {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": spec},
        )
        # The server may shorten or lengthen what was asked for, so its own figure counts.
        granted = int(answer["spec"]["expirationSeconds"])
        token = _Token(answer["status"]["token"], now + REFRESH_SHARE * min(seconds, granted))
        self._tokens[(audience, seconds)] = token
        return token.value

    async def _get(self, path: str) -> Object | None:
        try:
            return await self._client.get(path)
        except ApiError as error:
            if error.code == 404:
                return None
            raise


def link(path: Path, target: str, title: str) -> None:
    """Make `path` a link to a folder. Raises VolumeError when that does not exist."""
    if not Path(target).exists():
        raise VolumeError(f'{title}: path "{target}" does not exist')
    path.unlink(missing_ok=True)
    path.symlink_to(target)


def config_map_data(config_map: Object) -> dict[str, bytes]:
    """Text and binary data of a ConfigMap."""
    text = {key: value.encode() for key, value in (config_map.get("data") or {}).items()}
    return text | decoded({"data": config_map.get("binaryData")})


def select(data: Mapping[str, bytes], source: Object, mode: int, title: str) -> dict[str, File]:
    """The files of a ConfigMap or Secret volume: all keys, or those of `items`. VolumeError for a missing key."""
    if not source.get("items"):
        return {key: File(value, mode) for key, value in data.items()}
    files = {}
    for item in source["items"]:
        if item["key"] in data:
            files[item["path"]] = File(data[item["key"]], int(item.get("mode") or mode))
        elif not source.get("optional"):
            raise VolumeError(f"references non-existent key {item['key']} in {title}")
    return files
