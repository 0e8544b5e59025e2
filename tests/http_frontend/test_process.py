"""A real HTTP worker: its own process, ZeroMQ links, a socket that somebody else has bound."""

import contextlib
import os
import select
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest
import zmq

from protocol.control import Drain, Drained, Peer, PeerUp, Ready, Role, Shutdown
from protocol.errors import ErrorInfo
from protocol.ids import pack_ids
from protocol.links import SupervisorInbox, TokenizerInbox, decoder, encode
from protocol.outputs import Admitted, Finish, TextBatch, TextOutput
from protocol.requests import AbortRequest, GenerateRequest
from runtime.engine_config import ProcessSpec
from runtime.process import write_start_file
from runtime.status_board import StatusBoard
from tests.http_frontend.fakes import chat_body, make_config

WAIT_MS = 60_000
ROLES: tuple[Role, ...] = ("tokenizer", "scheduler", "detokenizer")


class Worker:
    """The process, and the ring behind it played by the test."""

    def __init__(self, folder: Path) -> None:
        self.context: zmq.Context[Any] = zmq.Context()
        self.board = StatusBoard.create(folder / "board", 2)
        for slot, role in enumerate(("supervisor", "http")):
            self.board.slot(slot).claim(role, 0, 0, 1)
        self.board.slot(0).update(state="ready")
        self.socket = socket.create_server(("127.0.0.1", 0))
        self.address: tuple[str, int] = self.socket.getsockname()
        endpoints = {name: f"ipc://{folder}/{name}" for name in ("http", "control", "supervisor", "ring")}
        spec = ProcessSpec(
            "http", 0, 0, endpoints["http"], endpoints["control"], endpoints["supervisor"], str(folder / "board"), 1,
            listen_fd=self.socket.fileno(),
        )  # fmt: skip
        write_start_file(folder / "start", make_config(folder, slow_client_timeout_s=0.5), spec)
        self.reports, self.ring = self._bound(endpoints["supervisor"]), self._bound(endpoints["ring"])
        environment = os.environ | {"CANDOR_SUPERVISOR_PID": str(os.getpid())}
        command = [sys.executable, "-m", "http_frontend.process", str(folder / "start")]
        self.process = subprocess.Popen(
            command, pass_fds=[self.socket.fileno()], env=environment, cwd=Path(__file__).parents[2]
        )
        assert isinstance(self.report(), Ready)
        self.control, self.inbox = self._connected(endpoints["control"]), self._connected(endpoints["http"])
        for role in ROLES:
            self.control.send(encode(PeerUp(Peer(role, 0, 0, endpoints["ring"]))))

    def _bound(self, endpoint: str) -> zmq.Socket[Any]:
        made: zmq.Socket[Any] = self.context.socket(zmq.PULL)
        made.setsockopt(zmq.RCVTIMEO, WAIT_MS)
        made.bind(endpoint)
        return made

    def _connected(self, endpoint: str) -> zmq.Socket[Any]:
        made: zmq.Socket[Any] = self.context.socket(zmq.PUSH)
        made.connect(endpoint)
        return made

    def report(self) -> Any:
        return decoder(SupervisorInbox).decode(self.reports.recv())

    def next(self, kind: type[Any]) -> Any:
        """The next message of a kind that reaches the ring."""
        while True:
            message = decoder(TokenizerInbox).decode(self.ring.recv())
            if isinstance(message, kind):
                return message

    def connect(self, **fields: Any) -> socket.socket:
        """A client that has sent a chat and reads nothing by itself."""
        client = socket.create_connection(self.address)
        body = msgspec.json.encode(chat_body(**fields))
        head = f"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
        client.sendall(head.encode() + body)
        return client

    def send_text(self, request: GenerateRequest, text: str, place: int, finish: Finish | None = None) -> None:
        output = TextOutput(request.request_id, request.attempt, 0, text, pack_ids([place]), place + 1, finish)
        self.inbox.send(encode(TextBatch([output])))

    def close(self) -> None:
        self.control.send(encode(Shutdown()))
        try:
            assert self.process.wait(60) == 0
        finally:
            self.process.kill()
            self.process.wait()
            self.context.destroy(0)
            self.socket.close()
            self.board.close()


@pytest.fixture(scope="module")
def worker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Worker]:
    made = Worker(tmp_path_factory.mktemp("http"))
    yield made
    made.close()


def read_until(client: socket.socket, found: Callable[[bytes], bool]) -> bytes:
    received = b""
    while not found(received):
        assert select.select([client], [], [], WAIT_MS / 1000)[0], received
        piece = client.recv(65536)
        assert piece, received
        received += piece
    return received


def test_tokens_leave_as_they_come(worker: Worker) -> None:
    with worker.connect(stream=True) as client:
        request = worker.next(GenerateRequest)
        assert not select.select([client], [], [], 0)[0], "nothing leaves before admission"
        worker.inbox.send(encode(Admitted(request.request_id, 0, 3)))
        read_until(client, lambda data: b'"role":"assistant"' in data)
        worker.send_text(request, "one", 0)
        read_until(client, lambda data: b'{"content":"one"}' in data)
        worker.send_text(request, "two", 1, Finish("stop"))
        read_until(client, lambda data: b"[DONE]" in data)


