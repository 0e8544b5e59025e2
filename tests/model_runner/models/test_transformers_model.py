"""Architectures without a native declaration, on transformers' code over our pages, against transformers alone."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from model_runner.models.catalogue import UnsupportedArchitectureError
from model_runner.models.registry import build_model

VOCABULARY = 199
PROMPT = torch.randint(0, VOCABULARY, (19,), generator=torch.Generator().manual_seed(7)).tolist()
OTHER = torch.randint(0, VOCABULARY, (9,), generator=torch.Generator().manual_seed(8)).tolist()
BASE: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "initializer_range": 0.2,
}
GPT2 = {
    "bos_token_id": 1,
    "eos_token_id": 2,
    "vocab_size": VOCABULARY,
    "n_embd": 64,
    "n_layer": 2,
    "n_head": 4,
    "n_positions": 64,
    "initializer_range": 0.2,
}
SLIDING = {"head_dim": 16, "sliding_window": 6, "query_pre_attn_scalar": 24, "attn_logit_softcapping": 5.0}
SINKS = {"head_dim": 16, "sliding_window": 6, "num_local_experts": 4, "num_experts_per_tok": 2}
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "gpt2": ("GPT2Config", GPT2),
    "starcoder2": ("Starcoder2Config", BASE | {"sliding_window": 6}),
    "cohere": ("CohereConfig", BASE | {"logit_scale": 0.3}),
    "olmoe": ("OlmoeConfig", BASE | {"num_experts": 4, "num_experts_per_tok": 2}),
    "glm4": ("Glm4Config", BASE | {"head_dim": 16}),
    "gpt-neox": ("GPTNeoXConfig", BASE),
    "gemma2": ("Gemma2Config", BASE | SLIDING),
    "gpt-oss": ("GptOssConfig", BASE | SINKS),
}


def save(case: str, folder: Path) -> tuple[Any, dict[str, Any]]:
    name, changes = CASES[case]
    torch.manual_seed(3)
    config = getattr(transformers, name)(**changes)
    reference = transformers.AutoModelForCausalLM.from_config(config, attn_implementation="eager").eval()
    reference.save_pretrained(folder)
    return reference, json.loads((folder / "config.json").read_text())


def logits(reference: Any, ids: list[int]) -> torch.Tensor:
    with torch.inference_mode():
        found: torch.Tensor = reference(torch.tensor([ids]), use_cache=False).logits[0].float()
        return found


@pytest.mark.parametrize("case", CASES)
def test_matches_transformers(
    case: str, tmp_path: Path, make_rig: Any, make_config: Any, make_row: Callable[..., Any]
) -> None:
    reference, config = save(case, tmp_path)
    wanted, other = logits(reference, PROMPT), logits(reference, OTHER)
    values = {"max_position_embeddings": 64} | config
    made = make_config(tmp_path, values, config["architectures"][0], model_impl="transformers")
    rig = make_rig(made)
    near = 1e-4 * wanted.std().item()
    torch.testing.assert_close(rig.whole(PROMPT), wanted, rtol=0.0, atol=near)
    chunks = [rig.step([make_row(PROMPT[start : start + 5], start, range(10, 15))])[0] for start in range(0, 19, 5)]
    torch.testing.assert_close(torch.cat(chunks), wanted, rtol=0.0, atol=near)
    shared = [10, 11, 12, 20, 21]
    mixed = rig.step(
        [make_row(PROMPT[12:], 12, shared), make_row(OTHER, 0, range(30, 33)), make_row(PROMPT, 0, range(40, 45))]
    )
    for found, expected in zip(mixed, (wanted[12:], other, wanted), strict=True):
        torch.testing.assert_close(found, expected, rtol=0.0, atol=near)


def test_says_that_it_runs_foreign_code(tmp_path: Path, make_config: Any, caplog: pytest.LogCaptureFixture) -> None:
    _, config = save("starcoder2", tmp_path)
    with caplog.at_level("INFO"):
        model = build_model(make_config(tmp_path, config, "Starcoder2ForCausalLM", model_impl="transformers"))
    assert type(model).__name__ == "TransformersModel"
    assert "Starcoder2ForCausalLM runs on transformers' own modelling code" in caplog.text


def test_native_code_is_not_made_up(tmp_path: Path, make_config: Any) -> None:
    made = make_config(tmp_path, dict(BASE), "Starcoder2ForCausalLM")
    with pytest.raises(UnsupportedArchitectureError, match=r"'Starcoder2ForCausalLM' has no native .*--model-impl"):
        build_model(made)


@pytest.mark.parametrize(
    ("architecture", "model_type", "said"),
    [
        ("NoSuchForCausalLM", "llama", "has no such class"),
        ("BloomForCausalLM", "bloom", "takes no foreign attention function"),
        ("BertForMaskedLM", "bert", "no causal decoder"),
        ("MambaForCausalLM", "mamba", "can't run with --model-impl transformers"),
    ],
)
def test_what_can_not_run_is_named(
    architecture: str, model_type: str, said: str, tmp_path: Path, make_config: Any
) -> None:
    config = {"model_type": model_type, "vocab_size": VOCABULARY, "hidden_size": 32, "num_hidden_layers": 1}
    with pytest.raises(UnsupportedArchitectureError, match=said) as caught:
        build_model(make_config(tmp_path, config, architecture, format="dummy", model_impl="transformers"))
    assert architecture in str(caught.value)


def test_scalings_by_length_of_the_batch_are_refused(tmp_path: Path, make_config: Any) -> None:
    rope = {"rope_type": "dynamic", "rope_theta": 1e4, "factor": 2.0}
    config = BASE | {"model_type": "llama", "rope_parameters": rope}
    made = make_config(
        tmp_path, config, "LlamaForCausalLM", format="dummy", model_impl="transformers", context_length=128
    )
    with pytest.raises(UnsupportedArchitectureError, match="--context-length 64"):
        build_model(made)


def test_random_weights(tmp_path: Path, make_rig: Any, make_config: Any) -> None:
    config = BASE | {"model_type": "llama"}
    made = make_config(tmp_path, config, "LlamaForCausalLM", format="dummy", model_impl="transformers")
    found = make_rig(made).whole(PROMPT)
    assert found.shape == (len(PROMPT), VOCABULARY) and found.isfinite().all() and found.std() > 0
