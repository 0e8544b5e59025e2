"""Two and four ranks in processes of their own answer as one does, and a lost rank ends a step instead of hanging it."""

import resource
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import numpy
import pytest

from model_runner.parallel.group import LostRankError
from model_runner.runner import ModelRunner
from protocol.control import Failed
from protocol.ids import pack_ids
from protocol.outputs import IdLogprobs
from protocol.plan import BatchPlan, StepResult
from protocol.sampling import SamplingParameters
from runtime.engine_config import EngineConfig
from tests.gpu.test_steps import ahead, started
from tests.integration_parallel.conftest import Replica
from tests.model_runner.conftest import Driver

PROMPTS = [[1, 5, 9, 200], [7], list(range(20, 90)), [3, 3, 3, 8, 1]]
EVERYTHING = -1
GREEDY = SamplingParameters(temperature=0.0)
SPARE_BYTES = 1 << 20


@pytest.fixture(scope="module", params=[2, 4])
def ranks(
    request: pytest.FixtureRequest,
    tiny_config: Callable[..., EngineConfig],
    replica: Callable[[EngineConfig], Replica],
) -> Replica:
    return replica(tiny_config(tp_size=request.param))


@pytest.fixture(scope="module")
def one(tiny_config: Callable[..., EngineConfig]) -> ModelRunner:
    return ModelRunner(tiny_config())


def compare(
    ranks: Replica, one: ModelRunner, sampling: SamplingParameters, steps: int = 8, **options: Any
) -> tuple[list[StepResult], list[StepResult]]:
    """The results of the same requests on several ranks and on one."""
    found = []
    for executor in (ranks.executor, one):
        driver = Driver(executor)  # type: ignore[arg-type]
        for slot, prompt in enumerate(PROMPTS):
            driver.add(slot, prompt, sampling, seed=40 + slot)
        results = [driver.step(**options) for _ in range(steps)]
        found.append(results)
    return found[0], found[1]


def ids_of(results: list[StepResult]) -> list[bytes]:
    return [result.ids for result in results]


def spread(entry: IdLogprobs) -> "numpy.ndarray[Any, Any]":
    """Logprobs of the whole vocabulary, by id."""
    values = numpy.frombuffer(entry.top_logprobs, "<f4")
    by_id = numpy.empty_like(values)
    by_id[numpy.frombuffer(entry.top_ids, "<i4")] = values
    return by_id


def test_distributions_and_greedy_ids_are_those_of_one_rank(ranks: Replica, one: ModelRunner) -> None:
    several, single = compare(ranks, one, SamplingParameters(temperature=0.0, logprobs=EVERYTHING))
    assert ids_of(several) == ids_of(single)
    for ours, theirs in zip(several, single, strict=True):
        assert ours.logprobs is not None and theirs.logprobs is not None
        for mine, its in zip(ours.logprobs, theirs.logprobs, strict=True):
            assert mine is not None and its is not None and mine.id == its.id
            numpy.testing.assert_allclose(spread(mine), spread(its), rtol=0, atol=2e-5)


def test_ids_that_are_still_on_the_device_are_known_to_every_rank(ranks: Replica, one: ModelRunner) -> None:
    several, single = compare(ranks, one, GREEDY, device_ids=True)
    assert ids_of(several) == ids_of(single)


def test_chunked_prompts_and_their_logprobs(ranks: Replica, one: ModelRunner) -> None:
    sampling = SamplingParameters(temperature=0.0, prompt_logprobs=2, logprobs=2)
    several, single = compare(ranks, one, sampling, steps=16, chunk=7)
    assert ids_of(several) == ids_of(single)
    flat = [
        [entry for result in results for row in result.prompt_logprobs for entry in row]
        for results in (several, single)
    ]
    assert len(flat[0]) == sum(len(prompt) - 1 for prompt in PROMPTS)
    numpy.testing.assert_allclose(
        [entry.logprob for entry in flat[0]], [entry.logprob for entry in flat[1]], rtol=0, atol=2e-5
    )


@pytest.mark.parametrize(
    "sampling",
    [
        SamplingParameters(temperature=0.9, top_p=0.8, top_k=40),
        SamplingParameters(temperature=0.7, min_p=0.05, frequency_penalty=1.5, presence_penalty=0.5),
        SamplingParameters(temperature=0.0, repetition_penalty=1.6),
        SamplingParameters(temperature=0.0, logit_bias={17: 100.0, 5: -100.0}),
        SamplingParameters(temperature=0.8, allowed_token_ids=(4, 9, 30), banned_sequences=((4, 4),)),
    ],
    ids=["filters", "penalties", "repetition", "bias", "bans"],
)
def test_every_way_of_drawing_is_that_of_one_rank(
    ranks: Replica, one: ModelRunner, sampling: SamplingParameters
) -> None:
    several, single = compare(ranks, one, sampling)
    assert ids_of(several) == ids_of(single)


