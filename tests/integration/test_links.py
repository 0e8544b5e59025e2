"""Any program that speaks MessagePack can take part in the ring: here the plain `msgpack` package does, and no struct of ours."""

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgpack
import pytest
import zmq

from tests.integration.servers import PATIENCE_S, Server

FOREIGN_INDEX = 7


class Foreigner:
    """A process that the server's own processes are told about, with an inbox of its own."""

    def __init__(self, server: Server, role: str, endpoint: str) -> None:
        (run_dir,) = server.runs.iterdir()
        self._run_dir = run_dir
        self._context: zmq.Context[Any] = zmq.Context()
        self._inbox = self._context.socket(zmq.PULL)
        self._inbox.setsockopt(zmq.RCVTIMEO, int(PATIENCE_S * 1000))
        self._inbox.bind(endpoint)
        self._peer = {"role": role, "index": FOREIGN_INDEX, "incarnation": 1, "endpoint": endpoint}

    def send(self, link: str, message: dict[str, Any]) -> None:
        socket = self._context.socket(zmq.PUSH)
        socket.connect(f"ipc://{self._run_dir}/{link}")
        socket.send(msgpack.packb(message))
        socket.close(1000)

    def introduce(self, *names: str) -> None:
        for name in names:
            self.send(f"{name}-1.control", {"type": "peer_up", "peer": self._peer})

    def leave(self, *names: str) -> None:
        for name in names:
            self.send(f"{name}-1.control", {"type": "peer_down", "peer": self._peer})

    def receive(self) -> dict[str, Any]:
        message = msgpack.unpackb(self._inbox.recv())
        assert isinstance(message, dict)
        return message

    def close(self) -> None:
        self._inbox.close(0)
        self._context.term()


@contextmanager
def foreigner(server: Server, role: str) -> Iterator[Foreigner]:
    folder = tempfile.mkdtemp(prefix="c")  # tmp_path is too long for a unix socket
    one = Foreigner(server, role, f"ipc://{folder}/in")
    try:
        yield one
    finally:
        one.close()
        shutil.rmtree(folder)


def ids_of(data: bytes) -> list[int]:
    return [int.from_bytes(data[at : at + 4], "little", signed=True) for at in range(0, len(data), 4)]


def test_a_request_of_a_foreign_front_end(crowd: Server) -> None:
    expected = crowd.post("/v1/completions", {"prompt": "The fox", "max_tokens": 5, "temperature": 0}).json()
    neighbours = ("tokenizer-0", "detokenizer-0", "detokenizer-1")
    with foreigner(crowd, "http") as front_end:
        front_end.introduce(*neighbours)
        request = {
            "type": "generate",
            "request_id": f"{FOREIGN_INDEX}-first",
            "model": "tiny",
            "prompt": {"type": "text", "text": "The fox"},
            "sampling": {"temperature": 0.0, "max_tokens": 5},
        }
        front_end.send("tokenizer-0-1.in", request)
        admitted = front_end.receive()
        assert admitted["type"] == "admitted" and admitted["request_id"] == request["request_id"]
        assert admitted["prompt_tokens"] == expected["usage"]["prompt_tokens"]
        text, tokens, finish = "", 0, None
        while finish is None:
            batch = front_end.receive()
            assert batch["type"] == "text"
            for request_id, attempt, index, piece, ids, total, end, *_ in batch["outputs"]:
                assert (request_id, attempt, index) == (request["request_id"], 0, 0)
                text += piece
                tokens += len(ids_of(ids))
                assert tokens == total
                finish = end
        assert text == expected["choices"][0]["text"] and finish[0] == "length" and tokens == 5
        front_end.leave(*neighbours)


def test_tokens_for_a_foreign_detokenizer(crowd: Server) -> None:
    with foreigner(crowd, "detokenizer") as detokenizer:
        detokenizer.introduce("scheduler-0")
        request = {
            "type": "engine",
            "request_id": "0-nobodys",
            "prompt_ids": b"".join(token.to_bytes(4, "little") for token in (40, 41, 42)),
            "sampling": {"temperature": 0.0, "max_tokens": 3},
            "detokenizer": FOREIGN_INDEX,
        }
        detokenizer.send("scheduler-0-1.in", request)
        assert detokenizer.receive()["prompt_tokens"] == 3
        found: list[int] = []
        while len(found) < 3:
            step = detokenizer.receive()
            assert step["type"] == "step" and step["step"] > 0
            for output in step["outputs"]:
                assert output[0] == "0-nobodys"
                found += ids_of(output[3])
        detokenizer.leave("scheduler-0")
    assert all(0 <= token < 400 for token in found)


def test_a_refusal_has_its_reason(crowd: Server) -> None:
    with foreigner(crowd, "http") as front_end:
        front_end.introduce("tokenizer-0")
        request = {
            "type": "generate",
            "request_id": f"{FOREIGN_INDEX}-long",
            "model": "tiny",
            "prompt": {"type": "text", "text": "word " * 20_000},
            "sampling": {},
        }
        front_end.send("tokenizer-0-1.in", request)
        refused = front_end.receive()
        assert refused["type"] == "refused" and refused["error"]["message"]
        front_end.leave("tokenizer-0")


@pytest.mark.parametrize("link", ["tokenizer-0", "scheduler-0", "detokenizer-0", "http-0"])
def test_garbage_is_dropped(crowd: Server, link: str) -> None:
    with foreigner(crowd, "http") as stranger:
        for message in ({"type": "no such message"}, {"no": "type"}, {"type": "generate", "request_id": 5}):
            stranger.send(f"{link}-1.in", message)
    assert crowd.post("/v1/completions", {"prompt": "x", "max_tokens": 1}).status_code == 200


def test_the_run_directory_is_private(crowd: Server) -> None:
    (run_dir,) = crowd.runs.iterdir()
    assert Path(run_dir).stat().st_mode & 0o777 == 0o700
