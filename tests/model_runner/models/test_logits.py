"""Every architecture against transformers: the same tiny random checkpoint, the same logits, however it is fed."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from tests.model_runner.models.tiny import SIZES, random_prompt

PROMPT = random_prompt(23)
OTHER = random_prompt(11, seed=6)

BASE = SIZES | {"bos_token_id": 1, "eos_token_id": 2}
LLAMA3 = {"rope_type": "llama3", "rope_theta": 500.0, "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
YARN = {"rope_type": "yarn", "rope_theta": 10000.0, "factor": 4.0, "original_max_position_embeddings": 16}
LATENT = {
    "kv_lora_rank": 24,
    "q_lora_rank": 20,
    "qk_rope_head_dim": 8,
    "qk_nope_head_dim": 12,
    "v_head_dim": 16,
    "num_key_value_heads": 4,
    "n_routed_experts": 8,
    "num_experts_per_tok": 3,
    "moe_intermediate_size": 32,
    "first_k_dense_replace": 1,
    "num_hidden_layers": 3,
}
LONG = {
    "rope_type": "longrope",
    "rope_theta": 10000.0,
    "short_factor": [1.0, 1.1, 1.3, 1.5, 1.7, 1.9],
    "long_factor": [1.0, 2.0, 3.0, 4.0, 5.0, 6.0],
    "partial_rotary_factor": 0.75,
}

CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("LlamaConfig", {}),
    "llama-biased-tied": ("LlamaConfig", {"attention_bias": True, "mlp_bias": True, "tie_word_embeddings": True}),
    "llama-llama3": ("LlamaConfig", {"rope_parameters": LLAMA3 | {"original_max_position_embeddings": 32}}),
    "llama-linear": ("LlamaConfig", {"rope_parameters": {"rope_type": "linear", "rope_theta": 1e4, "factor": 2.0}}),
    "llama-dynamic": ("LlamaConfig", {"rope_parameters": {"rope_type": "dynamic", "rope_theta": 1e4, "factor": 2.0}}),
    "llama-yarn": ("LlamaConfig", {"rope_parameters": YARN}),
    "llama-wide-heads": ("LlamaConfig", {"head_dim": 24}),
    "mistral": ("MistralConfig", {"sliding_window": 6}),
    "mistral-full": ("MistralConfig", {"sliding_window": None, "head_dim": 24}),
    "mixtral": ("MixtralConfig", {"num_local_experts": 4, "num_experts_per_tok": 2}),
    "qwen2": ("Qwen2Config", {}),
    "qwen2-sliding": ("Qwen2Config", {"use_sliding_window": True, "sliding_window": 6, "max_window_layers": 1}),
    "qwen3": ("Qwen3Config", {"head_dim": 16}),
    "qwen3-moe": (
        "Qwen3MoeConfig",
        {
            "num_experts": 8,
            "num_experts_per_tok": 3,
            "moe_intermediate_size": 32,
            "norm_topk_prob": True,
            "mlp_only_layers": [0],
            "head_dim": 16,
        },
    ),
    "smollm3": ("SmolLM3Config", {"no_rope_layer_interval": 2}),
    "smollm3-sliding": (
        "SmolLM3Config",
        {"no_rope_layer_interval": 2, "use_sliding_window": True, "sliding_window": 6},
    ),
    "seed-oss": ("SeedOssConfig", {"head_dim": 24}),
    "seed-oss-biased-tied": (
        "SeedOssConfig",
        {"head_dim": 24, "attention_out_bias": True, "mlp_bias": True, "tie_word_embeddings": True},
    ),
    "seed-oss-unbiased": ("SeedOssConfig", {"head_dim": 24, "attention_bias": False}),
    "granite": (
        "GraniteConfig",
        {
            "embedding_multiplier": 3.0,
            "logits_scaling": 2.0,
            "residual_multiplier": 0.3,
            "attention_multiplier": 0.1,
            "tie_word_embeddings": True,
        },
    ),
    "phi3": ("Phi3Config", {"sliding_window": 9}),
    "phi3-longrope-short": ("Phi3Config", {"rope_parameters": LONG, "original_max_position_embeddings": 64}),
    "phi3-longrope-long": (
        "Phi3Config",
        {"rope_parameters": LONG, "original_max_position_embeddings": 8, "max_position_embeddings": 64},
    ),
    "olmo2": ("Olmo2Config", {}),
    "olmo3": ("Olmo3Config", {"sliding_window": 6, "num_hidden_layers": 4}),
    "olmo3-scaled": (
        "Olmo3Config",
        {"sliding_window": 6, "num_hidden_layers": 4, "rope_parameters": {"full_attention": YARN}},
    ),
    "gemma2": (
        "Gemma2Config",
        {
            "head_dim": 16,
            "sliding_window": 6,
            "query_pre_attn_scalar": 24,
            "attn_logit_softcapping": 5.0,
            "final_logit_softcapping": 3.0,
        },
    ),
    "gemma3": (
        "Gemma3TextConfig",
        {
            "head_dim": 16,
            "sliding_window": 6,
            "query_pre_attn_scalar": 24,
            "layer_types": ["sliding_attention", "full_attention"],
        },
    ),
    "gpt-oss": (
        "GptOssConfig",
        {"head_dim": 16, "sliding_window": 6, "num_local_experts": 4, "num_experts_per_tok": 2, "swiglu_limit": 1.0},
    ),
    "deepseek-v2": (
        "DeepseekV2Config",
        LATENT | {"n_shared_experts": 2, "topk_method": "group_limited_greedy", "n_group": 4, "topk_group": 2},
    ),
    "deepseek-v2-lite": ("DeepseekV2Config", LATENT | {"q_lora_rank": None, "routed_scaling_factor": 1.5}),
    "deepseek-v3": (
        "DeepseekV3Config",
        LATENT | {"n_group": 4, "topk_group": 2, "rope_parameters": YARN | {"mscale": 1.0, "mscale_all_dim": 0.8}},
    ),
    "deepseek-v3-halves": ("DeepseekV3Config", LATENT | {"n_group": 2, "topk_group": 1, "rope_interleave": False}),
}


class Saved:
    """A tiny checkpoint on disk, and what transformers makes of it."""

    def __init__(self, case: str, folder: Path) -> None:
        name, changes = CASES[case]
        config = getattr(transformers, name)(**(BASE | changes))
        torch.manual_seed(11)
        self.reference = transformers.AutoModelForCausalLM.from_config(config, attn_implementation="eager").eval()
        with torch.no_grad():
            for tensor_name, tensor in self.reference.named_parameters():
                if tensor.dim() == 1:  # gains and biases start as ones and zeros, which would hide their absence
                    tensor.add_(torch.randn(tensor.shape) * 0.3)
                assert tensor.isfinite().all(), tensor_name
            for buffer_name, buffer in self.reference.named_buffers():
                if buffer_name.endswith("e_score_correction_bias"):
                    buffer.copy_(torch.randn(buffer.shape) * 0.1)
        self.reference.save_pretrained(folder)
        self.folder = folder
        self.config = json.loads((folder / "config.json").read_text())
        self.architecture = self.config["architectures"][0]

    def logits(self, ids: list[int], dtype: torch.dtype = torch.float32) -> torch.Tensor:
        with torch.inference_mode():
            found: torch.Tensor = self.reference.to(dtype)(torch.tensor([ids]), use_cache=False).logits[0].float()
            return found


@pytest.fixture(scope="module", params=CASES)
def saved(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Saved:
    return Saved(request.param, tmp_path_factory.mktemp("checkpoint"))


def assert_near(found: torch.Tensor, wanted: torch.Tensor, tolerance: float = 1e-4) -> None:
    """Within `tolerance` of the reference's own spread."""
    assert found.shape == wanted.shape
    error = (found - wanted).abs().max().item() / wanted.std().item()
    assert error < tolerance, f"off by {error:.2e} of the logits' spread"


