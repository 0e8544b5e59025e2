"""The choice of replicas, and the wait for them."""

import random
from typing import Any

import pytest

from protocol.errors import RequestError
from protocol.ids import pack_ids
from protocol.requests import AbortRequest, EngineRequest
from protocol.sampling import SamplingParameters
from tokenizer_manager.dispatch import HOLD_S, Dispatcher
from tokenizer_manager.prefix_affinity import BLOCK_TOKENS, PrefixAffinity, prefix_blocks
from tokenizer_manager.routing import LoadBalance, ReplicaLoad, Router


def router(policy: LoadBalance, replicas: int = 3, loads: dict[int, ReplicaLoad] | None = None) -> Router:
    result = Router(policy, lambda: loads if loads is not None else {})
    for replica in range(replicas):
        result.up(replica)
    return result


def prompt(seed: int, tokens: int = 512) -> bytes:
    generator = random.Random(seed)
    return pack_ids(generator.randrange(1000) for _ in range(tokens))


def test_round_robin_takes_turns_among_the_living() -> None:
    chosen = router("round_robin")
    assert [chosen.choose(b"", "") for _ in range(6)] == [0, 1, 2, 0, 1, 2]
    chosen.down(1)
    assert {chosen.choose(b"", "") for _ in range(4)} == {0, 2}


def test_least_loaded_counts_what_no_snapshot_shows_yet() -> None:
    loads = {0: ReplicaLoad(waiting=1, running=1), 1: ReplicaLoad(running=1), 2: ReplicaLoad(running=4)}
    chosen = router("least_loaded", loads=loads)
    counts = [chosen.choose(b"", "") for _ in range(3)]
    assert counts[0] == 1
    assert sorted(counts[1:], key=str) == [0, 1]
    loads[1] = ReplicaLoad(running=9, steps=1)
    loads[0] = ReplicaLoad(running=0, steps=1)
    assert chosen.choose(b"", "") == 0


def test_equals_share() -> None:
    for policy in ("least_loaded", "cache_aware", "round_robin"):
        chosen = router(policy)
        counts = [chosen.choose(prompt(seed), "") for seed in range(30)]
        assert sorted(counts.count(replica) for replica in range(3)) == [10, 10, 10]


def test_a_conversation_stays_where_its_prefix_is() -> None:
    chosen = router("cache_aware")
    first = chosen.choose(prompt(1), "")
    for seed in range(2, 8):
        chosen.choose(prompt(seed), "")
    assert chosen.favourite(prompt(1) + prompt(9, 40), "") == first
    others = {chosen.favourite(prompt(1) + prompt(9, 40), f"salt {index}") for index in range(9)}
    assert others == {chosen.favourite(b"", "")}


def test_a_long_queue_outweighs_a_prefix() -> None:
    loads = {replica: ReplicaLoad() for replica in range(3)}
    chosen = router("cache_aware", loads=loads)
    first = chosen.choose(prompt(1), "")
    assert first is not None
    loads[first] = ReplicaLoad(waiting=20)
    assert chosen.favourite(prompt(1), "") != first


def test_a_replica_that_comes_back_has_lost_its_cache() -> None:
    chosen = router("cache_aware", replicas=2)
    first = chosen.choose(prompt(1), "")
    assert first is not None
    chosen.down(first)
    assert chosen.choose(prompt(1), "") == 1 - first
    chosen.up(first)
    assert chosen.favourite(prompt(1), "") == 1 - first


def test_a_forced_replica_is_taken_or_none() -> None:
    chosen = router("cache_aware")
    assert chosen.choose(prompt(1), "", forced=2) == 2
    chosen.down(2)
    assert chosen.choose(prompt(1), "", forced=2) is None
    assert router("round_robin", replicas=0).choose(b"", "") is None


def test_the_memory_of_prefixes_is_bounded_and_keeps_the_latest() -> None:
    affinity = PrefixAffinity(capacity=20)
    shared = prompt(0, 4 * BLOCK_TOKENS)
    for seed in range(1, 50):
        affinity.record(prefix_blocks(shared + prompt(seed, 4 * BLOCK_TOKENS), ""), seed % 3)
    blocks = prefix_blocks(shared, "")
    assert affinity.matched_tokens(blocks)[49 % 3] == 4 * BLOCK_TOKENS
    assert len(affinity._replicas) == 20
    assert affinity.matched_tokens(prefix_blocks(prompt(99), "")) == {}
    assert prefix_blocks(prompt(0, BLOCK_TOKENS - 1), "") == []


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


class Desk:
    """A dispatcher with one replica that may be up or down."""

    def __init__(self, outbox: Any, limit: int = 2, replicas: int = 1) -> None:
        self.clock = Clock()
        self.outbox = outbox
        self.router = router("round_robin", replicas=replicas)
        self.refused: list[tuple[str, int, int]] = []
        self.codes: list[str | None] = []
        self.dispatcher = Dispatcher(outbox, self.router, self._refuse, limit=limit, clock=self.clock)

    def _refuse(self, request_id: str, attempt: int, error: RequestError) -> None:
        self.refused.append((request_id, attempt, error.info.status))
        self.codes.append(error.info.code)

    def send(self, request_id: str, forced: int | None = None, **fields: Any) -> None:
        self.dispatcher.send(EngineRequest(request_id, pack_ids([1]), SamplingParameters(), **fields), forced)

    @property
    def sent(self) -> list[tuple[str, int]]:
        return [(message.request_id, message.attempt) for message in self.outbox.to("scheduler")]


