"""Grammars, late masks, jumps over forced text, reasoning and its budget."""

from typing import Any

import pytest

from protocol.errors import ErrorInfo
from protocol.ids import unpack_ids
from protocol.sampling import GrammarSpec, ReasoningSpan, SamplingParameters
from runtime.vocabulary import Vocabulary
from scheduler.reasoning import MarkerEnds, ReasoningTracker
from tests.scheduler.bench import Bench, make_config
from tests.scheduler.fake_executor import FakeExecutor
from tests.scheduler.fake_grammar import expected_constrained
from tests.scheduler.fake_model import EOS

PROMPT = [5, 9, 11, 2, 40]
STEPS = [[1, 2, 3], [4], [5], [6, 7], [8, 9]]
GRAMMAR = SamplingParameters(grammar=GrammarSpec("regex", str(STEPS)))
SPAN = ReasoningSpan((50,), (51, 52), prompt_opened=True)
LOOKAHEADS = pytest.mark.parametrize("lookahead", [0, 1])


def make_bench(lookahead: int = 0, slow_masks: int = 0) -> Bench:
    return Bench(make_config(lookahead), FakeExecutor(late=lookahead > 0), slow_masks)


def constrained(**fields: object) -> SamplingParameters:
    return SamplingParameters(grammar=GRAMMAR.grammar, **fields)  # type: ignore[arg-type]


@LOOKAHEADS
@pytest.mark.parametrize("slow_masks", [0, 3])
def test_the_grammar_holds_and_ends_the_answer(lookahead: int, slow_masks: int) -> None:
    bench = make_bench(lookahead, slow_masks)
    bench.submit("0-a", PROMPT, 20, n=2, sampling=GRAMMAR)
    bench.submit("0-free", PROMPT, 20)
    bench.run()
    for index in (0, 1):
        answer = bench.answer("0-a", index)
        assert answer.ids == expected_constrained(PROMPT, 7 + index, 20, STEPS)
        assert answer.ids[-1] == EOS and answer.finish is not None and answer.finish.reason == "stop"
    assert bench.answer("0-free").ids == expected_constrained(PROMPT, 7, 20)
    assert (bench.scheduler.constraints.slow_masks > 0) == (slow_masks > 0)


def test_a_late_mask_costs_its_own_row_steps_and_nobody_else() -> None:
    bench = make_bench(slow_masks=4)
    bench.submit("0-a", PROMPT, 20, sampling=GRAMMAR)
    bench.submit("0-free", PROMPT, 12, sampling=SamplingParameters(ignore_eos=True))
    bench.run()
    widths = [len(unpack_ids(plan.slots)) for plan in bench.executor.plans]
    assert 1 in widths[1:6], "the late row is left out of plans"
    assert len(bench.answer("0-free").outputs) == 12


def test_a_grammar_over_its_mask_budget_fails_alone() -> None:
    bench = make_bench(slow_masks=10**6)
    bench.grammar.error = ErrorInfo("too slow", 400)
    bench.submit("0-a", PROMPT, 20, sampling=GRAMMAR)
    bench.submit("0-free", PROMPT, 5)
    bench.run()
    assert bench.answer("0-a").finish.error.message == "too slow"  # type: ignore[union-attr]
    assert bench.answer("0-free").finish.error is None  # type: ignore[union-attr]


@LOOKAHEADS
def test_forced_text_is_not_drawn(lookahead: int) -> None:
    bench = make_bench(lookahead)
    bench.submit("0-a", PROMPT, 20, sampling=GRAMMAR)
    bench.run()
    forced = [unpack_ids(f.ids) for plan in bench.executor.plans for f in plan.forced]
    assert forced == [[4, 5]]
    assert [len(unpack_ids(output.ids)) for output in bench.answer("0-a").outputs] == [3, 1, 1, 1]


def test_forced_text_at_the_beginning_is_read_with_the_prompt() -> None:
    bench = make_bench()
    steps = [[1], [2], [3, 4]]
    bench.submit("0-a", PROMPT, 20, sampling=SamplingParameters(grammar=GrammarSpec("regex", str(steps))))
    bench.run()
    assert unpack_ids(bench.executor.plans[0].ids) == [*PROMPT, 1, 2]
    assert bench.answer("0-a").ids == expected_constrained(PROMPT, 7, 20, steps)


