"""The text model inside a checkpoint that also reads images, under the names of either generation."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

from tests.model_runner.models.tiny import SIZES

PROMPT = torch.randint(4, 199, (17,), generator=torch.Generator().manual_seed(5)).tolist()
TEXT = SIZES | {"head_dim": 16, "sliding_window": 6, "layer_types": ["sliding_attention", "full_attention"]}
VISION = {
    "hidden_size": 32,
    "intermediate_size": 32,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "image_size": 28,
    "patch_size": 14,
}


def older(name: str) -> str:
    """The names of the checkpoints that were published with Gemma 3."""
    if "language_model." in name:
        return "language_model.model." + name.partition("language_model.")[2].removeprefix("model.")
    return name.removeprefix("model.")


@pytest.mark.parametrize("names", ["as-saved", "older"])
def test_text_of_gemma3(names: str, tmp_path: Path, make_rig: Any, make_config: Any) -> None:
    torch.manual_seed(1)
    config = transformers.Gemma3Config(
        text_config=TEXT, vision_config=VISION, mm_tokens_per_image=4, image_token_index=3, boi_token_index=1
    )
    reference = transformers.Gemma3ForConditionalGeneration(config).eval()
    reference.save_pretrained(tmp_path)
    if names == "older":
        file = tmp_path / "model.safetensors"
        tensors = {older(name): tensor.clone() for name, tensor in load_file(file).items()}
        file.unlink()
        save_file(tensors, file)
    values = json.loads((tmp_path / "config.json").read_text())
    config_of = make_config(tmp_path, values | {"vocab_size": 199}, "Gemma3ForConditionalGeneration", context_length=64)
    with torch.inference_mode():
        wanted = reference(torch.tensor([PROMPT]), use_cache=False).logits[0]
    found = make_rig(config_of).whole(PROMPT)
    torch.testing.assert_close(found, wanted, rtol=0, atol=1e-4 * wanted.std().item())
