"""Mistral (one sliding window over all layers, or none) and Mixtral (the same with eight experts or so)."""

from model_runner.layers.declarations import (
    ExpertsDeclaration,
    GatedDeclaration,
    ModelDeclaration,
    RoutingDeclaration,
)
from model_runner.models.common_settings import read_activation, read_rotary, read_sizes, read_windows
from model_runner.models.config_reader import ConfigReader
from model_runner.models.standard import attention_of, layers_of, model_of


def declare_mistral(config: ConfigReader, context_tokens: int) -> ModelDeclaration:
    sizes = read_sizes(config, kv_heads=8)
    window = config.nullable_integer("sliding_window", 4096)
    default = ["full_attention" if window is None else "sliding_attention"] * sizes.layers
    attention = attention_of(sizes, read_rotary(config, sizes.head_dim, context_tokens))
    feed_forward = GatedDeclaration(sizes.intermediate_size, read_activation(config))
    windows = read_windows(config, sizes, default, window)
    return model_of(config, sizes, layers_of(attention, feed_forward, windows))


def declare_mixtral(config: ConfigReader, context_tokens: int) -> ModelDeclaration:
    sizes = read_sizes(config, kv_heads=8, norm_epsilon=1e-5)
    attention = attention_of(sizes, read_rotary(config, sizes.head_dim, context_tokens, theta=1e6))
    routing = RoutingDeclaration(
        experts=config.integer("num_local_experts", 8),
        chosen=config.integer("num_experts_per_tok", 2),
        scoring="softmax",
        normalise=True,
    )
    experts = ExpertsDeclaration(
        routing, sizes.intermediate_size, read_activation(config), layout="numbered", name="block_sparse_moe"
    )
    windows = [config.nullable_integer("sliding_window", None)] * sizes.layers
    return model_of(config, sizes, layers_of(attention, experts, windows))
