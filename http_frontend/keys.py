"""Who may call what: API keys and the admin key, compared in constant time, as plain ASGI."""

import hashlib
import hmac

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from http_frontend.errors import error_response
from http_frontend.observed import called_path
from protocol.errors import ErrorInfo
from runtime.server_args import ServerArgs

OPEN_PATHS = frozenset(("/health", "/health_generate", "/ready", "/ping"))
ADMIN_PATHS = frozenset(("/flush_cache", "/abort_request"))
LOOPBACK = frozenset(("127.0.0.1", "::1", "localhost"))


class Keys:
    """Answers 401 and 403 before a body is read. Preflights and health need no key."""

    def __init__(self, app: ASGIApp, args: ServerArgs) -> None:
        self._app = app
        self._keys = [_digest(key) for key in args.api_key]
        self._admin_key = _digest(args.admin_api_key) if args.admin_api_key else None
        self._open = OPEN_PATHS if args.metrics_need_key else OPEN_PATHS | {"/metrics"}
        self._private_host = args.uds is not None or args.host in LOOPBACK

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            refusal = self._refusal(scope)
            if refusal is not None:
                response = error_response(refusal)
                if refusal.status == 401:
                    response.headers["www-authenticate"] = "Bearer"
                await response(scope, receive, send)
                return
        await self._app(scope, receive, send)

    def _refusal(self, scope: Scope) -> ErrorInfo | None:
        path = called_path(scope)
        if scope["method"] == "OPTIONS" or path in self._open:
            return None
        given = _digest(_key_of(Headers(scope=scope)))
        is_admin = self._admin_key is not None and hmac.compare_digest(given, self._admin_key)
        # All keys are compared, so that the time says nothing of which one was near.
        matches = [hmac.compare_digest(given, key) for key in self._keys]
        if path in ADMIN_PATHS:
            if self._admin_key is not None:
                return None if is_admin else _unauthorised("this route needs the admin key")
            if not self._private_host:
                return ErrorInfo(
                    "this route is closed: start with --admin-api-key", 403, "permission_error", code="closed"
                )
        if self._keys and not any(matches) and not is_admin:
            return _unauthorised("a valid API key is needed as a Bearer token")
        if any(matches):
            scope["candor.key"] = f"key-{matches.index(True)}"
        return None


def _key_of(headers: Headers) -> str:
    scheme, _, token = headers.get("authorization", "").partition(" ")
    return token.strip() if scheme.lower() == "bearer" else headers.get("x-api-key", "")


def _digest(key: str) -> bytes:
    return hashlib.sha256(key.encode("utf-8", "surrogateescape")).digest()


def _unauthorised(message: str) -> ErrorInfo:
    return ErrorInfo(message, 401, "authentication_error", code="invalid_api_key")
