"""Connections that never become requests."""

import asyncio
import socket

import pytest
from starlette.types import Receive, Scope, Send

from http_frontend import server
from runtime.server_args import ServerArgs


async def answer(scope: Scope, receive: Receive, send: Send) -> None:
    await asyncio.sleep(0.7)  # longer than a head may take: the time limit is over once the head is there
    await send({"type": "http.response.start", "status": 204, "headers": []})
    await send({"type": "http.response.body", "body": b""})


@pytest.mark.parametrize(
    ("sent", "received"),
    [
        (b"", b""),
        (b"GET / HTTP/1.1\r\nhost: x\r\nx-slow: ", b""),
        (b"GET / HTTP/1.1\r\nhost: x\r\n\r\n", b"HTTP/1.1 204"),
    ],
)
def test_a_head_has_its_time(sent: bytes, received: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "HEAD_TIMEOUT_S", 0.5)

    async def main() -> None:
        listener = socket.create_server(("127.0.0.1", 0))
        running = server.build_server(answer, ServerArgs())
        serving = asyncio.create_task(running.serve(sockets=[listener]))
        reader, writer = await asyncio.open_connection(*listener.getsockname())
        writer.write(sent)
        try:
            async with asyncio.timeout(60):
                found = await reader.read(12)
        except ConnectionResetError:
            found = b""
        assert found == received
        writer.close()
        running.should_exit = True
        await serving

    asyncio.run(main())
