"""What goes into a step, who waits for whom, and what happens when pages run out."""

import msgspec
import pytest

from protocol.ids import unpack_ids
from protocol.outputs import StepOutput
from protocol.plan import LAST_SAMPLED, BatchPlan, StepResult
from protocol.sampling import SamplingParameters
from scheduler.reserve import ChunkLimit, GrowthReserve
from scheduler.sequence import Sequence
from tests.scheduler.bench import Bench, make_config
from tests.scheduler.fake_executor import FakeExecutor
from tests.scheduler.fake_model import PAGE, expected_output

FOREVER = SamplingParameters(ignore_eos=True)


def make_bench(lookahead: int = 0, pages: int = 65, rows: int = 9, **args: object) -> Bench:
    return Bench(make_config(lookahead, **args), FakeExecutor(pages, rows, late=lookahead > 0))


def shape(plan: BatchPlan) -> list[tuple[int, int, int]]:
    """(new tokens, context, draws) of each row."""
    return list(zip(unpack_ids(plan.new_tokens), unpack_ids(plan.context), unpack_ids(plan.draws), strict=True))


def step_tokens(plan: BatchPlan) -> int:
    return sum(unpack_ids(plan.new_tokens))


def test_prompts_are_read_in_chunks_beside_decoding_rows() -> None:
    bench = make_bench()  # 16 tokens in a step, 8 of them prompt
    bench.submit("0-a", [1] * 3, 6, sampling=FOREVER)
    bench.turn()
    bench.submit("0-b", [2] * 20, 2, sampling=FOREVER)
    bench.run()
    assert [shape(plan) for plan in bench.executor.plans] == [
        [(3, 0, 1)],
        [(1, 3, 1), (8, 0, 0)],
        [(1, 4, 1), (8, 8, 0)],
        [(1, 5, 1), (4, 16, 1)],
        [(1, 6, 1), (1, 20, 1)],
        [(1, 7, 1)],
    ]


def test_no_step_is_over_its_budget_and_no_decoding_row_left_out() -> None:
    bench = make_bench(pages=200)
    for number in range(12):
        bench.submit(f"0-{number}", [number] * 30, 10, sampling=FOREVER)
    bench.run()
    for plan in bench.executor.plans:
        fed = unpack_ids(plan.new_tokens)
        assert sum(fed) <= 16 and sum(n for n, _, draws in shape(plan) if n > 1 or not draws) <= 8
    steps: dict[str, list[int]] = {}
    for _, message in bench.sent:
        if isinstance(message, StepOutput):
            for output in message.outputs:
                steps.setdefault(output.request_id, []).append(message.step)
    assert len(steps) == 12
    for seen in steps.values():
        assert seen == list(range(seen[0], seen[0] + 10))


def test_with_lookahead_a_row_feeds_what_it_has_not_seen_yet() -> None:
    bench = make_bench(1)
    bench.submit("0-a", [1] * 3, 5, sampling=FOREVER)
    bench.run()
    assert [unpack_ids(plan.ids) for plan in bench.executor.plans] == [[1] * 3] + [[LAST_SAMPLED]] * 4
    assert bench.executor.most_in_flight == 2


def test_a_full_hit_computes_the_last_page_again() -> None:
    bench = make_bench()
    prompt = list(range(3 * PAGE))
    for name in ("0-a", "0-b"):
        bench.submit(name, prompt, 1)
        bench.run()
    bench.submit("0-c", [*prompt, 60], 1)
    bench.run()
    assert [shape(plan)[0][:2] for plan in bench.executor.plans[-2:]] == [(PAGE, 2 * PAGE), (1, 3 * PAGE)]
    assert bench.answer("0-b").outputs[0].cached_tokens == 2 * PAGE


def test_the_next_turn_finds_the_whole_conversation() -> None:
    bench = make_bench()
    prompt = [3] * 10
    for turn in range(4):
        bench.submit(f"0-{turn}", prompt, 9, sampling=FOREVER)
        bench.run()
        answer = bench.answer(f"0-{turn}")
        assert answer.outputs[0].cached_tokens == (len(prompt) - 3) // PAGE * PAGE * (turn > 0)
        prompt = prompt + answer.ids + [5, 6]


def test_namespaces_share_nothing() -> None:
    bench = make_bench()
    for name, namespace in (("0-a", ""), ("0-b", "salt"), ("0-c", "salt")):
        bench.submit(name, [1] * 20, 1, namespace=namespace)
        bench.run()
    assert [bench.answer(n).outputs[0].cached_tokens for n in ("0-a", "0-b", "0-c")] == [0, 0, 16]


