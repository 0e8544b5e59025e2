"""The loop over real sockets, in one thread: messages in by the links, answers out by the links, evidence on the board."""

import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
import zmq

from protocol.control import (
    ControlReply,
    ControlRequest,
    Drain,
    Drained,
    Peer,
    PeerDown,
    PeerUp,
    Ready,
    Shutdown,
)
from protocol.ids import pack_ids, unpack_ids
from protocol.links import INBOXES, SupervisorInbox, encode
from protocol.outputs import Admitted, Refused, StepOutput
from protocol.plan import PlanEvidence
from protocol.requests import AbortRequest, EngineRequest, PeekCache
from protocol.sampling import SamplingParameters
from runtime.channels import Inbox, Links, Outbox
from runtime.engine_config import EngineConfig, ProcessSpec
from runtime.status_board import StatusBoard
from scheduler import executor, process
from scheduler.executor import GrammarStart
from scheduler.grammar.interface import GrammarBackend
from scheduler.process import SchedulerLoop
from scheduler.warm_up import warm_up
from tests.scheduler.bench import make_config
from tests.scheduler.fake_executor import FakeExecutor
from tests.scheduler.fake_model import expected_output

PATIENCE_S = 60

PROMPT = [5, 9, 11, 2, 40, 8, 3, 3, 1, 17]


class Ring:
    """The neighbours of one scheduler: two detokenizers, whoever sends requests, the supervisor."""

    def __init__(self, folder: Path, config: EngineConfig | None = None) -> None:
        def endpoint(name: str) -> str:
            return f"ipc://{folder}/{name}"

        self.context: zmq.Context[Any] = zmq.Context()
        self.inboxes = {
            "detokenizer 0": Inbox(self.context, endpoint("d0"), INBOXES["detokenizer"]),
            "detokenizer 1": Inbox(self.context, endpoint("d1"), INBOXES["detokenizer"]),
            "supervisor": Inbox(self.context, endpoint("v"), SupervisorInbox),
        }
        self.config = config or make_config()
        StatusBoard.create(folder / "board", 2).close()
        board = str(folder / "board")
        self.spec = ProcessSpec("scheduler", 0, 1, endpoint("s"), endpoint("sc"), endpoint("v"), board, 1)
        self.board = StatusBoard.open(board)
        self.board.slot(1).claim("scheduler", 0, 1, 4242)
        self.executor = FakeExecutor()
        self.links = Links(self.spec)
        self.loop = SchedulerLoop(
            self.config, self.spec, self.links, self.board.slot(1), self.executor, GrammarStart(self.config)
        )
        self.outbox = Outbox(self.context)
        self.outbox.peer_up(Peer("scheduler", 0, 1, endpoint("s")))
        self.control = self.context.socket(zmq.PUSH)
        self.control.connect(endpoint("sc"))
        for index in (0, 1):
            self.tell(PeerUp(Peer("detokenizer", index, 1, endpoint(f"d{index}"))))

    def tell(self, message: Any) -> None:
        self.control.send(encode(message))
        assert self.links.control.socket.poll(PATIENCE_S * 1000)
        self.loop.turn()

    def send(self, message: Any) -> None:
        self.outbox.send("scheduler", 0, message)
        assert self.links.inbox.socket.poll(PATIENCE_S * 1000)
        self.loop.turn()

    def submit(self, request_id: str, detokenizer: int = 0, max_tokens: int = 5) -> None:
        sampling = SamplingParameters(max_tokens=max_tokens, seed=7, ignore_eos=True)
        self.send(EngineRequest(request_id, pack_ids(PROMPT), sampling, detokenizer=detokenizer))

    def receive(self, who: str, wanted: type) -> list[Any]:
        """Turns the loop until a message of that kind has come; all that came, in order. After each turn it waits a little,
        so that the loop does not get far ahead of what is on its way."""
        found: list[Any] = []
        until_s = time.monotonic() + PATIENCE_S
        while time.monotonic() < until_s:
            self.loop.turn()
            self.inboxes[who].socket.poll(50)
            found += self.inboxes[who].drain()
            if any(isinstance(message, wanted) for message in found):
                return found
        raise AssertionError(f"no {wanted.__name__} among {found}")

    def finish(self, who: str) -> list[Any]:
        """All messages up to and with a final output."""
        found: list[Any] = []
        while not any(output.finish for m in found if isinstance(m, StepOutput) for output in m.outputs):
            found += self.receive(who, StepOutput)
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
def ring(tmp_path: Path) -> Iterator[Ring]:
    ring = Ring(tmp_path)
    yield ring
    ring.close()


