"""Phi-3, Phi-3.5 and Phi-4: fused projections, partial rotation and LongRoPE."""

from typing import Any

from model_runner.layers.declarations import GatedDeclaration, ModelDeclaration
from model_runner.models.common_settings import make_rotary, read_activation, read_sizes
from model_runner.models.config_reader import ConfigReader
from model_runner.models.standard import attention_of, layers_of, model_of

FIRST_NAMES = ("su", "yarn")
"""What early checkpoints call the scaling that was later published as longrope."""


def declare_phi3(config: ConfigReader, context_tokens: int) -> ModelDeclaration:
    sizes = read_sizes(config, norm_epsilon=1e-5)
    values: dict[str, Any] = dict(config.raw("rope_parameters") or config.raw("rope_scaling") or {})
    if values.get("rope_type", values.get("type")) in FIRST_NAMES:
        values["rope_type"] = "longrope"
    theta = values.get("rope_theta") or config.number("rope_theta", 10000.0)
    rotary = make_rotary(config, values, sizes.head_dim, context_tokens, float(theta))
    attention = attention_of(sizes, rotary, fused_projection="qkv_proj")
    feed_forward = GatedDeclaration(sizes.intermediate_size, read_activation(config), fused_projection="gate_up_proj")
    windows = [config.nullable_integer("sliding_window", None)] * sizes.layers
    return model_of(config, sizes, layers_of(attention, feed_forward, windows))
