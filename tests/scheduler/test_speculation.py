"""Speculation: what is guessed, how much of it is computed, and that no answer changes."""

import random
from array import array

import pytest

from protocol.ids import pack_ids, unpack_ids
from protocol.sampling import GrammarSpec, SamplingParameters
from scheduler.ngrams import FIRST_TRUST, DraftState, NgramIndex, PredictedText, Prediction
from scheduler.speculation import StepCost
from tests.scheduler.bench import Bench, make_config
from tests.scheduler.fake_executor import FakeExecutor
from tests.scheduler.fake_model import HABITUAL, PAGE, expected_output

PROMPT = [1, 2, 3]


def make_bench(most: int = 4, pages: int = 65) -> Bench:
    return Bench(make_config(0, most), FakeExecutor(pages))


def most_draws(bench: Bench) -> int:
    return max((draws for plan in bench.executor.plans for draws in unpack_ids(plan.draws)), default=0)


def continuation(ids: list[int], count: int) -> list[int]:
    return NgramIndex().continuation(array("i", ids), count)


def test_what_followed_the_newest_pair_last_time_is_guessed() -> None:
    assert continuation([5, 6, 1, 5, 6, 2, 9, 5, 6], 3) == [2, 9, 5]


def test_a_text_that_repeats_itself_is_continued_beyond_its_end() -> None:
    assert continuation([4, 7, 8, 9, 7, 8, 9, 7, 8], 7) == [9, 7, 8, 9, 7, 8, 9]
    assert continuation([3, 3, 3], 4) == [3, 3, 3, 3]


def test_a_prediction_is_followed_where_the_answer_is_in_it() -> None:
    prediction = Prediction(PredictedText(array("i", [5, 6, 7, 5, 6, 8, 9])), prompt_length=2)
    ids = array("i", [1, 2])
    expected = [
        (5, [6, 7, 5]),
        (6, [7, 5, 6]),
        (3, []),  # it parts
        (5, []),
        (6, [8, 9]),  # the pair is found again, behind where they parted
        (8, [9]),
        (9, []),
        (5, []),
        (6, [7, 5, 6]),  # there is no place behind: from the beginning
    ]
    assert prediction.continuation(ids, 3) == [5, 6, 7]
    for token, guess in expected:
        ids.append(token)
        assert prediction.continuation(ids, 3) == guess, token


@pytest.mark.parametrize("ids", [[], [1], [1, 1], [1, 2, 3, 4], [2, 1, 3, 1]])
def test_a_pair_that_never_stood_together_gives_no_guess(ids: list[int]) -> None:
    assert continuation(ids, 3) == []


def test_an_index_keeps_up_with_its_text() -> None:
    index, ids = NgramIndex(), array("i", [1, 2, 3])
    for token in [1, 2, 8, 1, 2, 9, 1, 2]:
        ids.append(token)
        assert index.continuation(ids, 4) == continuation(ids.tolist(), 4)
    assert index.continuation(ids, 2) == [9, 1]


def test_trust_follows_the_guesses_that_mattered() -> None:
    state = DraftState()
    state.guess = [1, 2, 3]
    state.learn([1, 2, 3])
    trusted = state.trust
    assert trusted > FIRST_TRUST
    state.guess = [1, 2, 3]
    state.learn([4, 2, 3])
    assert FIRST_TRUST < state.trust < trusted
    for _ in range(200):
        state.guess = [1]
        state.learn([1])
    assert state.trust < 1


def test_a_token_costs_what_steps_were_seen_to_take() -> None:
    cost = StepCost()
    for step in range(200):
        tokens = 1 + step % 13
        cost.observe(tokens, 9_000 + 1_000 * tokens)
    assert cost.price(1) == pytest.approx(0.1, rel=0.3)
    assert cost.price(9) == pytest.approx(0.5, rel=0.3)


