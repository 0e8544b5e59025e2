"""Rope scalings against transformers' own, at lengths where they differ from plain rotation."""

from typing import Any

import pytest
import torch
from transformers import LlamaConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from model_runner.layers.rotary import ROPE_TYPES, RotarySettings, rotate

DIM = 32
ORIGINAL = {"original_max_position_embeddings": 512}
CASES: dict[str, tuple[dict[str, Any], int]] = {
    "linear": ({"rope_type": "linear", "factor": 4.0}, 2048),
    "dynamic-longer": ({"rope_type": "dynamic", "factor": 2.0}, 8192),
    "dynamic-within": ({"rope_type": "dynamic", "factor": 2.0}, 100),
    "llama3": (
        {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0} | ORIGINAL,
        2048,
    ),
    "yarn": ({"rope_type": "yarn", "factor": 4.0} | ORIGINAL, 2048),
    "yarn-whole-range": ({"rope_type": "yarn", "factor": 4.0, "truncate": False} | ORIGINAL, 2048),
    "yarn-magnitudes": ({"rope_type": "yarn", "factor": 40.0, "mscale": 0.7, "mscale_all_dim": 1.2} | ORIGINAL, 2048),
    "yarn-given-factor": ({"rope_type": "yarn", "factor": 4.0, "attention_factor": 0.9} | ORIGINAL, 2048),
    "yarn-betas": ({"rope_type": "yarn", "factor": 4.0, "beta_fast": 16, "beta_slow": 2} | ORIGINAL, 2048),
    "longrope-long": (
        {"rope_type": "longrope", "short_factor": [1.0] * 16, "long_factor": [float(n) for n in range(1, 17)]}
        | ORIGINAL,
        2048,
    ),
    "longrope-short": (
        {"rope_type": "longrope", "short_factor": [1.1] * 16, "long_factor": [3.0] * 16} | ORIGINAL,
        512,
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_frequencies(case: str) -> None:
    values, context_tokens = CASES[case]
    config = LlamaConfig(
        hidden_size=DIM * 2,
        num_attention_heads=2,
        max_position_embeddings=2048,
        rope_parameters=values | {"rope_theta": 10000.0},
    )
    kind = values["rope_type"]
    wanted, scale = ROPE_INIT_FUNCTIONS[kind](config, torch.device("cpu"), seq_len=context_tokens)
    made = ROPE_TYPES[kind](RotarySettings(DIM, 10000.0, context_tokens, 2048, values))
    torch.testing.assert_close(made.inverse_frequencies, wanted, rtol=1e-5, atol=0)
    assert made.scale == pytest.approx(scale, rel=1e-6)


def test_divided_frequencies() -> None:
    settings = RotarySettings(8, 100.0, 64, 64, {"divisors": [1.0, 2.0, 4.0, 8.0]})
    plain = ROPE_TYPES["default"](settings).inverse_frequencies
    found = ROPE_TYPES["divided"](settings).inverse_frequencies
    torch.testing.assert_close(found, plain / torch.tensor([1.0, 2.0, 4.0, 8.0]))


@pytest.mark.parametrize("kind", ["longrope", "divided"])
def test_factors_of_another_length_are_refused(kind: str) -> None:
    values = {"long_factor": [1.0], "short_factor": [1.0], "divisors": [1.0]}
    with pytest.raises(ValueError, match="needs 16 numbers in"):
        ROPE_TYPES[kind](RotarySettings(DIM, 10000.0, 64, 64, values))


@pytest.mark.parametrize("interleaved", [False, True])
def test_scores_depend_on_distance_alone(interleaved: bool) -> None:
    """And dimensions behind the rotated ones stay as they are."""
    generator = torch.Generator().manual_seed(0)
    query, key = torch.randn(2, 1, 1, 12, generator=generator)
    rotary = ROPE_TYPES["default"](RotarySettings(8, 100.0, 64, 64, {}))

    def turned(head: torch.Tensor, position: int) -> torch.Tensor:
        return rotate(head, rotary.table(torch.tensor([position])), interleaved)

    near = (turned(query, 5) * turned(key, 2)).sum()
    far = (turned(query, 45) * turned(key, 42)).sum()
    other = (turned(query, 5) * turned(key, 3)).sum()
    torch.testing.assert_close(near, far, rtol=1e-4, atol=1e-5)
    assert abs(near - other) > 1e-3
    torch.testing.assert_close(turned(query, 7)[..., 8:], query[..., 8:])
