"""Links over real sockets: incarnations, garbage, messages kept for a reader that comes late, the asyncio pump."""

import asyncio
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path

import pytest
import zmq
from hypothesis import given, settings
from hypothesis import strategies as st

from protocol.control import Drain, Failed, Peer, PeerDown, PeerUp, Ready, Shutdown
from protocol.links import INBOXES, decoder, encode
from protocol.requests import AbortRequest
from runtime.channels import KEPT_FRAMES, Inbox, Links, Outbox, SupervisorLinks, pump, report_once
from runtime.engine_config import ProcessSpec

PATIENCE_MS = 20_000


@pytest.fixture
def folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="c") as path:
        yield Path(path)


class Ends:
    """Makes inboxes and outboxes of one context, and closes them all."""

    def __init__(self) -> None:
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._stack = ExitStack()

    def inbox(self, endpoint: str, on_garbage: Callable[[str], None] = lambda reason: None) -> Inbox:
        return self._stack.enter_context(closing(Inbox(self._context, endpoint, INBOXES["scheduler"], on_garbage)))

    def outbox(self) -> Outbox:
        return self._stack.enter_context(closing(Outbox(self._context)))

    def close(self) -> None:
        self._stack.close()
        self._context.destroy(linger=0)


@pytest.fixture
def ends() -> Iterator[Ends]:
    with closing(Ends()) as ends:
        yield ends


def receive(inbox: Inbox) -> object:
    """The next message; fails when none comes."""
    while True:
        assert inbox.socket.poll(PATIENCE_MS), "nothing came"
        for message in inbox.drain(limit=1):
            return message


def peer(folder: Path, incarnation: int) -> Peer:
    return Peer("scheduler", 0, incarnation, f"ipc://{folder}/s{incarnation}")


def abort(name: str) -> AbortRequest:
    return AbortRequest(name)


def test_a_restarted_reader_gets_nothing_that_was_meant_for_the_former(folder: Path, ends: Ends) -> None:
    outbox = ends.outbox()
    outbox.peer_up(peer(folder, 1))
    assert outbox.send("scheduler", 0, abort("0-old"))  # queued: the first incarnation never reads
    outbox.peer_up(peer(folder, 2))
    second = ends.inbox(peer(folder, 2).endpoint)
    assert outbox.send("scheduler", 0, abort("0-new"))
    assert receive(second) == abort("0-new")
    assert list(second.drain()) == []


def test_late_news_of_an_older_incarnation_change_nothing(folder: Path, ends: Ends) -> None:
    outbox = ends.outbox()
    outbox.peer_up(peer(folder, 2))
    outbox.peer_up(peer(folder, 1))
    outbox.peer_down(peer(folder, 1))
    inbox = ends.inbox(peer(folder, 2).endpoint)
    assert outbox.peers("scheduler") == [0]
    assert outbox.send("scheduler", 0, abort("0-a"))
    assert receive(inbox) == abort("0-a")
    outbox.peer_down(peer(folder, 2))
    assert outbox.peers("scheduler") == []
    assert not outbox.send("scheduler", 0, abort("0-b"))
    assert outbox.dropped == 1


@settings(max_examples=200, deadline=None)
@given(frame=st.binary(max_size=200))
@pytest.mark.parametrize("role", sorted(INBOXES))
def test_random_bytes_are_reported_and_dropped(role: str, frame: bytes) -> None:
    complaints: list[str] = []
    inbox = Inbox.__new__(Inbox)
    inbox._decoder = decoder(INBOXES[role])  # type: ignore[index]
    inbox._on_garbage = complaints.append
    message = inbox.decode(frame)
    assert (message is None) == (len(complaints) == 1)


