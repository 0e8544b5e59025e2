"""A runner built from a configuration alone: files, registry, weights, draws."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from model_runner.runner import ModelRunner
from protocol.sampling import SamplingParameters
from runtime.engine_config import EngineConfig
from runtime.model_description import describe_model
from runtime.server_args import ServerArgs
from runtime.start_error import StartError


def test_greedy_equals_transformers_generate(
    tiny_llama_dir: Path, tmp_path: Path, engine_config: Callable[..., EngineConfig], drive: Callable[..., Any]
) -> None:
    seen: list[tuple[str, int, int]] = []
    description = describe_model(ServerArgs(), tiny_llama_dir, tmp_path)
    runner = ModelRunner(engine_config(model=description), lambda *progress: seen.append(progress))
    prompts = [[1, 5, 9, 200], [7], list(range(20, 90))]
    driver = drive(runner)
    for slot, prompt in enumerate(prompts):
        driver.add(slot, prompt, SamplingParameters(temperature=0.0))
    outputs = driver.run(12)
    oracle = transformers.LlamaForCausalLM.from_pretrained(tiny_llama_dir, dtype=torch.float32).eval()
    for slot, prompt in enumerate(prompts):
        with torch.inference_mode():
            ids = oracle.generate(
                torch.tensor([prompt]),
                attention_mask=torch.ones(1, len(prompt), dtype=torch.int64),
                max_new_tokens=12,
                min_new_tokens=12,
                do_sample=False,
                eos_token_id=None,
                pad_token_id=0,
            )
        assert ids[0, len(prompt) :].tolist() == outputs[slot]
    assert seen and seen[-1][1] == seen[-1][2]
    assert runner.capacity.weight_bytes > 0


def test_an_attention_backend_that_is_not_there_is_named(
    engine_config: Callable[..., EngineConfig], tiny_model: Any
) -> None:
    with pytest.raises(StartError, match="flashinfer"):
        ModelRunner(engine_config(attention_backend="flashinfer"), model=tiny_model)
