"""No step waits for the device: on tensors without values (torch's meta device) every wait is an error.

Reading a value back (`item`, `tolist`, `cpu`, a mask used as an index, `nonzero`) is what makes a GPU's queue run dry.
On the meta device there is nothing to read, so torch raises; shapes and kernels' arguments are checked as ever.
"""

from collections.abc import Callable
from typing import Any

import numpy
import pytest
import torch

from model_runner import runner as runner_module
from model_runner.attention.flashinfer_backend import FlashInferAttention
from model_runner.attention.interface import AttentionBackend
from model_runner.attention.torch_backend import TorchAttention
from model_runner.runner import ModelRunner
from model_runner.sampling import logprobs as logprobs_module
from protocol.ids import count_ids, pack_ids, unpack_ids
from protocol.plan import BatchPlan, GrammarMasks, StepResult
from protocol.sampling import SamplingParameters
from tests.model_runner.attention import flashinfer_standin
from tests.model_runner.conftest import Driver, TinyModel, make_config
from tests.model_runner.signatures.binding import bind

META = torch.device("meta")


class Shapes(flashinfer_standin.BatchDecodeWithPagedKVCacheWrapper):
    """The stand-in's checks, without the arithmetic."""

    def rows(self, starts: torch.Tensor, pages: torch.Tensor, last: torch.Tensor, page_size: int) -> None:
        assert starts.device.type == last.device.type == "cpu", "a plan must not wait for the device"
        assert int(starts[-1]) == len(pages)

    def run(self, *arguments: Any, **keywords: Any) -> torch.Tensor:
        query: torch.Tensor = bind(flashinfer_standin.SIGNATURES, f"{self.real}.run", self, *arguments, **keywords)["q"]
        return torch.empty_like(query)


class PrefillShapes(Shapes):
    real = "BatchPrefillWithPagedKVCacheWrapper"
    plan_name = "plan"

    def take(self, given: dict[str, Any]) -> None:
        self.rows(
            given["paged_kv_indptr"], given["paged_kv_indices"], given["paged_kv_last_page_len"], given["page_size"]
        )


class Library:
    BatchDecodeWithPagedKVCacheWrapper = Shapes
    BatchPrefillWithPagedKVCacheWrapper = PrefillShapes


class OnItsWay:
    """In place of a copy to the host, which is waited for when a step is collected, not before."""

    def __init__(self, *tensors: torch.Tensor) -> None:
        self.tensors = tensors


@pytest.fixture(params=["flashinfer", "torch"])
def driver(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Driver:
    monkeypatch.setattr(torch.Tensor, "pin_memory", lambda tensor: tensor)
    monkeypatch.setattr(runner_module, "HostCopy", OnItsWay)
    monkeypatch.setattr(logprobs_module, "HostCopy", OnItsWay)
    model = TinyModel()
    model.device, model.dtype = META, torch.bfloat16
    for name in ("embedding", "head"):
        setattr(model, name, getattr(model, name).to(META, torch.bfloat16))
    model.layers = [tuple(part.to(META, torch.bfloat16) for part in layer) for layer in model.layers]  # type: ignore[misc]

    def embed(ids: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        return model.embedding[ids] + positions[:, None].to(torch.bfloat16)

    monkeypatch.setattr(model, "embed", embed)
    monkeypatch.setattr(model, "logits", lambda rows: (rows @ model.head.T).float())
    attention: AttentionBackend
    if request.param == "torch":
        attention = TorchAttention(META, torch.bfloat16)
    else:
        attention = FlashInferAttention(META, torch.bfloat16, library=Library)
    return Driver(ModelRunner(make_config(), model=model, attention=attention))


CASES: dict[str, SamplingParameters] = {
    "greedy": SamplingParameters(temperature=0.0),
    "random": SamplingParameters(temperature=0.7),
    "filters": SamplingParameters(temperature=0.7, top_k=5, top_p=0.9, min_p=0.1),
    "penalties": SamplingParameters(frequency_penalty=0.5, presence_penalty=0.1, repetition_penalty=1.2),
    "bias": SamplingParameters(temperature=0.0, logit_bias={3: 4.0}),
    "bans": SamplingParameters(min_tokens=3, banned_sequences=((4,), (5, 6)), allowed_token_ids=(1, 2, 3, 4, 5, 6)),
    "logprobs": SamplingParameters(temperature=0.0, logprobs=4, logprob_token_ids=(7, 8)),
}


def run(driver: Driver, plan: BatchPlan, masks: GrammarMasks | None = None) -> None:
    driver.runner.launch(plan)
    driver.runner.sample(masks)
    driver.runner._pending.clear()
    drawn = sum(unpack_ids(plan.draws))
    driver.learn(plan, StepResult(plan.step, pack_ids([9] * drawn)))


def test_the_meta_device_notices_whoever_waits() -> None:
    values = torch.zeros(3, device=META)
    waits: list[Callable[[], Any]] = [
        lambda: values[0].item(),
        lambda: values.tolist(),
        lambda: values.cpu(),
        lambda: values[values > 0],
        lambda: torch.nonzero(values),
        lambda: bool(values.any()),
        lambda: values.numpy(),
    ]
    for wait in waits:
        with pytest.raises((RuntimeError, NotImplementedError, TypeError)):
            wait()


@pytest.mark.parametrize("case", CASES)
def test_a_step_waits_for_nothing(driver: Driver, case: str) -> None:
    sampling = CASES[case]
    for slot, prompt in enumerate(([1, 2, 3], [4], list(range(20)))):
        driver.add(slot, prompt, sampling, seed=slot, end_ids=(2,))
    for _ in range(3):
        run(driver, driver.plan(chunk=7, device_ids=True))
    words = numpy.full((2, -(-driver.runner.capacity.vocab_size // 32)), -1, dtype="<i4")
    masked = driver.plan(chunk=7, masked=[0, 1], device_ids=True)
    run(driver, masked, GrammarMasks(masked.step, words.tobytes()))
    driver.force(0, [5, 6])
    run(driver, driver.plan(device_ids=True))
    assert count_ids(masked.draws) == 3