def test_an_answer_comes_to_its_own_detokenizer_after_admission(ring: Ring) -> None:
    ring.submit("0-a", detokenizer=1)
    messages = ring.finish("detokenizer 1")
    assert isinstance(messages[0], Admitted) and unpack_ids(messages[0].prompt_tail) == PROMPT
    ids = [token for m in messages[1:] for output in m.outputs for token in unpack_ids(output.ids)]
    assert ids == expected_output(PROMPT, 7, 5, end_ids=())
    assert not list(ring.inboxes["detokenizer 0"].drain())


def test_rows_of_one_step_travel_in_one_message(ring: Ring) -> None:
    ring.loop.scheduler.paused = True
    for number in range(3):
        ring.submit(f"0-{number}")
    ring.loop.scheduler.paused = False
    messages = [m for m in ring.finish("detokenizer 0") if isinstance(m, StepOutput)]
    assert max(len(message.outputs) for message in messages) == 3
    assert len({message.step for message in messages}) == len(messages)


def test_a_plan_of_long_and_short_ids_is_cut_until_it_fits(ring: Ring) -> None:
    ring.loop.scheduler.paused = True
    names = ["0-" + "x" * 7000, "0-" + "y" * 7000, "0-" + "z" * 7000, *(f"0-{number}" for number in range(5))]
    for name in names:
        ring.submit(name, max_tokens=50)
    ring.loop.scheduler.paused = False
    while ring.loop.scheduler.planner.step < 15:  # by then everybody runs, and nobody has ended
        ring.loop.turn()
    assert len(ring.loop.scheduler.planner.running) == len(names)
    evidence = msgspec.msgpack.decode(ring.board.read_plan(1) or b"", type=PlanEvidence)
    assert evidence.requests == names[: len(evidence.requests)] and 0 < len(evidence.requests) < len(names)


def test_the_board_shows_load_and_the_plan_about_to_run(ring: Ring) -> None:
    ring.submit("0-a", max_tokens=50)
    status = ring.board.read(1)
    assert (status.steps, status.running, status.waiting, status.pending) == (1, 1, 0, 1)
    assert (status.free_pages, status.total_pages) == (62, 64)
    evidence = msgspec.msgpack.decode(ring.board.read_plan(1) or b"", type=PlanEvidence)
    assert evidence == PlanEvidence(1, ["0-a"], 8, 0, incarnation=1)
    ring.finish("detokenizer 0")
    ring.loop.turn()
    status = ring.board.read(1)
    assert (status.running, status.pending) == (0, 0) and status.cached_pages == 14


def test_aborts_and_dead_http_workers_free_everything(ring: Ring) -> None:
    for request_id in ("0-a", "1-b", "1-c"):
        ring.submit(request_id, max_tokens=150)
    ring.send(AbortRequest("0-a"))
    ring.tell(PeerDown(Peer("http", 1, 1, "")))
    ring.loop.turn()
    assert not ring.loop.scheduler.requests and not ring.loop.scheduler.planner.running


def test_a_drain_refuses_finishes_and_reports(ring: Ring) -> None:
    ring.submit("0-a", max_tokens=20)
    ring.tell(Drain(time.time() + 60))
    ring.submit("0-b")
    messages = ring.finish("detokenizer 0")
    assert [m.request_id for m in messages if isinstance(m, Refused)] == ["0-b"]
    assert ring.receive("supervisor", Drained)
    assert ring.board.read(1).state == "draining"


def test_a_drain_that_takes_too_long_ends_with_an_error(ring: Ring) -> None:
    ring.submit("0-a", max_tokens=150)
    ring.tell(Drain(time.time() - 1))
    (final,) = [o for m in ring.finish("detokenizer 0") if isinstance(m, StepOutput) for o in m.outputs if o.finish]
    assert final.finish is not None and final.finish.error is not None and final.finish.error.status == 503
    assert ring.receive("supervisor", Drained)


def test_control_questions_are_answered_once_by_way_of_a_detokenizer(ring: Ring) -> None:
    ring.submit("0-a", max_tokens=8)
    ring.send(ControlRequest("7-x", 1, "flush_cache", {"mode": "idle"}))
    ring.send(ControlRequest("7-y", 1, "flush_cache", {"mode": "deferred", "timeout_s": 60}))
    (refusal,) = [m for m in ring.receive("detokenizer 1", ControlReply) if isinstance(m, ControlReply)]
    assert (refusal.correlation_id, refusal.ok) == ("7-x", False)
    ring.finish("detokenizer 0")
    (deferred,) = ring.receive("detokenizer 1", ControlReply)
    assert deferred.ok and deferred.payload == {"flushed_pages": 4}
    ring.send(ControlRequest("7-z", 0, "state", {"check": True}))
    (state,) = ring.receive("detokenizer 0", ControlReply)
    assert state.payload["check"] == "every page has one owner" and state.payload["generated_tokens"] == 8
    ring.send(ControlRequest("7-q", 0, "loads", replica=3))
    ring.send(ControlRequest("7-p", 0, "loads", replica=0))
    (loads,) = ring.receive("detokenizer 0", ControlReply)
    assert loads.correlation_id == "7-p" and loads.payload["running_choices"] == 0


