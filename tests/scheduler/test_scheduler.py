"""Requests from arrival to end: limits, policies, ends, aborts, attempts, resumption."""

import pytest

from protocol.errors import ErrorInfo
from protocol.ids import pack_ids
from protocol.outputs import StopFound
from protocol.requests import AbortRequest, ChoiceProgress
from protocol.sampling import SamplingParameters
from tests.scheduler.bench import Bench, make_config
from tests.scheduler.fake_executor import FakeExecutor
from tests.scheduler.fake_model import EOS, expected_output

PROMPT = [5, 9, 11, 2, 40, 8, 3, 3, 1, 17]

LOOKAHEADS = pytest.mark.parametrize("lookahead", [0, 1])


def make_bench(lookahead: int = 0, pages: int = 65, rows: int = 9, **args: object) -> Bench:
    return Bench(make_config(lookahead, **args), FakeExecutor(pages, rows, late=lookahead > 0))


@LOOKAHEADS
def test_a_request_gets_the_expected_answer(lookahead: int) -> None:
    bench = make_bench(lookahead)
    bench.submit("0-a", PROMPT, 12)
    bench.run()
    answer = bench.answer("0-a")
    expected = expected_output(PROMPT, 7, 12)
    assert answer.ids == expected
    assert answer.finish is not None and answer.finish.reason == ("stop" if expected[-1] == EOS else "length")
    assert bench.admitted["0-a"].prompt_tokens == len(PROMPT)
    assert bench.executor.most_in_flight <= lookahead + 1


@LOOKAHEADS
def test_many_requests_at_once_are_independent(lookahead: int) -> None:
    bench = make_bench(lookahead)
    for number in range(30):
        bench.submit(f"0-{number}", [number, *PROMPT[: number % 9]], 3 + number % 10, seed=number)
    bench.run()
    for number in range(30):
        expected = expected_output([number, *PROMPT[: number % 9]], number, 3 + number % 10)
        assert bench.answer(f"0-{number}").ids == expected


@LOOKAHEADS
def test_the_end_by_token(lookahead: int) -> None:
    ids = expected_output(PROMPT, 7, 20, end_ids=())
    bench = make_bench(lookahead)
    bench.submit("0-a", PROMPT, 20, sampling=SamplingParameters(stop_token_ids=(ids[5],), ignore_eos=True))
    bench.run()
    answer = bench.answer("0-a")
    assert answer.ids == ids[: ids.index(ids[5]) + 1]
    assert answer.finish is not None and (answer.finish.reason, answer.finish.matched) == ("stop", ids[5])


def test_min_tokens_reach_the_row_with_the_end_ids() -> None:
    bench = make_bench()
    sampling = SamplingParameters(min_tokens=6, stop_token_ids=tuple(range(32)))
    bench.submit("0-a", PROMPT, 20, sampling=sampling)
    bench.run()
    ends = (EOS, *range(32))
    assert bench.answer("0-a").ids == expected_output(PROMPT, 7, 20, end_ids=ends, min_tokens=6)


@LOOKAHEADS
def test_cut_and_resumed_at_every_position(lookahead: int) -> None:
    whole = expected_output(PROMPT, 3, 14)
    bench = make_bench(lookahead)
    for cut in range(len(whole)):
        bench.submit(f"0-{cut}", PROMPT, 14, seed=3, output=whole[:cut])
        bench.run()
        assert whole[:cut] + bench.answer(f"0-{cut}", attempt=1).ids == whole


def test_a_resumed_answer_that_was_whole_ends_at_once() -> None:
    bench = make_bench()
    bench.submit("0-a", PROMPT, 3, output=[1, 2, 3])
    bench.submit("0-b", PROMPT, 30, output=[1, EOS])
    bench.run()
    reasons = [bench.answer(name, attempt=1).finish.reason for name in ("0-a", "0-b")]  # type: ignore[union-attr]
    assert reasons == ["length", "stop"]
    assert not bench.executor.plans


