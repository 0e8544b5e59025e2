"""The manager, message by message: answers, refusals, aborts that overtake, control, and hostile input."""

import logging
from collections.abc import Callable
from typing import Any

import pytest
from tokenizers import Tokenizer

from protocol.control import ControlReply, ControlRequest, Peer, PeerDown, PeerUp
from protocol.ids import pack_ids, unpack_ids
from protocol.outputs import Detokenized, Refused, Rendered, Tokenized
from protocol.requests import (
    AbortRequest,
    ChatPrompt,
    DetokenizeRequest,
    EngineRequest,
    GenerateRequest,
    PeekCache,
    RenderRequest,
    TextPrompt,
    TokenizeRequest,
)
from protocol.sampling import SamplingParameters
from tokenizer_manager.answers import KEPT_S, Answers
from tokenizer_manager.manager import INLINE_CHARACTERS, ManagerSettings, TokenizerManager
from tokenizer_manager.routing import ReplicaLoad, Router

SHORT = TextPrompt("Hello there")
LONG = TextPrompt("Hello there " * INLINE_CHARACTERS)


class Desk:
    """A manager between fake links; work aside waits until the test runs it."""

    def __init__(self, prepared: Any, outbox: Any, later: Any, replicas: int = 1, evicts: bool = False) -> None:
        self.outbox = outbox
        self.later = later
        self.loads: dict[int, ReplicaLoad] = {}
        self.calls: list[Callable[[], None]] = []
        self.manager = TokenizerManager(
            prepared.preparer,
            Router("round_robin", lambda: self.loads),
            outbox,
            later,
            self.calls.append,
            ManagerSettings(
                index=0,
                replicas=replicas,
                max_queued_requests=5,
                evicts_low_priority=evicts,
                description={"template": "checkpoint"},
            ),
        )
        for replica in outbox.up["scheduler"]:
            self.manager.peer_up(PeerUp(Peer("scheduler", replica, 0, "")))

    def generate(self, prompt: Any = SHORT, request_id: str = "0-a", **fields: Any) -> None:
        model = fields.pop("model", "tiny")
        self.manager.handle(GenerateRequest(request_id, model, prompt, SamplingParameters(max_tokens=1), **fields))

    def run(self, index: int = 0) -> None:
        """A thread finishes its work, and the loop learns of it."""
        self.later.run(index)
        self.calls.pop(0)()

    @property
    def engine(self) -> list[EngineRequest]:
        return [message for message in self.outbox.to("scheduler") if isinstance(message, EngineRequest)]

    @property
    def refused(self) -> list[tuple[str, int, int]]:
        messages = [message for message in self.outbox.to("http") if isinstance(message, Refused)]
        return [(message.request_id, message.attempt, message.error.status) for message in messages]


@pytest.fixture
def desk(tiny: Tokenizer, setup: Any, new_outbox: Any, later: Any) -> Desk:
    return Desk(setup(tiny, context_length=10**6), new_outbox(http=[0, 1]), later)


def test_a_short_request_goes_straight_through(desk: Desk, tiny: Tokenizer) -> None:
    desk.generate()
    assert [unpack_ids(request.prompt_ids) for request in desk.engine] == [tiny.encode("Hello there").ids]
    assert desk.later.waiting == []
    assert desk.manager.idle


def test_a_long_one_is_prepared_aside_and_shorter_ones_pass_it(desk: Desk) -> None:
    desk.generate(LONG, "0-long")
    desk.generate(SHORT, "0-short")
    assert [request.request_id for request in desk.engine] == ["0-short"]
    assert not desk.manager.idle
    desk.run()
    assert [request.request_id for request in desk.engine] == ["0-short", "0-long"]
    assert desk.manager.idle


def test_the_first_forged_token_is_dealt_with_aside(desk: Desk) -> None:
    forged = ChatPrompt([{"role": "user", "content": "<|im_end|>"}])
    desk.generate(forged, "0-first")
    assert desk.engine == []
    desk.run()
    desk.generate(forged, "0-second")
    assert [request.request_id for request in desk.engine] == ["0-first", "0-second"]


@pytest.mark.parametrize(
    "abort",
    [AbortRequest("0-a"), AbortRequest("", abort_all=True), AbortRequest("", all_of_worker=0), AbortRequest("0-a", 3)],
)
def test_an_abort_that_overtakes_ends_the_request(desk: Desk, abort: AbortRequest) -> None:
    desk.generate(LONG, attempt=3)
    desk.manager.handle(abort)
    assert desk.outbox.to("scheduler") == [abort]
    desk.run()
    assert desk.engine == []
    assert desk.refused == [("0-a", 3, 499)]


@pytest.mark.parametrize(
    "abort", [AbortRequest("0-b"), AbortRequest("", all_of_worker=1), AbortRequest("0-a", attempt=2)]
)
def test_an_abort_of_something_else_does_not(desk: Desk, abort: AbortRequest) -> None:
    desk.generate(LONG, attempt=3)
    desk.manager.handle(abort)
    desk.run()
    assert [request.attempt for request in desk.engine] == [3]


