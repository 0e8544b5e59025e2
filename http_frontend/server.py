"""uvicorn, told by the supervisor when to stop instead of by signals."""

import asyncio
import contextlib
import socket
from collections.abc import Iterator

import uvicorn
from starlette.types import ASGIApp
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from runtime.server_args import ServerArgs

KEEP_ALIVE_S = 75
HEAD_TIMEOUT_S = 30.0
"""From the connection, or a request's first byte, to the end of its headers."""
GRACEFUL_SHUTDOWN_S = 2


class ConnectionProtocol(HttpToolsProtocol):
    """Shows the application its transport: a client that reads nothing can only be cut there. Closes connections whose
    request does not begin to make sense in time: each holds a descriptor."""

    _head_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._await_head()

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self.scope["candor.transport"] = self.transport  # type: ignore[typeddict-unknown-key]
        self._await_head()

    def on_headers_complete(self) -> None:
        self._head_came()
        super().on_headers_complete()

    def connection_lost(self, exc: Exception | None) -> None:
        self._head_came()
        super().connection_lost(exc)

    def _await_head(self) -> None:
        self._head_came()
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
