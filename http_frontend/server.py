"""uvicorn, told by the supervisor when to stop instead of by signals."""

import asyncio
import contextlib
import socket
from collections.abc import Iterator

import msgspec
import uvicorn
from starlette.types import ASGIApp
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

from http_frontend.errors import error_body
from protocol.errors import ErrorInfo
from runtime.server_args import ServerArgs

KEEP_ALIVE_S = 75
HEAD_TIMEOUT_S = 30.0
"""From the connection, or a request's first byte, to the end of its headers."""
MAX_HEAD_BYTES = 256 << 10
GRACEFUL_SHUTDOWN_S = 2
LINGER_S = 2.0
"""How long a connection that has been said goodbye to may still send before it is closed."""


class ConnectionProtocol(HttpToolsProtocol):
    """Shows itself to the application: a client that reads nothing can only be cut here, and only here a stream that has
    begun can decide to be the connection's last. Closes connections whose request does not begin to make sense in time:
    each holds a descriptor."""

    _head_timer: asyncio.TimerHandle | None = None
    _head_bytes = 0
    _linger_timer: asyncio.TimerHandle | None = None
    _last = False

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

    def on_response_complete(self) -> None:
        if not self._last or self.transport.is_closing():
            super().on_response_complete()
            return
        self.server_state.total_requests += 1
        self._say_goodbye()

    def _say_goodbye(self) -> None:
        """Ends the writing side; the reading side stays for a moment."""
        self._head_came()
        self.pipeline.clear()
        self.flow.resume_reading()
        self._linger_timer = self.loop.call_later(LINGER_S, self.transport.close)
        if self.transport.can_write_eof():
            self.transport.write_eof()
        else:  # TLS has an end of its own
            self.transport.close()

    def connection_lost(self, exc: Exception | None) -> None:
        self._head_came()
        if self._linger_timer is not None:
            self._linger_timer.cancel()
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
            http=ConnectionProtocol,
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
