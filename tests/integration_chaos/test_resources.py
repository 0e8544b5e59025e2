"""A server that runs out of things: disk for its logs, descriptors, patience; and the address it leaves behind."""

import os
import resource
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from runtime.status_board import StatusBoard
from tests.integration.servers import ROOT
from tests.integration_chaos.conftest import EXACT, PATIENT

PATIENCE_S = 90.0


class Mute:
    """A server whose every line of output meets a full disk."""

    def __init__(self, model: Path, port: int, runs: Path) -> None:
        self.url = f"http://127.0.0.1:{port}"
        self._runs = runs
        command = [sys.executable, str(ROOT / "launch.py"), "--model-path", str(model), "--port", str(port)]
        environment = os.environ | {"CANDOR_RUN_FOLDER": str(runs)}
        with Path("/dev/full").open("w") as full:
            self.process = subprocess.Popen(
                [*command, *EXACT, *PATIENT, "--log-level", "debug"], env=environment, stdout=full, stderr=full,
                start_new_session=True,
            )  # fmt: skip

    def wait_ready(self) -> None:
        until_s = time.monotonic() + PATIENCE_S
        while time.monotonic() < until_s:
            assert self.process.poll() is None, "it ended"
            try:
                if httpx.get(f"{self.url}/ready", timeout=5).status_code == 200:
                    return
            except httpx.TransportError:
                pass
            time.sleep(0.05)
        raise AssertionError("never ready")

    def pid(self, role: str) -> int:
        (folder,) = self._runs.iterdir()
        board = StatusBoard.open(folder / "board")
        (pid,) = [status.pid for status in board.read_all() if status.role == role]
        board.close()
        return pid

    def answers(self) -> bool:
        body = {"prompt": "x", "max_tokens": 2}
        return httpx.post(f"{self.url}/v1/completions", json=body, timeout=PATIENCE_S).status_code == 200


@pytest.fixture
def runs() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="c", ignore_cleanup_errors=True) as folder:
        yield Path(folder)


@pytest.fixture
def port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        found: int = probe.getsockname()[1]
        return found


def test_a_server_without_disk_and_descriptors_and_its_successor(roomy_llama_dir: Path, port: int, runs: Path) -> None:
    server = Mute(roomy_llama_dir, port, runs)
    try:
        server.wait_ready()
        assert server.answers()
        os.kill(server.pid("detokenizer"), signal.SIGKILL)
        assert server.answers(), "it comes back without being able to say so"
        descriptors_run_out(server, port)
        second_signal_ends_at_once(server)
    finally:
        server.process.kill()
        server.process.wait()
    successor = Mute(roomy_llama_dir, port, runs)
    try:
        successor.wait_ready()
        assert successor.answers()
        successor.process.terminate()
        assert successor.process.wait(PATIENCE_S) == 0
        assert list(runs.iterdir()) == []
    finally:
        successor.process.kill()
        successor.process.wait()


def descriptors(pid: int) -> int:
    return len(list(Path(f"/proc/{pid}/fd").iterdir()))


def descriptors_run_out(server: Mute, port: int) -> None:
    """Connections that find none are closed; those that leave make room."""
    pid = server.pid("http")
    used = descriptors(pid)
    before = resource.prlimit(pid, resource.RLIMIT_NOFILE, (used + 8, resource.prlimit(pid, resource.RLIMIT_NOFILE)[1]))
    crowd = [socket.create_connection(("127.0.0.1", port)) for _ in range(24)]
    with pytest.raises(httpx.TransportError):
        httpx.get(f"{server.url}/ping", timeout=5)
    for connection in crowd:
        connection.close()
    until_s = time.monotonic() + PATIENCE_S
    while descriptors(pid) > used:
        assert time.monotonic() < until_s
        time.sleep(0.01)
    assert server.answers()
    resource.prlimit(pid, resource.RLIMIT_NOFILE, before)


def second_signal_ends_at_once(server: Mute) -> None:
    """In the middle of a stream that would go on for long, and of a drain of thirty seconds."""
    body = {"prompt": "x", "max_tokens": 8000, "ignore_eos": True, "stream": True}
    with httpx.stream("POST", f"{server.url}/v1/completions", json=body, timeout=PATIENCE_S) as response:
        next(response.iter_lines())
        server.process.terminate()
        until_s = time.monotonic() + PATIENCE_S
        while httpx.get(f"{server.url}/health", timeout=PATIENCE_S).json()["status"] != "draining":
            assert time.monotonic() < until_s
        began_s = time.monotonic()
        server.process.terminate()
        assert server.process.wait(PATIENCE_S) == 128 + signal.SIGTERM
        assert time.monotonic() - began_s < 20