@LOOKAHEADS
def test_with_logprobs_every_token_is_drawn(lookahead: int) -> None:
    bench = make_bench(lookahead)
    bench.submit("0-a", PROMPT, 20, sampling=constrained(logprobs=0))
    bench.run()
    outputs = bench.answer("0-a").outputs
    assert [[entry.id for entry in output.logprobs or ()] for output in outputs] == [
        [t] for t in bench.answer("0-a").ids
    ]
    assert not any(plan.forced for plan in bench.executor.plans)


@LOOKAHEADS
@pytest.mark.parametrize("budget", [None, 0, 3])
def test_the_grammar_begins_after_reasoning(lookahead: int, budget: int | None) -> None:
    span = ReasoningSpan((50,), (51,), prompt_opened=True)
    for seed in range(30):
        bench = make_bench(lookahead)
        bench.submit("0-a", PROMPT, 60, seed=seed, sampling=constrained(thinking_budget=budget), reasoning_span=span)
        bench.run()
        answer = bench.answer("0-a")
        assert answer.ids == expected_constrained(PROMPT, seed, 60, STEPS, span, budget)
        if budget is not None:
            assert answer.ids.index(51) <= budget and answer.outputs[-1].reasoning_tokens <= budget


@LOOKAHEADS
def test_a_thinking_budget_forces_the_closing_marker_and_says_so(lookahead: int) -> None:
    bench = make_bench(lookahead)
    sampling = SamplingParameters(ignore_eos=True, thinking_budget=4, logprobs=0)
    bench.submit("0-a", PROMPT, 20, sampling=sampling, reasoning_span=SPAN)
    bench.run()
    answer = bench.answer("0-a")
    assert answer.ids[4:6] == [51, 52] and len(answer.ids) == 20
    assert answer.outputs[-1].reasoning_tokens == 4
    assert [adjustment.field for adjustment in answer.outputs[-1].adjustments] == ["thinking_token_budget"]
    assert all(output.logprobs for output in answer.outputs)


@LOOKAHEADS
def test_a_grammar_is_replayed_on_resume_at_every_position(lookahead: int) -> None:
    span = ReasoningSpan((50,), (51,), prompt_opened=True)
    sampling = constrained(thinking_budget=2)
    whole = expected_constrained(PROMPT, 7, 20, STEPS, span, 2)
    for cut in range(len(whole)):
        bench = make_bench(lookahead)
        bench.submit("0-a", PROMPT, 20, sampling=sampling, reasoning_span=span, output=whole[:cut])
        bench.run()
        assert whole[:cut] + bench.answer("0-a", attempt=1).ids == whole


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        ({"ignore_eos": True}, ["ignore_eos"]),
        ({"min_tokens": 6}, ["min_tokens"]),
        ({"min_tokens": 5}, []),  # the end is the sixth
        ({"allowed_token_ids": (1, 2, 3, 4, 6, 7, 8, 9, EOS)}, ["allowed_token_ids"]),  # 5 is the only way on
        ({"logit_bias": {5: -100.0}}, ["logit_bias"]),
        ({"logit_bias": {5: -99.0}}, []),  # it weighs, and may be outweighed
        ({"logit_bias": {11: -100.0}}, []),  # the grammar would not have drawn it
        ({"logit_bias": {5: 100.0}}, ["logit_bias"]),  # others were drawn as well
        ({"banned_sequences": ((40, 30), (4, 5))}, ["bad_words"]),
        ({"banned_sequences": ((5, 4),)}, []),
    ],
)
def test_what_yields_to_the_grammar_is_told(fields: dict[str, Any], told: list[str]) -> None:
    bench = make_bench()
    bench.submit("0-a", PROMPT, 20, sampling=constrained(**fields))
    bench.run()
    answer = bench.answer("0-a")
    assert answer.ids[-1] == EOS
    assert [adjustment.field for adjustment in answer.outputs[-1].adjustments] == told


