"""The order of the stages, and what a step leaves behind in its slots."""

import numpy
import pytest
import torch

from model_runner.sampling.pipeline import NO_TOKEN_LEFT, NOT_FINITE, DrawBatch, DrawMasks, Drawn, SamplingPipeline
from protocol.ids import pack_ids
from protocol.outputs import IdLogprobs
from protocol.plan import NOTHING_DRAWN, ForcedTokens, RowStart
from protocol.sampling import SamplingParameters

VOCAB = 40
GREEDY = SamplingParameters(temperature=0.0)
NONE = 0


def make(*starts: RowStart) -> SamplingPipeline:
    pipeline = SamplingPipeline(8, VOCAB, torch.device("cpu"))
    for start in starts:
        pipeline.start(start)
    return pipeline


def row(
    slot: int, sampling: SamplingParameters, prompt: list[int] | None = None, outputs: list[int] | None = None
) -> RowStart:
    return RowStart(slot, sampling, 0, pack_ids(prompt or [1]), pack_ids(outputs or []), end_ids=(39,))


def batch(*slots: int, position: int = 5) -> DrawBatch:
    return DrawBatch(numpy.array(slots, dtype=numpy.int64), numpy.full(len(slots), position))


def masks(draw: int, first_word: int) -> DrawMasks:
    return DrawMasks(numpy.array([draw]), numpy.array([[first_word, 0]], dtype=numpy.int32))


def logits_of(rows: int) -> torch.Tensor:
    return torch.randn(rows, VOCAB, generator=torch.Generator().manual_seed(3))


def test_each_stage_sees_what_the_one_before_left() -> None:
    sampling = SamplingParameters(
        temperature=0.0,
        logprobs=1,
        repetition_penalty=2.0,
        frequency_penalty=0.5,
        logit_bias={4: 3.0, 5: 1.0, 6: 100.0, 7: 100.0},
        banned_sequences=((6,),),
    )
    pipeline = make(row(2, GREEDY), row(3, sampling, [4], [5, 5]))
    logits = logits_of(2)
    raw = logits.clone()
    drawn = pipeline.draw(logits, batch(2, 3), masks(1, 0b0111_0000))
    assert torch.equal(logits[0], raw[0])

    def penalised(value: float) -> float:
        return value / 2 if value > 0 else value * 2

    assert float(logits[1, 4]) == pytest.approx(penalised(float(raw[1, 4])) + 3.0)
    assert float(logits[1, 5]) == pytest.approx(penalised(float(raw[1, 5])) - 2 * 0.5 + 1.0)
    assert logits[1, 6] == -torch.inf and logits[1, 7] == -torch.inf and logits[1, 0] == -torch.inf
    assert drawn.ids.tolist()[0] == int(raw[0].argmax())
    assert drawn.ids.tolist()[1] == 4
    assert entry_of(drawn).logprob == pytest.approx(float(raw[1].log_softmax(0)[4]), abs=1e-5)


def entry_of(drawn: Drawn) -> IdLogprobs:
    assert drawn.answer is not None
    return drawn.answer.entries(drawn.answer.to_host())[0]


def test_what_could_not_be_drawn_is_marked_and_leaves_no_history() -> None:
    penalised = SamplingParameters(temperature=0.0, frequency_penalty=1.0)
    confined = SamplingParameters(temperature=0.0, allowed_token_ids=(7,), banned_sequences=((7,),))
    pipeline = make(row(0, penalised), row(1, penalised), row(2, confined), row(3, GREEDY))
    logits = logits_of(4)
    logits[1, 3] = torch.nan
    drawn = pipeline.draw(logits, batch(0, 1, 2, 3), masks(0, NONE)).ids
    assert pipeline.last_ids[:4].tolist() == [0] * 4, "nothing is learnt by drawing: it may have to be done again"
    pipeline.learn(batch(0, 1, 2, 3), drawn)
    ids = drawn.tolist()
    assert ids[:3] == [NOTHING_DRAWN, NOT_FINITE, NO_TOKEN_LEFT]
    assert ids[3] >= 0
    assert pipeline.last_ids[:4].tolist() == [0, 0, 0, ids[3]]
    again = torch.ones(1, VOCAB)
    pipeline.draw(again, batch(0), None)
    assert torch.equal(again, torch.ones(1, VOCAB))