def test_a_deferred_flush_gives_up_when_its_time_is_over(ring: Ring) -> None:
    ring.submit("0-a", max_tokens=150)
    ring.send(ControlRequest("7-y", 0, "flush_cache", {"mode": "deferred", "timeout_s": 0}))
    replies = [m for m in ring.receive("detokenizer 0", ControlReply) if isinstance(m, ControlReply)]
    assert not replies[0].ok


def test_pause_resume_and_log_level(ring: Ring) -> None:
    ring.send(ControlRequest("7-a", 0, "pause"))
    ring.submit("0-a")
    assert not ring.executor.plans and ring.board.read(1).pending == 0
    ring.send(ControlRequest("7-b", 0, "resume"))
    ring.send(ControlRequest("7-c", 0, "set_log_level", {"level": "loud"}))
    found = ring.finish("detokenizer 0")
    replies = {m.correlation_id: m.ok for m in found if isinstance(m, ControlReply)}
    assert replies == {"7-a": True, "7-b": True, "7-c": False}


def test_peeking_says_what_the_cache_holds(ring: Ring) -> None:
    ring.submit("0-a")
    ring.finish("detokenizer 0")
    ring.send(PeekCache("3-x", 1, pack_ids(PROMPT)))
    (reply,) = ring.receive("detokenizer 1", ControlReply)
    assert (reply.worker, reply.payload) == (3, {"cached_tokens": 8})


def test_run_reports_ready_and_ends_at_shutdown(ring: Ring) -> None:
    ring.control.send(encode(Shutdown()))
    assert ring.links.control.socket.poll(PATIENCE_S * 1000)
    ring.loop.run()
    (ready,) = ring.receive("supervisor", Ready)
    assert ready.info["kv_tokens"] == 256 and ready.info["page_size"] == 4
    assert ring.board.read(1).state == "ready"


def test_main_builds_and_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ring = Ring(tmp_path)
    spec = msgspec.structs.replace(ring.spec, endpoint=f"ipc://{tmp_path}/s2", control_endpoint=f"ipc://{tmp_path}/sc2")
    built: list[FakeExecutor] = []

    def build(config: EngineConfig, spec: ProcessSpec, outbox: Outbox, on_progress: Any) -> FakeExecutor:
        on_progress("loading weights", 1, 1)
        built.append(FakeExecutor())
        return built[0]

    failed: Future[GrammarBackend] = Future()
    failed.set_exception(ImportError("no grammar library"))
    monkeypatch.setattr(process, "build_executor", build)
    begun: list[str] = []
    monkeypatch.setattr(GrammarStart, "fork_worker", lambda self: begun.append("worker"))
    monkeypatch.setattr(GrammarStart, "begin", lambda self: setattr(self, "_begun", failed))
    control = ring.context.socket(zmq.PUSH)
    control.connect(f"ipc://{tmp_path}/sc2")
    control.send(encode(Shutdown()))
    assert process.main(ring.config, spec) == 0
    assert built and begun == ["worker"]
    control.send(encode(Shutdown()))
    assert process.main(ring.config, msgspec.structs.replace(spec, incarnation=2)) == 0
    assert begun == ["worker"], "a recovery waits for no grammar"
    control.close(0)
    ring.close()


def test_the_first_steps_leave_nothing_behind(ring: Ring) -> None:
    warm_up(ring.executor)
    assert [unpack_ids(plan.new_tokens) for plan in ring.executor.plans] == [[3], [1], []]
    ring.submit("0-a")
    (output,) = [o for m in ring.finish("detokenizer 0") if isinstance(m, StepOutput) for o in m.outputs if o.finish]
    assert output.finish is not None and output.finish.reason == "length"


@pytest.mark.parametrize("model_impl", ["native", "transformers"])
def test_what_model_and_grammars_both_import_is_whole_before_there_are_two_threads(
    model_impl: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[tuple[str, str]] = []

    def import_module(name: str) -> Any:
        asked.append((threading.current_thread().name, name))
        return SimpleNamespace(
            XGrammarBackend=lambda config, worker: SimpleNamespace(wait_ready=lambda timeout_s: True)
        )

    monkeypatch.setattr(executor, "importlib", SimpleNamespace(import_module=import_module))
    monkeypatch.setattr(executor, "load_library", lambda: None)
    start = GrammarStart(msgspec.structs.replace(make_config(), model_impl=model_impl))
    start.begin()
    start.take().result(timeout=30)
    before = [(threading.current_thread().name, "transformers")] if model_impl == "transformers" else []
    assert asked == [*before, ("grammar-start_0", "scheduler.grammar.backend")]
