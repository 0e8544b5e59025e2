"""Quantised checkpoints on the device, and on the compiled CPU kernels, against the dequantised weights in float32."""

from pathlib import Path
from typing import Any

import numpy
import pytest

from model_runner.kernels.library import cpu_flags, missing_for_build
from model_runner.runner import ModelRunner
from protocol.sampling import SamplingParameters
from runtime.engine_config import EngineConfig, ModelDescription
from tests.gpu.conftest import Place
from tests.gpu.test_steps import spread
from tests.model_runner.conftest import Driver, make_config
from tests.model_runner.models.quantised import LLAMA, SETTINGS, save_checkpoints

PROMPT = [3, 77, 12, 45, 9, 60, 8, 31, 2, 90, 17]
EVERYTHING = SamplingParameters(temperature=0.0, logprobs=-1)


def config_of(path: Path, settings: dict[str, Any] | None, **changes: Any) -> EngineConfig:
    description = ModelDescription(
        name="small",
        path=str(path),
        format="safetensors",
        served_names=("small",),
        architecture="LlamaForCausalLM",
        config=LLAMA | ({"quantization_config": settings} if settings else {}),
        context_length=64,
        vocab_size=LLAMA["vocab_size"],
        eos_token_ids=(),
        bos_token_id=None,
        tokenizer_file="",
    )
    return make_config(model=description, page_size=16, kv_tokens=512, **changes)


def distribution(config: EngineConfig) -> Any:
    """Log-probabilities of the whole vocabulary after the prompt."""
    driver = Driver(ModelRunner(config))
    driver.add(0, PROMPT, EVERYTHING)
    entries = driver.step().logprobs
    assert entries is not None and entries[0] is not None
    return spread(entries[0])


@pytest.mark.parametrize("kind", SETTINGS)
def test_on_the_device(place: Place, kind: str, tmp_path: Path) -> None:
    saved = save_checkpoints(tmp_path, kind)
    wanted = distribution(config_of(saved.dense, None))
    device = {"device": place.device.type, "dtype": "bfloat16"}
    found = distribution(config_of(saved.small, saved.settings, **device))
    numpy.testing.assert_allclose(found, wanted, rtol=0, atol=0.1)
    if place.real:
        narrowed = distribution(config_of(saved.small, saved.settings, quantization="fp8", **device))
        numpy.testing.assert_allclose(narrowed, wanted, rtol=0, atol=0.5)


@pytest.mark.skipif(missing_for_build(cpu_flags()) is not None, reason="the CPU kernels can't be built here")
@pytest.mark.parametrize(("quantization", "tolerance"), [("none", 0.05), ("w8a8", 0.12), ("int4", 0.7)])
@pytest.mark.parametrize("kind", ["awq", "gptq", "gptq-reordered"])
def test_on_the_cpu_kernels(kind: str, quantization: str, tolerance: float, tmp_path: Path) -> None:
    saved = save_checkpoints(tmp_path, kind)
    wanted = distribution(config_of(saved.dense, None))
    kernels = {"attention_backend": "cpu", "dtype": "bfloat16", "quantization": quantization}
    found = distribution(config_of(saved.small, saved.settings, **kernels))
    numpy.testing.assert_allclose(found, wanted, rtol=0, atol=tolerance)
    assert wanted.std() > 0.1