def test_finished_choices_are_not_computed_again() -> None:
    bench = make_bench()
    progress = (ChoiceProgress(0, pack_ids([4]), finished=True), ChoiceProgress(1))
    bench.submit("0-a", PROMPT, 5, n=2, attempt=1, resume=progress)
    bench.run()
    assert bench.answer("0-a", 0, 1).finish is None
    assert bench.answer("0-a", 1, 1).ids == expected_output(PROMPT, 8, 5)


@LOOKAHEADS
def test_a_prompt_alone_is_scored(lookahead: int) -> None:
    bench = make_bench(lookahead)
    bench.submit("0-warm", PROMPT, 4)
    bench.run()
    bench.submit("0-a", PROMPT, 0, sampling=SamplingParameters(prompt_logprobs=0))
    bench.run()
    (output,) = bench.answer("0-a").outputs
    assert output.ids == b"" and output.finish is not None and output.finish.reason == "length"
    assert output.prompt_logprobs is not None and output.prompt_logprobs[0] is None
    assert [entry.id for entry in output.prompt_logprobs[1:] if entry] == PROMPT[1:]
    assert output.cached_tokens == 0


def test_every_choice_gets_the_prompt_logprobs_once() -> None:
    bench = make_bench()
    bench.submit("0-a", PROMPT, 3, n=3, sampling=SamplingParameters(prompt_logprobs=1, logprobs=0))
    bench.run()
    for index in range(3):
        outputs = bench.answer("0-a", index).outputs
        assert [output.prompt_logprobs is not None for output in outputs] == [True, False, False][: len(outputs)]
        assert all(output.logprobs and len(output.logprobs) == 1 for output in outputs)


@LOOKAHEADS
def test_abort_in_every_phase_frees_everything(lookahead: int) -> None:
    for turns in range(12):
        bench = make_bench(lookahead)
        bench.submit("0-a", PROMPT, 8, n=2, sampling=SamplingParameters(ignore_eos=True))
        for _ in range(turns):
            bench.turn()
        bench.abort("0-a")
        bench.turn()
        bench.turn()
        bench.check_idle()
        for index in (0, 1):
            finish = bench.answer("0-a", index).finish
            assert finish is not None and finish.reason in ("abort", "length")


def test_an_abort_that_overtakes_leaves_a_tombstone() -> None:
    bench = make_bench()
    bench.scheduler.abort(AbortRequest("0-a", attempt=0), bench.now)
    bench.submit("0-a", PROMPT)
    bench.run()
    assert not bench.admitted
    bench.submit("0-a", PROMPT, attempt=1)
    bench.run()
    assert bench.answer("0-a", attempt=1).ids


def test_the_aborts_of_a_worker_spare_the_others() -> None:
    bench = make_bench()
    bench.submit("0-a", PROMPT)
    bench.submit("1-a", PROMPT)
    bench.scheduler.drop_worker(0, bench.now)
    bench.run()
    assert bench.answer("0-a").finish.reason == "abort"  # type: ignore[union-attr]
    assert bench.answer("1-a").ids == expected_output(PROMPT, 7, 8)


def test_a_newer_attempt_supersedes_silently_and_an_older_one_is_ignored() -> None:
    bench = make_bench()
    bench.submit("0-a", PROMPT, 20, sampling=SamplingParameters(ignore_eos=True))
    for _ in range(6):
        bench.turn()
    so_far = list(bench.answer("0-a").ids)
    assert so_far
    bench.submit("0-a", PROMPT, 20, sampling=SamplingParameters(ignore_eos=True), output=so_far)
    bench.submit("0-a", PROMPT, 20)
    bench.run()
    assert bench.answer("0-a").finish is None
    assert so_far + bench.answer("0-a", attempt=1).ids == expected_output(PROMPT, 7, 20, end_ids=())


@LOOKAHEADS
def test_a_stop_found_by_the_detokenizer_ends_the_choice_without_a_second_final(lookahead: int) -> None:
    bench = make_bench(lookahead)
    bench.submit("0-a", PROMPT, 50, n=2, sampling=SamplingParameters(ignore_eos=True))
    while len(bench.answer("0-a").ids) < 3:
        bench.turn()
    bench.scheduler.stop_found(StopFound("0-a", 0, 0, 3))
    bench.scheduler.stop_found(StopFound("0-a", 0, 0, 3))
    bench.run()
    assert bench.answer("0-a").finish is None and len(bench.answer("0-a").ids) == 3
    assert len(bench.answer("0-a", 1).ids) == 50


