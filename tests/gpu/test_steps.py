"""Whole steps: backends against each other, graphs against launches, overlap against none, and nobody waits."""

from collections import deque
from collections.abc import Callable
from typing import Any

import numpy
import pytest

from model_runner.runner import ModelRunner
from protocol.ids import pack_ids, unpack_ids
from protocol.outputs import IdLogprobs
from protocol.plan import BatchPlan, StepResult
from protocol.sampling import SamplingParameters
from tests.gpu.conftest import Place
from tests.model_runner.conftest import Driver

PROMPTS = [[5, 6, 7], list(range(40, 140)), [9] * 33, [1]]
GREEDY = SamplingParameters(temperature=0.0)
SEEDED = SamplingParameters(temperature=0.8, top_p=0.9, frequency_penalty=0.3)
Make = Callable[..., ModelRunner]


def started(runner: ModelRunner, sampling: SamplingParameters) -> Driver:
    driver = Driver(runner)
    for slot, prompt in enumerate(PROMPTS):
        driver.add(slot, prompt, sampling, seed=slot)
    return driver


def spread(entry: IdLogprobs) -> "numpy.ndarray[Any, Any]":
    values = numpy.frombuffer(entry.top_logprobs, "<f4")
    by_id = numpy.empty_like(values)
    by_id[numpy.frombuffer(entry.top_ids, "<i4")] = values
    return by_id


@pytest.mark.parametrize("chunk", [1000, 24])
def test_backends_agree_on_distributions(make_runner: Make, chunk: int) -> None:
    """Both are fed what the first one draws, so that one differing draw does not end the comparison."""
    sampling = SamplingParameters(temperature=0.0, logprobs=-1)
    ours, oracle = (started(make_runner(backend), sampling) for backend in ("flashinfer", "torch"))
    for _ in range(12):
        found, wanted = ours.step(chunk=chunk), oracle.step(chunk=chunk)
        assert found.logprobs is not None and wanted.logprobs is not None
        for mine, its in zip(found.logprobs, wanted.logprobs, strict=True):
            if mine is not None and its is not None:
                numpy.testing.assert_allclose(spread(mine), spread(its), rtol=0, atol=0.15)
        for slot, row in oracle.rows.items():
            row.outputs[:] = ours.rows[slot].outputs


@pytest.mark.parametrize("sampling", [GREEDY, SEEDED], ids=["greedy", "seeded"])
@pytest.mark.parametrize("experts", [False, True], ids=["dense", "experts"])
def test_graphs_draw_what_launches_draw(make_runner: Make, sampling: SamplingParameters, experts: bool) -> None:
    with_graphs, without = (
        started(make_runner("flashinfer", graphs=graphs, experts=experts), sampling) for graphs in (True, False)
    )
    assert with_graphs.run(16, device_ids=True) == without.run(16, device_ids=True)


def ahead(runner: ModelRunner, sampling: SamplingParameters, steps: int) -> dict[int, list[int]]:
    """As a scheduler with lookahead 1 drives: a step is launched before the one before it is collected."""
    driver = started(runner, sampling)
    launched: deque[BatchPlan] = deque()
    outputs: dict[int, list[int]] = {slot: [] for slot in driver.rows}

    def collect() -> None:
        plan, result = launched.popleft(), runner.collect()
        for slot, token in zip(unpack_ids(plan.slots), unpack_ids(result.ids), strict=True):
            outputs[slot].append(token)

    for _ in range(steps):
        plan = driver.plan(device_ids=True)
        runner.launch(plan)
        runner.sample(None)
        launched.append(plan)
        # What it is told here is not what was drawn: the ids that count are on the device.
        driver.learn(plan, StepResult(plan.step, pack_ids([0] * len(driver.rows))))
        if len(launched) > 1:
            collect()
    while launched:
        collect()
    return outputs


@pytest.mark.parametrize("sampling", [GREEDY, SEEDED], ids=["greedy", "seeded"])
def test_overlap_draws_what_no_overlap_draws(make_runner: Make, sampling: SamplingParameters) -> None:
    assert ahead(make_runner("flashinfer"), sampling, 16) == started(make_runner("flashinfer"), sampling).run(16)


def test_no_step_waits_for_the_device(make_runner: Make, sync_errors: Any) -> None:
    runner = make_runner("flashinfer")
    driver = started(runner, SEEDED)
    driver.run(4, device_ids=True)  # kernels are compiled and chosen
    for _ in range(8):
        plan = driver.plan(device_ids=True)
        with sync_errors.strict():
            runner.launch(plan)
            runner.sample(None)
        driver.learn(plan, runner.collect())


def test_the_kernels_are_those_of_the_libraries(place: Place, make_runner: Make) -> None:
    kernels = make_runner("flashinfer").capacity.kernels
    assert kernels["attention"] == "flashinfer"
    if place.real:
        assert kernels["decode_steps"] == "graphs" and "torch" not in kernels.values(), kernels
