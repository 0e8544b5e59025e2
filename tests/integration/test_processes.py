"""What the processes are: their titles, what they have loaded, how they share the work."""

import contextlib
import json
import os
from pathlib import Path

import httpx
import pytest

from tests.integration.servers import PATIENCE_S, Server

HEAVY = ("libtorch", "transformers", "xgrammar")


def mapped_files(pid: int) -> str:
    return Path(f"/proc/{pid}/maps").read_text()


@pytest.mark.parametrize("name", ["supervisor 0", "http 0", "tokenizer 0", "detokenizer 0"])
def test_only_the_scheduler_holds_torch(server: Server, name: str) -> None:
    """After a request through all of them, grammar and tools included."""
    body = {
        "messages": [{"role": "user", "content": "x"}],
        "max_tokens": 4,
        "tools": [{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}],
        "tool_choice": "required",
    }
    assert server.post("/v1/chat/completions", body).status_code == 200
    pids = server.pids()
    assert "libtorch" in mapped_files(pids["scheduler 0"])
    maps = mapped_files(pids[name])
    assert [library for library in HEAVY if library in maps] == []


def test_titles_and_parents(crowd: Server) -> None:
    pids = crowd.pids()
    roles = {"http 0", "http 1", "tokenizer 0", "tokenizer 1", "detokenizer 0", "detokenizer 1", "scheduler 0"}
    assert set(pids) == roles | {"supervisor 0"}
    for name in roles:
        assert Path(f"/proc/{pids[name]}/cmdline").read_bytes().split(b"\0")[0].decode() == f"candor: {name}"
        status = Path(f"/proc/{pids[name]}/stat").read_text().rpartition(")")[2].split()
        assert int(status[1]) == pids["supervisor 0"] == crowd.process.pid
        assert os.getsid(pids[name]) == crowd.process.pid


def test_every_worker_takes_part(crowd: Server) -> None:
    """Each call by a connection of its own, until both detokenizers have worked; answers do not depend on the way."""

    def answer() -> str:
        body = {"prompt": "The quick brown", "max_tokens": 4, "temperature": 0}
        text: str = httpx.post(f"{crowd.url}/v1/completions", json=body, timeout=60).json()["choices"][0]["text"]
        return text

    answers = {answer() for _ in range(16)}
    assert len(answers) == 1
    steps = {f"{entry['role']} {entry['index']}": entry["steps"] for entry in crowd.state()["processes"]}
    assert steps["detokenizer 0"] > 0 and steps["detokenizer 1"] > 0


def test_control_reaches_everybody_whoever_asks(crowd: Server) -> None:
    for _ in range(8):
        state = httpx.get(f"{crowd.url}/server_info", params={"check": "1"}, timeout=60).json()
        assert state["silent"] == []
        (manager,) = state["tokenizer_managers"]  # the one that passed the question on
        assert manager["ok"] and manager["replicas_up"] == [0]
        (scheduler,) = state["internal_states"]
        assert scheduler["check"] == "every page has one owner"
        assert httpx.get(f"{crowd.url}/health_generate", timeout=60).status_code == 200


def test_metrics_cover_all_workers(crowd: Server) -> None:
    """A scrape reaches one worker and tells of all."""

    def total(name: str) -> float:
        lines = httpx.get(f"{crowd.url}/metrics", timeout=60).text.splitlines()
        return sum(float(line.rpartition(" ")[2]) for line in lines if line.startswith((name + "{", name + " ")))

    before = total("candor_generation_tokens_total")
    for _ in range(8):
        body = {"prompt": "x", "max_tokens": 2, "ignore_eos": True}
        assert httpx.post(f"{crowd.url}/v1/completions", json=body, timeout=60).status_code == 200
    assert total("candor_generation_tokens_total") - before == 16


@pytest.mark.parametrize("name", ["each", "all"])
def test_an_abort_reaches_the_worker_that_owns_the_request(crowd: Server, name: str) -> None:
    """Six streams lie with both workers, and an abort comes to either."""
    ids = [f"{name}-{number}" for number in range(6)]
    with contextlib.ExitStack() as stack:
        streams = {}
        for request_id in ids:
            body = {"prompt": "x", "stream": True, "max_tokens": 16000, "ignore_eos": True, "request_id": request_id}
            call = httpx.stream("POST", f"{crowd.url}/v1/completions", json=body, timeout=PATIENCE_S)
            streams[request_id] = (line for line in stack.enter_context(call).iter_lines() if line)
            assert "choices" in json.loads(next(streams[request_id]).removeprefix("data: "))
        for wanted in ids if name == "each" else ["everything"]:
            body = {"rid": wanted} if name == "each" else {"abort_all": True}
            assert httpx.post(f"{crowd.url}/abort_request", json=body, timeout=PATIENCE_S).status_code == 200
        for lines in streams.values():
            *_, last, done = list(lines)
            assert json.loads(last.removeprefix("data: "))["error"]["code"] == "aborted"
            assert done == "data: [DONE]"
    scheduler = crowd.wait_idle()
    assert scheduler["check"] == "every page has one owner"
    assert scheduler["free_pages"] == scheduler["total_pages"]
