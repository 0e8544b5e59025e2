"""Configurations as they are published are read without a word; what they ask for arrives in the declaration."""

import logging
from pathlib import Path
from typing import Any

import pytest

from model_runner.layers.declarations import (
    AttentionDeclaration,
    ExpertsDeclaration,
    LatentAttentionDeclaration,
    ModelDeclaration,
)
from model_runner.loading.dummy_source import DummySource
from model_runner.models.registry import declare

COMMON = {
    "attention_dropout": 0.0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "hidden_act": "silu",
    "initializer_range": 0.02,
    "rms_norm_eps": 1e-05,
    "torch_dtype": "bfloat16",
    "transformers_version": "4.46.0",
    "use_cache": True,
}
LLAMA_31_8B = COMMON | {
    "attention_bias": False,
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "max_position_embeddings": 131072,
    "mlp_bias": False,
    "model_type": "llama",
    "num_attention_heads": 32,
    "num_hidden_layers": 32,
    "num_key_value_heads": 8,
    "pretraining_tp": 1,
    "rope_scaling": {
        "factor": 8.0,
        "high_freq_factor": 4.0,
        "low_freq_factor": 1.0,
        "original_max_position_embeddings": 8192,
        "rope_type": "llama3",
    },
    "rope_theta": 500000.0,
    "tie_word_embeddings": False,
    "vocab_size": 128256,
}
SMOLLM2_135M = COMMON | {
    "attention_bias": False,
    "hidden_size": 576,
    "intermediate_size": 1536,
    "is_llama_config": True,
    "max_position_embeddings": 8192,
    "mlp_bias": False,
    "model_type": "llama",
    "num_attention_heads": 9,
    "num_hidden_layers": 30,
    "num_key_value_heads": 3,
    "pad_token_id": 2,
    "pretraining_tp": 1,
    "rope_interleaved": False,
    "rope_scaling": None,
    "rope_theta": 100000,
    "tie_word_embeddings": True,
    "transformers.js_config": {"kv_cache_dtype": {"q4f16": "float16"}},
    "vocab_size": 49152,
}
QWEN_25_7B = COMMON | {
    "hidden_size": 3584,
    "intermediate_size": 18944,
    "max_position_embeddings": 32768,
    "max_window_layers": 28,
    "model_type": "qwen2",
    "num_attention_heads": 28,
    "num_hidden_layers": 28,
    "num_key_value_heads": 4,
    "rope_theta": 1000000.0,
    "sliding_window": 131072,
    "tie_word_embeddings": False,
    "use_sliding_window": False,
    "vocab_size": 152064,
}
QWEN3_30B_A3B = COMMON | {
    "attention_bias": False,
    "decoder_sparse_step": 1,
    "head_dim": 128,
    "hidden_size": 2048,
    "intermediate_size": 6144,
    "max_position_embeddings": 40960,
    "max_window_layers": 48,
    "mlp_only_layers": [],
    "model_type": "qwen3_moe",
    "moe_intermediate_size": 768,
    "norm_topk_prob": True,
    "num_attention_heads": 32,
    "num_experts": 128,
    "num_experts_per_tok": 8,
    "num_hidden_layers": 48,
    "num_key_value_heads": 4,
    "output_router_logits": False,
    "rope_scaling": None,
    "rope_theta": 1000000.0,
    "router_aux_loss_coef": 0.001,
    "sliding_window": None,
    "tie_word_embeddings": False,
    "use_sliding_window": False,
    "vocab_size": 151936,
}
SEED_OSS_36B = COMMON | {
    "attention_bias": True,
    "attention_dropout": 0.1,
    "attention_out_bias": False,
    "head_dim": 128,
    "hidden_size": 5120,
    "intermediate_size": 27648,
    "max_position_embeddings": 524288,
    "mlp_bias": False,
    "model_type": "seed_oss",
    "num_attention_heads": 80,
    "num_hidden_layers": 64,
    "num_key_value_heads": 8,
    "pad_token_id": 1,
    "residual_dropout": 0.1,
    "rms_norm_eps": 1e-06,
    "rope_scaling": {"rope_type": "default"},
    "rope_theta": 10000000.0,
    "tie_word_embeddings": False,
    "vocab_size": 155136,
}
GEMMA3_4B_TEXT = {
    "hidden_size": 2560,
    "intermediate_size": 10240,
    "model_type": "gemma3_text",
    "num_hidden_layers": 34,
    "rope_scaling": {"factor": 8.0, "rope_type": "linear"},
    "sliding_window": 1024,
}
GPT_OSS_20B = COMMON | {
    "attention_bias": True,
    "experts_per_token": 4,
    "head_dim": 64,
    "hidden_size": 2880,
    "initial_context_length": 4096,
    "intermediate_size": 2880,
    "layer_types": ["sliding_attention", "full_attention"] * 12,
    "max_position_embeddings": 131072,
    "model_type": "gpt_oss",
    "num_attention_heads": 64,
    "num_experts_per_tok": 4,
    "num_hidden_layers": 24,
    "num_key_value_heads": 8,
    "num_local_experts": 32,
    "output_router_logits": False,
    "pad_token_id": 199999,
    "quantization_config": {"quant_method": "mxfp4"},
    "rope_scaling": {
        "beta_fast": 32.0,
        "beta_slow": 1.0,
        "factor": 32.0,
        "original_max_position_embeddings": 4096,
        "rope_type": "yarn",
        "truncate": False,
    },
    "rope_theta": 150000,
    "router_aux_loss_coef": 0.9,
    "sliding_window": 128,
    "swiglu_limit": 7.0,
    "tie_word_embeddings": False,
    "vocab_size": 201088,
}
DEEPSEEK_V3 = COMMON | {
    "attention_bias": False,
    "auto_map": {"AutoConfig": "configuration_deepseek.DeepseekV3Config"},
    "aux_loss_alpha": 0.001,
    "ep_size": 1,
    "first_k_dense_replace": 3,
    "hidden_size": 7168,
    "intermediate_size": 18432,
    "kv_lora_rank": 512,
    "max_position_embeddings": 163840,
    "model_type": "deepseek_v3",
    "moe_intermediate_size": 2048,
    "moe_layer_freq": 1,
    "n_group": 8,
    "n_routed_experts": 256,
    "n_shared_experts": 1,
    "norm_topk_prob": True,
    "num_attention_heads": 128,
    "num_experts_per_tok": 8,
    "num_hidden_layers": 61,
    "num_key_value_heads": 128,
    "num_nextn_predict_layers": 1,
    "q_lora_rank": 1536,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "quantization_config": {"quant_method": "fp8", "weight_block_size": [128, 128]},
    "rope_scaling": {
        "beta_fast": 32,
        "beta_slow": 1,
        "factor": 40,
        "mscale": 1.0,
        "mscale_all_dim": 1.0,
        "original_max_position_embeddings": 4096,
        "type": "yarn",
    },
    "rope_theta": 10000,
    "routed_scaling_factor": 2.5,
    "scoring_func": "sigmoid",
    "seq_aux": True,
    "tie_word_embeddings": False,
    "topk_group": 4,
    "topk_method": "noaux_tc",
    "v_head_dim": 128,
    "vocab_size": 129280,
}


