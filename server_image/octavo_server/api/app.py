"""The application: routes, error shapes, middleware."""

from __future__ import annotations

import logging
from typing import Any

from fastapi import FastAPI, Request
from prometheus_client.exposition import choose_encoder
from pydantic import BaseModel
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware
from starlette.responses import Response
from starlette.types import ASGIApp

from octavo_server.api import completions, tokens
from octavo_server.api.errors import ApiError, ClientGone, json_response, shortened
from octavo_server.api.identity import Identify, request_id
from octavo_server.api.keys import ApiKeys
from octavo_server.api.metric_names import Named
from octavo_server.api.middleware import Closing, LimitBody, RequireKey
from octavo_server.api.state import Phase, ServerState
from octavo_server.api.wire import ChatRequest, CompletionRequest, DetokenizeRequest, TokenizeRequest, parse
from octavo_server.contract import HEALTH_PATH, METRICS_PATH, READY_PATH, VERSION_PATH
from octavo_server.version import __version__

_LOG = logging.getLogger("octavo.api")


def create_app(state: ServerState) -> ASGIApp:
    """The ASGI application of one API process."""
    app = FastAPI(title="Octavo", version=__version__, docs_url=None, redoc_url=None)
    _add_errors(app)
    _add_service_routes(app, state)
    _add_model_routes(app, state)
    layers: ASGIApp = LimitBody(app, state.config.api.limits.max_body_bytes)
    keys = ApiKeys(state.config.api.api_key, state.config.api.api_key_file)
    if keys.wanted:
        layers = RequireKey(layers, keys)
    if state.config.api.allowed_origins:
        layers = CORSMiddleware(
            layers,
            allow_origins=state.config.api.allowed_origins,
            allow_methods=["GET", "POST"],
            allow_headers=["*"],
            expose_headers=["x-request-id", "retry-after"],
            max_age=600,
        )
    return Identify(Closing(layers, state), access_log=state.config.api.access_log)


def _add_service_routes(app: FastAPI, state: ServerState) -> None:
    @app.get(HEALTH_PATH)
    async def health() -> Response:
        """200 while this process lives and its engine is not given up."""
        alive = state.phase is not Phase.ENDED
        return json_response({"status": "ok" if alive else "failed"}, 200 if alive else 503)

    @app.get(READY_PATH)
    async def ready() -> Response:
        """200 when requests should come here, else 503 with the reason."""
        reason = state.not_ready()
        return json_response(reason or {"status": "ready"}, 200 if reason is None else 503)

    @app.get(METRICS_PATH)
    async def metrics(request: Request) -> Response:
        """Prometheus or OpenMetrics text, as the client accepts; with `name[]` in the query, those samples alone."""
        encode, content_type = choose_encoder(request.headers.get("accept", ""))
        names = request.query_params.getlist("name[]")
        found = Named(state.metrics.registry, frozenset(names)) if names else state.metrics.registry
        return Response(encode(found), media_type=content_type)

    @app.get(VERSION_PATH)
    async def version() -> Response:
        """The version of Octavo."""
        return json_response({"version": __version__})

    @app.get("/v1/models")
    async def models() -> Response:
        """The one model that is served."""
        return json_response({"object": "list", "data": [_card(state)]})

    @app.get("/v1/models/{name:path}")
    async def model(name: str) -> Response:
        """The model's card, 404 for another name."""
        state.check_model(name)
        return json_response(_card(state))


def _add_model_routes(app: FastAPI, state: ServerState) -> None:
    @app.post("/v1/chat/completions", openapi_extra=_body_schema(ChatRequest))
    async def chat(request: Request) -> Response:
        """The next message of a conversation."""
        return await completions.chat(state, request, parse(ChatRequest, await request.body()))

    @app.post("/v1/completions", openapi_extra=_body_schema(CompletionRequest))
    async def complete(request: Request) -> Response:
        """Continuations of texts."""
        return await completions.complete(state, request, parse(CompletionRequest, await request.body()))

    @app.post("/tokenize", openapi_extra=_body_schema(TokenizeRequest))
    async def tokenize(request: Request) -> Response:
        """Text or messages to token ids."""
        return await tokens.tokenize(state, parse(TokenizeRequest, await request.body()))

    @app.post("/detokenize", openapi_extra=_body_schema(DetokenizeRequest))
    async def detokenize(request: Request) -> Response:
        """Token ids to text."""
        return await tokens.detokenize(state, parse(DetokenizeRequest, await request.body()))


def _add_errors(app: FastAPI) -> None:
    @app.exception_handler(ApiError)
    async def api_error(request: Request, error: ApiError) -> Response:
        headers = {"retry-after": str(error.retry_after_seconds)} if error.status in (429, 503) else {}
        if error.status >= 500:
            fields = {"request_id": request_id(request.scope), "status": error.status, "code": error.code}
            _LOG.warning("request failed", extra={"fields": fields})
        return error.response(headers, request_id=request_id(request.scope))

    @app.exception_handler(ClientGone)
    async def client_gone(_request: Request, _error: ClientGone) -> Response:
        return Response(status_code=499)

    @app.exception_handler(HTTPException)
    async def http_error(request: Request, error: HTTPException) -> Response:
        message = f"{request.method} {shortened(request.url.path)}: {error.detail}"
        return ApiError(error.status_code, message).response(error.headers, request_id=request_id(request.scope))

    @app.exception_handler(Exception)
    async def fault(request: Request, error: Exception) -> Response:
        name = request_id(request.scope)
        fields = {"request_id": name, "path": request.url.path}
        _LOG.error("a route failed", exc_info=error, extra={"fields": fields})
        message = f"the server failed to handle this request; its log has the details under {name}"
        return ApiError(500, message).response(request_id=name)


def _card(state: ServerState) -> dict[str, Any]:
    return {
        "id": state.served_name,
        "object": "model",
        "created": state.started_seconds,
        "owned_by": "octavo",
        "root": state.config.engine.model.path,
        "max_model_len": state.ready.max_length_tokens if state.ready else None,
    }


def _body_schema(kind: type[BaseModel]) -> dict[str, Any]:
    """The request body for the OpenAPI document; routes read it themselves, strictly."""
    schema = kind.model_json_schema()
    definitions = schema.pop("$defs", {})
    schema = _inline(schema, definitions)
    return {"requestBody": {"required": True, "content": {"application/json": {"schema": schema}}}}


def _inline(node: Any, definitions: dict[str, Any]) -> Any:
    if isinstance(node, dict):
        if "$ref" in node:
            return _inline(definitions[node["$ref"].rsplit("/", 1)[1]], definitions)
        return {key: _inline(value, definitions) for key, value in node.items()}
    return [_inline(item, definitions) for item in node] if isinstance(node, list) else node