def test_steps_of_one_size_say_nothing_about_a_further_token() -> None:
    cost, rng = StepCost(), random.Random(1)
    usual = cost.price(32)
    for _ in range(300):
        cost.observe(32, rng.choice([80_000, 85_000, 90_000, 300_000]))
        assert cost.price(32) == pytest.approx(usual, rel=0.05)


def test_a_price_that_nothing_is_seen_of_goes_back_to_the_usual() -> None:
    cost = StepCost()
    usual = cost.price(4)
    for step in range(200):
        cost.observe(1 + step % 13, 1_000 * (1 + step % 13))
    assert cost.price(4) > 0.75
    for _ in range(1_000):
        cost.observe(4, 4_000)
    assert cost.price(4) == pytest.approx(usual, rel=0.01)


def test_an_executor_without_a_clock_teaches_nothing() -> None:
    cost = StepCost()
    usual = cost.price(3)
    for step in range(60):
        cost.observe(1 + step % 5, 0)
    assert cost.price(3) == usual


@pytest.mark.parametrize("seed", range(HABITUAL, HABITUAL + 8))
def test_answers_are_the_same_in_fewer_steps(seed: int) -> None:
    bench, plain = make_bench(), make_bench(most=0)
    for one in (bench, plain):
        one.submit("a", PROMPT, 60, seed=seed, sampling=SamplingParameters(ignore_eos=True))
        one.run()
    assert bench.answer("a").ids == plain.answer("a").ids == expected_output(PROMPT, seed, 60, ())
    assert bench.scheduler.planner.step < 0.6 * plain.scheduler.planner.step
    speculation = bench.scheduler.planner.speculation
    assert 0 < speculation.accepted_tokens <= speculation.drafted_tokens
    assert bench.scheduler.results.generated_tokens == 60


def test_a_predicted_answer_comes_in_few_steps_and_is_counted() -> None:
    """The fake model repeats nothing with this seed: all that comes true was predicted."""
    answer = expected_output(PROMPT, 7, 40, ())
    prediction = [*answer[:15], 60, 60, *answer[16:]]
    for predicted, most_steps in ((prediction, 25), (None, 50)):
        bench = make_bench()
        fields = {} if predicted is None else {"prediction_ids": pack_ids(predicted)}
        bench.submit("a", PROMPT, 40, seed=7, sampling=SamplingParameters(ignore_eos=True), **fields)
        bench.run()
        assert bench.answer("a").ids == answer
        assert bench.scheduler.planner.step < most_steps
        last = bench.answer("a").outputs[-1].prediction
        assert (last is None) == (predicted is None)
        if last is not None:
            assert last[0] > 20 and 0 < last[1] < 10


def test_a_guess_that_is_the_last_token_counts_as_accepted() -> None:
    answer = expected_output(PROMPT, 7, 40, ())
    bench = make_bench()
    sampling = SamplingParameters(ignore_eos=True, stop_token_ids=(answer[3],))
    bench.submit("a", PROMPT, 40, seed=7, sampling=sampling, prediction_ids=pack_ids(answer[:4]))
    bench.scheduler.planner.speculation.cost.price = lambda rows: 0.01  # type: ignore[method-assign]
    bench.run()
    assert bench.answer("a").ids == answer[:4]
    assert bench.answer("a").outputs[-1].prediction == (3, 0)  # the first came of the prompt, without a draft


def test_choices_look_through_one_prediction_together() -> None:
    bench = make_bench()
    bench.submit("a", PROMPT, 30, n=3, prediction_ids=pack_ids([60, 61] * 10))
    request = bench.scheduler.requests["a"]
    states = [sequence.draft_state for sequence in request.sequences]
    while None in states:
        assert bench.turn()
        states = [sequence.draft_state for sequence in request.sequences]
    predictions = [state._prediction for state in states if state is not None]
    assert all(one is not None and one._text is request.predicted for one in predictions)


