"""The one error that a client can be told, and how it travels between processes."""

from typing import Literal

import msgspec

ErrorType = Literal[
    "invalid_request_error",
    "authentication_error",
    "permission_error",
    "not_found_error",
    "rate_limit_error",
    "server_error",
    "service_unavailable_error",
    "timeout_error",
]


LOST = "lost"
"""Code of a refusal between processes: the request was on its way to a process that died. Its owner submits it again."""


class ErrorInfo(msgspec.Struct, frozen=True, omit_defaults=True):
    """A refusal or failure as every API body is made from it.

    `param` is the path of the field in the client's body (`messages[2].content`), `code` a stable machine-readable word.
    """

    message: str
    status: int = 400
    type: ErrorType = "invalid_request_error"
    param: str | None = None
    code: str | None = None
    retry_after_s: float | None = None


def key_limit_error(limit: int) -> ErrorInfo:
    """The answer to an API key that has `limit` requests running already."""
    message = f"this API key has {limit} requests running, and may have no more at a time"
    return ErrorInfo(message, 429, "rate_limit_error", code="too_many_requests", retry_after_s=1.0)


class RequestError(Exception):
    """Raised where a request is found wanting; the HTTP front end maps it to each API's body in one place."""

    def __init__(
        self,
        message: str,
        *,
        param: str | None = None,
        code: str | None = None,
        status: int = 400,
        type: ErrorType = "invalid_request_error",
        retry_after_s: float | None = None,
    ) -> None:
        super().__init__(message)
        self.info = ErrorInfo(message, status, type, param, code, retry_after_s)

    @classmethod
    def from_info(cls, info: ErrorInfo) -> "RequestError":
        """The exception again, from what another process sent."""
        error = cls(info.message)
        error.info = info
        return error


def field_error(param: str, message: str, code: str = "invalid_value") -> RequestError:
    """The refusal of a field, `message` being what is said of it: lower case, no full stop."""
    return RequestError(f"{param}: {message}", param=param, code=code)