@pytest.mark.parametrize("lookahead", [0, 1])
@pytest.mark.parametrize("cached", [True, False])
def test_sixteen_together_compute_their_common_prefix_once(lookahead: int, cached: bool) -> None:
    bench = Bench(
        make_config(lookahead, max_queued_requests=99, disable_radix_cache=not cached),
        FakeExecutor(5000, 17, late=lookahead > 0),
    )
    prefix = [k % 60 for k in range(150)]
    for number in range(16):
        bench.submit(f"0-{number}", [*prefix, number, number], 3, seed=number)
    bench.run(5000)
    own = 16 * (150 % PAGE + 2)
    prompt_tokens = sum(n for plan in bench.executor.plans for n, context, _ in shape(plan) if context < 152)
    assert prompt_tokens == (150 // PAGE * PAGE + own if cached else 16 * 152)
    for number in range(16):
        assert bench.answer(f"0-{number}").ids == expected_output([*prefix, number, number], number, 3)


def test_choices_of_one_request_share_all_but_the_partial_page() -> None:
    bench = make_bench()
    bench.submit("0-a", [9] * 18, 4, n=4, sampling=FOREVER)
    bench.run()
    prompt_tokens = sum(n for plan in bench.executor.plans for n, context, _ in shape(plan) if context < 18)
    assert prompt_tokens == 18 + 3 * 2
    assert {bench.answer("0-a", index).outputs[0].cached_tokens for index in range(4)} == {0}
    for index in range(4):
        assert bench.answer("0-a", index).ids == expected_output([9] * 18, 7 + index, 4, end_ids=())


def test_a_waiter_goes_on_alone_when_its_producer_stops() -> None:
    bench = make_bench()
    bench.submit("0-a", [9] * 40, 4)
    bench.turn()
    bench.submit("0-b", [*[9] * 40, 1], 4)
    bench.turn()
    assert len(bench.scheduler.queue) == 1
    bench.abort("0-a")
    bench.turn()
    assert len(bench.scheduler.queue) == 0
    bench.run()
    assert bench.answer("0-b").outputs[0].cached_tokens == 16


@pytest.mark.parametrize("lookahead", [0, 1])
def test_retraction_takes_the_youngest_and_everybody_finishes(lookahead: int) -> None:
    bench = make_bench(lookahead, pages=25)
    bench.scheduler.planner.reserve.ratio = 0.0
    for number in range(6):
        bench.submit(f"0-{number}", [number, 1, 2], 60, seed=number, sampling=FOREVER)
        bench.now += 1
    bench.run()
    retractions = [bench.answer(f"0-{number}").outputs[-1].retractions for number in range(6)]
    assert retractions[0] == 0 and sum(retractions) == bench.scheduler.planner.retractions > 0
    for number in range(6):
        assert bench.answer(f"0-{number}").ids == expected_output([number, 1, 2], number, 60, end_ids=())


@pytest.mark.parametrize("lookahead", [0, 1])
def test_retraction_spares_the_highest_priority(lookahead: int) -> None:
    bench = make_bench(lookahead, pages=25, schedule_policy="priority")
    bench.scheduler.planner.reserve.ratio = 0.0
    for number, priority in enumerate([0, 5, 0]):
        bench.submit(f"0-{number}", [number, 1, 2], 60, seed=number, sampling=FOREVER, priority=priority)
    bench.run()
    assert bench.answer("0-1").outputs[-1].retractions == 0
    assert bench.answer("0-2").outputs[-1].retractions > 0


def test_a_retracted_request_waits_until_its_growth_fits() -> None:
    bench = make_bench(pages=25)
    bench.scheduler.planner.reserve.ratio = 0.0
    for number in range(3):
        bench.submit(f"0-{number}", [number, 1, 2], 60, seed=number, sampling=FOREVER)
    bench.run()
    assert bench.scheduler.planner.retractions <= 3


def test_the_reserve_follows_what_happens() -> None:
    reserve = make_bench().scheduler.planner.reserve
    begun = reserve.ratio
    for _ in range(100):
        reserve.step_went_well()
    assert reserve.ratio < begun
    reserve.retracted()
    assert reserve.ratio > begun * 0.8


def test_chunks_beside_streams_are_held_to_what_steps_take() -> None:
    limit = ChunkLimit(largest=1024, max_itl_ms=None, page_size=16)
    assert limit.tokens(streams=4) == 1024, "nothing is known yet"
    limit.observe(prompt_tokens=100, streams=0, step_us=10_000)
    assert limit.tokens(streams=4) == 0, "first a step shows what they take alone"
    limit.observe(prompt_tokens=0, streams=4, step_us=8000)
    assert limit.tokens(streams=4) == 40
    assert limit.tokens(streams=8) == limit.tokens(streams=2) == 40
    assert limit.tokens(streams=9) == limit.tokens(streams=1) == 0
    assert limit.tokens(streams=0) == 1024
    limit.observe(prompt_tokens=40, streams=4, step_us=8000 + 40 * 300)
    assert limit.tokens(streams=4) == 20, "behind long contexts a token costs more"
    for _ in range(10):
        limit.observe(prompt_tokens=40, streams=4, step_us=1_000_000)
    assert limit.tokens(streams=4) == 16, "a page always gets through"
    limit.observe(prompt_tokens=0, streams=1, step_us=3000)
    for _ in range(20):
        limit.observe(prompt_tokens=16, streams=1, step_us=3000 + 16 * 30)
    assert limit.tokens(streams=1) == 49


def test_streams_that_change_with_every_step_do_not_keep_prompts_waiting() -> None:
    limit = ChunkLimit(largest=1024, max_itl_ms=None, page_size=16)
    limit.observe(prompt_tokens=100, streams=0, step_us=10_000)
    served = set()
    for streams in (1, 8) * 6:
        if limit.tokens(streams):
            served.add(streams)
        limit.observe(prompt_tokens=0, streams=streams, step_us=1000 * streams)
    assert served == {1, 8}


def test_a_given_latency_takes_the_place_of_the_measured_one() -> None:
    limit = ChunkLimit(largest=1024, max_itl_ms=50.0, page_size=16)
    limit.observe(prompt_tokens=100, streams=0, step_us=10_000)
    limit.observe(prompt_tokens=0, streams=4, step_us=8000)
    assert limit.tokens(streams=4) == 420


@pytest.mark.parametrize("lookahead", [0, 1])
def test_a_prompt_beside_a_stream_is_read_in_chunks_that_leave_it_its_pace(lookahead: int) -> None:
    class Timed(FakeExecutor):
        def collect(self) -> StepResult:
            tokens = step_tokens(self._steps[0].plan)
            return msgspec.structs.replace(super().collect(), forward_us=1000 + 400 * tokens)

    bench = Bench(make_config(lookahead=lookahead), Timed(late=lookahead > 0))
    bench.submit("0-a", [1] * 8, 40, sampling=FOREVER)
    for _ in range(4):
        bench.turn()
    begun = len(bench.executor.plans)
    bench.submit("0-b", [2] * 24, 4, sampling=FOREVER)
    bench.run()
    longest = max(map(step_tokens, bench.executor.plans[begun:]))
    assert longest == 1 + PAGE, "a token of the stream, a page of the prompt"
    assert bench.answer("0-b").ids == expected_output([2] * 24, 7, 4)
    bench.check_idle()


def test_pages_travel_as_deltas() -> None:
    bench = make_bench()
    bench.submit("0-a", [1] * 6, 8, sampling=FOREVER)
    bench.run()
    deltas = [
        (delta.first, len(unpack_ids(delta.pages))) for plan in bench.executor.plans for delta in plan.page_deltas
    ]
    assert deltas == [(0, 2), (2, 1), (3, 1)]


@pytest.mark.parametrize(("lookahead", "steps", "retractions"), [(0, 12, 5), (1, 16, 6)])
def test_a_prompt_that_is_first_in_line_is_not_held_up_by_rows_behind_it(
    lookahead: int, steps: int, retractions: int
) -> None:
    bench = make_bench(lookahead, pages=25, schedule_policy="priority")
    for number in range(7):
        bench.submit(f"0-{number}", [number], 40, seed=number, sampling=FOREVER)
    for _ in range(3):
        bench.turn()
    bench.scheduler.planner.reserve = NoReserve(PAGE)
    bench.submit("0-a", [9] * 48, 4, sampling=FOREVER, priority=1)
    while not bench.answer("0-a").ids:
        bench.turn()
    assert bench.scheduler.planner.step <= steps
    assert 0 < bench.scheduler.planner.retractions <= retractions
    bench.run()
    assert bench.answer("0-a").outputs[-1].retractions == 0


class NoReserve(GrowthReserve):
    """Admits as if nobody would grow, so that pages do run out."""

    def growth(self, sequence: Sequence) -> int:
        return 0
