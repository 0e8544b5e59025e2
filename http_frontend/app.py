"""The application: routes, middleware and error handlers, each in one visible list."""

from collections.abc import Awaitable, Callable

from fastapi import FastAPI
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from http_frontend import health
from http_frontend.errors import on_fault, on_http_exception, on_request_error
from http_frontend.front import Front
from http_frontend.openai import routes as openai
from protocol.errors import RequestError

Endpoint = Callable[[Request], Awaitable[Response]]

ROUTES: tuple[tuple[str, str, Endpoint], ...] = (
    ("POST", "/v1/chat/completions", openai.chat_completions),
    ("GET", "/v1/models", openai.list_models),
    ("GET", "/v1/models/{name:path}", openai.show_model),
    ("GET", "/health", health.health),
    ("GET", "/ready", health.ready),
    ("GET POST", "/ping", health.ping),
)


def build_app(front: Front) -> FastAPI:
    app = FastAPI(title="Candor", version=front.config.version, root_path=front.config.args.root_path)
    app.state.front = front
    for methods, path, endpoint in ROUTES:
        app.add_api_route(path, endpoint, methods=methods.split(), response_model=None)
    app.add_exception_handler(RequestError, on_request_error)
    app.add_exception_handler(HTTPException, on_http_exception)
    app.add_exception_handler(Exception, on_fault)
    return app
