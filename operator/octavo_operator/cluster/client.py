"""Requests to the API server over kubernetes.aio, each under a timeout; errors are raised as ApiError."""

from __future__ import annotations

import asyncio
import json
import os
import re
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import aiohttp
from kubernetes.aio import client as kubernetes_client
from kubernetes.aio import config as kubernetes_config

from octavo_operator.metrics import API_WRITES
from octavo_operator.plan.server_contract import FIELD_MANAGER

from .resources import Resource

Object = dict[str, Any]
TIMEOUT_SECONDS = 15.0
_PAGE = 500


class ApiError(Exception):
    """The API server refused or could not be reached (code 0)."""

    def __init__(self, code: int, reason: str, message: str) -> None:
        super().__init__(f"{code} {reason}: {message}" if code else message)
        self.code, self.reason, self.message = code, reason, message


@dataclass(frozen=True)
class Snapshot:
    """All objects of a kind as they were at one moment."""

    items: list[Object]
    version: int
    """The moment as a resource version; objects and events that are newer know better."""


class Client:
    """Thin verbs; decides nothing."""

    def __init__(self, api: Any, token_file: Path | None = None) -> None:
        self._api = api
        self._token_file = token_file
        self.may_write: Callable[[], bool] = lambda: True
        """Asked before each write of objects; the leader's fence."""

    async def request(
        self,
        method: str,
        path: str,
        body: Any = None,
        *,
        query: Mapping[str, str | int] | None = None,
        content_type: str = "application/json",
        timeout_seconds: float = TIMEOUT_SECONDS,
    ) -> Object:
        """One exchange; raises ApiError."""
        url = self._api.configuration.host + path + (f"?{urlencode(query)}" if query else "")
        headers = {"Content-Type": content_type, "Accept": "application/json", "User-Agent": FIELD_MANAGER}
        # A projected token is replaced on disk before it expires, so it is read anew each time.
        if self._token_file is not None:
            headers["Authorization"] = f"Bearer {self._token_file.read_text().strip()}"
        elif token := await self._api.configuration.get_api_key_with_prefix("BearerToken"):
            headers["Authorization"] = token
        try:
            async with asyncio.timeout(timeout_seconds):
                answer = await self._api.call_api(method, url, headers, body, _request_timeout=timeout_seconds)
                text = await answer.read()
        except (TimeoutError, aiohttp.ClientError, OSError) as error:
            raise ApiError(0, "Unreachable", f"{method} {path}: {type(error).__name__} {error}") from error
        try:
            told = json.loads(text or b"{}")
        except ValueError:
            # Proxies and an API server that shuts down answer in plain text.
            told = {"message": text[:300].decode(errors="replace").strip()}
        if not 200 <= answer.status <= 299:
            raise ApiError(answer.status, str(told.get("reason") or answer.reason), str(told.get("message") or ""))
        return told  # type: ignore[no-any-return]

    async def server_version(self) -> tuple[int, int]:
        """Major and minor; (0, 0) where it is not told in numbers. Raises ApiError."""
        told = await self.request("GET", "/version")
        parts = [re.match(r"[0-9]+", str(told.get(part, ""))) for part in ("major", "minor")]
        return (int(parts[0][0]), int(parts[1][0])) if parts[0] and parts[1] else (0, 0)

    async def get(self, resource: Resource, namespace: str, name: str) -> Object:
        """One object."""
        return await self.request("GET", resource.path(namespace, name))

    async def snapshot(
        self,
        resource: Resource,
        namespace: str | None = None,
        *,
        selector: str = "",
        keep: Callable[[Object], Object] = lambda item: item,
    ) -> Snapshot:
        """All objects of a kind, or those whose labels match, page by page; all pages tell of the same moment.

        `keep`: what is kept of each object; a page at a time, so that memory never holds all of them whole.
        """
        found: list[Object] = []
        version = 0
        query: dict[str, str | int] = {"limit": _PAGE, **({"labelSelector": selector} if selector else {})}
        while True:
            page = await self.request("GET", resource.path(namespace), query=query)
            found += map(keep, page.get("items") or ())
            meta = page.get("metadata", {})
            version = version or int(meta.get("resourceVersion") or 0)
            if not meta.get("continue"):
                return Snapshot(found, version)
            query["continue"] = meta["continue"]

    async def list(self, resource: Resource, namespace: str | None = None, *, selector: str = "") -> list[Object]:
        """The objects of a snapshot."""
        return (await self.snapshot(resource, namespace, selector=selector)).items

    async def _write(
        self,
        verb: str,
        resource: Resource,
        path: str,
        body: Any,
        *,
        manager: str = FIELD_MANAGER,
        content_type: str = "application/apply-patch+yaml",
    ) -> Object:
        if not self.may_write():
            raise ApiError(0, "NotLeading", f"{verb} {path}: leadership is no longer proven; nothing is written")
        API_WRITES.labels(resource.kind, verb).inc()
        query = {"fieldManager": manager}
        if content_type == "application/apply-patch+yaml":
            query["force"] = "true"
        return await self.request("PATCH", path, body, query=query, content_type=content_type)

    async def apply(self, resource: Resource, manifest: Object) -> Object:
        """Server-side apply as the operator's field manager."""
        meta = manifest["metadata"]
        return await self._write("apply", resource, resource.path(meta.get("namespace"), meta["name"]), manifest)

    async def apply_status(self, resource: Resource, service: Object, status: Object) -> Object:
        """Write the whole status of this very object."""
        meta = service["metadata"]
        body = {
            "apiVersion": resource.api_version,
            "kind": resource.kind,
            "metadata": {"name": meta["name"], "namespace": meta["namespace"], "uid": meta["uid"]},
            "status": status,
        }
        path = resource.path(meta["namespace"], meta["name"]) + "/status"
        return await self._write("status", resource, path, body)

    async def seed_replicas(self, resource: Resource, service: Object, count: int) -> Object:
        """Write spec.replicas once, as a manager of its own, so that a later owner takes it over without a conflict."""
        meta = service["metadata"]
        body = {"metadata": {"resourceVersion": meta["resourceVersion"]}, "spec": {"replicas": count}}
        path = resource.path(meta["namespace"], meta["name"])
        return await self._write(
            "seed", resource, path, body, manager=FIELD_MANAGER + "-seed", content_type="application/merge-patch+json"
        )

    async def annotate(self, resource: Resource, live: Object, annotations: Mapping[str, str | None]) -> Object:
        """Set annotations of this very object; None removes one."""
        meta = live["metadata"]
        body = {"metadata": {"uid": meta["uid"], "annotations": dict(annotations)}}
        path = resource.path(meta["namespace"], meta["name"])
        return await self._write("annotate", resource, path, body, content_type="application/merge-patch+json")

    async def replace_template(self, resource: Resource, live: Object, template_spec: Object) -> Object:
        """Put a pod template's spec in place of the live one, which removes what others added to it."""
        meta = live["metadata"]
        patch = [
            {"op": "test", "path": "/metadata/resourceVersion", "value": meta["resourceVersion"]},
            {"op": "replace", "path": "/spec/template/spec", "value": template_spec},
        ]
        path = resource.path(meta["namespace"], meta["name"])
        try:
            return await self._write("patch", resource, path, patch, content_type="application/json-patch+json")
        except ApiError as error:
            # A test that fails is answered like an invalid object; here it means that the object has moved on.
            if error.code == 422 and "testing" in error.message.lower():
                raise ApiError(409, "Conflict", error.message) from error
            raise

    async def delete(self, resource: Resource, live: Object) -> None:
        """Delete this very object, its dependents in the background; gone already is fine."""
        meta = live["metadata"]
        path = resource.path(meta["namespace"], meta["name"])
        if not self.may_write():
            raise ApiError(0, "NotLeading", f"delete {path}: leadership is no longer proven; nothing is written")
        API_WRITES.labels(resource.kind, "delete").inc()
        body = {
            "apiVersion": "v1",
            "kind": "DeleteOptions",
            "propagationPolicy": "Background",
            "preconditions": {"uid": meta["uid"]},
        }
        try:
            await self.request("DELETE", path, body)
        except ApiError as error:
            if error.code not in (404, 409):
                raise

    async def record(self, resource: Resource, event: Object) -> Object:
        """Create an Event, or count it up: its name stands for what it says, so that a repeated one is one object."""
        meta = event["metadata"]
        return await self._write("event", resource, resource.path(meta["namespace"], meta["name"]), event)


