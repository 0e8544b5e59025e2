"""Neighbours that die, and the limit of each key."""

from protocol.errors import LOST
from protocol.requests import AbortRequest
from tests.scheduler.bench import Bench, make_config
from tests.scheduler.fake_model import expected_output

PROMPT = [5, 9, 11, 2, 40, 8, 3, 3, 1, 17]


def make_bench(**args: int) -> Bench:
    return Bench(make_config(**args))


def test_a_worker_that_took_a_dead_ones_place_is_spared() -> None:
    """The news came late, after a request of the successor."""
    bench = make_bench()
    bench.submit("0-a", PROMPT)
    died_s = bench.now
    bench.scheduler.drop_worker(0, died_s)
    bench.now = died_s + 3
    bench.submit("0-b", PROMPT)
    bench.run()
    assert bench.answer("0-a").finish.reason == "abort"  # type: ignore[union-attr]
    assert bench.answer("0-b").ids == expected_output(PROMPT, 7, 8)


def test_what_a_client_calls_a_request_ends_it_whoever_owns_it() -> None:
    bench = make_bench()
    for request_id in ("0-mine~1", "1-mine#1~2", "1-other~3"):
        bench.submit(request_id, PROMPT)
    bench.scheduler.abort(AbortRequest("", client_id="mine"), bench.now)
    bench.run()
    assert bench.answer("0-mine~1").finish.reason == "abort"  # type: ignore[union-attr]
    assert bench.answer("1-mine#1~2").finish.reason == "abort"  # type: ignore[union-attr]
    assert bench.answer("1-other~3").ids == expected_output(PROMPT, 7, 8)


def test_the_requests_of_a_dead_detokenizer_end_and_those_it_never_got_are_told() -> None:
    bench = make_bench()
    bench.submit("0-before", PROMPT, 50)
    died_s = bench.now + 1
    bench.now = died_s + 1
    bench.submit("0-since", PROMPT, 50)
    bench.submit("0-elsewhere", PROMPT, detokenizer=1)
    bench.turn()
    bench.scheduler.detokenizer_died(0, died_s)
    bench.run()
    assert {name: refused.error.code for name, refused in bench.refused.items()} == {"0-since": LOST}
    assert bench.answer("0-before").finish is None
    assert bench.answer("0-elsewhere").ids == expected_output(PROMPT, 7, 8)
    bench.check_idle()
    bench.submit("0-before", PROMPT, attempt=1)
    bench.run()
    assert bench.answer("0-before", attempt=1).ids == expected_output(PROMPT, 7, 8)


def test_an_attempt_that_moves_leaves_nothing_open_at_its_former_detokenizer() -> None:
    bench = make_bench()
    bench.submit("0-a", PROMPT, 50)
    bench.turn()
    bench.submit("0-a", PROMPT, attempt=1, detokenizer=1)
    bench.run()
    assert bench.answer("0-a", attempt=0).finish.reason == "abort"  # type: ignore[union-attr]
    assert bench.answer("0-a", attempt=1).ids == expected_output(PROMPT, 7, 8)


def test_a_key_has_so_many_requests_and_no_more() -> None:
    bench = make_bench(max_running_per_key=2)
    for name in ("a", "b", "c"):
        bench.submit(f"0-{name}", PROMPT, fairness_key="key-0")
    bench.submit("0-d", PROMPT, fairness_key="key-1")
    bench.submit("0-e", PROMPT)
    bench.submit("0-f", PROMPT, fairness_key="key-0", attempt=1)  # it was accepted once
    (refused,) = bench.refused.values()
    assert refused.request_id == "0-c"
    assert (refused.error.status, refused.error.type, refused.error.retry_after_s) == (429, "rate_limit_error", 1.0)
    bench.run()
    bench.submit("0-g", PROMPT, fairness_key="key-0")
    bench.run()
    assert bench.answer("0-g").ids == expected_output(PROMPT, 7, 8)
