"""Whole models from quantised checkpoints against the same models with the dequantised weights."""

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from model_runner.loading.errors import LoadError
from model_runner.loading.safetensors_source import SafetensorsSource
from model_runner.loading.schemes.choose import choose_scheme

PROMPT = torch.randint(0, 99, (13,), generator=torch.Generator().manual_seed(5)).tolist()
HIDDEN, INNER = 64, 96
LLAMA: dict[str, Any] = {
    "vocab_size": 99,
    "hidden_size": HIDDEN,
    "intermediate_size": INNER,
    "num_hidden_layers": 1,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
}
LINEARS = {
    "self_attn.q_proj": (HIDDEN, HIDDEN),
    "self_attn.k_proj": (HIDDEN // 2, HIDDEN),
    "self_attn.v_proj": (HIDDEN // 2, HIDDEN),
    "self_attn.o_proj": (HIDDEN, HIDDEN),
    "mlp.gate_proj": (INNER, HIDDEN),
    "mlp.up_proj": (INNER, HIDDEN),
    "mlp.down_proj": (HIDDEN, INNER),
}
INT8 = {"quant_method": "compressed-tensors", "format": "int-quantized", "quantization_status": "compressed"}
FP8 = {"quant_method": "fp8", "weight_block_size": [32, 32]}


def draw(*shape: int) -> torch.Tensor:
    scale: float = shape[-1] ** -0.5
    return torch.randn(shape) * scale


def plain_tensors() -> dict[str, torch.Tensor]:
    layer = "model.layers.0"
    gains = ("model.norm", f"{layer}.input_layernorm", f"{layer}.post_attention_layernorm")
    made = {f"{name}.weight": 1 + draw(HIDDEN) for name in gains}
    return made | {"model.embed_tokens.weight": draw(99, HIDDEN), "lm_head.weight": draw(99, HIDDEN)}


def quantised(settings: dict[str, Any], name: str, rows: int, columns: int) -> dict[str, torch.Tensor]:
    if settings is INT8:
        values = torch.randint(-127, 128, (rows, columns), dtype=torch.int8)
        return {f"{name}.weight": values, f"{name}.weight_scale": torch.rand(rows, 1) / 600}
    blocks = (-(-rows // 32), -(-columns // 32))
    values = draw(rows, columns).mul(400).to(torch.float8_e4m3fn)
    return {f"{name}.weight": values, f"{name}.weight_scale_inv": torch.rand(blocks) / 200}


@pytest.mark.parametrize("settings", [INT8, FP8], ids=["int8", "fp8-blocks"])
def test_against_dequantised_weights(settings: dict[str, Any], tmp_path: Path, make_rig: Any, make_config: Any) -> None:
    torch.manual_seed(0)
    plain = plain_tensors()
    stored: dict[str, torch.Tensor] = {}
    for name, (rows, columns) in LINEARS.items():
        stored |= quantised(settings, f"model.layers.0.{name}", rows, columns)
    (tmp_path / "small").mkdir()
    save_file(plain | stored, tmp_path / "small" / "model.safetensors")
    scheme = choose_scheme(settings)
    assert scheme is not None
    source = SafetensorsSource(tmp_path / "small")
    everything = (slice(None), slice(None))
    for name, shape in LINEARS.items():
        full = f"model.layers.0.{name}.weight"
        plain[full] = scheme.read(full, shape, everything, source).contiguous()
    (tmp_path / "dense").mkdir()
    save_file(plain, tmp_path / "dense" / "model.safetensors")
    small = make_config(tmp_path / "small", LLAMA | {"quantization_config": settings}, "LlamaForCausalLM")
    dense = make_config(tmp_path / "dense", LLAMA, "LlamaForCausalLM")
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
