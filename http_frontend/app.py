"""The application: routes, middleware and error handlers, each in one visible list."""

from collections.abc import Awaitable, Callable
from typing import Any

from fastapi import FastAPI
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request
from starlette.responses import Response

from http_frontend import admin, contract_routes, health, parsing, probe, tokens
from http_frontend.contract.endpoints import ENDPOINTS
from http_frontend.errors import on_fault, on_http_exception, on_request_error
from http_frontend.front import Front
from http_frontend.keys import Keys
from http_frontend.native.generate import generate
from http_frontend.observed import Observed
from http_frontend.openai import routes as openai
from protocol.errors import RequestError

Endpoint = Callable[[Request], Awaitable[Response]]

ROUTES: tuple[tuple[str, str, Endpoint], ...] = (
    ("POST", "/v1/chat/completions", openai.chat_completions),
    ("POST", "/v1/chat/completions/render", tokens.render_chat),
    ("POST", "/v1/completions", openai.completions),
    ("POST", "/v1/completions/render", tokens.render_completions),
    ("POST PUT", "/generate", generate),
    ("GET HEAD", "/v1/models", openai.list_models),
    ("GET HEAD", "/v1/models/{name:path}", openai.show_model),
    ("GET HEAD", "/v1/contract", contract_routes.contract),
    ("POST", "/tokenize", tokens.tokenize),
    ("POST", "/v1/tokenize", tokens.tokenize),
    ("POST", "/detokenize", tokens.detokenize),
    ("POST", "/v1/detokenize", tokens.detokenize),
    ("POST", "/parse_function_call", parsing.parse_function_call),
    ("POST", "/separate_reasoning", parsing.separate_reasoning),
    ("GET HEAD", "/health", health.health),
    ("GET HEAD", "/health_generate", probe.health_generate),
    ("GET HEAD", "/ready", health.ready),
    ("GET HEAD POST", "/ping", health.ping),
    ("GET HEAD", "/model_info", admin.model_info),
    ("GET HEAD", "/get_model_info", admin.model_info),
    ("GET HEAD", "/server_info", admin.server_info),
    ("GET HEAD", "/get_server_info", admin.server_info),
    ("GET HEAD", "/v1/loads", admin.loads),
    ("GET HEAD", "/get_load", admin.get_load),
    ("GET POST", "/flush_cache", admin.flush_cache),
    ("POST", "/abort_request", admin.abort_request),
    ("GET HEAD", "/version", admin.version),
)

EXPOSED_HEADERS = ("x-request-id", "x-candor-adjustments", "retry-after")


def build_app(front: Front) -> FastAPI:
    args = front.config.args
    layers = [Middleware(Observed, metrics=front.metrics), Middleware(Keys, args=args)]
    if args.cors_allow_origins:
        # Outside the keys: a browser's preflight carries none.
        cors = Middleware(
            CORSMiddleware,
            allow_origins=list(args.cors_allow_origins),
            allow_methods=["*"],
            allow_headers=["*"],
            expose_headers=list(EXPOSED_HEADERS),
        )
        layers.insert(0, cors)
    app = FastAPI(title="Candor", version=front.config.version, middleware=layers)
    app.state.front = front
    routes = ROUTES + ((("GET HEAD", "/metrics", admin.metrics),) if args.metrics else ())
    for methods, path, endpoint in routes:
        for method in methods.split():
            app.add_api_route(
                path,
                endpoint,
                methods=[method],
                response_model=None,
                operation_id=f"{method} {path}",
                summary=endpoint.__name__.replace("_", " "),
                openapi_extra=_body_schema(path),
                include_in_schema=method != "HEAD",
            )
    app.add_exception_handler(RequestError, on_request_error)
    app.add_exception_handler(HTTPException, on_http_exception)
    app.add_exception_handler(Exception, on_fault)
    return app


def _body_schema(path: str) -> dict[str, Any] | None:
    """The request body in OpenAPI, out of the contract's table."""
    record = ENDPOINTS.get(path)
    if record is None:
        return None
    return {"requestBody": {"required": True, "content": {"application/json": {"schema": record.schema()}}}}