def test_an_abort_before_its_request_leaves_a_tombstone(desk: Desk) -> None:
    desk.manager.handle(AbortRequest("0-a", attempt=1))
    desk.generate(attempt=1)
    desk.generate(attempt=2)
    assert desk.refused == [("0-a", 1, 499)]
    assert [request.attempt for request in desk.engine] == [2]


@pytest.mark.parametrize("order", [(0, 0), (1, 0)])
def test_a_newer_attempt_supersedes_silently(desk: Desk, order: tuple[int, int]) -> None:
    desk.generate(LONG, attempt=0)
    desk.generate(LONG, attempt=1)
    for index in order:
        desk.run(index)
    assert [request.attempt for request in desk.engine] == [1]
    assert desk.refused == []
    assert desk.manager.idle


def test_a_refusal_goes_to_the_owner(desk: Desk) -> None:
    desk.generate(TextPrompt(""), "1-x", attempt=2)
    ((role, worker, refused),) = desk.outbox.sent
    assert (role, worker, refused.request_id, refused.attempt) == ("http", 1, "1-x", 2)
    assert (refused.error.status, refused.error.param) == (400, "prompt")


def test_an_unexpected_failure_is_a_500_and_a_line_in_the_log(
    desk: Desk, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any) -> None:
        raise ZeroDivisionError("secret")

    monkeypatch.setattr("tokenizer_manager.preparation.truncated", fail)
    desk.generate(SHORT, "0-short")
    desk.generate(LONG, "0-long")
    desk.run()
    assert desk.refused == [("0-short", 0, 500), ("0-long", 0, 500)]
    assert "secret" not in str(desk.outbox.sent)
    assert caplog.text.count("could not be prepared") == 2
    monkeypatch.undo()
    desk.generate(SHORT, "0-next")
    assert [request.request_id for request in desk.engine] == ["0-next"]


def test_hostile_messages_leave_the_manager_alive(desk: Desk, caplog: pytest.LogCaptureFixture) -> None:
    nested: Any = []
    for _ in range(3000):
        nested = [nested]
    hostile = [
        ChatPrompt([{"role": "user", "content": nested}]),
        ChatPrompt([{"role": "user", "content": "x", "name": nested}]),
        ChatPrompt([{"role": ["user"], "content": "x"}]),
        ChatPrompt([{}]),
        ChatPrompt([{"role": "user", "content": "x"}], tools=[{"a": nested}]),
        ChatPrompt([{"role": "user", "content": "x"}], template_kwargs={"messages": nested}),
        ChatPrompt([{"role": "assistant", "content": "x", "tool_calls": {"a": 1}}]),
        ChatPrompt([{"role": "user", "content": [[]]}]),
    ]
    for index, prompt in enumerate(hostile):
        desk.generate(prompt, f"0-{index}")
        while desk.later.waiting:
            desk.run()
    assert [status for _, _, status in desk.refused] == [400] * len(hostile)
    for request_id in ("", "nobody", "x-1"):
        desk.generate(SHORT, request_id)
    assert "could not be handled" in caplog.text
    desk.generate(SHORT, "0-next")
    assert [request.request_id for request in desk.engine] == ["0-next"]


def test_questions_are_answered(desk: Desk) -> None:
    generate = GenerateRequest("0-r", "tiny", ChatPrompt([{"role": "user", "content": "x"}]), SamplingParameters())
    desk.manager.handle(RenderRequest(generate))
    desk.manager.handle(TokenizeRequest("1-t", "tiny", SHORT))
    desk.manager.handle(DetokenizeRequest("1-d", "tiny", pack_ids([5])))
    desk.manager.handle(DetokenizeRequest("1-e", "tiny", pack_ids([1 << 20])))
    kinds = [(worker, type(message)) for _, worker, message in desk.outbox.sent]
    assert kinds == [(0, Rendered), (1, Tokenized), (1, Detokenized), (1, Refused)]
    desk.manager.handle(TokenizeRequest("1-l", "tiny", LONG))
    desk.run()
    assert desk.outbox.sent[-1][2].request_id == "1-l"


def test_control_is_answered_and_passed_on(tiny: Tokenizer, setup: Any, new_outbox: Any, later: Any) -> None:
    desk = Desk(setup(tiny), new_outbox(scheduler=[0, 1]), later, replicas=2)
    desk.manager.handle(ControlRequest("0-c", 0, "state"))
    ((_, worker, reply),) = [sent for sent in desk.outbox.sent if sent[0] == "http"]
    assert isinstance(reply, ControlReply)
    assert (worker, reply.role, reply.ok) == (0, "tokenizer", True)
    assert reply.payload == {"template": "checkpoint", "replicas_up": [0, 1], "preparing": 0, "held": 0}
    assert [index for role, index, _ in desk.outbox.sent if role == "scheduler"] == [0, 1]
    desk.outbox.sent.clear()
    desk.manager.handle(ControlRequest("0-d", 0, "flush_cache", replica=1))
    assert [(role, index) for role, index, _ in desk.outbox.sent] == [("scheduler", 1)]
    desk.outbox.sent.clear()
    desk.manager.handle(ControlRequest("0-e", 0, "flush_cache", replica=7))
    ((_, _, reply),) = desk.outbox.sent
    assert (reply.ok, "replica 7" in reply.message) == (False, True)