def test_a_client_that_hangs_up_is_aborted(worker: Worker) -> None:
    for stream in (True, False):
        with worker.connect(stream=stream):
            request = worker.next(GenerateRequest)
        assert worker.next(AbortRequest).request_id == request.request_id


def test_a_client_that_reads_nothing_is_cut(worker: Worker) -> None:
    with worker.connect(stream=True) as client:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 16)  # whatever the system would let it grow to
        request = worker.next(GenerateRequest)
        worker.inbox.send(encode(Admitted(request.request_id, 0, 3)))
        for place in range(64):
            worker.send_text(request, "x" * 500_000, place)
        assert worker.next(AbortRequest).request_id == request.request_id
        client.setblocking(True)
        with pytest.raises(ConnectionError):
            while client.recv(1 << 20):
                pass
            raise ConnectionError("closed in order, after what was buffered")


OOM = Finish("error", error=ErrorInfo("out of memory", 500, "server_error", code="oom"))
END_OF_BODY = b"data: [DONE]\n\n\r\n0\r\n\r\n"


@pytest.mark.parametrize("more", [b"", b"GET /version HTTP/1.1\r\nhost: x\r\n\r\n" * 20_000], ids=["", "pipelined"])
def test_a_stream_that_fails_is_the_last_of_its_connection(worker: Worker, more: bytes) -> None:
    """Frames, the error, the end mark, the end of the body, the end of the connection: no reset, whatever else was sent."""
    with worker.connect(stream=True) as client:
        request = worker.next(GenerateRequest)
        worker.inbox.send(encode(Admitted(request.request_id, 0, 3)))
        read_until(client, lambda data: b'"role":"assistant"' in data)
        client.setblocking(False)
        with contextlib.suppress(BlockingIOError):
            while more:
                more = more[client.send(more) :]
        client.setblocking(True)
        worker.send_text(request, "one", 0, OOM)
        received = b"".join(iter(lambda: client.recv(65536), b""))
        assert received.count(b'"code":"oom"') == 1 and received.endswith(END_OF_BODY), received


def test_the_end_of_a_failed_stream_is_known_with_its_last_byte(worker: Worker) -> None:
    """Or a client would take the connection for one to use again."""
    for _ in range(20):
        with worker.connect(stream=True) as client:
            request = worker.next(GenerateRequest)
            worker.inbox.send(encode(Admitted(request.request_id, 0, 3)))
            read_until(client, lambda data: b'"role":"assistant"' in data)
            worker.send_text(request, "one", 0, OOM)
            read_until(client, lambda data: data.endswith(END_OF_BODY))
            client.setblocking(False)
            assert client.recv(1) == b""


def test_a_stream_that_ends_well_leaves_its_connection_open(worker: Worker) -> None:
    with worker.connect(stream=True) as client:
        request = worker.next(GenerateRequest)
        worker.inbox.send(encode(Admitted(request.request_id, 0, 3)))
        worker.send_text(request, "one", 0, Finish("stop"))
        read_until(client, lambda data: data.endswith(END_OF_BODY))
        client.sendall(b"GET /version HTTP/1.1\r\nhost: x\r\n\r\n")
        read_until(client, lambda data: data.startswith(b"HTTP/1.1 200") and b'"version"' in data)


def test_a_drain_ends_what_runs_and_refuses_what_comes(worker: Worker) -> None:
    url = f"http://{worker.address[0]}:{worker.address[1]}"
    assert httpx.get(url + "/v1/models", timeout=60).status_code == 200
    assert httpx.get(url + "/nothing", timeout=60).json()["error"]["code"] == "unknown_url"
    with worker.connect(stream=True) as client:
        request = worker.next(GenerateRequest)
        worker.inbox.send(encode(Admitted(request.request_id, 0, 3)))
        worker.control.send(encode(Drain(time.time() + 30)))
        while (refused := httpx.get(url + "/ready", timeout=60)).json()["status"] != "draining":
            assert refused.status_code in (200, 503)
        refused = httpx.post(url + "/v1/chat/completions", json=chat_body(), timeout=60)
        assert refused.status_code == 503 and refused.json()["error"]["code"] == "draining"
        worker.send_text(request, "end", 0, Finish("stop"))
        read_until(client, lambda data: b"[DONE]" in data)
    assert isinstance(worker.report(), Drained)


def test_a_shutdown_ends_streams_with_an_error(tmp_path: Path) -> None:
    worker = Worker(tmp_path)
    try:
        with worker.connect(stream=True) as client:
            request = worker.next(GenerateRequest)
            worker.inbox.send(encode(Admitted(request.request_id, 0, 3)))
            read_until(client, lambda data: b'"role":"assistant"' in data)
            worker.control.send(encode(Shutdown()))
            received = read_until(client, lambda data: b"[DONE]" in data)
            assert b'"code":"draining"' in received and b'"finish_reason":"stop"' not in received
            assert worker.process.wait(60) == 0
    finally:
        worker.close()
