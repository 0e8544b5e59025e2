"""Qwen2 and 2.5 (biased projections), Qwen3 (normed queries and keys), and Qwen3's mixtures of experts."""

from model_runner.layers.declarations import (
    ExpertsDeclaration,
    GatedDeclaration,
    LayerDeclaration,
    ModelDeclaration,
    RoutingDeclaration,
)
from model_runner.models.common_settings import Sizes, read_activation, read_rotary, read_sizes, read_windows
from model_runner.models.config_reader import ConfigReader
from model_runner.models.standard import attention_of, layers_of, model_of


def declare_qwen2(config: ConfigReader, context_tokens: int) -> ModelDeclaration:
    sizes = read_sizes(config)
    attention = attention_of(sizes, read_rotary(config, sizes.head_dim, context_tokens), qkv_bias=True)
    feed_forward = GatedDeclaration(sizes.intermediate_size, read_activation(config))
    return model_of(config, sizes, layers_of(attention, feed_forward, _windows(config, sizes)))


def declare_qwen3(config: ConfigReader, context_tokens: int) -> ModelDeclaration:
    sizes = read_sizes(config, head_dim=128)
    bias = config.flag("attention_bias", False)
    rotary = read_rotary(config, sizes.head_dim, context_tokens)
    attention = attention_of(sizes, rotary, qkv_bias=bias, output_bias=bias, qk_norm="head")
    feed_forward = GatedDeclaration(sizes.intermediate_size, read_activation(config))
    return model_of(config, sizes, layers_of(attention, feed_forward, _windows(config, sizes)))


def declare_qwen3_moe(config: ConfigReader, context_tokens: int) -> ModelDeclaration:
    """A layer has experts where its place is a multiple of `decoder_sparse_step` and not in `mlp_only_layers`."""
    sizes = read_sizes(config, kv_heads=4)
    bias = config.flag("attention_bias", False)
    rotary = read_rotary(config, sizes.head_dim, context_tokens)
    attention = attention_of(sizes, rotary, qkv_bias=bias, output_bias=bias, qk_norm="head")
    activation = read_activation(config)
    dense = GatedDeclaration(sizes.intermediate_size, activation)
    key = "num_local_experts" if config.raw("num_experts") is None else "num_experts"
    routing = RoutingDeclaration(
        experts=config.integer(key),
        chosen=config.integer("num_experts_per_tok", 8),
        scoring="softmax",
        normalise=config.flag("norm_topk_prob", False),
    )
    experts = ExpertsDeclaration(routing, config.integer("moe_intermediate_size", 768), activation)
    every = config.integer("decoder_sparse_step", 1)
    without = config.raw("mlp_only_layers", [])
    if not isinstance(without, list):
        raise config.error("mlp_only_layers", "a list of layer numbers")
    # One window for all layers: the reference ignores max_window_layers here.
    window = config.nullable_integer("sliding_window", 4096) if config.flag("use_sliding_window", False) else None
    config.raw("sliding_window")
    layers: list[LayerDeclaration] = []
    for index in range(sizes.layers):
        sparse = index not in without and (index + 1) % every == 0
        layers.extend(layers_of(attention, experts if sparse else dense, [window]))
    return model_of(config, sizes, tuple(layers))


def _windows(config: ConfigReader, sizes: Sizes) -> list[int | None]:
    """Layers from `max_window_layers` on slide, and only with `use_sliding_window`."""
    window = config.nullable_integer("sliding_window", 4096)
    first = config.integer("max_window_layers", 28)
    if not config.flag("use_sliding_window", False) or window is None:
        return [None] * sizes.layers
    default = ["sliding_attention" if index >= first else "full_attention" for index in range(sizes.layers)]
    return read_windows(config, sizes, default, window)