@pytest.mark.parametrize(
    "frame", [b"", b"\xc1", b"\x81" * 10_000, b"\x91" * 200_000, b"\xdf\xff\xff\xff\xff", encode(Shutdown())]
)
def test_garbage_between_messages_harms_nothing(frame: bytes, folder: Path, ends: Ends) -> None:
    complaints: list[str] = []
    inbox = ends.inbox(f"ipc://{folder}/in", complaints.append)
    outbox = ends.outbox()
    outbox.peer_up(Peer("scheduler", 0, 1, f"ipc://{folder}/in"))
    outbox.send_frame("scheduler", 0, frame)
    outbox.send("scheduler", 0, abort("0-a"))
    assert receive(inbox) == abort("0-a")
    assert len(complaints) == 1


def spec(folder: Path) -> ProcessSpec:
    return ProcessSpec("tokenizer", 0, 3, f"ipc://{folder}/in", f"ipc://{folder}/control", f"ipc://{folder}/up", "", 1)


def test_a_process_and_its_supervisor(folder: Path) -> None:
    supervisor = SupervisorLinks(spec(folder).supervisor_endpoint)
    own = Peer("tokenizer", 0, 3, spec(folder).control_endpoint)
    supervisor.control.peer_up(own)
    supervisor.control.send("tokenizer", 0, Drain(5.0))  # before the process lives
    links = Links(spec(folder))
    assert receive(links.control) == Drain(5.0)
    links.report(Ready(own, 7, {"template": "chatml"}))
    assert receive(supervisor.inbox) == Ready(own, 7, {"template": "chatml"})
    other = peer(folder, 1)
    links.apply_peer(PeerUp(other))
    assert links.outbox.peers("scheduler") == [0]
    links.apply_peer(PeerDown(other))
    assert links.outbox.peers("scheduler") == []
    links.wait(0.0)
    links.close()
    supervisor.close()


def test_last_words_arrive(folder: Path) -> None:
    supervisor = SupervisorLinks(spec(folder).supervisor_endpoint)
    own = Peer("tokenizer", 0, 3, "")
    report_once(spec(folder), Failed(own, "no memory"))
    assert receive(supervisor.inbox) == Failed(own, "no memory")
    supervisor.close()


def test_the_pump_hands_on_every_message(folder: Path, ends: Ends) -> None:
    inbox = ends.inbox(f"ipc://{folder}/in")
    outbox = ends.outbox()
    outbox.peer_up(Peer("scheduler", 0, 1, f"ipc://{folder}/in"))

    async def run() -> list[str]:
        seen: list[str] = []
        done = asyncio.Event()

        def handle(message: AbortRequest) -> None:
            seen.append(message.request_id)
            if len(seen) == 2000:
                done.set()

        task = asyncio.create_task(pump(inbox, handle))
        for number in range(2000):
            outbox.send("scheduler", 0, abort(f"0-{number}"))
            if number % 100 == 0:
                await asyncio.sleep(0)
        await asyncio.wait_for(done.wait(), PATIENCE_MS / 1000)
        task.cancel()
        return seen

    assert asyncio.run(run()) == [f"0-{number}" for number in range(2000)]


def test_what_is_kept_for_a_peer_arrives_when_it_comes_up_in_order(folder: Path, ends: Ends) -> None:
    inbox = ends.inbox(f"ipc://{folder}/in")
    outbox = ends.outbox()
    first = Peer("scheduler", 0, 1, f"ipc://{folder}/in")
    outbox.send_or_keep("scheduler", 0, abort("0-a"))
    outbox.send_or_keep("scheduler", 0, abort("0-b"))
    outbox.peer_up(first)
    outbox.send_or_keep("scheduler", 0, abort("0-c"))
    assert [receive(inbox) for _ in range(3)] == [abort("0-a"), abort("0-b"), abort("0-c")]
    outbox.peer_down(first)
    for number in range(KEPT_FRAMES + 2):
        outbox.send_or_keep("scheduler", 0, abort(f"0-{number}"))
    assert outbox.dropped == 2
    outbox.peer_up(Peer("scheduler", 0, 2, f"ipc://{folder}/in"))
    assert receive(inbox) == abort("0-2"), "the oldest are dropped"