def test_matches_transformers(saved: Saved, make_rig: Any, make_config: Any, make_row: Callable[..., Any]) -> None:
    """One prompt; chunks of every size; a cached prefix; a batch of unlike rows; a row computed again elsewhere."""
    rig = make_rig(make_config(saved.folder, saved.config, saved.architecture))
    wanted, other = saved.logits(PROMPT), saved.logits(OTHER)
    assert_near(rig.whole(PROMPT), wanted)
    pages = range(10, 17)
    for size in (1, 2, 3, 5, 8, 22):
        parts = [
            rig.step([make_row(PROMPT[start : start + size], start, pages)])[0] for start in range(0, len(PROMPT), size)
        ]
        assert_near(torch.cat(parts), wanted)
    # The first four pages of the row above are a cached prefix of this one, which then goes its own way.
    shared = [*pages[:4], 20, 21, 22]
    assert_near(rig.step([make_row(PROMPT[16:], 16, shared)])[0], wanted[16:])
    mixed = rig.step(
        [
            make_row(PROMPT[22:], 22, shared),
            make_row(OTHER, 0, range(30, 34)),
            make_row(PROMPT[5:9], 5, pages),
            make_row(PROMPT, 0, range(40, 47)),
        ]
    )
    for found, expected in zip(mixed, (wanted[22:], other, wanted[5:9], wanted), strict=True):
        assert_near(found, expected)
    decoding = rig.step([make_row([OTHER[-1]], 10, range(30, 34)), make_row([PROMPT[-1]], 22, range(40, 47))])
    assert_near(decoding[0], other[-1:])
    assert_near(decoding[1], wanted[-1:])


def test_bfloat16_is_as_near_as_the_reference(saved: Saved, make_rig: Any, make_config: Any) -> None:
    """Against float32, bfloat16 logits err no more than transformers' own do (half as much again, on average)."""
    wanted = saved.logits(PROMPT)
    reference = saved.logits(PROMPT, torch.bfloat16)
    saved.reference.float()
    found = make_rig(make_config(saved.folder, saved.config, saved.architecture, "bfloat16")).whole(PROMPT)
    ours, theirs = (found - wanted).abs().mean(), (reference - wanted).abs().mean()
    assert ours < 1.5 * theirs + 1e-3
