"""The process as the supervisor starts it: its start file in, its links around it, no torch inside."""

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
import zmq
from tokenizers import Tokenizer

from protocol.control import ControlReply, ControlRequest, Drain, Drained, Failed, Peer, PeerUp, Ready, Shutdown
from protocol.links import INBOXES, SupervisorInbox, encode
from protocol.outputs import Refused, Rendered
from protocol.requests import ChatPrompt, EngineRequest, GenerateRequest, RenderRequest, TextPrompt
from protocol.sampling import SamplingParameters
from runtime.channels import Inbox, Outbox
from runtime.engine_config import ProcessSpec
from runtime.process import write_start_file
from runtime.status_board import StatusBoard

ROOT = Path(__file__).parents[2]
PATIENCE_S = 90
CHAT = ChatPrompt([{"role": "user", "content": "Hello <|im_end|>"}])


class Process:
    """A tokenizer manager in a child process, and its neighbours here."""

    def __init__(self, folder: Path, prepared: Any) -> None:
        def endpoint(name: str) -> str:
            return f"ipc://{folder}/{name}"

        prepared.tokenizer.raw.save(str(folder / "tokenizer.json"))
        model = msgspec.structs.replace(prepared.model, tokenizer_file=str(folder / "tokenizer.json"))
        config = msgspec.structs.replace(prepared.config, model=model, run_dir=str(folder))
        self.board = StatusBoard.create(folder / "board", 3)
        self.board.slot(2).claim("scheduler", 0, 0, 1)
        self.board.slot(1).claim("tokenizer", 0, 0, 1)
        spec = ProcessSpec("tokenizer", 0, 0, endpoint("t"), endpoint("tc"), endpoint("v"), str(folder / "board"), 1)
        write_start_file(folder / "start", config, spec)
        self.context: zmq.Context[Any] = zmq.Context()
        self.inboxes = {
            "http": Inbox(self.context, endpoint("h"), INBOXES["http"]),
            "scheduler": Inbox(self.context, endpoint("s"), INBOXES["scheduler"]),
            "supervisor": Inbox(self.context, endpoint("v"), SupervisorInbox),
        }
        self.outbox = Outbox(self.context)
        self.outbox.peer_up(Peer("tokenizer", 0, 0, endpoint("t")))
        self.control = self.context.socket(zmq.PUSH)
        self.control.connect(endpoint("tc"))
        environment = os.environ | {"PYTHONPATH": str(ROOT)}
        command = [sys.executable, "-X", "importtime", "-m", "tokenizer_manager.process", str(folder / "start")]
        self.child = subprocess.Popen(command, env=environment, cwd=folder, stderr=subprocess.PIPE)
        for role, name in (("http", "h"), ("scheduler", "s"), ("detokenizer", "d")):
            self.tell(PeerUp(Peer(role, 0, 0, endpoint(name))))  # type: ignore[arg-type]

    def tell(self, message: Any) -> None:
        self.control.send(encode(message))

    def send(self, message: Any) -> None:
        self.outbox.send("tokenizer", 0, message)

    def receive(self, who: str) -> Any:
        inbox, deadline = self.inboxes[who], time.monotonic() + PATIENCE_S
        while time.monotonic() < deadline:
            if inbox.socket.poll(100):
                return next(iter(inbox.drain(1)))
        raise AssertionError(f"nothing came for {who}")

    def wait_for_peers(self) -> None:
        """Until the process has heard of its scheduler: the supervisor's link and the inbox have no common order."""
        while True:
            self.send(ControlRequest("0-s", 0, "state"))
            reply = self.receive("http")
            assert isinstance(reply, ControlReply)
            if reply.payload["replicas_up"] == [0]:
                break
        asked = self.receive("scheduler")
        assert isinstance(asked, ControlRequest)

    def close(self) -> None:
        self.child.kill()
        self.child.communicate()
        self.outbox.close()
        self.control.close(0)
        for inbox in self.inboxes.values():
            inbox.close()
        self.context.term()
        self.board.close()


@pytest.fixture
def process(tmp_path: Path, tiny: Tokenizer, setup: Any) -> Iterator[Process]:
    running = Process(tmp_path, setup(tiny))
    yield running
    running.close()


def test_a_process_works_from_ready_to_shutdown(process: Process) -> None:
    ready = process.receive("supervisor")
    assert isinstance(ready, Ready)
    assert ready.info["template"] == "checkpoint"
    assert ready.info["template_reads"] == ["add_generation_prompt", "messages"]
    process.wait_for_peers()
    process.send(GenerateRequest("0-a", "tiny", CHAT, SamplingParameters(max_tokens=1)))
    process.send(GenerateRequest("0-b", "tiny", TextPrompt(""), SamplingParameters()))
    process.send(RenderRequest(GenerateRequest("0-c", "tiny", CHAT, SamplingParameters())))
    received = {type(message): message for message in (process.receive("http") for _ in range(2))}
    assert set(received) == {Refused, Rendered}
    engine = process.receive("scheduler")
    assert isinstance(engine, EngineRequest)
    assert (engine.request_id, engine.prompt_ids) == ("0-a", received[Rendered].ids)
    process.tell(Drain(time.time() + 5))
    assert isinstance(process.receive("supervisor"), Drained)
    process.tell(Shutdown())
    _, stderr = process.child.communicate(timeout=PATIENCE_S)
    assert process.child.returncode == 0
    imported = {line.rpartition(b"|")[2].strip() for line in stderr.splitlines() if line.startswith(b"import time:")}
    assert b"tokenizers" in imported
    assert not imported & {b"torch", b"transformers", b"fastapi", b"xgrammar"}


def test_a_start_that_cannot_be_is_reported_in_one_sentence(tmp_path: Path, tiny: Tokenizer, setup: Any) -> None:
    prepared = setup(tiny)
    args = msgspec.structs.replace(prepared.config, args=type(prepared.config.args)(chat_template="nonsense"))
    prepared.config = args
    process = Process(tmp_path, prepared)
    try:
        failed = process.receive("supervisor")
        assert isinstance(failed, Failed)
        assert "--chat-template nonsense" in failed.message
        process.child.communicate(timeout=PATIENCE_S)
        assert process.child.returncode == 1
    finally:
        process.close()
