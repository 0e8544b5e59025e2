"""A generating answer as plain ASGI: nothing leaves before admission, then a stream, or the stream collected.

One task writes, one watches for the client to leave. A token costs no task and no model object, and wakes neither: its
frame is written where it comes in, past the layers above, unless the client is behind. Whatever arrived while the last
write was waiting goes out together in the next.
"""

import asyncio
import time
from collections.abc import Callable, Iterable
from typing import Any, Protocol

import msgspec
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from http_frontend.contract.review import Review
from http_frontend.errors import error_body
from http_frontend.exchange import AtOnce, Batch, Exchange
from http_frontend.in_flight import InFlight
from http_frontend.server import DirectWriter
from protocol.errors import ErrorInfo, RequestError
from protocol.outputs import Admitted, TextOutput
from protocol.requests import GenerateRequest

DONE = b"data: [DONE]\n\n"
KEEP_ALIVE = b": keep-alive\n\n"
DISCONNECTED = ErrorInfo("the client disconnected", 499, code="disconnected")


class Form(Protocol):
    """How one API writes an answer: as the frames of a stream, or as one body made of the same pieces."""

    def admit(self, admitted: list[Admitted]) -> None: ...

    def opening(self) -> bytes:
        """Frames before the first token."""

    def frames(self, batch: Batch) -> bytes:
        """Frames of new outputs; b"" if nothing is to be sent yet."""

    def closing(self) -> bytes:
        """Frames after the last token, without the end mark."""

    def collect(self, batch: Batch) -> None:
        """Keeps new outputs for `body`."""

    def body(self) -> bytes:
        """The whole answer as JSON."""

    def error(self, info: ErrorInfo) -> bytes:
        """An error that came after the first frame, as a frame."""


class Generation(Response):
    """Opens the exchange when it is sent, so that a refusal is still a response of its own (see errors.py)."""

    def __init__(
        self,
        in_flight: InFlight,
        requests: list[GenerateRequest],
        form: Form,
        review: Review,
        stream: bool,
        headers: dict[str, str],
    ) -> None:
        self._in_flight = in_flight
        self._requests = requests
        self._form = form
        self._review = review
        self._stream = stream
        self._more_headers = headers
        self.background = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        exchange = self._in_flight.open(self._requests)
        watch = asyncio.create_task(_watch(receive, exchange))
        try:
            admitted = await exchange.admitted()
            self._review.take(found for one in admitted for found in one.adjustments)
            self._in_flight.metrics.adjustments.add(len(self._review.adjustments))
            self._form.admit(admitted)
            if self._stream:
                await self._send_stream(exchange, scope, send)
            else:
                await self._send_whole(exchange, scope, send)
        except RequestError as error:
            # Nobody is left to be told; returning without a response closes the connection.
            if error.info is not DISCONNECTED:
                raise
        finally:
            watch.cancel()
            exchange.close()

    async def _send_whole(self, exchange: Exchange, scope: Scope, send: Send) -> None:
        while not exchange.finished:
            self._form.collect(await exchange.take())
        body = self._form.body()
        exchange.cut, exchange.writing_since = _cutter(scope), time.monotonic()
        headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
        await send({"type": "http.response.start", "status": 200, "headers": headers + self._raw_headers()})
        await send({"type": "http.response.body", "body": body})

    async def _send_stream(self, exchange: Exchange, scope: Scope, send: Send) -> None:
        exchange.cut = _cutter(scope)
        headers = [
            (b"content-type", b"text/event-stream; charset=utf-8"),
            (b"cache-control", b"no-cache"),
            (b"x-accel-buffering", b"no"),
        ]
        await send({"type": "http.response.start", "status": 200, "headers": headers + self._raw_headers()})
        at_once = self._writer_at_once(exchange, scope)
        try:
            frames = self._form.opening()
            while True:
                if frames:
                    await _write(exchange, send, frames, more=True)
                if exchange.finished:
                    break
                batch = await exchange.take(at_once)
                frames = self._form.frames(batch) if batch else KEEP_ALIVE
            await _write(exchange, send, self._form.closing() + DONE, more=False)
        except RequestError as error:
            if error.info is DISCONNECTED:
                raise
            if (connection := scope.get("candor.connection")) is not None:
                connection.end_with_response()
            await _write(exchange, send, self._form.error(error.info) + DONE, more=False)

    def _writer_at_once(self, exchange: Exchange, scope: Scope) -> AtOnce | None:
        direct: DirectWriter | None = scope.get("candor.writer")
        if direct is None:
            return None

        def write(batch: Batch) -> bool:
            if not direct.ready:
                return False
            frames = self._form.frames(batch)
            if frames:
                direct.write(frames)
                exchange.quiet_since = time.monotonic()
            return True

        return write

    def _raw_headers(self) -> list[tuple[bytes, bytes]]:
        told = self._review.header()
        headers = self._more_headers | ({"x-candor-adjustments": told} if told else {})
        return [(name.encode(), value.encode("latin-1")) for name, value in headers.items()]


async def _write(exchange: Exchange, send: Send, body: bytes, *, more: bool) -> None:
    """Sends a piece of a stream, and lets the sweep see for how long the client doesn't take it."""
    exchange.quiet_since = exchange.writing_since = time.monotonic()
    await send({"type": "http.response.body", "body": body, "more_body": more})
    exchange.writing_since = None


def _cutter(scope: Scope) -> Callable[[], None]:
    """Ends the connection of a client that does not read; called by somebody else while this task waits for it."""
    connection = scope.get("candor.connection")
    task = asyncio.current_task()
    assert task is not None

    def cut() -> None:
        connection.abort() if connection is not None else task.cancel()

    return cut


async def _watch(receive: Receive, exchange: Exchange) -> None:
    """Fails the exchange when the client leaves, streaming or not, whatever phase the request is in."""
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            exchange.fail(DISCONNECTED)
            return


def frame(value: Any) -> bytes:
    """One server-sent event."""
    return b"data: " + msgspec.json.encode(value) + b"\n\n"


def error_frame(info: ErrorInfo) -> bytes:
    return frame(error_body(info))


def by_choice(batch: Batch, n: int, copies: int) -> Iterable[tuple[int, int, TextOutput]]:
    """(choice index over all prompts, prompt position, output), copies of a greedy answer included."""
    for position, output in batch:
        if copies == 1:
            yield position * n + output.index, position, output
        else:
            for copy in range(copies):
                yield position * copies + copy, position, output
