"""A small client for the API server's REST interface: what the supervisor needs and no more."""

from __future__ import annotations

import http.client
import json
import ssl
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from octavo_localcluster.agent_config import Identity


class ApiError(RuntimeError):
    """The API server answered with an error, or not at all (status 0)."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


class RestClient:
    """One connection per request: simple, and safe across restarts of the server."""

    def __init__(self, server: str, authority: Path, identity: Identity | None = None) -> None:
        parts = urlsplit(server)
        self._host, self._port = parts.hostname or "", parts.port or 443
        self._context = ssl.create_default_context(cafile=str(authority))
        if identity:
            self._context.load_cert_chain(str(identity.certificate), str(identity.key))

    def request(
        self,
        method: str,
        path: str,
        body: object = None,
        *,
        content_type: str = "application/json",
        timeout: float = 5.0,
    ) -> Any:
        """Sends JSON, returns the parsed answer (or its text when it is not JSON). Raises ApiError."""
        connection = http.client.HTTPSConnection(self._host, self._port, timeout=timeout, context=self._context)
        try:
            content = None if body is None else json.dumps(body)
            headers = {"Content-Type": content_type, "Accept": "application/json", "User-Agent": "octavo-localcluster"}
            connection.request(method, path, body=content, headers=headers)
            response = connection.getresponse()
            text = response.read().decode(errors="replace")
        except (OSError, http.client.HTTPException) as error:
            raise ApiError(0, f"{method} {path}: {error}") from None
        finally:
            connection.close()
        try:
            answer = json.loads(text)
        except ValueError:
            answer = text
        if response.status >= 400:
            reason = answer.get("message", text) if isinstance(answer, dict) else text
            raise ApiError(response.status, f"{method} {path}: {response.status} {reason}")
        return answer

    def apply(self, path: str, manifest: dict[str, Any]) -> None:
        """Server-side apply under this package's field manager."""
        target = f"{path}/{manifest['metadata']['name']}?fieldManager=octavo-localcluster&force=true"
        self.request("PATCH", target, manifest, content_type="application/apply-patch+yaml")

    def healthy(self, path: str) -> bool:
        """Whether a health endpoint answers well."""
        try:
            self.request("GET", path, timeout=2.0)
        except ApiError:
            return False
        return True