def test_grammar_masks_bind_under_ranks(ranks: Replica, one: ModelRunner) -> None:
    words = numpy.zeros(-(-one.capacity.vocab_size // 32), dtype="<i4")
    words[2] = 0b1010  # ids 65 and 67
    nothing = numpy.zeros_like(words)
    masks = {0: words.tobytes(), 2: nothing.tobytes()}
    several, single = compare(ranks, one, GREEDY, steps=3, masks=masks)
    assert ids_of(several) == ids_of(single)
    for result in several:
        ids = numpy.frombuffer(result.ids, "<i4")
        assert ids[0] in (65, 67) and ids[2] == -1


def test_every_rank_holds_its_share(ranks: Replica, one: ModelRunner) -> None:
    world = ranks.config.args.tp_size
    assert ranks.executor.capacity.weight_bytes < one.capacity.weight_bytes * (1 / world + 0.1)
    assert ranks.executor.capacity.pages == one.capacity.pages


def test_steps_that_overlap_draw_what_others_draw(
    tiny_config: Callable[..., EngineConfig], replica: Callable[[EngineConfig], Replica], one: ModelRunner
) -> None:
    ranks = replica(msgspec.structs.replace(tiny_config(tp_size=2), lookahead=1))
    several = ahead(ranks.executor, GREEDY, 10)  # type: ignore[arg-type]
    assert several == ahead(one, GREEDY, 10)
    assert several == started(one, GREEDY).run(10)


def test_a_lost_rank_ends_the_step(
    tiny_config: Callable[..., EngineConfig], replica: Callable[[EngineConfig], Replica]
) -> None:
    ranks = replica(tiny_config(tp_size=2))
    driver = Driver(ranks.executor)  # type: ignore[arg-type]
    driver.add(0, [1, 2, 3], GREEDY)
    driver.step()
    ranks.workers[0].kill()
    ranks.workers[0].wait()
    with pytest.raises(LostRankError, match="rank 0 of 2 lost the others"):
        for _ in range(3):
            driver.step()


def test_a_rank_that_cannot_go_on_ends_and_says_why(
    tiny_config: Callable[..., EngineConfig], replica: Callable[[EngineConfig], Replica]
) -> None:
    ranks = replica(tiny_config(tp_size=2))
    beyond = pack_ids([10**6])
    one = pack_ids([1])
    # Rank 1 alone gets a plan that names a row that no rank has.
    ranks.outbox.send("rank", 1, BatchPlan(0, slots=beyond, new_tokens=one, context=pack_ids([0]), draws=one, ids=one))
    driver = Driver(ranks.executor)  # type: ignore[arg-type]
    driver.add(0, [1, 2, 3], GREEDY)
    with pytest.raises(LostRankError):
        driver.step()
    assert ranks.workers[0].wait(30) == 1
    ranks.supervisor.socket.poll(5000)
    (failure,) = [message for message in ranks.supervisor.drain() if isinstance(message, Failed)]
    assert failure.message.startswith("rank 1 failed: IndexError")


def test_a_rank_without_memory_ends_the_step_for_all(
    tiny_config: Callable[..., EngineConfig], replica: Callable[[EngineConfig], Replica]
) -> None:
    ranks = replica(tiny_config(tp_size=2))
    worker = ranks.workers[0]
    driver = Driver(ranks.executor)  # type: ignore[arg-type]
    driver.add(0, [1, 2, 3], GREEDY)
    driver.step()
    mapped = int(Path(f"/proc/{worker.pid}/statm").read_text().split()[0]) * resource.getpagesize()
    # Room for what a process asks for besides, and none for a step's tensors.
    resource.prlimit(worker.pid, resource.RLIMIT_AS, (mapped + SPARE_BYTES, mapped + SPARE_BYTES))
    for slot in range(1, 9):
        driver.add(slot, [slot] * 240, GREEDY)
    with pytest.raises(LostRankError):
        driver.step()
    assert worker.wait(60) == 1
    ranks.supervisor.socket.poll(5000)
    (failure,) = [message for message in ranks.supervisor.drain() if isinstance(message, Failed)]
    assert "DefaultCPUAllocator" in failure.message or "MemoryError" in failure.message
