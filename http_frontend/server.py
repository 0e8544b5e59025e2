"""uvicorn, told by the supervisor when to stop instead of by signals."""

import asyncio
import contextlib
import functools
import logging
import socket
from collections.abc import Iterator
from typing import Any

import msgspec
import uvicorn
from starlette.types import ASGIApp
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol, RequestResponseCycle

from http_frontend.errors import error_body
from protocol.errors import ErrorInfo
from runtime.server_args import ServerArgs

logger = logging.getLogger(__name__)

KEEP_ALIVE_S = 75
HEAD_TIMEOUT_S = 30.0
"""From the connection, or a request's first byte, to the end of its headers."""
MAX_HEAD_BYTES = 256 << 10
GRACEFUL_SHUTDOWN_S = 2
LINGER_S = 2.0
"""How long a connection that has been said goodbye to may still send before it is closed."""


class DirectWriter:
    """The way of a stream's pieces past the layers above, all of which look at a response's start and end only."""

    def __init__(self, connection: HttpToolsProtocol, cycle: RequestResponseCycle) -> None:
        self._transport = connection.transport
        self._flow = connection.flow
        self._cycle = cycle

    @property
    def ready(self) -> bool:
        """True in the middle of a chunked response whose client is there and not behind."""
        cycle = self._cycle
        return bool(cycle.chunked_encoding) and not (
            self._flow.write_paused or cycle.disconnected or cycle.response_complete
        )

    def write(self, piece: bytes) -> None:
        """One chunk of the body, not empty, when `ready`."""
        self._transport.write(b"%x\r\n%b\r\n" % (len(piece), piece))


class ConnectionProtocol(HttpToolsProtocol):
    """Shows itself to the application: a client that reads nothing can only be cut here, and only here a stream that has
    begun can decide to be the connection's last. Closes connections whose request does not begin to make sense in time,
    or whose answer nobody reads: each holds a descriptor."""

    _head_timer: asyncio.TimerHandle | None = None
    _head_bytes = 0
    _linger_timer: asyncio.TimerHandle | None = None
    _unread_timer: asyncio.TimerHandle | None = None
    _last = False

    def __init__(self, *args: Any, slow_client_timeout_s: float, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._slow_client_timeout_s = slow_client_timeout_s

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._await_head()

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self.scope["candor.connection"] = self  # type: ignore[typeddict-unknown-key]
        self._await_head()

    def on_headers_complete(self) -> None:
        self._head_came()
        super().on_headers_complete()
        if self.cycle is not None:
            self.scope["candor.writer"] = DirectWriter(self, self.cycle)  # type: ignore[typeddict-unknown-key]

    def data_received(self, data: bytes) -> None:
        # What still comes after the goodbye is read and dropped: unread, it would turn the end into a reset.
        if self._last:
            return
        super().data_received(data)
        if self._head_timer is not None:
            self._head_bytes += len(data)
            if self._head_bytes > MAX_HEAD_BYTES and not self._last:
                self._refuse(431, f"the headers have more than {MAX_HEAD_BYTES} bytes", "headers_too_large")

    def send_400_response(self, msg: str) -> None:
        self._refuse(400, "the request is not valid HTTP/1.1", "invalid_http")

    def _refuse(self, status: int, message: str, code: str) -> None:
        """Answers what the application will never see, unless it is in the middle of an answer: that one is the last."""
        self._last = True
        if self.cycle is not None and not self.cycle.response_complete:
            if self.cycle.response_started:
                return
            self.cycle.disconnected = True
            self.cycle.message_event.set()
        body = msgspec.json.encode(error_body(ErrorInfo(message, status, code=code)))
        head = "content-type: application/json\r\nconnection: close\r\ncontent-length:"
        self.transport.write(STATUS_LINE[status] + f"{head} {len(body)}\r\n\r\n".encode() + body)
        self._say_goodbye()

    def resume_writing(self) -> None:
        super().resume_writing()
        if self._unread_timer is not None:
            self._await_reader()

    def on_response_complete(self) -> None:
        self._await_reader()
        if not self._last or self.transport.is_closing():
            super().on_response_complete()
            return
        self.server_state.total_requests += 1
        self._say_goodbye()

    def _say_goodbye(self) -> None:
        """Ends the writing side; the reading side stays for a moment."""
        self._head_came()
        self._await_reader()
        self.pipeline.clear()
        self.flow.resume_reading()
        self._linger_timer = self.loop.call_later(LINGER_S, self.transport.close)
        if self.transport.can_write_eof():
            self.transport.write_eof()
        else:  # TLS has an end of its own
            self.transport.close()

    def connection_lost(self, exc: Exception | None) -> None:
        self._head_came()
        for timer in (self._linger_timer, self._unread_timer):
            if timer is not None:
                timer.cancel()
        super().connection_lost(exc)

    def abort(self) -> None:
        """Cuts the client off at once."""
        self.transport.abort()

    def end_with_response(self) -> None:
        """Makes the response that is being written the last one: called before its last piece, after which the client
        reads the end of the connection.

        The headers have promised nothing of the kind, so a client may take the connection for one to use again. Its
        kernel must know of the end before it reads the last byte: both travel in one segment. (On a unix socket, the end
        follows a moment later.)"""
        self._last = True
        connected = self.transport.get_extra_info("socket")
        if hasattr(socket, "TCP_CORK") and connected.family in (socket.AF_INET, socket.AF_INET6):
            connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_CORK, 1)

    def _await_reader(self) -> None:
        """Gives the client time to read what the answer that is complete has left unsent, more as long as it reads on."""
        if self._unread_timer is not None:
            self._unread_timer.cancel()
            self._unread_timer = None
        unread_bytes = self.transport.get_write_buffer_size()
        if unread_bytes:
            self._unread_timer = self.loop.call_later(self._slow_client_timeout_s, self._cut_unread, unread_bytes)

    def _cut_unread(self, before: int) -> None:
        # The next answer may be on its way behind this one and add to what is unread, unless it waits for the client.
        growing = self.cycle is not None and not self.cycle.response_complete and not self.flow.write_paused
        if growing or self.transport.get_write_buffer_size() < before:
            self._await_reader()
        else:
            logger.info("a client that does not read its answer is cut")
            self.transport.abort()

    def _await_head(self) -> None:
        self._head_came()
        self._head_bytes = 0
        self._head_timer = self.loop.call_later(HEAD_TIMEOUT_S, self.transport.abort)

    def _head_came(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None


class Server(uvicorn.Server):
    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Signals are the supervisor's: it drains first, and says when to stop."""
        yield


def build_server(app: ASGIApp, args: ServerArgs) -> Server:
    return Server(
        uvicorn.Config(
            app,
            http=functools.partial(ConnectionProtocol, slow_client_timeout_s=args.slow_client_timeout_s),  # type: ignore[arg-type]
            loop="uvloop",
            lifespan="off",
            ws="none",
            log_config=None,
            log_level="warning",
            access_log=False,
            server_header=False,
            proxy_headers=True,
            timeout_keep_alive=KEEP_ALIVE_S,
            timeout_graceful_shutdown=GRACEFUL_SHUTDOWN_S,
            root_path=args.root_path,
            ssl_certfile=args.ssl_certfile,
            ssl_keyfile=args.ssl_keyfile,
        )
    )


def listening_socket(descriptor: int) -> socket.socket:
    """The socket that the supervisor bound and all workers accept from."""
    bound = socket.socket(fileno=descriptor)
    bound.setblocking(False)
    return bound
