"""GPT-OSS: attention sinks, alternate sliding layers, and experts with biases behind a clamped gate."""

from model_runner.layers.declarations import (
    ClampedGate,
    ExpertsDeclaration,
    ModelDeclaration,
    RoutingDeclaration,
)
from model_runner.models.common_settings import read_activation, read_rotary, read_sizes, read_windows
from model_runner.models.config_reader import ConfigReader
from model_runner.models.standard import attention_of, layers_of, model_of

YARN = {
    "rope_type": "yarn",
    "factor": 32.0,
    "beta_fast": 32.0,
    "beta_slow": 1.0,
    "truncate": False,
    "original_max_position_embeddings": 4096,
}
"""The family's scaling where a configuration names none."""


def declare_gpt_oss(config: ConfigReader, context_tokens: int) -> ModelDeclaration:
    sizes = read_sizes(config, head_dim=64, kv_heads=8, norm_epsilon=1e-5)
    default = ["full_attention" if index % 2 else "sliding_attention" for index in range(sizes.layers)]
    windows = read_windows(config, sizes, default, config.integer("sliding_window", 128))
    bias = config.flag("attention_bias", True)
    rotary = read_rotary(config, sizes.head_dim, context_tokens, theta=150000.0, defaults=YARN)
    attention = attention_of(sizes, rotary, qkv_bias=bias, output_bias=bias, sinks=True)
    key = "num_experts" if config.raw("num_local_experts") is None else "num_local_experts"
    # Older configurations carry the number under this name too.
    chosen = config.raw("experts_per_token")
    routing = RoutingDeclaration(
        experts=config.integer(key, 128),
        chosen=config.integer("num_experts_per_tok", chosen or 4),
        scoring="softmax_of_chosen",
        normalise=False,
        router_bias=True,
        name="router",
    )
    gate = ClampedGate(config.number("swiglu_limit", 7.0), config.number("swiglu_alpha", 1.702))
    experts = ExpertsDeclaration(
        routing, sizes.intermediate_size, read_activation(config), layout="stacked", clamp=gate
    )
    return model_of(config, sizes, layers_of(attention, experts, windows))
