"""Reading a request's body: size, type, encoding, JSON and depth, each refused with its own status."""

import asyncio
from typing import Any

import msgspec
from starlette.requests import ClientDisconnect, Request

from http_frontend.repeated_keys import repeated_keys
from protocol.errors import RequestError

MAX_DEPTH = 128


async def read_json(request: Request, max_bytes: int, timeout_s: float) -> tuple[Any, list[str]]:
    """The body as JSON, and the keys that stand in it more than once. RequestError 400, 408, 413 or 415."""
    try:
        async with asyncio.timeout(timeout_s):
            raw = await read_bytes(request, max_bytes)
    except TimeoutError:
        raise RequestError(f"the body did not arrive within {timeout_s:g} s", status=408, code="body_timeout") from None
    refuse_other_types(request.headers.get("content-type"), request.headers.get("content-encoding"))
    value = parse_json(raw)
    return value, repeated_keys(raw, value)


async def read_bytes(request: Request, max_bytes: int) -> bytes:
    """The whole body; stops reading at the limit, whatever Content-Length says."""
    too_large = RequestError(
        f"the body is larger than the {max_bytes} bytes that this server accepts", status=413, code="body_too_large"
    )
    declared = request.headers.get("content-length", "0")
    if declared.isdecimal() and int(declared[:18]) > max_bytes:
        raise too_large
    chunks: list[bytes] = []
    size = 0
    try:
        async for chunk in request.stream():
            size += len(chunk)
            if size > max_bytes:
                raise too_large
            chunks.append(chunk)
    except ClientDisconnect:
        raise RequestError("the client left before its body was read", code="disconnected") from None
    return b"".join(chunks)


def refuse_other_types(content_type: str | None, encoding: str | None = None) -> None:
    """JSON types pass, and so does no type at all; nothing compressed does: a small body could become any size."""
    if encoding is not None and encoding.strip().lower() not in ("", "identity"):
        raise RequestError(
            f"the body must not be compressed, got the content encoding {encoding[:64]!r}",
            status=415,
            code="unsupported_content_encoding",
        )
    if content_type is None:
        return
    media_type = content_type.partition(";")[0].strip().lower()
    if media_type != "application/json" and not media_type.endswith("+json"):
        raise RequestError(
            f"the content type must be application/json, got {media_type[:64]!r}",
            status=415,
            code="unsupported_media_type",
        )


def parse_json(raw: bytes) -> Any:
    """Strict JSON: no NaN or infinities, no lone surrogates, UTF-8 only, at most MAX_DEPTH levels."""
    if raw[:3] == b"\xef\xbb\xbf":
        raw = raw[3:]
    try:
        value = msgspec.json.decode(raw)
    except RecursionError:
        raise _too_deep() from None
    except (msgspec.DecodeError, ValueError) as error:
        raise RequestError(f"the body is not valid JSON: {error}", code="invalid_json") from None
    # Counting brackets settles nearly every body without a walk.
    if raw.count(b"[") + raw.count(b"{") > MAX_DEPTH:
        _refuse_depth(value)
    return value


def _refuse_depth(value: Any) -> None:
    level = [value]
    for _ in range(MAX_DEPTH):
        level = (
            [
                inner
                for item in level
                for inner in (item.values() if isinstance(item, dict) else item)
                if isinstance(inner, (dict, list))
            ]
            if level
            else level
        )
        if not level:
            return
    raise _too_deep()


def _too_deep() -> RequestError:
    return RequestError(f"the body is nested more than {MAX_DEPTH} levels deep", code="too_deep")
