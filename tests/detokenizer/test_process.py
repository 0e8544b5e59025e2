"""The loop over real sockets, in one thread: what goes in by the links comes out by the links, in order."""

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import zmq

from detokenizer.detokenizer import Detokenizer
from detokenizer.pieces import Pieces
from detokenizer.process import DetokenizerLoop
from protocol.control import ControlReply, Drain, Drained, Peer, PeerDown, PeerUp, Ready, Role, Shutdown
from protocol.errors import ErrorInfo
from protocol.ids import pack_ids
from protocol.links import INBOXES, SupervisorInbox, encode
from protocol.outputs import Admitted, Finish, Refused, SequenceOutput, StepOutput, StopFound, TextBatch
from protocol.sampling import DetokenizeOptions
from runtime.channels import Inbox, Links, Outbox
from runtime.engine_config import ProcessSpec
from runtime.status_board import StatusBoard

PATIENCE_S = 60


class Ring:
    """The neighbours of one detokenizer: two HTTP workers, a scheduler, the supervisor."""

    def __init__(self, folder: Path, pieces: Pieces) -> None:
        def endpoint(name: str) -> str:
            return f"ipc://{folder}/{name}"

        self.context: zmq.Context[Any] = zmq.Context()
        self.inboxes = {
            "http 0": Inbox(self.context, endpoint("h0"), INBOXES["http"]),
            "http 1": Inbox(self.context, endpoint("h1"), INBOXES["http"]),
            "scheduler": Inbox(self.context, endpoint("s"), INBOXES["scheduler"]),
            "supervisor": Inbox(self.context, endpoint("v"), SupervisorInbox),
        }
        StatusBoard.create(folder / "board", 2).close()
        spec = ProcessSpec("detokenizer", 0, 1, endpoint("d"), endpoint("dc"), endpoint("v"), str(folder / "board"), 1)
        self.board = StatusBoard.open(spec.board_path)
        self.links = Links(spec)
        self.loop = DetokenizerLoop(self.links, Detokenizer(pieces), spec, self.board.slot(1))
        self.outbox = Outbox(self.context)
        self.outbox.peer_up(Peer("detokenizer", 0, 1, endpoint("d")))
        self.control = self.context.socket(zmq.PUSH)
        self.control.connect(endpoint("dc"))
        self.tell(PeerUp(Peer("http", 0, 1, endpoint("h0"))))
        self.tell(PeerUp(Peer("http", 1, 1, endpoint("h1"))))
        self.tell(PeerUp(Peer("scheduler", 0, 1, endpoint("s"))))

    def tell(self, message: Any) -> None:
        self.control.send(encode(message))
        self.links.wait(PATIENCE_S)
        self.loop.turn()

    def send(self, *messages: Any) -> None:
        """Hands the messages over and lets the loop take all of them in one turn."""
        for message in messages:
            self.outbox.send("detokenizer", 0, message)
        self.links.wait(PATIENCE_S)
        self.loop.turn()

    def receive(self, who: str, count: int) -> list[Any]:
        inbox, found = self.inboxes[who], list[Any]()
        deadline = time.monotonic() + PATIENCE_S
        while len(found) < count and time.monotonic() < deadline:
            inbox.socket.poll(100)
            self.loop.turn()
            found += inbox.drain()
        return found

    def close(self) -> None:
        self.links.close()
        self.board.close()
        self.outbox.close()
        self.control.close(0)
        for inbox in self.inboxes.values():
            inbox.close()
        self.context.term()


@pytest.fixture
def ring(tmp_path: Path, all_pieces: dict[str, Pieces]) -> Iterator[Ring]:
    made = Ring(tmp_path, all_pieces["byte_level"])
    yield made
    made.close()


def step(*outputs: SequenceOutput) -> StepOutput:
    return StepOutput(1, list(outputs))


def output(request_id: str, ids: list[int], finish: Finish | None = None) -> SequenceOutput:
    return SequenceOutput(request_id, 0, 0, pack_ids(ids), finish)


def peer(role: Role, index: int) -> Peer:
    return Peer(role, index, 1, "")


def test_one_batch_per_worker_and_step(ring: Ring) -> None:
    for id in ("0-a", "0-b", "1-c"):
        ring.send(Admitted(id, 0, 5, prompt_tail=pack_ids([3])))
    ring.send(step(*(output(id, [65, 66]) for id in ("0-a", "1-c", "0-b"))))
    admitted_a, admitted_b, batch = ring.receive("http 0", 3)
    assert [admitted_a, admitted_b] == [Admitted("0-a", 0, 5), Admitted("0-b", 0, 5)]
    assert isinstance(batch, TextBatch)
    assert [text.request_id for text in batch.outputs] == ["0-a", "0-b"]
    assert [type(message) for message in ring.receive("http 1", 2)] == [Admitted, TextBatch]


def test_what_is_not_for_the_detokenizer_passes_on(ring: Ring) -> None:
    refused = Refused("1-x", 0, ErrorInfo("full", 503))
    reply = ControlReply("c1", 1, "scheduler", 0, payload={"pages": 4})
    ring.send(refused, reply)
    assert ring.receive("http 1", 2) == [refused, reply]


def test_a_stop_goes_to_the_scheduler(ring: Ring) -> None:
    ring.send(Admitted("0-a", 0, 5, detokenize=DetokenizeOptions(stop=("STOP",))))
    word = ring.loop._detokenizer._pieces.vocabulary.id_of("STOP")
    assert word is not None
    ring.send(step(output("0-a", [word])))
    assert ring.receive("scheduler", 1) == [StopFound("0-a", 0, 0, 1)]
    assert ring.board.read(1).running == 0


@pytest.mark.parametrize("role", ["http", "scheduler"])
def test_the_state_of_a_dead_neighbour_goes(ring: Ring, role: Role) -> None:
    ring.send(Admitted("0-a", 0, 5))
    assert ring.board.read(1).running == 1
    ring.tell(PeerDown(peer(role, 0)))
    assert ring.board.read(1).running == 0


def test_what_a_dead_scheduler_had_sent_is_delivered(ring: Ring) -> None:
    ring.send(Admitted("0-a", 0, 5))
    ring.outbox.send("detokenizer", 0, step(output("0-a", [65])))
    ring.links.inbox.socket.poll(PATIENCE_S * 1000)
    ring.tell(PeerDown(peer("scheduler", 0)))
    assert [type(message) for message in ring.receive("http 0", 2)] == [Admitted, TextBatch]


def test_drain_ends_when_the_last_choice_has(ring: Ring) -> None:
    ring.send(Admitted("0-a", 0, 5))
    ring.tell(Drain(time.time() + 60))
    assert ring.receive("supervisor", 0) == []
    ring.send(step(output("0-a", [65], Finish("length"))))
    assert ring.receive("supervisor", 1) == [
        Drained(Peer("detokenizer", 0, 1, ring.links.inbox.socket.get_string(zmq.LAST_ENDPOINT)))
    ]
    assert ring.board.read(1).state == "draining"


def test_it_reports_ready_and_ends_at_shutdown(ring: Ring) -> None:
    ring.control.send(b"\xc1")  # garbage is dropped
    ring.control.send(encode(Shutdown()))
    ring.loop.run()
    (ready,) = ring.receive("supervisor", 1)
    assert isinstance(ready, Ready) and ready.peer.role == "detokenizer"
