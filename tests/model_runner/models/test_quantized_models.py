"""Whole models from quantised checkpoints against the same models with the dequantised weights."""

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from model_runner.loading.errors import LoadError
from model_runner.loading.safetensors_source import SafetensorsSource
from model_runner.loading.schemes.choose import choose_scheme
from tests.model_runner.models.quantised import HIDDEN, LINEARS, LLAMA, SETTINGS, draw, plain_tensors, save_checkpoints

PROMPT = torch.randint(0, 99, (13,), generator=torch.Generator().manual_seed(5)).tolist()


@pytest.mark.parametrize("kind", SETTINGS)
def test_against_dequantised_weights(kind: str, tmp_path: Path, make_rig: Any, make_config: Any) -> None:
    saved = save_checkpoints(tmp_path, kind)
    small = make_config(saved.small, LLAMA | {"quantization_config": saved.settings}, "LlamaForCausalLM")
    dense = make_config(saved.dense, LLAMA, "LlamaForCausalLM")
    found = make_rig(small).whole(PROMPT)
    torch.testing.assert_close(found, make_rig(dense).whole(PROMPT))
    assert found.std() > 0.1


def test_experts_in_mxfp4(tmp_path: Path, make_rig: Any, make_config: Any) -> None:
    """GPT-OSS as it is published: expert weights in blocks, their biases plain."""
    torch.manual_seed(0)
    experts, inner = 4, 32
    config = LLAMA | {
        "head_dim": 16,
        "num_local_experts": experts,
        "num_experts_per_tok": 2,
        "intermediate_size": inner,
        "sliding_window": 8,
    }
    layer = "model.layers.0"
    plain = plain_tensors() | {
        f"{layer}.self_attn.sinks": draw(4),
        f"{layer}.mlp.router.weight": draw(experts, HIDDEN),
        f"{layer}.mlp.router.bias": draw(experts),
        f"{layer}.mlp.experts.gate_up_proj_bias": draw(experts, 2 * inner),
        f"{layer}.mlp.experts.down_proj_bias": draw(experts, HIDDEN),
    }
    for name in ("q_proj", "k_proj", "v_proj", "o_proj"):
        shape = LINEARS[f"self_attn.{name}"]
        plain |= {f"{layer}.self_attn.{name}.weight": draw(*shape), f"{layer}.self_attn.{name}.bias": draw(shape[0])}
    stored = {}
    for name, outputs, inputs in (("gate_up_proj", 2 * inner, HIDDEN), ("down_proj", HIDDEN, inner)):
        blocks = (experts, outputs, inputs // 32)
        stored[f"{layer}.mlp.experts.{name}_blocks"] = torch.randint(0, 256, (*blocks, 16), dtype=torch.uint8)
        stored[f"{layer}.mlp.experts.{name}_scales"] = torch.randint(122, 126, blocks, dtype=torch.uint8)
    settings = {"quant_method": "mxfp4", "modules_to_not_convert": ["model.layers.*.self_attn"]}
    scheme = choose_scheme(settings)
    assert scheme is not None
    (tmp_path / "small").mkdir()
    save_file(plain | stored, tmp_path / "small" / "model.safetensors")
    source = SafetensorsSource(tmp_path / "small")
    for name in ("gate_up_proj", "down_proj"):
        full = f"{layer}.mlp.experts.{name}"
        plain[full] = scheme.read(full, scheme.shape(full, source), (slice(None),) * 3, source).contiguous()
    (tmp_path / "dense").mkdir()
    save_file(plain, tmp_path / "dense" / "model.safetensors")
    small = make_config(tmp_path / "small", config | {"quantization_config": settings}, "GptOssForCausalLM")
    found = make_rig(small).whole(PROMPT)
    dense = make_rig(make_config(tmp_path / "dense", config, "GptOssForCausalLM")).whole(PROMPT)
    torch.testing.assert_close(found, dense)


def test_unknown_quantisation_is_named(tmp_path: Path, make_rig: Any, make_config: Any) -> None:
    save_file(plain_tensors(), tmp_path / "model.safetensors")
    config = make_config(tmp_path, LLAMA | {"quantization_config": {"quant_method": "hqq"}}, "LlamaForCausalLM")
    with pytest.raises(LoadError, match="quant_method is 'hqq'; supported: gptq, awq"):
        make_rig(config)
