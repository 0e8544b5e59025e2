"""What the supervisor is told about flashinfer's kernels, and that the models agree with it."""

from typing import Any

import pytest

from model_runner.attention.support import UNSAID_HEAD_DIMS, flashinfer_refusal, head_dim_of
from model_runner.layers.declarations import AttentionDeclaration
from model_runner.models.catalogue import ARCHITECTURES
from model_runner.models.config_reader import ConfigReader
from model_runner.models.registry import find_declaration

SIZES: dict[str, Any] = {
    "hidden_size": 1280,
    "intermediate_size": 512,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "num_hidden_layers": 2,
    "vocab_size": 128,
    "max_position_embeddings": 512,
    "num_experts": 4,
    "num_local_experts": 4,
}


PLAIN = [entry for entry in ARCHITECTURES if entry.module != "deepseek"]


@pytest.mark.parametrize("entry", PLAIN, ids=lambda entry: entry.name)
@pytest.mark.parametrize("said", [{}, {"head_dim": 128}, {"head_dim": None}], ids=["silent", "said", "null"])
def test_heads_are_as_wide_as_the_declaration_says(entry: Any, said: dict[str, Any]) -> None:
    declared = find_declaration(entry.name)(ConfigReader(SIZES | said, entry.name), 512)
    attention = declared.layers[0].attention
    assert isinstance(attention, AttentionDeclaration)
    assert head_dim_of(entry.name, SIZES | said) == attention.head_dim


@pytest.mark.parametrize(
    ("architecture", "config", "reason"),
    [
        ("LlamaForCausalLM", {"hidden_size": 4096, "num_attention_heads": 32}, None),
        ("Phi3ForCausalLM", {"hidden_size": 3072, "num_attention_heads": 32}, "heads of 96"),
        ("DeepseekV3ForCausalLM", {"kv_lora_rank": 512, "hidden_size": 7168}, "no latent attention"),
        ("GptOssForCausalLM", {"hidden_size": 2880, "num_attention_heads": 64}, None),
        ("Unknown", {}, None),
    ],
)
def test_refusals_say_why(architecture: str, config: dict[str, Any], reason: str | None) -> None:
    refusal = flashinfer_refusal(architecture, config)
    assert refusal is None if reason is None else reason in str(refusal)


def test_every_family_named_is_one_that_there_is() -> None:
    assert {entry.name for entry in ARCHITECTURES} >= UNSAID_HEAD_DIMS.keys()
