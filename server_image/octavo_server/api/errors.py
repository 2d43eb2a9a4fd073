"""Errors of the HTTP interface, in OpenAI's shape: what is wrong, with which field, and a code to act on."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from starlette.responses import Response

_TYPES = {401: "authentication_error", 403: "permission_error", 404: "not_found_error", 429: "rate_limit_error"}
_SHOWN_CHARACTERS = 100
_FIELD = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\Z")
_TYPE_NAMES = frozenset({"str", "int", "float", "bool", "list", "dict", "none", "body"})


class ApiError(Exception):
    """Ends a request with a status, a message of one sentence, and the name of the field at fault."""

    retry_after_seconds = 1
    """Sent with 429 and 503."""

    def __init__(self, status: int, message: str, *, param: str | None = None, code: str | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.param = param
        self.code = code

    @property
    def body(self) -> dict[str, Any]:
        """The JSON object of the response, also sent as an event inside a stream."""
        kind = "server_error" if self.status >= 500 else _TYPES.get(self.status, "invalid_request_error")
        return {"error": {"message": self.message, "type": kind, "param": self.param, "code": self.code}}

    def response(self, headers: Mapping[str, str] | None = None, *, request_id: str = "") -> Response:
        """The HTTP response; the request's id stands beside the error, so that a report of it leads to the log."""
        body = {**self.body, "request_id": request_id} if request_id else self.body
        return json_response(body, self.status, headers)


class ClientGone(Exception):
    """The client closed its connection before the answer was complete."""


def bad_field(param: str, message: str) -> ApiError:
    """A 400 for one field; the message should state value, limit and way out."""
    return ApiError(400, f"{param}: {message}", param=param, code="invalid_value")


def shortened(text: str) -> str:
    """What a client sent, as it is shown in an error: at most 100 characters of it."""
    return text if len(text) <= _SHOWN_CHARACTERS else f"{text[: _SHOWN_CHARACTERS - 1]}…"


def json_response(content: Any, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    """Compact JSON."""
    return Response(dump_json(content), status, dict(headers or {}), media_type="application/json")


def dump_json(content: Any) -> bytes:
    """Compact UTF-8 JSON; half a surrogate pair, which no client could read, becomes a question mark."""
    return json.dumps(content, ensure_ascii=False, separators=(",", ":"), allow_nan=False).encode("utf-8", "replace")


def from_validation(errors: Sequence[Mapping[str, Any]]) -> ApiError:
    """The 400 for pydantic's first error."""
    first = errors[0]
    if first["type"] == "json_invalid":
        return ApiError(400, f"the body is no valid JSON: {first['msg']}", param="body", code="invalid_json")
    parts = [
        str(part) for part in first["loc"] if isinstance(part, int) or (_FIELD.match(part) and part not in _TYPE_NAMES)
    ]
    param = ".".join(parts) or "body"
    message = str(first["msg"]).removeprefix("Value error, ")
    shown = _shown(first.get("input"))
    return bad_field(param, message if first["type"] == "missing" or not shown else f"{message}, not {shown}")


def _shown(value: Any) -> str:
    if value is None or isinstance(value, dict | list | bytes):
        return ""
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}…"
