"""Starts that fail, and stops: with nothing to do, with a stream that ends in time, and with one that does not."""

import contextlib
import json
import shutil
import signal
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.integration.servers import PATIENCE_S, Server, serving

STOP_S = 20.0
"""Less than a drain may take, and more than a busy machine needs to end six processes."""


def test_an_idle_server_stops_soon_and_leaves_nothing(tiny_llama_dir: Path, tmp_path: Path) -> None:
    with serving(tmp_path, "--model-path", str(tiny_llama_dir)) as server:
        server.wait_ready()
        decisions = server.output()
        for decided in ("device = ", "dtype = ", "context_length = ", "kv_tokens = ", "chat template = "):
            assert decided in decisions
        assert "loading weights: 100%" in server.errors()
        began_s = time.monotonic()
        server.process.send_signal(signal.SIGINT)
        assert server.wait_end() == 0
        assert time.monotonic() - began_s < STOP_S
        assert not server.alive()
        assert list(server.runs.iterdir()) == []
        assert "Traceback" not in server.errors()


@contextlib.contextmanager
def running_stream(server: Server, max_tokens: int) -> Iterator[Iterator[str]]:
    """The lines of a stream whose first token has come."""
    body = {"prompt": "The fox", "stream": True, "max_tokens": max_tokens, "ignore_eos": True, "temperature": 0}
    with server.http.stream("POST", "/v1/completions", json=body) as response:
        assert response.status_code == 200
        lines = (line for line in response.iter_lines() if line)
        assert json.loads(next(lines).removeprefix("data: "))["choices"]
        yield lines


def test_a_running_stream_is_finished_before_the_end(long_llama_dir: Path, tmp_path: Path) -> None:
    with serving(tmp_path, "--model-path", str(long_llama_dir), "--drain-timeout-s", "200") as server:
        server.wait_ready()
        with running_stream(server, 1500) as lines:
            server.process.terminate()
            *chunks, usage_free_end, done = list(lines)
        assert json.loads(usage_free_end.removeprefix("data: "))["choices"][0]["finish_reason"] == "length"
        assert done == "data: [DONE]"
        assert chunks and all("error" not in json.loads(chunk.removeprefix("data: ")) for chunk in chunks)
        assert server.wait_end() == 0
        assert not server.alive()
        assert "Traceback" not in server.errors()


def test_a_stream_that_outlasts_the_drain_is_told(long_llama_dir: Path, tmp_path: Path) -> None:
    with serving(tmp_path, "--model-path", str(long_llama_dir), "--drain-timeout-s", "0.3") as server:
        server.wait_ready()
        with running_stream(server, 90_000) as lines:
            server.process.terminate()
            refused = server.wait_for(lambda: answer_while_draining(server), "new requests are refused")
            *_, last, done = list(lines)
        assert refused in (503, "connection refused")
        assert json.loads(last.removeprefix("data: "))["error"]["code"] == "draining"
        assert done == "data: [DONE]"
        assert server.wait_end() == 0
        assert not server.alive()


def answer_while_draining(server: Server) -> int | str | None:
    try:
        status = httpx.post(
            f"{server.url}/v1/completions", json={"prompt": "x", "max_tokens": 1}, timeout=PATIENCE_S
        ).status_code
    except httpx.TransportError:
        return "connection refused"
    return None if status == 200 else status


def with_config(model: Path, folder: Path, text: str) -> str:
    """A copy of the checkpoint with another config.json."""
    copy = folder / "model"
    shutil.copytree(model, copy)
    (copy / "config.json").write_text(text)
    return str(copy)


def test_a_port_in_use(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        ends_with_one_sentence(tmp_path, "is in use", "--port", str(taken.getsockname()[1]))


def test_a_missing_model(tmp_path: Path) -> None:
    ends_with_one_sentence(tmp_path, "no-such-model", "--model-path", str(tmp_path / "no-such-model"))


def test_a_broken_configuration(tiny_llama_dir: Path, tmp_path: Path) -> None:
    model = with_config(tiny_llama_dir, tmp_path, '{"architectures": ')
    ends_with_one_sentence(tmp_path, "config.json", "--model-path", model)


def test_an_unsupported_architecture(tiny_llama_dir: Path, tmp_path: Path) -> None:
    config = json.loads((tiny_llama_dir / "config.json").read_text())
    config |= {"architectures": ["OracleForCausalLM"], "model_type": "oracle"}
    model = with_config(tiny_llama_dir, tmp_path, json.dumps(config))
    ends_with_one_sentence(tmp_path, "OracleForCausalLM", "--model-path", model)


def test_an_unknown_flag_value(tmp_path: Path) -> None:
    with serving(tmp_path / "run", "--tool-call-parser", "no-such-format") as server:
        assert server.wait_end() != 0
        assert "no-such-format" in server.errors() and "Traceback" not in server.errors()


def ends_with_one_sentence(folder: Path, word: str, *flags: str) -> None:
    with serving(folder / "run", *flags) as server:
        assert server.wait_end() == 1
        told = [line for line in server.errors().splitlines() if line.startswith("candor: ")]
        assert len(told) == 1 and word in told[0], server.errors()
        assert "Traceback" not in server.errors()
        assert not server.alive()
        assert list(server.runs.iterdir()) == []


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_while_starting(tiny_llama_dir: Path, tmp_path: Path, number: signal.Signals) -> None:
    with serving(tmp_path, "--model-path", str(tiny_llama_dir)) as server:
        server.wait_for(lambda: "device = " in server.output(), "the decisions")
        server.process.send_signal(number)
        assert server.wait_end() in (0, 130, 128 + number)
        assert not server.alive()
        assert list(server.runs.iterdir()) == []
        assert "Traceback" not in server.errors()
