"""Configurations are read loudly: what is missing, mistyped, unknown or not done is named with its value."""

import logging
from pathlib import Path
from typing import Any

import pytest

from model_runner.models.common_settings import read_sizes
from model_runner.models.config_reader import ConfigError, ConfigReader
from model_runner.models.registry import build_model

LLAMA: dict[str, Any] = {
    "vocab_size": 50,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "max_position_embeddings": 32,
}
REFUSED = [
    ("LlamaForCausalLM", {"hidden_act": "mish"}, "'hidden_act' is 'mish'; supported: .*silu"),
    ("LlamaForCausalLM", {"num_hidden_layers": 0}, "'num_hidden_layers' is 0; supported: a positive integer"),
    ("LlamaForCausalLM", {"hidden_size": "32"}, "'hidden_size' is '32'"),
    ("LlamaForCausalLM", {"hidden_size": None}, "'hidden_size' is None"),
    ("LlamaForCausalLM", {"num_key_value_heads": 3}, r"'num_key_value_heads' is 3; supported: a divisor"),
    ("LlamaForCausalLM", {"tie_word_embeddings": 1}, "'tie_word_embeddings' is 1; supported: true or false"),
    ("LlamaForCausalLM", {"rope_scaling": {"type": "ntk-by-parts"}}, "rope type is 'ntk-by-parts'; supported: .*yarn"),
    ("LlamaForCausalLM", {"rope_scaling": {"type": "linear"}}, "needs a number for 'factor'"),
    ("LlamaForCausalLM", {"rope_scaling": [1]}, "'rope_scaling' is"),
    ("LlamaForCausalLM", {"sliding_window": 8}, "'sliding_window' is 8; supported: absent|None in this family"),
    ("LlamaForCausalLM", {"attn_logit_softcapping": 30.0}, "'attn_logit_softcapping' is 30.0"),
    ("LlamaForCausalLM", {"attention_out_bias": True}, "'attention_out_bias' is True; supported: False in this family"),
    ("LlamaForCausalLM", {"logits_scaling": 8.0}, "'logits_scaling' is 8.0"),
    ("Qwen2ForCausalLM", {"use_mrope": True}, "'use_mrope' is True"),
    ("Gemma2ForCausalLM", {"layer_types": ["chunked_attention"]}, "'layer_types' is .*chunked_attention"),
    ("Gemma2ForCausalLM", {"layer_types": []}, "'layer_types' is .*a list of 1 strings"),
    ("SmolLM3ForCausalLM", {"no_rope_layers": [2]}, r"'no_rope_layers' is \[2\]"),
    ("DeepseekV3ForCausalLM", {"topk_method": "greedy"}, "'topk_method' is 'greedy'; supported: one of noaux_tc"),
    ("DeepseekV3ForCausalLM", {"scoring_func": "softmax"}, "'scoring_func' is 'softmax'"),
    ("GraniteForCausalLM", {"logits_scaling": 0}, "'logits_scaling' is 0"),
]


@pytest.mark.parametrize(("architecture", "changes", "said"), REFUSED, ids=lambda value: str(value)[:40])
def test_refusals_name_key_and_value(
    architecture: str, changes: dict[str, Any], said: str, tmp_path: Path, make_config: Any
) -> None:
    made = make_config(tmp_path, LLAMA | changes, architecture, format="dummy")
    with pytest.raises(ConfigError, match=said) as caught:
        build_model(made)
    assert architecture in str(caught.value)


def test_unknown_keys_are_named_in_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    reader = ConfigReader({"hidden_size": 4, "novel_trick": 3, "torch_dtype": "bfloat16", "sliding_window": None}, "X")
    assert reader.integer("hidden_size") == 4
    with caplog.at_level(logging.WARNING):
        reader.finish()
    assert [record.getMessage() for record in caplog.records] == [
        "X: config key 'novel_trick' (3) is not known and ignored"
    ]


def test_null_means_none_where_absence_means_the_default() -> None:
    reader = ConfigReader({"a": None, "b": 3}, "X")
    assert reader.nullable_integer("a", 7) is None
    assert reader.nullable_integer("b", 7) == 3
    assert reader.nullable_integer("c", 7) == 7
    assert reader.nullable_number("a", 7.0) is None
    assert reader.nullable_number("c", None) is None


@pytest.mark.parametrize(
    ("values", "wanted"), [({}, (8, 256)), ({"num_key_value_heads": None, "head_dim": None}, (16, 64))]
)
def test_null_sizes_are_worked_out_and_missing_ones_are_the_familys(
    values: dict[str, Any], wanted: tuple[int, int]
) -> None:
    known = {"hidden_size": 1024, "num_attention_heads": 16, "num_hidden_layers": 1, "vocab_size": 9}
    reader = ConfigReader(known | {"intermediate_size": 8} | values, "X")
    sizes = read_sizes(reader, head_dim=256, kv_heads=8)
    assert (sizes.kv_heads, sizes.head_dim) == wanted
