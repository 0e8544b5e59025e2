"""Connections that never become requests."""

import asyncio
import contextlib
import json
import socket
from collections.abc import AsyncIterator
from typing import Any

import pytest
from starlette.types import ASGIApp, Receive, Scope, Send

from http_frontend import server
from runtime.server_args import ServerArgs
from tests.http_frontend.fakes import Served

GET = b"GET / HTTP/1.1\r\nhost: x\r\n"


async def answer(scope: Scope, receive: Receive, send: Send) -> None:
    await asyncio.sleep(0.7)  # longer than a head may take: the time limit is over once the head is there
    await send({"type": "http.response.start", "status": 204, "headers": []})
    await send({"type": "http.response.body", "body": b""})


@contextlib.asynccontextmanager
async def connected(
    app: ASGIApp = answer, args: ServerArgs | None = None
) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    """A server that runs `app`, and one connection to it."""
    listener = socket.create_server(("127.0.0.1", 0))
    running = server.build_server(app, args or ServerArgs())
    serving = asyncio.create_task(running.serve(sockets=[listener]))
    reader, writer = await asyncio.open_connection(*listener.getsockname())
    async with asyncio.timeout(60):
        yield reader, writer
    writer.close()
    running.should_exit = True
    await serving


@pytest.mark.parametrize(
    ("sent", "received"),
    [
        (b"", b""),
        (GET + b"x-slow: ", b""),
        (GET + b"\r\n", b"HTTP/1.1 204"),
    ],
)
def test_a_head_has_its_time(sent: bytes, received: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "HEAD_TIMEOUT_S", 0.5)

    async def main() -> None:
        async with connected() as (reader, writer):
            writer.write(sent)
            try:
                found = await reader.read(12)
            except ConnectionResetError:
                found = b""
            assert found == received

    asyncio.run(main())


@pytest.mark.parametrize(
    ("sent", "status", "code"),
    [
        (b"GARBAGE\r\n\r\n" * 9000, 400, "invalid_http"),
        (GET + b"x: \x00\r\n\r\n", 400, "invalid_http"),
        (GET + b"x: " + b"a" * 999_999, 431, "headers_too_large"),
        (GET + b"transfer-encoding: chunked\r\n\r\nno size\r\n", 400, "invalid_http"),
    ],
)
def test_what_is_no_request_is_told_so_to_the_last_byte(sent: bytes, status: int, code: str) -> None:
    """In the shape of every error, whatever the client has sent or goes on sending."""

    async def main() -> None:
        async with connected() as (reader, writer):
            writer.write(sent)
            head, _, body = (await reader.read()).partition(b"\r\n\r\n")
            assert head.startswith(f"HTTP/1.1 {status} ".encode()) and b"connection: close" in head
            assert json.loads(body)["error"]["code"] == code

    asyncio.run(main())


@pytest.mark.parametrize(("path", "status"), [("/health", 200), ("/v1/models", 401), ("/nothing", 401)])
def test_a_prefix_that_a_proxy_takes_off_changes_no_route_and_no_key(serve: Any, path: str, status: int) -> None:
    served: Served = serve(root_path="/proxy", api_key=("one",))

    async def main() -> None:
        async with connected(served.app, served.front.config.args) as (reader, writer):
            writer.write(f"GET {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n".encode())
            assert (await reader.read()).startswith(f"HTTP/1.1 {status} ".encode())

    asyncio.run(main())


@pytest.mark.parametrize("reads", [False, True])
def test_a_whole_answer_that_nobody_reads_is_cut(reads: bool) -> None:
    """More of it than the kernel takes off the server's hands; somebody who reads has as long as it takes."""
    body = b"x" * (32 << 20)
    ended = asyncio.Event()

    async def large(scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"%d" % len(body))]})
        await send({"type": "http.response.body", "body": body})
        connection = scope["candor.connection"]
        lost = connection.connection_lost

        def connection_lost(error: Exception | None) -> None:
            lost(error)
            ended.set()

        connection.connection_lost = connection_lost

    async def main() -> None:
        async with connected(large, ServerArgs(slow_client_timeout_s=0.1)) as (reader, writer):
            writer.write(GET + b"\r\n")
            if not reads:
                await ended.wait()
                return
            await reader.readuntil(b"\r\n\r\n")
            assert len(await reader.readexactly(len(body))) == len(body)

    asyncio.run(main())


def test_a_piece_of_a_stream_goes_past_the_layers_above() -> None:
    async def stream(scope: Scope, receive: Receive, send: Send) -> None:
        writer: server.DirectWriter = scope["candor.writer"]
        assert not writer.ready
        await send({"type": "http.response.start", "status": 200, "headers": []})
        assert writer.ready
        writer.write(b"first")
        await send({"type": "http.response.body", "body": b"last", "more_body": False})
        assert not writer.ready

    async def main() -> None:
        async with connected(stream) as (reader, writer):
            writer.write(GET + b"connection: close\r\n\r\n")
            received = await reader.read()
            assert received.endswith(b"\r\n\r\n5\r\nfirst\r\n4\r\nlast\r\n0\r\n\r\n")

    asyncio.run(main())
