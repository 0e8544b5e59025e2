"""The outermost layer of ours: every answer has an x-request-id, and every call is counted."""

import re
import uuid

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from http_frontend.contract.sampling import ID_PATTERN
from http_frontend.metrics import Metrics

ENDPOINTS = {"/v1/chat/completions": "chat", "/v1/completions": "completions", "/generate": "generate"}


class Observed:
    def __init__(self, app: ASGIApp, metrics: Metrics) -> None:
        self._app = app
        self._metrics = metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        outcome = "disconnected"

        async def send_observed(message: Message) -> None:
            nonlocal outcome
            if message["type"] == "http.response.start":
                outcome = f"{message['status'] // 100}xx"
                headers = message["headers"] = list(message.get("headers", ()))
                if not any(name == b"x-request-id" for name, _ in headers):
                    headers.append((b"x-request-id", _request_id(scope).encode()))
            await send(message)

        try:
            await self._app(scope, receive, send_observed)
        finally:
            self._metrics.count_call(ENDPOINTS.get(called_path(scope), "other"), outcome)


def called_path(scope: Scope) -> str:
    """The path as the routes have it, without the prefix that a proxy in front has taken off."""
    path: str = scope["path"]
    return path.removeprefix(scope.get("root_path", "")) or "/"


def _request_id(scope: Scope) -> str:
    given = Headers(scope=scope).get("x-request-id", "")
    return given if re.fullmatch(ID_PATTERN, given) else uuid.uuid4().hex