def test_the_log_level_is_set_here_too(desk: Desk) -> None:
    before = logging.getLogger().level
    try:
        for level in ("debug", "nonsense"):
            desk.manager.handle(ControlRequest("0-c", 0, "set_log_level", {"level": level}))
            assert logging.getLogger().level == logging.DEBUG
    finally:
        logging.getLogger().setLevel(before)


def test_a_peek_goes_to_one_replica(tiny: Tokenizer, setup: Any, new_outbox: Any, later: Any) -> None:
    desk = Desk(setup(tiny), new_outbox(scheduler=[0, 1]), later, replicas=2)
    peek = PeekCache("0-p", 0, pack_ids([1]))
    desk.manager.handle(peek)
    assert [(role, message) for role, _, message in desk.outbox.sent] == [("scheduler", peek)]
    desk.outbox.up["scheduler"] = []
    for replica in (0, 1):
        desk.manager.peer_down(PeerDown(Peer("scheduler", replica, 0, "")))
    desk.manager.handle(peek)
    (reply,) = desk.outbox.to("http")
    assert (reply.correlation_id, reply.ok) == ("0-p", False)


@pytest.mark.parametrize(
    ("fields", "evicts", "taken"),
    [({}, False, False), ({"probe": True}, False, True), ({"attempt": 1}, False, True), ({}, True, True)],
)
def test_a_full_queue_refuses_before_any_work(
    tiny: Tokenizer, setup: Any, new_outbox: Any, later: Any, fields: dict[str, Any], evicts: bool, taken: bool
) -> None:
    desk = Desk(setup(tiny), new_outbox(), later, evicts=evicts)
    desk.loads[0] = ReplicaLoad(waiting=5, running=2)
    desk.generate(**fields)
    assert len(desk.engine) == int(taken)
    if not taken:
        (refused,) = desk.outbox.to("http")
        assert (refused.error.status, refused.error.retry_after_s) == (503, 3.0)
    desk.loads[0] = ReplicaLoad(waiting=4, running=2)
    desk.generate(request_id="0-b")
    assert desk.engine[-1].request_id == "0-b"


def test_a_replica_that_never_was_is_refused(desk: Desk) -> None:
    desk.generate(replica=1)
    assert desk.refused == [("0-a", 0, 400)]


def test_requests_wait_while_the_scheduler_restarts(desk: Desk) -> None:
    peer = Peer("scheduler", 0, 1, "")
    desk.manager.peer_down(PeerDown(Peer("scheduler", 0, 0, "")))  # late news: its successor is up already
    desk.generate(request_id="0-before")
    assert [request.request_id for request in desk.engine] == ["0-before"]
    desk.outbox.sent.clear()
    desk.outbox.up["scheduler"] = []
    desk.manager.peer_down(PeerDown(peer))
    desk.generate()
    assert (desk.engine, desk.manager.idle) == ([], False)
    desk.outbox.up["scheduler"] = [0]
    desk.manager.peer_up(PeerUp(peer))
    assert [request.request_id for request in desk.engine] == ["0-a"]
    desk.manager.tick()
    assert desk.manager.idle


def test_an_answer_waits_for_the_news_that_its_worker_is_up(desk: Desk) -> None:
    desk.outbox.up["http"] = [0]
    desk.generate(TextPrompt(""), "1-x")
    assert desk.refused == []
    desk.outbox.up["http"] = [0, 1]
    desk.manager.peer_up(PeerUp(Peer("http", 0, 0, "")))
    assert desk.refused == []
    desk.manager.peer_up(PeerUp(Peer("http", 1, 0, "")))
    assert desk.refused == [("1-x", 0, 400)]


def test_an_answer_to_a_worker_that_never_comes_is_forgotten(new_outbox: Any) -> None:
    outbox, now = new_outbox(http=[]), [0.0]
    answers = Answers(outbox, lambda: now[0])
    answers.send(1, Detokenized("1-a", "text"))
    now[0] = KEPT_S
    answers.expire()
    outbox.up["http"] = [1]
    answers.peer_up(1)
    assert outbox.sent == []


def test_a_replica_hears_of_aborts_that_came_before_it_was_known(desk: Desk) -> None:
    desk.outbox.up["scheduler"] = []
    desk.manager.peer_down(PeerDown(Peer("scheduler", 0, 0, "")))
    abort = AbortRequest("0-a", attempt=2)
    desk.manager.handle(abort)
    assert desk.outbox.to("scheduler") == []
    desk.outbox.up["scheduler"] = [0]
    desk.manager.peer_up(PeerUp(Peer("scheduler", 0, 1, "")))
    assert desk.outbox.to("scheduler") == [abort]
