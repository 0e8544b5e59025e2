"""Which layers slide where a configuration does not list them: older checkpoints rely on the family's rule."""

import json
from pathlib import Path
from typing import Any

import pytest
import transformers

from model_runner.layers.declarations import AttentionDeclaration
from model_runner.loading.dummy_source import DummySource
from model_runner.models.registry import declare

SIZES = {
    "vocab_size": 99,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 13,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
    "pad_token_id": 0,
    "sliding_window": 8,
}
CASES: dict[str, tuple[str, str, dict[str, Any]]] = {
    "qwen2": ("Qwen2Config", "Qwen2ForCausalLM", {"use_sliding_window": True, "max_window_layers": 5}),
    "qwen2-off": ("Qwen2Config", "Qwen2ForCausalLM", {"max_window_layers": 5}),
    "qwen3": ("Qwen3Config", "Qwen3ForCausalLM", {"use_sliding_window": True, "max_window_layers": 5}),
    "smollm3": ("SmolLM3Config", "SmolLM3ForCausalLM", {"use_sliding_window": True}),
    "olmo3": ("Olmo3Config", "Olmo3ForCausalLM", {}),
    "gemma2": ("Gemma2Config", "Gemma2ForCausalLM", {}),
    "gemma3": ("Gemma3TextConfig", "Gemma3ForCausalLM", {}),
    "gemma3-pattern": ("Gemma3TextConfig", "Gemma3ForCausalLM", {"sliding_window_pattern": 4}),
    "gpt-oss": ("GptOssConfig", "GptOssForCausalLM", {}),
}


@pytest.mark.parametrize("case", CASES)
def test_windows_follow_the_rule(case: str, tmp_path: Path, make_config: Any) -> None:
    name, architecture, changes = CASES[case]
    config = getattr(transformers, name)(**(SIZES | changes))
    values = json.loads(config.to_json_string(use_diff=False)) | changes
    del values["layer_types"]
    model = declare(make_config(tmp_path, values, architecture, format="dummy").model, DummySource())
    windows = []
    for layer in model.layers:
        assert isinstance(layer.attention, AttentionDeclaration)
        windows.append(layer.attention.sliding_window)
    assert windows == [8 if kind == "sliding_attention" else None for kind in config.layer_types]
