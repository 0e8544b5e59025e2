"""From a RequestError to the body of each API, and from everything else that can go wrong to a RequestError."""

import logging
import math
from typing import Any

import msgspec
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from protocol.errors import ErrorInfo, ErrorType, RequestError

logger = logging.getLogger(__name__)

STATUS_TYPES: dict[int, ErrorType] = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    429: "rate_limit_error",
    503: "service_unavailable_error",
    408: "timeout_error",
    504: "timeout_error",
}


def error_type(status: int) -> ErrorType:
    return STATUS_TYPES.get(status, "server_error" if status >= 500 else "invalid_request_error")


def error_body(info: ErrorInfo) -> dict[str, Any]:
    """OpenAI's nested shape, used by every route but Anthropic's."""
    return {"error": {"message": info.message, "type": info.type, "param": info.param, "code": info.code}}


def error_headers(info: ErrorInfo) -> dict[str, str]:
    """`Retry-After` where waiting can help, in whole seconds as HTTP wants them."""
    if info.status not in (429, 503):
        return {}
    return {"retry-after": str(max(1, math.ceil(info.retry_after_s or 1.0)))}


def error_response(info: ErrorInfo) -> Response:
    return Response(
        msgspec.json.encode(error_body(info)), info.status, error_headers(info), media_type="application/json"
    )


def internal_error() -> ErrorInfo:
    """What a client is told of a fault of ours; the log has the rest."""
    return ErrorInfo("internal server error", 500, "server_error", code="internal_error")


async def on_request_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestError)
    return error_response(error.info)


async def on_http_exception(request: Request, error: Exception) -> Response:
    """Unknown routes and wrong methods, in the shape of every other error."""
    assert isinstance(error, HTTPException)
    method, path = request.method, request.url.path[:256]
    info = {
        404: ErrorInfo(f"no such route: {method} {path}", 404, "not_found_error", code="unknown_url"),
        405: ErrorInfo(f"{method} is not allowed for {path}", 405, code="method_not_allowed"),
    }.get(error.status_code, ErrorInfo(str(error.detail), error.status_code, error_type(error.status_code)))
    response = error_response(info)
    response.headers.update(error.headers or {})
    return response


async def on_fault(request: Request, error: Exception) -> Response:
    logger.error("%s %s failed", request.method, request.url.path, exc_info=error)
    return error_response(internal_error())
