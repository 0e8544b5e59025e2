"""GGUF files of several families, written here as converters write them, against the checkpoints they came from."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import numpy
import pytest
import torch
import transformers

from model_runner.loading.errors import LoadError
from model_runner.models.config_reader import ConfigError
from tests.model_runner.models.tiny import SIZES, random_prompt

PROMPT = random_prompt(17)
GEMMA = {"head_dim": 16, "sliding_window": 6, "query_pre_attn_scalar": 24}
SPARSE = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32, "head_dim": 16}

CASES: dict[str, tuple[str, dict[str, Any], dict[str, str]]] = {
    "llama": ("LlamaConfig", {"attention_bias": True}, {}),
    "granite": (
        "GraniteConfig",
        {"attention_multiplier": 0.2, "embedding_multiplier": 3.0, "residual_multiplier": 0.5, "logits_scaling": 2.0},
        {},
    ),
    "smollm3": ("SmolLM3Config", {"num_hidden_layers": 4, "pad_token_id": 0}, {}),
    "qwen2": ("Qwen2Config", {"tie_word_embeddings": True}, {}),
    "qwen3": ("Qwen3Config", {"head_dim": 16}, {}),
    "qwen3moe": ("Qwen3MoeConfig", SPARSE, {}),
    "phi3": ("Phi3Config", {}, {}),
    "olmo2": (
        "Olmo2Config",
        {},
        {"post_attention_layernorm": "post_attention_norm", "post_feedforward_layernorm": "post_ffw_norm"},
    ),
    "gemma2": (
        "Gemma2Config",
        GEMMA,
        {
            "post_attention_layernorm": "post_attention_norm",
            "pre_feedforward_layernorm": "ffn_norm",
            "post_feedforward_layernorm": "post_ffw_norm",
        },
    ),
    "gemma3": (
        "Gemma3TextConfig",
        GEMMA,
        {
            "post_attention_layernorm": "post_attention_norm",
            "pre_feedforward_layernorm": "ffn_norm",
            "post_feedforward_layernorm": "post_ffw_norm",
        },
    ),
}
NAMES = {
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.qkv_proj": "attn_qkv",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "mlp.gate_up_proj": "ffn_up",
    "mlp.gate": "ffn_gate_inp",
}


def to_pairs(weight: torch.Tensor, heads: int) -> torch.Tensor:
    """The row order of llama.cpp's converter: halves of a head become neighbouring pairs."""
    return weight.view(heads, 2, weight.shape[0] // heads // 2, -1).transpose(1, 2).reshape(weight.shape)


def converted(family: str, name: str, tensor: torch.Tensor, names: dict[str, str]) -> dict[str, torch.Tensor]:
    """One tensor of the checkpoint as the converter writes it."""
    outside = {"model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output"}
    owner, _, kind = name.rpartition(".")
    if family.startswith("gemma") and name.endswith("norm.weight"):
        tensor = tensor + 1
    if owner in outside:
        return {f"{outside[owner]}.{kind}": tensor}
    parts = name.split(".")
    layer, rest = parts[2], ".".join(parts[3:])
    if rest == "mlp.experts.gate_up_proj":
        gate, up = tensor.chunk(2, dim=1)
        return {f"blk.{layer}.ffn_gate_exps.weight": gate, f"blk.{layer}.ffn_up_exps.weight": up}
    if rest == "mlp.experts.down_proj":
        return {f"blk.{layer}.ffn_down_exps.weight": tensor}
    inside = rest.rpartition(".")[0]
    if family in ("llama", "granite", "smollm3") and inside in ("self_attn.q_proj", "self_attn.k_proj"):
        tensor = to_pairs(tensor, 4 if inside == "self_attn.q_proj" else 2)
    return {f"blk.{layer}.{(NAMES | names)[inside]}.{kind}": tensor}


def write(path: Path, family: str, tensors: dict[str, torch.Tensor]) -> None:
    writer = gguf.GGUFWriter(str(path), family)
    writer.add_head_count(4)
    writer.add_head_count_kv(2)
    for name, tensor in tensors.items():
        writer.add_tensor(name, numpy.ascontiguousarray(tensor.float().numpy()))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def make(family: str, **changes: Any) -> tuple[Any, dict[str, Any], dict[str, torch.Tensor]]:
    name, given, names = CASES[family]
    torch.manual_seed(4)
    config = getattr(transformers, name)(**(SIZES | given | changes))
    reference = transformers.AutoModelForCausalLM.from_config(config, attn_implementation="eager").eval()
    with torch.no_grad():
        for parameter in reference.parameters():
            if parameter.dim() == 1:
                parameter.add_(torch.randn(parameter.shape) * 0.3)
    tensors: dict[str, torch.Tensor] = {}
    for tensor_name, tensor in reference.named_parameters():
        tensors |= converted(family, tensor_name, tensor.detach(), names)
    values = json.loads(reference.config.to_json_string(use_diff=False))
    return reference, values | {"architectures": [type(reference).__name__]}, tensors


@pytest.mark.parametrize("family", CASES)
def test_matches_the_checkpoint(family: str, tmp_path: Path, make_rig: Any, make_config: Callable[..., Any]) -> None:
    reference, values, tensors = make(family)
    write(tmp_path / "model.gguf", family, tensors)
    config = make_config(tmp_path / "model.gguf", values, values["architectures"][0], format="gguf")
    with torch.inference_mode():
        wanted = reference(torch.tensor([PROMPT]), use_cache=False).logits[0]
    found = make_rig(config).whole(PROMPT)
    torch.testing.assert_close(found, wanted, rtol=0, atol=1e-4 * wanted.std().item())


def test_rope_factors_of_the_file(tmp_path: Path, make_rig: Any, make_config: Callable[..., Any]) -> None:
    """Llama 3's scaling as converters store it: one divisor per frequency."""
    rope = {"rope_type": "linear", "rope_theta": 1e4, "factor": 4.0}
    reference, values, tensors = make("llama", rope_parameters=rope)
    write(tmp_path / "model.gguf", "llama", tensors | {"rope_freqs.weight": torch.full((8,), 4.0)})
    values |= {"rope_parameters": None, "rope_theta": 1e4}
    values["rope_scaling"] = {"rope_type": "gguf_factors", "tensor": "rope_freqs.weight"}
    config = make_config(tmp_path / "model.gguf", values, "LlamaForCausalLM", format="gguf")
    with torch.inference_mode():
        wanted = reference(torch.tensor([PROMPT]), use_cache=False).logits[0]
    torch.testing.assert_close(make_rig(config).whole(PROMPT), wanted, rtol=0, atol=1e-4 * wanted.std().item())


def test_what_does_not_fit_is_named(tmp_path: Path, make_rig: Any, make_config: Callable[..., Any]) -> None:
    _, values, tensors = make("llama")
    file = tmp_path / "model.gguf"
    write(file, "llama", {name: data for name, data in tensors.items() if name != "blk.1.ffn_up.weight"})
    config = make_config(file, values, "LlamaForCausalLM", format="gguf")
    with pytest.raises(LoadError, match=r"no tensor blk\.1\.ffn_up\.weight .*shape \[96, 64\]"):
        make_rig(config)
    write(file, "llama", tensors | {"blk.1.ffn_up.weight": torch.zeros(95, 64)})
    with pytest.raises(LoadError, match=r"mlp\.up_proj\.weight has shape \[95, 64\], but .* asks for \[96, 64\]"):
        make_rig(config)
    write(file, "llama", tensors | {"blk.1.ffn_extra.weight": torch.zeros(2)})
    with pytest.raises(LoadError, match=r"no place for: blk\.1\.ffn_extra\.weight"):
        make_rig(config)
    values["rope_parameters"] = {"rope_type": "spiral", "rope_theta": 1e4}
    write(file, "llama", tensors)
    with pytest.raises(ConfigError, match=r"rope type is 'spiral'; supported: .*yarn"):
        make_rig(make_config(file, values, "LlamaForCausalLM", format="gguf"))
