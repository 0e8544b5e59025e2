"""Where recovery ends: without it, stuck processes, too many restarts, and what the health routes say meanwhile."""

import contextlib
import json
import os
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.integration.servers import Server, serving
from tests.integration_chaos.conftest import EXACT

STALL_S = 8.0
LONG = {"prompt": "The fox", "max_tokens": 6000, "temperature": 0, "ignore_eos": True, "stream": True}


@pytest.fixture
def frail(roomy_llama_dir: Path, tmp_path: Path) -> Iterator[Server]:
    flags = ["--model-path", str(roomy_llama_dir), "--served-model-name", "tiny", "--recovery", "off"]
    flags += ["--stall-timeout-s", str(STALL_S), "--max-restarts", "2", "--max-running-requests", "2"]
    flags += ["--max-total-tokens", "16000"]
    with serving(tmp_path, *flags, *EXACT) as server:
        yield server.wait_ready()


class Stream:
    """A stream read in a thread. `begun` is set with its first token; `events` is complete after `join`."""

    def __init__(self, server: Server) -> None:
        self.begun = threading.Event()
        self.events: list[Any] = []
        self._url = server.url
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def _read(self) -> None:
        with httpx.stream("POST", f"{self._url}/v1/completions", json=LONG, timeout=120) as response:
            for line in response.iter_lines():
                if line.startswith("data: {"):
                    self.events.append(json.loads(line.removeprefix("data: ")))
                    self.begun.set()

    def join(self) -> list[Any]:
        self._thread.join(120)
        assert not self._thread.is_alive()
        return self.events


def health(server: Server, path: str = "/health") -> tuple[int, Any]:
    response = httpx.get(server.url + path, timeout=60)
    return response.status_code, response.json()


def test_a_server_that_does_not_recover(frail: Server) -> None:
    """One server through all of it: each start costs seconds."""
    pids = frail.pids()
    assert health(frail) == (200, {"status": "ok", "troubles": []}) and health(frail, "/ready")[0] == 200
    probe_passes_a_full_house(frail)
    killed_scheduler_fails_its_requests(frail, pids["scheduler 0"])
    stuck_scheduler_is_seen_and_ended(frail)
    one_restart_too_many_is_the_end(frail)


def probe_passes_a_full_house(server: Server) -> None:
    """Every row taken, others waiting: the probe has a row and a page of its own."""
    with contextlib.ExitStack() as stack:
        running = [stack.enter_context(httpx.stream("POST", f"{server.url}/v1/completions", json=LONG, timeout=60))
                   for _ in range(2)]  # fmt: skip
        waiting = Stream(server)
        server.wait_for(lambda: busy(server) == (2, 1), "one waits behind two")
        status, body = health(server, "/health_generate")
        assert status == 200 and body["status"] == "ok", body
        assert busy(server) == (2, 1), "the house is as full as before"
        for response in running:
            response.close()
    waiting.begun.wait(60)
    server.post("/abort_request", {"abort_all": True})
    assert waiting.join()


def busy(server: Server) -> tuple[int, int]:
    (load,) = httpx.get(f"{server.url}/v1/loads", timeout=60).json()["loads"]
    return load["num_running_reqs"], load["num_waiting_reqs"]


def killed_scheduler_fails_its_requests(server: Server, pid: int) -> None:
    stream = Stream(server)
    assert stream.begun.wait(60)
    os.kill(pid, signal.SIGKILL)
    assert stream.join()[-1]["error"]["code"] == "engine_crashed"
    status, body = health(server)
    assert (status, body["status"]) == (200, "recovering") and "scheduler 0" in body["troubles"][0]
    assert health(server, "/ready")[0] == 503 and health(server, "/ping")[0] == 200
    refused = httpx.post(f"{server.url}/v1/completions", json={"prompt": "x"}, timeout=60)
    assert refused.status_code == 503 and refused.headers["retry-after"]
    server.wait_for(lambda: health(server, "/ready")[0] == 200, "ready again")


def stuck_scheduler_is_seen_and_ended(server: Server) -> None:
    """SIGSTOP: alive by every count but its heartbeat."""
    stream = Stream(server)
    assert stream.begun.wait(60)
    os.kill(server.pids()["scheduler 0"], signal.SIGSTOP)
    assert health(server)[0] == 200
    status, body = health(server, "/health_generate")
    assert status == 503 and body["troubles"][0].startswith("scheduler 0: no answer within 8 s")
    found = server.wait_for(lambda: stuck(server), "/health says so")
    assert found["troubles"][0].startswith("scheduler 0: no sign of life for")
    assert stream.join()[-1]["error"]["code"] == "engine_crashed"
    assert "scheduler 0 was stuck (its loop did not turn for" in server.errors()
    server.wait_for(lambda: health(server, "/ready")[0] == 200, "ready again")


def stuck(server: Server) -> Any:
    status, body = health(server)
    return body if status == 503 and body["status"] == "stuck" else None


def one_restart_too_many_is_the_end(server: Server) -> None:
    stream = Stream(server)
    assert stream.begun.wait(60)
    os.kill(server.pids()["detokenizer 0"], signal.SIGKILL)
    assert stream.join()[-1]["error"]["code"] in ("engine_crashed", "draining")
    assert server.wait_end() == 1
    assert "more than 2 restarts within 300 s, so the server ends" in server.errors()
    assert not server.alive()
