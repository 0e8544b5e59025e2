"""The runner against the dense oracle, plan by plan."""

from typing import Any

import numpy
import pytest
import torch

from protocol.ids import pack_ids, unpack_ids
from protocol.plan import NOTHING_DRAWN, BatchPlan, PageDelta, RowStart
from protocol.sampling import SamplingParameters

GREEDY = SamplingParameters(temperature=0.0)
RANDOM = SamplingParameters(temperature=1.0)


def words(vocab_size: int, allowed: list[int]) -> bytes:
    bits = numpy.zeros(-(-vocab_size // 32) * 32, dtype=numpy.uint8)
    bits[allowed] = 1
    return numpy.packbits(bits, bitorder="little").tobytes()


def prompts(count: int) -> list[list[int]]:
    generator = numpy.random.default_rng(3)
    return [generator.integers(0, 97, size=int(size)).tolist() for size in generator.integers(1, 40, size=count)]


@pytest.mark.parametrize("chunk", [1000, 5, 1])
@pytest.mark.parametrize("device_ids", [False, True])
def test_greedy_equals_the_dense_model(driver: Any, tiny_model: Any, chunk: int, device_ids: bool) -> None:
    given = prompts(6)
    for slot, prompt in enumerate(given):
        driver.add(slot * 3, prompt, GREEDY)
    driver.run(8 + max(map(len, given)) // chunk, chunk=chunk, device_ids=device_ids)
    for slot, prompt in enumerate(given):
        outputs = driver.rows[slot * 3].outputs
        assert len(outputs) >= 8
        assert outputs == tiny_model.greedy(prompt, len(outputs))


def test_rows_join_and_leave(driver: Any, tiny_model: Any) -> None:
    first, second, third = prompts(3)
    driver.add(0, first, GREEDY)
    driver.run(3)
    driver.add(1, second, GREEDY)
    driver.run(3)
    driver.release(0)
    driver.add(0, third, GREEDY)
    outputs = driver.run(4)
    assert outputs == {0: tiny_model.greedy(third, 4), 1: tiny_model.greedy(second, 7)}


def test_seeded_draws_are_the_same_alone_and_in_a_batch(driver: Any, drive: Any) -> None:
    samplings = [
        RANDOM,
        SamplingParameters(temperature=0.7, top_p=0.9),
        SamplingParameters(temperature=1.3, top_k=7),
        SamplingParameters(min_p=0.05, frequency_penalty=0.5),
    ]
    given = prompts(16)
    for slot, prompt in enumerate(given):
        driver.add(slot, prompt, samplings[slot % 4], seed=100 + slot)
    together = driver.run(12)
    for slot in (15, 4, 9, 2):
        alone = drive(driver.runner)
        alone.steps = 1000
        alone.add(slot, given[slot], samplings[slot % 4], seed=100 + slot)
        alone.run(12 + len(given[slot]) // 3, chunk=3)
        assert alone.rows[slot].outputs[:12] == together[slot]


def test_a_resumed_sequence_continues_as_it_would_have(driver: Any) -> None:
    prompt = prompts(1)[0]
    sampling = SamplingParameters(frequency_penalty=0.8, repetition_penalty=1.3, banned_sequences=((3, 4), (5,)))
    driver.add(0, prompt, sampling, seed=5)
    whole = driver.run(12)[0]
    driver.release(0)
    driver.add(2, prompt, sampling, seed=5, outputs=whole[:5])
    driver.run(7)
    assert driver.rows[2].outputs == whole


def test_forced_tokens_are_history(driver: Any) -> None:
    driver.add(0, [1, 2, 3], SamplingParameters(temperature=0.0, presence_penalty=2.0))
    driver.step()
    driver.force(0, [7, 8, 9])
    driver.run(5)
    outputs = list(driver.rows[0].outputs)
    driver.add(1, [1, 2, 3], SamplingParameters(temperature=0.0, presence_penalty=2.0), outputs=outputs[:4])
    driver.run(5)
    assert driver.rows[1].outputs == outputs[:9]


def test_masks_confine_the_draw(driver: Any) -> None:
    driver.add(0, [5, 6], RANDOM)
    driver.add(1, [5, 6], RANDOM)
    for _ in range(10):
        driver.step(masks={1: words(97, [3, 40, 96])})
    assert set(driver.rows[1].outputs) <= {3, 40, 96}
    assert not set(driver.rows[0].outputs) <= {3, 40, 96}


def test_an_empty_mask_draws_nothing_and_is_planned_again(driver: Any, tiny_model: Any) -> None:
    driver.add(0, [5, 6], GREEDY)
    driver.add(1, [5, 6], GREEDY)
    result = driver.step(masks={0: words(97, [])})
    assert unpack_ids(result.ids)[0] == NOTHING_DRAWN
    assert result.failures == []
    driver.run(4)
    assert driver.rows[0].outputs == tiny_model.greedy([5, 6], 4)
    assert driver.rows[1].outputs == tiny_model.greedy([5, 6], 5)


def test_contradicting_constraints_fail_their_row_alone(driver: Any) -> None:
    driver.add(0, [5, 6], SamplingParameters(temperature=0.0, allowed_token_ids=(1, 2), banned_sequences=((1,), (2,))))
    driver.add(1, [5, 6], GREEDY)
    result = driver.step()
    assert [failure.row for failure in result.failures] == [0]
    assert "no token" in result.failures[0].message
    assert unpack_ids(result.ids)[1] >= 0


def test_a_row_that_turns_nan_fails_alone_and_spoils_no_later_owner_of_its_pages(driver: Any, tiny_model: Any) -> None:
    tiny_model.embedding[50] = torch.nan
    driver.add(0, [5, 50, 6], GREEDY)
    driver.add(1, [5, 6, 7, 8, 9], GREEDY)
    result = driver.step()
    assert [failure.row for failure in result.failures] == [0]
    assert "NaN" in result.failures[0].message
    assert driver.rows[1].outputs == tiny_model.greedy([5, 6, 7, 8, 9], 1)
    driver.free_pages = driver.pages[0]
    driver.pages[0] = []
    driver.release(0)
    driver.add(2, [5], GREEDY)
    driver.step()
    assert driver.rows[2].outputs == tiny_model.greedy([5], 1)


def test_out_of_memory_splits_the_step(driver: Any, tiny_model: Any) -> None:
    given = [[1, 2, 3], [4, 5, 6, 7], [8, 9], [10]]
    tiny_model.most_tokens = 5
    for slot, prompt in enumerate(given):
        driver.add(slot, prompt, GREEDY)
    outputs = driver.run(3)
    assert outputs == {slot: tiny_model.greedy(prompt, 3) for slot, prompt in enumerate(given)}
    assert tiny_model.forwards[0] == 10


def test_a_row_that_alone_does_not_fit_fails_alone(driver: Any, tiny_model: Any) -> None:
    tiny_model.most_tokens = 5
    driver.add(0, [1, 2, 3], GREEDY)
    driver.add(1, list(range(8)), GREEDY)
    result = driver.step()
    assert [failure.row for failure in result.failures] == [1]
    assert unpack_ids(result.ids) == [*tiny_model.greedy([1, 2, 3], 1), NOTHING_DRAWN]


def test_a_step_in_which_every_row_fails(driver: Any, tiny_model: Any) -> None:
    tiny_model.most_tokens = 1
    driver.add(0, [1, 2, 3], GREEDY)
    driver.add(1, [4, 5], SamplingParameters(logprobs=2, prompt_logprobs=1))
    result = driver.step()
    assert [failure.row for failure in result.failures] == [0, 1]
    assert all("out of memory" in failure.message for failure in result.failures)
    assert unpack_ids(result.ids) == [NOTHING_DRAWN] * 2
    assert result.prompt_logprobs == [[]]


def test_out_of_memory_in_the_draw_splits_it_and_changes_nothing(driver: Any, tiny_model: Any) -> None:
    """Penalties, logprobs and masks of either part, several steps: what was learnt twice or not at all would show."""
    samplings = (
        GREEDY,
        SamplingParameters(temperature=0.9, logprobs=2, frequency_penalty=1.0),
        SamplingParameters(temperature=0.7, repetition_penalty=1.5),
        SamplingParameters(temperature=0.9, logprobs=5),
    )
    few = numpy.zeros(-(-tiny_model.vocab_size // 32), dtype="<i4")
    few[0] = 0b1100
    found, logprobs = [], list[list[float]]()
    for most_draws in (10**9, 2, 1):
        tiny_model.most_draws = most_draws
        for slot, sampling in enumerate(samplings):
            driver.add(slot, [slot + 1, 2, 3], sampling, seed=slot)
        results = [driver.step(masks={3: few.tobytes()}) for _ in range(4)]
        entries = [entry for result in results for entry in result.logprobs or ()]
        asked = [(entry.id, entry.rank, entry.top_ids) if entry else None for entry in entries]
        found.append(([(result.ids, result.failures) for result in results], asked))
        logprobs.append([entry.logprob for entry in entries if entry])
        for slot in range(len(samplings)):
            driver.release(slot)
    assert found[0] == found[1] == found[2]
    assert all(pytest.approx(logprobs[0], abs=1e-4) == others for others in logprobs[1:])


def test_draws_of_a_row_that_alone_do_not_fit_fail_alone(driver: Any, tiny_model: Any) -> None:
    def logits(hidden: torch.Tensor) -> torch.Tensor:
        if any(torch.equal(row, heavy) for row in hidden):
            raise torch.OutOfMemoryError("pretended")
        seen.append(hidden)
        found: torch.Tensor = plain(hidden)
        return found

    plain, seen, heavy = tiny_model.logits, list[torch.Tensor](), torch.zeros(1)
    tiny_model.logits = logits
    for slot in range(3):
        driver.add(slot, [slot + 1, 2, 3], GREEDY)
    driver.step()
    for slot in range(3):
        driver.release(slot)
    heavy = seen[0][1]
    for slot in range(3):
        driver.add(slot, [slot + 1, 2, 3], GREEDY)
    result = driver.step()
    assert [(failure.row, failure.message[:13]) for failure in result.failures] == [(1, "out of memory")]
    ids = unpack_ids(result.ids)
    assert ids[1] == NOTHING_DRAWN
    assert [ids[0], ids[2]] == [tiny_model.greedy([slot, 2, 3], 1)[0] for slot in (1, 3)]


def test_an_error_that_is_not_memory_is_not_swallowed(driver: Any, tiny_model: Any) -> None:
    def broken(inputs: Any, attention: Any) -> torch.Tensor:
        raise RuntimeError("a bug")

    tiny_model.forward = broken
    driver.add(0, [1], GREEDY)
    with pytest.raises(RuntimeError, match="a bug"):
        driver.step()


def test_logprobs_are_the_models_own(driver: Any, tiny_model: Any) -> None:
    sampling = SamplingParameters(
        temperature=0.5, logprobs=4, logprob_token_ids=(11, 2), logit_bias={3: 50.0}, frequency_penalty=1.0
    )
    driver.add(0, [5, 6, 7], GREEDY)
    driver.add(1, [5, 6, 7], sampling)
    result = driver.step()
    assert result.logprobs is not None
    nothing, entry = result.logprobs
    assert nothing is None and entry is not None
    expected = tiny_model.dense_logits([5, 6, 7])[-1].log_softmax(-1)
    assert entry.id == 3
    assert entry.logprob == pytest.approx(float(expected[3]), abs=1e-4)
    assert entry.rank == int((expected > expected[3]).sum()) + 1
    top = expected.topk(4)
    assert unpack_ids(entry.top_ids) == [*top.indices.tolist(), 11, 2]
    logprobs = numpy.frombuffer(entry.top_logprobs, "<f4")
    numpy.testing.assert_allclose(logprobs, [*top.values.tolist(), *expected[[11, 2]].tolist()], atol=1e-4)


def test_the_whole_vocabulary_of_logprobs(driver: Any) -> None:
    driver.add(0, [5, 6, 7], SamplingParameters(logprobs=-1))
    entry = (driver.step().logprobs or [])[0]
    assert entry is not None
    assert sorted(unpack_ids(entry.top_ids)) == list(range(97))
    assert float(numpy.exp(numpy.frombuffer(entry.top_logprobs, "<f4")).sum()) == pytest.approx(1.0, abs=1e-4)


@pytest.mark.parametrize("chunk", [100, 4, 1])
def test_prompt_logprobs_come_with_their_chunks(
    driver: Any, tiny_model: Any, chunk: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("model_runner.prompt_logprobs.SLICE_ELEMENTS", 3 * 97)
    prompt = prompts(4)[1]
    driver.add(0, [1, 2], GREEDY)
    driver.add(1, prompt, SamplingParameters(temperature=0.0, prompt_logprobs=2))
    entries = []
    while not driver.rows[1].outputs:
        for row in driver.step(chunk=chunk).prompt_logprobs:
            entries += row
    expected = tiny_model.dense_logits(prompt).log_softmax(-1)
    assert [entry.id for entry in entries] == prompt[1:]
    for position, entry in enumerate(entries):
        assert entry.logprob == pytest.approx(float(expected[position, prompt[position + 1]]), abs=1e-4)
        assert unpack_ids(entry.top_ids) == expected[position].topk(2).indices.tolist()


@pytest.mark.parametrize(
    "sampling",
    [
        GREEDY,
        RANDOM,
        SamplingParameters(temperature=0.7, logit_bias={42: 3.0, 7: -100.0}, min_p=0.02),
        SamplingParameters(temperature=1.5, top_k=9, top_p=0.8, allowed_token_ids=tuple(range(40, 90))),
        SamplingParameters(temperature=1.0, min_tokens=3),
    ],
)
def test_several_draws_of_a_row_are_those_of_single_steps(
    driver: Any, tiny_model: Any, sampling: SamplingParameters
) -> None:
    prompt, ends = [5, 6, 7], tuple(range(60))
    driver.add(0, prompt, sampling, seed=9, end_ids=ends)
    single = driver.run(4)[0]
    driver.release(0)
    fed = [*prompt, *single[:2], (single[2] + 1) % 97]
    plan = BatchPlan(
        step=50,
        slots=pack_ids([1]),
        new_tokens=pack_ids([len(fed)]),
        context=pack_ids([0]),
        draws=pack_ids([4]),
        ids=pack_ids(fed),
        starts=[RowStart(1, sampling, 9, pack_ids(prompt), end_ids=ends)],
        page_deltas=[PageDelta(1, 0, pack_ids([3, 1]))],
    )
    driver.runner.launch(plan)
    driver.runner.sample(None)
    assert unpack_ids(driver.runner.collect().ids)[:3] == single[:3]
    assert int(driver.runner._sampling.last_ids[1]) == single[2]


def test_bias_bytes_exist_only_while_a_row_carries_a_bias(driver: Any) -> None:
    driver.add(0, [1], GREEDY)
    driver.add(1, [1], SamplingParameters(temperature=0.0, logit_bias={42: 100.0}))
    driver.step()
    assert driver.runner.statistics()["logit_bias_bytes"] == 97 * 4
    assert driver.rows[1].outputs == [42]
    driver.release(1)
    driver.step()
    assert driver.runner.statistics()["logit_bias_bytes"] == 0


def test_a_plan_without_rows(driver: Any) -> None:
    driver.runner.launch(BatchPlan(1, b"", b"", b"", b"", b"", released=[0]))
    driver.runner.sample(None)
    result = driver.runner.collect()
    assert (result.step, result.ids, result.logprobs, result.failures) == (1, b"", None, [])


def test_steps_are_collected_in_order_with_lookahead(driver: Any, tiny_model: Any) -> None:
    driver.add(0, [4, 5, 6], GREEDY)
    first = driver.plan()
    driver.runner.launch(first)
    driver.runner.sample(None)
    second = BatchPlan(
        step=99,
        slots=pack_ids([0]),
        new_tokens=pack_ids([1]),
        context=pack_ids([3]),
        draws=pack_ids([1]),
        ids=pack_ids([-1]),
    )
    driver.runner.launch(second)
    driver.runner.sample(None)
    ids = unpack_ids(driver.runner.collect().ids) + unpack_ids(driver.runner.collect().ids)
    assert ids == tiny_model.greedy([4, 5, 6], 2)