def test_a_full_queue_refuses_with_retry_after_but_never_a_resubmission() -> None:
    bench = make_bench(max_queued_requests=2)
    for number in range(4):
        bench.submit(f"0-{number}", PROMPT)
    bench.submit("0-resumed", PROMPT, output=[1])
    assert set(bench.refused) == {"0-2", "0-3"}
    error = bench.refused["0-2"].error
    assert (error.status, error.code) == (503, "queue_full") and error.retry_after_s
    bench.run()
    assert bench.answer("0-resumed", attempt=1).finish is not None


def test_a_full_queue_can_drop_its_lowest_priority() -> None:
    bench = make_bench(max_queued_requests=2, schedule_policy="priority", evict_low_priority=True)
    for name, priority in (("0-low", 0), ("0-mid", 1), ("0-high", 2), ("0-mid2", 1)):
        bench.submit(name, PROMPT, priority=priority)
    assert bench.answer("0-low").finish.error.status == 503  # type: ignore[union-attr]
    assert set(bench.refused) == {"0-mid2"}
    bench.run()


def test_what_can_never_fit_is_refused_at_admission() -> None:
    bench = make_bench(pages=10)
    bench.submit("0-a", PROMPT, 40)
    assert "memory holds 20 for one request" in bench.refused["0-a"].error.message
    bench.submit("0-b", PROMPT, 10, sampling=SamplingParameters(ignore_eos=True))
    bench.run()
    assert len(bench.answer("0-b").ids) == 10


def test_deadlines() -> None:
    bench = make_bench(rows=2)
    bench.submit("0-past", PROMPT, deadline_s=bench.now - 1)
    assert bench.refused["0-past"].error.type == "timeout_error"
    forever = SamplingParameters(ignore_eos=True)
    bench.submit("0-runs", PROMPT, 150, sampling=forever, deadline_s=bench.now + 50)
    bench.submit("0-waits", PROMPT, 9, queue_timeout_s=20.0)
    for _ in range(5):
        bench.turn()
    bench.now += 30
    bench.turn()
    assert bench.answer("0-waits").finish.error.code == "queue_timeout"  # type: ignore[union-attr]
    assert bench.answer("0-runs").finish is None
    bench.now += 30
    bench.run()
    assert bench.answer("0-runs").finish.error.code == "timeout"  # type: ignore[union-attr]


def test_far_deadlines_do_not_keep_requests_that_have_ended() -> None:
    bench = make_bench(rows=2)
    bench.submit("0-stays", PROMPT, 9, deadline_s=bench.now + 20_000.0)
    bench.scheduler.paused = True
    for number in range(700):
        bench.submit(f"0-{number}", PROMPT, deadline_s=bench.now + 10_000.0)
        bench.scheduler.abort(AbortRequest(f"0-{number}"), bench.now)
        bench.turn()
    assert len(bench.scheduler._deadlines) < 300
    bench.now += 20_001.0
    bench.turn()
    assert bench.answer("0-stays").finish.error.code == "timeout"  # type: ignore[union-attr]


def test_a_failed_row_fails_its_request_alone() -> None:
    bench = make_bench()
    bench.executor.failing[100] = "NaN"
    bench.submit("0-bad", PROMPT, n=2, seed=99)
    bench.submit("0-good", PROMPT)
    bench.run()
    for index in (0, 1):
        assert bench.answer("0-bad", index).finish.error.message == "NaN"  # type: ignore[union-attr]
    assert bench.answer("0-good").ids == expected_output(PROMPT, 7, 8)


def test_a_probe_passes_everybody_when_rows_and_pages_are_taken() -> None:
    bench = make_bench(pages=17, rows=4)
    for number in range(9):
        bench.submit(f"0-{number}", [number, *PROMPT], 18, sampling=SamplingParameters(ignore_eos=True))
    for _ in range(8):
        bench.turn()
    bench.submit("0-probe", [1, 2], 1, probe=True)
    for _ in range(3):
        bench.turn()
    assert len(bench.answer("0-probe").ids) == 1
    bench.run()


