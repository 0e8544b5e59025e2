"""Decode steps through graphs give what they give without: padding, fixed tensors and plans, over stand-ins on CPU."""

from collections.abc import Callable
from typing import Any

import pytest
import torch

from model_runner.attention.flashinfer_backend import FlashInferAttention
from model_runner.decode_graphs import DecodeGraphs, dummy_step
from model_runner.runner import ModelRunner
from protocol.sampling import SamplingParameters
from tests.model_runner.attention import flashinfer_standin
from tests.model_runner.conftest import Driver, TinyModel, make_config

CPU = torch.device("cpu")
GREEDY = SamplingParameters(temperature=0.0)
PROMPTS = [[5, 6, 7], [90, 3], [11, 12, 13, 14, 15, 16, 17, 18, 19], [1]]


class Recorded:
    """What a captured graph does: the same work on the same tensors, into the same output."""

    def __init__(self, work: Callable[[], torch.Tensor]) -> None:
        self._work = work
        self._output = work().clone()
        self.replays = 0

    def replay(self) -> torch.Tensor:
        self.replays += 1
        return self._output.copy_(self._work())


class Half(TinyModel):
    """In bfloat16, as flashinfer wants its heads."""

    def __init__(self) -> None:
        super().__init__()
        self.dtype = torch.bfloat16
        self.captures = 0

    def forward(self, inputs: Any, attention: Any) -> torch.Tensor:
        return super().forward(inputs, Narrowed(attention))  # type: ignore[arg-type]


class Narrowed:
    """Attention in bfloat16 under a model in float32."""

    def __init__(self, attention: Any) -> None:
        self._attention = attention

    def attend(self, layer: int, query: Any, key: Any, value: Any, spec: Any) -> torch.Tensor:
        attended: torch.Tensor = self._attention.attend(layer, query.bfloat16(), key.bfloat16(), value.bfloat16(), spec)
        return attended.float()


def make_runner() -> tuple[ModelRunner, Half, FlashInferAttention]:
    model = Half()
    attention = FlashInferAttention(CPU, torch.bfloat16, library=flashinfer_standin)
    return ModelRunner(make_config(max_running_requests=6), model=model, attention=attention), model, attention


def with_graphs() -> tuple[ModelRunner, list[Recorded]]:
    runner, model, attention = make_runner()
    attention.prepare(dummy_step(1, 4, CPU))
    model.forward(dummy_step(1, 4, CPU), attention)
    captured: list[Recorded] = []

    def capture(work: Callable[[], torch.Tensor]) -> Recorded:
        captured.append(Recorded(work))
        return captured[-1]

    graphs = DecodeGraphs(model, attention, 7, capture)
    graphs.capture_all(page_size=4, longest_tokens=256)
    runner._forward._graphs = graphs
    return runner, captured


def outputs(runner: ModelRunner, device_ids: bool) -> dict[int, list[int]]:
    driver = Driver(runner)
    for slot, prompt in enumerate(PROMPTS):
        driver.add(slot, prompt, GREEDY)
    driver.run(6, device_ids=device_ids)
    driver.release(1)
    driver.run(3, device_ids=device_ids)
    driver.add(1, [44, 45], GREEDY)
    return driver.run(8, device_ids=device_ids)


@pytest.mark.parametrize("device_ids", [False, True])
def test_replayed_steps_draw_what_launched_steps_draw(device_ids: bool) -> None:
    runner, captured = with_graphs()
    assert outputs(runner, device_ids) == outputs(make_runner()[0], device_ids)
    # Buckets of 1, 2, 4 and 7 rows, largest first; each is replayed once at its capture.
    assert len(captured) == 4
    replays = [recorded.replays - 1 for recorded in captured]
    assert replays == [0, 5 + 3 + 7, 0, 0]


def test_prompts_and_crowds_run_without_a_graph() -> None:
    runner, captured = with_graphs()
    graphs = runner._forward._graphs
    assert graphs is not None
    with torch.inference_mode():
        assert graphs.forward(dummy_step(2, 4, CPU, tokens_per_row=3)) is None
        assert graphs.forward(dummy_step(8, 4, CPU)) is None
        assert graphs.forward(dummy_step(3, 4, CPU)) is not None
    assert [recorded.replays for recorded in captured] == [1, 2, 1, 1]
