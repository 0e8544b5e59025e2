"""Gemma 2 (soft caps) and Gemma 3 (normed queries and keys, two rotations): gains stored around zero, norms on both
sides of each half, scaled embeddings, sliding layers among full ones."""

from dataclasses import replace

from model_runner.layers.declarations import AttentionDeclaration, GatedDeclaration, LayerDeclaration, ModelDeclaration
from model_runner.models.common_settings import (
    Sizes,
    read_activation,
    read_rotaries,
    read_rotary,
    read_sizes,
    read_windows,
)
from model_runner.models.config_reader import ConfigReader
from model_runner.models.standard import attention_of, model_of


def declare_gemma2(config: ConfigReader, context_tokens: int) -> ModelDeclaration:
    sizes = read_sizes(config, head_dim=256, kv_heads=4)
    default = ["full_attention" if index % 2 else "sliding_attention" for index in range(sizes.layers)]
    windows = read_windows(config, sizes, default, config.integer("sliding_window", 4096))
    bias = config.flag("attention_bias", False)
    attention = attention_of(
        sizes,
        read_rotary(config, sizes.head_dim, context_tokens),
        qkv_bias=bias,
        output_bias=bias,
        scale=config.number("query_pre_attn_scalar", 256) ** -0.5,
        logit_soft_cap=config.nullable_number("attn_logit_softcapping", 50.0),
    )
    feed_forward = _feed_forward(config, sizes)
    layers = tuple(_layer(replace(attention, sliding_window=window), feed_forward) for window in windows)
    return _model(config, sizes, layers, soft_cap=30.0)


def declare_gemma3(config: ConfigReader, context_tokens: int) -> ModelDeclaration:
    """Gemma3ForCausalLM, and the text part of Gemma3ForConditionalGeneration, whose configurations leave out much."""
    sizes = read_sizes(config, head_dim=256, kv_heads=4, heads=8, vocab_size=262208)
    every = config.integer("sliding_window_pattern", config.integer("_sliding_window_pattern", 6))
    default = ["sliding_attention" if (index + 1) % every else "full_attention" for index in range(sizes.layers)]
    windows = read_windows(config, sizes, default, config.integer("sliding_window", 4096))
    local_theta = config.number("rope_local_base_freq", 10000.0)
    full, sliding = read_rotaries(config, sizes.head_dim, context_tokens, 1000000.0, local_theta)
    bias = config.flag("attention_bias", False)
    attention = attention_of(
        sizes,
        full,
        qkv_bias=bias,
        output_bias=bias,
        scale=config.number("query_pre_attn_scalar", 256) ** -0.5,
        qk_norm="head",
        norm_offset=1.0,
    )
    feed_forward = _feed_forward(config, sizes)
    layers = tuple(
        _layer(replace(attention, rotary=full if window is None else sliding, sliding_window=window), feed_forward)
        for window in windows
    )
    return _model(config, sizes, layers)


def _layer(attention: AttentionDeclaration, feed_forward: GatedDeclaration) -> LayerDeclaration:
    return LayerDeclaration(
        attention,
        feed_forward,
        attention_output_norm="post_attention_layernorm",
        feed_forward_norm="pre_feedforward_layernorm",
        feed_forward_output_norm="post_feedforward_layernorm",
    )


def _feed_forward(config: ConfigReader, sizes: Sizes) -> GatedDeclaration:
    # `hidden_act` is a leftover in these configurations: the reference reads `hidden_activation` alone.
    config.raw("hidden_act")
    return GatedDeclaration(sizes.intermediate_size, read_activation(config, "hidden_activation", "gelu_pytorch_tanh"))


def _model(
    config: ConfigReader, sizes: Sizes, layers: tuple[LayerDeclaration, ...], soft_cap: float | None = None
) -> ModelDeclaration:
    return model_of(
        config,
        sizes,
        layers,
        tied=True,
        norm_offset=1.0,
        embedding_multiplier=sizes.hidden_size**0.5,
        logit_soft_cap=config.nullable_number("final_logit_softcapping", soft_cap),
    )