@LOOKAHEADS
def test_suspects_run_alone_and_in_turns_with_the_others(lookahead: int) -> None:
    bench = make_bench(lookahead)
    forever = SamplingParameters(ignore_eos=True)
    bench.submit("0-a", PROMPT, 12, seed=1, sampling=forever)
    bench.submit("0-s", PROMPT, 12, n=2, seed=2, sampling=forever, suspect=True)
    bench.submit("0-t", PROMPT, 12, seed=5, sampling=forever, suspect=True)
    launched: list[list[str]] = []
    bench.scheduler._before_launch = lambda record: launched.append(record.request_ids())
    bench.run()
    assert all(ids == ["0-a"] or ids == ["0-s"] or ids == ["0-t"] for ids in launched)
    first_s, last_s = launched.index(["0-s"]), len(launched) - launched[::-1].index(["0-s"])
    assert ["0-a"] in launched[first_s:last_s] and ["0-t"] not in launched[first_s:last_s]
    assert bench.answer("0-s", 1).ids == expected_output(PROMPT, 3, 12, end_ids=())


@pytest.mark.parametrize(
    ("policy", "order"),
    [("fcfs", ["0-a", "0-b", "0-c"]), ("priority", ["0-b", "0-c", "0-a"]), ("lpm", ["0-c", "0-a", "0-b"])],
)
def test_policies(policy: str, order: list[str]) -> None:
    bench = make_bench(rows=2, schedule_policy=policy)
    bench.submit("0-warm", [9] * 12, 2)
    bench.run()
    launched: list[str] = []
    bench.scheduler._before_launch = lambda record: launched.extend(record.request_ids())
    bench.submit("0-a", [1] * 12, priority=1)
    bench.submit("0-b", [2] * 12, priority=3)
    bench.submit("0-c", [9] * 12, priority=2)
    bench.run()
    assert list(dict.fromkeys(launched)) == order


def test_low_priority_does_not_starve() -> None:
    bench = make_bench(rows=2, schedule_policy="priority")
    bench.submit("0-low", PROMPT, 2, priority=-5)
    for number in range(400):
        bench.submit(f"0-{number}", [number % 60, 1, 2], 2, priority=9)
        bench.now += 0.4
        bench.turn()
        if bench.answer("0-low").ids:
            break
    assert bench.answer("0-low").ids
    assert bench.now > 1050


def test_draining_refuses_new_work_and_finishes_the_old() -> None:
    bench = make_bench()
    bench.submit("0-a", PROMPT)
    bench.scheduler.admission.draining = True
    bench.submit("0-b", PROMPT)
    assert bench.refused["0-b"].error.code == "draining"
    bench.run()
    assert bench.answer("0-a").ids == expected_output(PROMPT, 7, 8)


def test_the_end_of_all_is_an_error_for_each() -> None:
    bench = make_bench(1)
    for number in range(12):
        bench.submit(f"0-{number}", PROMPT, 30)
    for _ in range(4):
        bench.turn()
    bench.scheduler.end_all(ErrorInfo("over", 503))
    bench.run()
    for number in range(12):
        assert bench.answer(f"0-{number}").finish.error.message == "over"  # type: ignore[union-attr]


def test_wrong_books_are_repaired_and_everybody_still_gets_an_answer() -> None:
    bench = make_bench(1)
    for number in range(3):
        bench.submit(f"0-{number}", [number, *PROMPT], 20, seed=number)
    for _ in range(6):
        bench.turn()
    bench.scheduler.memory.pool.take(2)
    assert bench.scheduler.check_books()
    assert bench.scheduler.books_repaired == 1
    bench.run()
    for number in range(3):
        assert bench.answer(f"0-{number}").ids == expected_output([number, *PROMPT], number, 20)


def test_a_paused_scheduler_plans_nothing() -> None:
    bench = make_bench()
    bench.submit("0-a", PROMPT)
    bench.scheduler.paused = True
    assert not bench.turn() and not bench.scheduler.pending
    bench.scheduler.paused = False
    bench.run()
    assert bench.answer("0-a").ids