@asynccontextmanager
async def connect(account_folder: Path) -> AsyncIterator[Client]:
    """A client with the pod's service account where its token lies, else with KUBECONFIG; raises ApiError."""
    token = account_folder / "token"
    configuration = kubernetes_client.Configuration()
    if token.exists():
        configuration.host = in_cluster_address()
        configuration.ssl_ca_cert = str(account_folder / "ca.crt")
    else:
        files = kubeconfig_files()
        try:
            await kubernetes_config.load_kube_config(files, client_configuration=configuration)
        except kubernetes_config.ConfigException as error:
            raise ApiError(
                0,
                "NoCredentials",
                f"no service account at {account_folder} and no usable kubeconfig ({files}): {error}",
            ) from error
    api = kubernetes_client.ApiClient(configuration)
    try:
        yield Client(api, token if token.exists() else None)
    finally:
        await api.close()


def kubeconfig_files() -> str:
    """KUBECONFIG (files joined with colons), or kubectl's default place; raises ApiError where none of them exists.

    Asked for at each connection: the client library reads the variable when it is imported, which may be too early.
    """
    files = os.environ.get("KUBECONFIG") or str(Path.home() / ".kube" / "config")
    if not any(Path(file).expanduser().is_file() for file in files.split(os.pathsep) if file):
        raise ApiError(
            0, "NoCredentials", f"no kubeconfig at {files}; set KUBECONFIG to your cluster's file, or run in a pod"
        )
    return files


def in_cluster_address() -> str:
    """Address of the API server as pods find it; raises ApiError."""
    host, port = os.environ.get("KUBERNETES_SERVICE_HOST"), os.environ.get("KUBERNETES_SERVICE_PORT")
    if not host or not port:
        raise ApiError(0, "NoAddress", "KUBERNETES_SERVICE_HOST and _PORT are not set; run in a pod or with KUBECONFIG")
    return f"https://[{host}]:{port}" if ":" in host else f"https://{host}:{port}"