def test_nobody_looks_for_a_guess_that_cannot_be_worth_its_price() -> None:
    bench = make_bench()
    bench.scheduler.planner.speculation.cost.price = lambda rows: 0.8  # type: ignore[method-assign]
    bench.submit("a", PROMPT, 60, seed=HABITUAL, sampling=SamplingParameters(ignore_eos=True))
    sequence = bench.scheduler.requests["a"].sequences[0]
    bench.run()
    assert sequence.draft_state is None and most_draws(bench) == 1


def test_logprobs_come_for_what_was_drawn_alone() -> None:
    bench = make_bench()
    bench.submit("a", PROMPT, 40, seed=HABITUAL, sampling=SamplingParameters(ignore_eos=True, logprobs=0))
    bench.run()
    entries = [entry for output in bench.answer("a").outputs for entry in output.logprobs or []]
    assert [entry.id for entry in entries] == bench.answer("a").ids


@pytest.mark.parametrize("max_tokens", range(1, 12))
def test_no_draft_goes_beyond_the_end(max_tokens: int) -> None:
    bench = make_bench(most=8)
    bench.submit("a", [1, 1, 1, 1], max_tokens, seed=HABITUAL, sampling=SamplingParameters(ignore_eos=True))
    bench.run()
    assert len(bench.answer("a").ids) == max_tokens
    ends = [
        context + new
        for plan in bench.executor.plans
        for context, new in zip(unpack_ids(plan.context), unpack_ids(plan.new_tokens), strict=True)
    ]
    assert max(ends) <= 4 + max_tokens - 1


@pytest.mark.parametrize(
    "sampling",
    [
        SamplingParameters(frequency_penalty=0.5),
        SamplingParameters(presence_penalty=0.5),
        SamplingParameters(repetition_penalty=1.1),
        SamplingParameters(banned_sequences=((1, 2),)),
        SamplingParameters(grammar=GrammarSpec("regex", str([[1, 2]] * 30))),
    ],
)
def test_draws_that_depend_on_those_before_them_are_made_one_by_one(sampling: SamplingParameters) -> None:
    bench = make_bench()
    bench.submit("a", PROMPT, 30, seed=HABITUAL, sampling=sampling)
    bench.run()
    assert most_draws(bench) == 1


def test_nothing_is_guessed_while_a_prompt_waits() -> None:
    bench = make_bench()
    bench.submit("a", PROMPT, 80, seed=HABITUAL, sampling=SamplingParameters(ignore_eos=True))
    while most_draws(bench) < 2:
        bench.turn()
    before = len(bench.executor.plans)
    bench.submit("b", list(range(40)), 1, seed=HABITUAL)
    while not bench.answer("b").finish:
        bench.turn()
    drawn = [max(unpack_ids(plan.draws)) for plan in bench.executor.plans[before:]]
    assert len(drawn) >= 5 and max(drawn) == 1
    bench.run()


def test_nobody_is_retracted_for_a_guess() -> None:
    """Two choices fill the pool to its last page: drafts get what pages are there."""
    bench = make_bench(most=8, pages=2 * 12 + 1 + 4)
    for name in ("a", "b"):
        bench.submit(name, PROMPT, 12 * PAGE - 3, seed=HABITUAL, sampling=SamplingParameters(ignore_eos=True))
    bench.run()
    assert most_draws(bench) > 1
    assert bench.scheduler.planner.retractions == 0
    assert bench.answer("a").ids == expected_output(PROMPT, HABITUAL, 12 * PAGE - 3, ())


def test_a_step_never_holds_more_tokens_than_it_may() -> None:
    bench = make_bench(most=8)
    for number in range(6):
        sampling = SamplingParameters(ignore_eos=True)
        bench.submit(f"a{number}", [number, number, number], 60, seed=HABITUAL + number, sampling=sampling)
    bench.run()
    tokens = [sum(unpack_ids(plan.new_tokens)) for plan in bench.executor.plans]
    assert max(tokens) == bench.config.max_batch_tokens