def test_a_request_names_a_live_detokenizer(new_outbox: Any) -> None:
    desk = Desk(new_outbox(detokenizer=[0, 2, 5]))
    for index in range(40):
        desk.send(f"0-{index}")
    assert {message.detokenizer for message in desk.outbox.to("scheduler")} == {0, 2, 5}


@pytest.mark.parametrize("missing", ["scheduler", "detokenizer"])
def test_requests_wait_for_a_restart(new_outbox: Any, missing: str) -> None:
    desk = Desk(new_outbox(**{missing: []}), replicas=0 if missing == "scheduler" else 1)
    desk.send("0-a")
    desk.send("0-b")
    assert desk.sent == []
    with pytest.raises(RequestError) as refusal:
        desk.send("0-c")
    assert (refusal.value.info.status, refusal.value.info.retry_after_s) == (503, 5.0)
    desk.outbox.up[missing] = [0]
    desk.router.up(0)
    desk.dispatcher.retry()
    assert desk.sent == [("0-a", 0), ("0-b", 0)]
    assert desk.dispatcher.held == 0


def test_the_wait_is_bounded(new_outbox: Any) -> None:
    desk = Desk(new_outbox(scheduler=[]), replicas=0, limit=9)
    desk.send("0-a", queue_timeout_s=3.0)
    desk.send("0-b", attempt=4)
    desk.clock.now = 3.5
    desk.dispatcher.expire()
    assert desk.refused == [("0-a", 0, 503)]
    desk.clock.now = HOLD_S
    desk.dispatcher.expire()
    assert desk.refused == [("0-a", 0, 503), ("0-b", 4, 503)]
    assert desk.codes == ["queue_timeout", "unavailable"]


def test_a_newer_attempt_takes_the_place_of_an_older_one(new_outbox: Any) -> None:
    desk = Desk(new_outbox(scheduler=[]), replicas=0)
    for attempt in (0, 2, 1):
        desk.send("0-a", attempt=attempt)
    desk.outbox.up["scheduler"] = [0]
    desk.router.up(0)
    desk.dispatcher.retry()
    assert desk.sent == [("0-a", 2)]


def test_the_next_attempt_goes_where_the_last_one_went_while_that_lives(new_outbox: Any) -> None:
    desk = Desk(new_outbox(scheduler=[0, 1, 2]), replicas=3)
    for request_id in ("0-a", "0-b"):
        desk.send(request_id)
    desk.send("0-b", attempt=1)
    desk.router.down(1)
    desk.send("0-b", attempt=2)
    requests = [(index, m) for role, index, m in desk.outbox.sent if isinstance(m, EngineRequest)]
    went = [(index, message.request_id) for index, message in requests if message.request_id == "0-b"]
    assert [index for index, _ in went[:2]] == [1, 1]
    assert went[2][0] != 1


@pytest.mark.parametrize(
    ("abort", "left"),
    [
        (AbortRequest("0-a"), ["1-b"]),
        (AbortRequest("0-a", attempt=0), ["0-a", "1-b"]),
        (AbortRequest("", all_of_worker=1), ["0-a"]),
        (AbortRequest("", abort_all=True), []),
    ],
)
def test_aborts_reach_what_waits(new_outbox: Any, abort: AbortRequest, left: list[str]) -> None:
    desk = Desk(new_outbox(scheduler=[]), replicas=0)
    desk.send("0-a", attempt=1)
    desk.send("1-b", attempt=1)
    desk.dispatcher.abort(abort)
    desk.outbox.up["scheduler"] = [0]
    desk.router.up(0)
    desk.dispatcher.retry()
    assert [request_id for request_id, _ in desk.sent] == left


def test_what_was_sent_to_a_replica_since_its_death_is_told(new_outbox: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    desk = Desk(new_outbox(scheduler=[0, 1]), replicas=2)
    for request_id, moment_s in (("0-a", 10.0), ("0-b", 10.0), ("0-c", 20.0), ("0-d", 20.0)):
        monkeypatch.setattr("tokenizer_manager.dispatch.time.time", lambda moment_s=moment_s: moment_s)
        desk.send(request_id, attempt=3)
    went = {m.request_id: index for role, index, m in desk.outbox.sent if isinstance(m, EngineRequest)}
    desk.router.down(0)
    desk.dispatcher.replica_died(0, 15.0)
    (late,) = [request_id for request_id in ("0-c", "0-d") if went[request_id] == 0]
    assert desk.refused == [(late, 3, 503)]


def test_an_attempt_at_another_replica_ends_older_ones(new_outbox: Any) -> None:
    desk = Desk(new_outbox(scheduler=[0, 1, 2]), replicas=3)
    desk.send("0-a", forced=1, attempt=2)
    aborts = [(index, m.attempt) for role, index, m in desk.outbox.sent if isinstance(m, AbortRequest)]
    assert aborts == [(0, 1), (2, 1)]
