"""Bytes that are no messages on every socket of a running server, and keys that must be seen nowhere."""

import contextlib
import os
import random
import socket
from pathlib import Path

import httpx
import zmq

from protocol.control import Drain, Peer, PeerUp, Ready
from protocol.links import encode
from protocol.outputs import Admitted, StepOutput, TextBatch
from protocol.requests import AbortRequest, GenerateRequest, TextPrompt
from protocol.sampling import SamplingParameters
from runtime.status_board import StatusBoard
from tests.integration.servers import Server, serving
from tests.integration_chaos.conftest import EXACT

MESSAGES = (
    GenerateRequest("0-a", "tiny", TextPrompt("x"), SamplingParameters()),
    AbortRequest("0-a"),
    Admitted("0-a", 0, 1),
    StepOutput(1, []),
    TextBatch([]),
    Drain(0.0),
    Ready(Peer("scheduler", 0, 1, "ipc://x"), 1),
    PeerUp(Peer("http", 9, 1, "ipc://x")),
)


def garbage(seed: int) -> list[bytes]:
    """Nothing, noise, deep nesting, huge counts, and the beginnings of real messages."""
    chance = random.Random(seed)
    noise = [chance.randbytes(chance.choice((1, 7, 64, 1000, 100_000))) for _ in range(20)]
    cut = [frame[: chance.randrange(len(frame))] for frame in map(encode, MESSAGES) for _ in range(3)]
    return [b"", b"\x91" * 100_000, b"\xdf\xff\xff\xff\xff", b"\xc6\xff\xff\xff\xff", b"\x81\xa4type", *noise, *cut]


def incarnations(run_dir: Path) -> dict[tuple[str, int], int]:
    board = StatusBoard.open(run_dir / "board")
    found = {(status.role, status.index): status.incarnation for status in board.read_all()}
    board.close()
    return found


def test_garbage_on_every_socket_harms_nobody(victim: Server) -> None:
    """Through ZeroMQ, whole and in parts, and past it, as bytes on the unix socket."""
    (run_dir,) = victim.runs.iterdir()
    victim.wait_for(lambda: httpx.get(f"{victim.url}/ready", timeout=60).status_code == 200, "ready")
    before = incarnations(run_dir)
    sockets = sorted(path for path in run_dir.iterdir() if path.is_socket())
    assert len(sockets) == 2 * (len(before) - 1) + 1, "an inbox and a control link of each, and the supervisor's own"
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    for number, path in enumerate(sockets):
        push = context.socket(zmq.PUSH)
        push.connect(f"ipc://{path}")
        for frame in garbage(number):
            push.send(frame)
            push.send_multipart([frame, b"", frame])
        push.close(5000)
        for frame in garbage(number)[:8]:
            with socket.socket(socket.AF_UNIX) as raw:
                raw.connect(str(path))
                raw.sendall(frame[:4096])
    context.term()
    body = {"prompt": "x", "max_tokens": 3, "temperature": 0}
    for _ in range(4):
        assert httpx.post(f"{victim.url}/v1/completions", json=body, timeout=60).status_code == 200
    assert httpx.get(f"{victim.url}/health_generate", timeout=60).status_code == 200
    assert incarnations(run_dir) == before, "nobody died of it"


def process_ids(session: int) -> list[int]:
    """Every process of the server's session."""
    found = []
    for path in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if os.getsid(int(path.name)) == session:
                found.append(int(path.name))
    return found


def test_keys_are_seen_nowhere(roomy_llama_dir: Path, tmp_path: Path) -> None:
    keys = ("first-key-0123", "second-key-4567", "admin-key-89ab")
    flags = ["--model-path", str(roomy_llama_dir), "--api-key", *keys[:2], "--admin-api-key", keys[2]]
    flags += ["--log-level", "debug", "--log-requests", "--crash-dump-folder", str(tmp_path / "evidence")]
    with serving(tmp_path, *flags, *EXACT) as server:
        server.wait_ready()
        shown = ""
        for key in (*keys, "wrong-key"):
            headers = {"authorization": f"Bearer {key}"}
            for path in ("/server_info", "/v1/contract", "/metrics", "/v1/models", "/v1/loads", "/openapi.json"):
                shown += httpx.get(server.url + path, headers=headers, timeout=60).text
            body = {"prompt": "x", "max_tokens": 1}
            shown += httpx.post(f"{server.url}/v1/completions", json=body, headers=headers, timeout=60).text
            forged = {"prompt": "x\n2099-01-01 ERROR forged", "max_tokens": 1, "nobody\r\nknows": 1}
            shown += httpx.post(f"{server.url}/v1/completions", json=forged, headers=headers, timeout=60).text
            shown += httpx.post(f"{server.url}/flush_cache", headers=headers, timeout=60).text
        for pid in process_ids(server.process.pid):
            shown += Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace")
        shown += server.output() + server.errors()
        assert "candor: supervisor" in shown and "wrong-key" not in shown
        assert [key for key in keys if key in shown] == []
        assert not any(line.startswith("2099-01-01") for line in server.errors().splitlines())