@pytest.mark.parametrize(
    "constraint",
    [
        SamplingParameters(temperature=0.0, min_tokens=9),
        SamplingParameters(temperature=0.0, allowed_token_ids=(7,)),
        SamplingParameters(temperature=0.0, banned_sequences=((39,), (1, 39))),
    ],
)
def test_a_ban_gives_way_where_it_would_leave_nothing_of_the_grammar(constraint: SamplingParameters) -> None:
    """Only the end (39) is legal; where the grammar allows more, the ban holds."""
    pipeline = make(row(0, GREEDY), row(1, constraint))
    only_the_end = DrawMasks(numpy.array([1]), numpy.array([[0, 1 << 7]], dtype=numpy.int32))
    assert pipeline.draw(logits_of(2), batch(0, 1), only_the_end).ids.tolist()[1] == 39
    or_seven = DrawMasks(numpy.array([1]), numpy.array([[1 << 7, 1 << 7]], dtype=numpy.int32))
    assert pipeline.draw(logits_of(2), batch(0, 1), or_seven).ids.tolist()[1] == 7


def test_positive_infinity_is_a_failure_and_negative_is_not() -> None:
    pipeline = make(row(0, SamplingParameters()), row(1, SamplingParameters(top_k=3)))
    logits = logits_of(2)
    logits[0, 3] = torch.inf
    logits[1, 3:] = -torch.inf
    ids = pipeline.draw(logits, batch(0, 1), None).ids.tolist()
    assert ids[0] == NOT_FINITE
    assert 0 <= ids[1] < 3


def test_min_tokens_holds_back_the_end_whatever_its_bias() -> None:
    sampling = SamplingParameters(temperature=0.0, min_tokens=3, logit_bias={39: 100.0})
    pipeline = make(row(0, sampling, [1, 2]))
    early = pipeline.draw(logits_of(1), batch(0, position=4), None).ids.tolist()
    late = pipeline.draw(logits_of(1), batch(0, position=5), None).ids.tolist()
    assert early != [39]
    assert late == [39]


def test_drawn_and_forced_ids_count_alike() -> None:
    sampling = SamplingParameters(temperature=0.0, frequency_penalty=1.0, logit_bias={8: 50.0})
    drawing, forced = make(row(0, sampling)), make(row(0, sampling))
    drawing.learn(batch(0), drawing.draw(torch.zeros(1, VOCAB), batch(0), None).ids)
    forced.force(ForcedTokens(0, pack_ids([8])))
    after = [torch.zeros(1, VOCAB), torch.zeros(1, VOCAB)]
    drawing.draw(after[0], batch(0), None)
    forced.draw(after[1], batch(0), None)
    assert float(after[0][0, 8]) == 49.0
    assert torch.equal(after[0], after[1])


def test_a_slot_forgets_its_last_owner() -> None:
    everything = SamplingParameters(
        logprobs=3, frequency_penalty=1.0, logit_bias={1: 9.0}, banned_sequences=((2,),), repetition_penalty=1.5
    )
    pipeline = make(row(0, everything, [3], [4]))
    pipeline.start(row(0, GREEDY))
    logits = logits_of(1)
    raw = logits.clone()
    drawn = pipeline.draw(logits, batch(0), None)
    assert torch.equal(logits, raw)
    assert drawn.answer is None
    assert pipeline.bias_bytes == 0
    assert pipeline.penalty_bytes == 0


def test_a_row_learns_the_draws_that_its_guess_foretold_and_one_more() -> None:
    """Against the same said one draw after the other."""
    chooser = numpy.random.default_rng(5)
    pipeline, expected = make(), torch.zeros(8, dtype=torch.int64)
    for _ in range(50):
        counts = chooser.integers(1, 4, size=5)
        slots = numpy.repeat(chooser.permutation(8)[:5], counts)
        ids, fed = chooser.integers(-3, 4, size=len(slots)), chooser.integers(0, 4, size=len(slots))
        fed[numpy.cumsum(counts) - 1] = -1
        for slot in set(slots.tolist()):
            for draw in numpy.flatnonzero(slots == slot).tolist():
                if ids[draw] >= 0:
                    expected[slot] = int(ids[draw])
                if ids[draw] != fed[draw]:
                    break
        pipeline.learn(DrawBatch(slots, numpy.arange(len(slots)), fed), torch.from_numpy(ids))
        assert torch.equal(pipeline.last_ids, expected)


def test_greedy_rows_need_one_look_unless_something_changes_their_logits(monkeypatch: pytest.MonkeyPatch) -> None:
    logits = logits_of(2)
    largest = logits.argmax(dim=1).tolist()
    banned = SamplingParameters(temperature=0.0, logit_bias={largest[1]: -100.0})
    assert make(row(0, GREEDY), row(1, banned)).draw(logits.clone(), batch(0, 1), None).ids.tolist()[1] != largest[1]
    monkeypatch.setattr("model_runner.sampling.pipeline.draw", None)
    logits[1, 3] = torch.nan
    drawn = make(row(0, GREEDY), row(1, GREEDY), row(2, banned)).draw(logits, batch(0, 1), None)
    assert drawn.ids.tolist() == [largest[0], NOT_FINITE]