def test_a_grammar_that_does_not_compile_is_a_refusal_before_admission() -> None:
    bench = make_bench()
    bench.submit("0-a", PROMPT, sampling=SamplingParameters(grammar=GrammarSpec("regex", "bad")))
    bench.run()
    assert bench.refused["0-a"].error.status == 400 and not bench.admitted


def test_a_backend_that_does_not_start_fails_its_requests_and_is_tried_again() -> None:
    bench = make_bench()
    bench.grammar_start_error = ImportError("no xgrammar here")
    bench.submit("0-a", PROMPT, sampling=GRAMMAR)
    bench.submit("0-free", PROMPT)
    bench.run()
    assert "no xgrammar here" in bench.refused["0-a"].error.message and bench.answer("0-free").finish
    bench.grammar_start_error = None
    bench.submit("0-b", PROMPT, sampling=GRAMMAR)
    bench.run()
    assert bench.answer("0-b").ids[-1] == EOS


def test_an_abort_while_compiling_cancels_and_refuses() -> None:
    bench = make_bench()
    bench.grammar.hold = True
    bench.submit("0-a", PROMPT, sampling=GRAMMAR)
    bench.turn()
    bench.abort("0-a")
    assert bench.grammar.cancelled == [1] and bench.refused["0-a"].error.code == "aborted"
    bench.grammar.hold = False
    bench.run()
    assert not bench.admitted


def test_an_output_that_the_grammar_cannot_have_written_is_refused() -> None:
    bench = make_bench()
    bench.submit("0-a", PROMPT, sampling=GRAMMAR, output=[9, 9])
    bench.run()
    assert bench.refused["0-a"].error.status == 500


@pytest.mark.parametrize(
    ("ids", "inside", "tokens"),
    [
        ([], True, 0),
        ([1, 2], True, 2),
        ([1, 51], True, 2),
        ([1, 51, 52], False, 1),
        ([51, 51, 52, 9], False, 1),
        ([1, 51, 52, 50, 3], True, 2),
        ([52, 51], True, 2),
    ],
)
def test_reasoning_is_followed(ids: list[int], inside: bool, tokens: int) -> None:
    tracker = ReasoningTracker(SPAN)
    for token in ids:
        tracker.feed(token)
    assert (tracker.inside, tracker.tokens) == (inside, tokens)


def test_a_half_written_marker_is_completed() -> None:
    tracker = ReasoningTracker(SPAN)
    assert tracker.remaining_close() == [51, 52]
    tracker.feed(51)
    assert tracker.remaining_close() == [52]


def test_no_token_closes_the_reasoning_and_goes_on() -> None:
    """A grammar would not have seen what stands behind the marker in the same token."""
    texts = {0: "a", 1: "</", 2: "think", 3: ">", 4: ">\n\n", 5: "</think>", 6: "</think>{", 7: ">x"}
    ends = MarkerEnds(Vocabulary(texts, {}, "plain", strips_leading_space=False))
    span = ReasoningSpan((9,), (5,), prompt_opened=True, open_texts=("<think>",), close_texts=("</think>",))
    tracker = ReasoningTracker(span, ends)
    tracker.feed(0)
    assert tracker.overshooting() == (6,)
    tracker.feed(1)
    tracker.feed(2)
    assert sorted(tracker.overshooting()) == [4, 6, 7]
    tracker.feed(4)
    assert (tracker.inside, tracker.tokens, tracker.overshooting()) == (False, 1, ())


def test_a_tool_call_can_not_begin_in_reasoning_that_a_grammar_waits_for() -> None:
    ends = MarkerEnds(
        Vocabulary({0: "<tool", 1: "_call>", 2: "<tool_call>", 3: "a"}, {}, "plain", strips_leading_space=False)
    )
    texts = {"open_texts": ("<think>",), "close_texts": ("</think>",), "tool_texts": ("<tool_call>",)}
    tracker = ReasoningTracker(ReasoningSpan((9,), (5,), True, **texts), ends)
    assert tracker.overshooting() == (2,)
    tracker.feed(0)
    assert sorted(tracker.overshooting()) == [1, 2]