@pytest.fixture
def declared(make_config: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> Any:
    def read(architecture: str, values: dict[str, Any]) -> ModelDeclaration:
        config = make_config(tmp_path, {"vocab_size": 1} | values, architecture, format="dummy", context_length=8192)
        with caplog.at_level(logging.WARNING):
            found = declare(config.model, DummySource())
        assert not caplog.records
        return found

    return read


def attention_of(model: ModelDeclaration, layer: int) -> AttentionDeclaration:
    attention = model.layers[layer].attention
    assert isinstance(attention, AttentionDeclaration)
    return attention


def test_llama(declared: Any) -> None:
    model = declared("LlamaForCausalLM", LLAMA_31_8B)
    assert (len(model.layers), model.hidden_size, model.tied_head) == (32, 4096, False)
    frequencies = attention_of(model, 0).rotary.inverse_frequencies  # type: ignore[union-attr]
    assert frequencies[0] == 1.0 and frequencies[-1].item() == pytest.approx(500000.0 ** (-126 / 128) / 8)
    assert declared("LlamaForCausalLM", SMOLLM2_135M).tied_head


def test_qwen(declared: Any) -> None:
    model = declared("Qwen2ForCausalLM", QWEN_25_7B)
    assert attention_of(model, 27).sliding_window is None and attention_of(model, 0).qkv_bias
    experts = declared("Qwen3MoeForCausalLM", QWEN3_30B_A3B).layers[5].feed_forward
    assert isinstance(experts, ExpertsDeclaration)
    assert (experts.routing.experts, experts.routing.chosen, experts.routing.normalise) == (128, 8, True)


def test_seed_oss(declared: Any) -> None:
    attention = attention_of(declared("SeedOssForCausalLM", SEED_OSS_36B), 63)
    assert (attention.heads, attention.kv_heads, attention.head_dim) == (80, 8, 128)
    assert (attention.qkv_bias, attention.output_bias) == (True, False)
    assert attention.rotary is not None
    assert attention.rotary.inverse_frequencies[-1].item() == pytest.approx(1e7 ** (-126 / 128))


def test_gemma3(declared: Any) -> None:
    values = {"architectures": ["Gemma3ForConditionalGeneration"], "text_config": GEMMA3_4B_TEXT}
    model = declared("Gemma3ForConditionalGeneration", values)
    full, sliding = attention_of(model, 5), attention_of(model, 4)
    assert (full.sliding_window, sliding.sliding_window, full.heads, full.head_dim) == (None, 1024, 8, 256)
    assert full.rotary is not None and sliding.rotary is not None
    assert full.rotary.inverse_frequencies[0].item() == pytest.approx(1 / 8)
    assert sliding.rotary.inverse_frequencies[0].item() == 1.0
    assert (model.vocab_size, model.tied_head, model.prefix) == (262208, True, "language_model.model.")


def test_gpt_oss(declared: Any) -> None:
    model = declared("GptOssForCausalLM", GPT_OSS_20B)
    assert [attention_of(model, layer).sliding_window for layer in (0, 1)] == [128, None]
    assert attention_of(model, 0).sinks
    rotary = attention_of(model, 0).rotary
    assert rotary is not None and rotary.scale == pytest.approx(1.3466, abs=1e-4)


def test_deepseek(declared: Any) -> None:
    model = declared("DeepseekV3ForCausalLM", DEEPSEEK_V3)
    attention = model.layers[0].attention
    assert isinstance(attention, LatentAttentionDeclaration)
    assert attention.scale == pytest.approx(192**-0.5 * 1.3689**2, rel=1e-4)
    assert attention.rotary.scale == 1.0 and attention.rotary.interleaved
    kinds = [isinstance(layer.feed_forward, ExpertsDeclaration) for layer in model.layers]
    assert kinds == [False] * 3 + [True] * 58
