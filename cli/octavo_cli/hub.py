"""A model's configuration and size from the Hub, without its weights. Honours HF_ENDPOINT and HF_TOKEN."""

from __future__ import annotations

import os
import urllib.error
import urllib.parse
import urllib.request
from dataclasses import dataclass

from .errors import ModelError
from .model_facts import ModelFacts, from_config, parse_object

TIMEOUT_SECONDS = 20
_OFFLINE = "without a way to the Hub give the model's folder"


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """The Hub tells a file's size in the answer that redirects to its content."""

    def redirect_request(self, *_details: object) -> None:
        return None


@dataclass(frozen=True)
class Repository:
    """One revision of one model."""

    uri: str
    """hf://org/name."""
    revision: str = "main"

    def _request(self, file: str, method: str) -> urllib.request.Request:
        base = os.environ.get("HF_ENDPOINT", "https://huggingface.co").rstrip("/")
        name, revision = self.uri.removeprefix("hf://"), urllib.parse.quote(self.revision, safe="")
        request = urllib.request.Request(f"{base}/{name}/resolve/{revision}/{file}", method=method)
        if token := os.environ.get("HF_TOKEN"):
            # Not passed on to the host that a redirect names.
            request.add_unredirected_header("Authorization", f"Bearer {token}")
        return request

    def text(self, file: str) -> str | None:
        """A file's text; None when there is none of this name. Raises ModelError."""
        request = self._request(file, "GET")
        try:
            with urllib.request.urlopen(request, timeout=TIMEOUT_SECONDS) as answer:
                return str(answer.read().decode())
        except urllib.error.HTTPError as error:
            self._failed(error, request)
            return None
        except (OSError, ValueError) as error:
            raise ModelError(
                f"{request.full_url}: {error}; without a way to the Hub give the model's folder"
            ) from error

    def size_bytes(self, file: str) -> int:
        """Size of a large file; 0 when there is none of this name, or it is not told. Raises ModelError."""
        request = self._request(file, "HEAD")
        try:
            with urllib.request.build_opener(_NoRedirect).open(request, timeout=TIMEOUT_SECONDS) as answer:
                headers = answer.headers
        except urllib.error.HTTPError as error:
            if not 300 <= error.code < 400:
                self._failed(error, request)
                return 0
            headers = error.headers
        except OSError as error:
            raise ModelError(
                f"{request.full_url}: {error}; without a way to the Hub give the model's folder"
            ) from error
        told = headers.get("X-Linked-Size") or headers.get("Content-Length") or "0"
        return int(told) if told.isdecimal() else 0

    def _failed(self, error: urllib.error.HTTPError, request: urllib.request.Request) -> None:
        if error.code == 404:
            return
        gated = "; a gated or private model needs HF_TOKEN in the environment" if error.code in (401, 403) else ""
        raise ModelError(f"{request.full_url}: status {error.code}{gated}") from error


def from_hub(uri: str, revision: str = "main") -> ModelFacts:
    """Raises ModelError."""
    repository = Repository(uri, revision)
    config = repository.text("config.json")
    if config is None:
        raise ModelError(
            f"{uri} at {revision}: no such model, or it has no config.json; for a GGUF file give the file itself"
        )
    index = repository.text("model.safetensors.index.json")
    size = (parse_object(index, uri).get("metadata") or {}).get("total_size", 0) if index else 0
    return from_config(parse_object(config, uri), uri, int(size) or repository.size_bytes("model.safetensors"))
