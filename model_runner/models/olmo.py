"""OLMo 2 and 3: norms after each half instead of before, one norm over all query (and key) heads. OLMo 3 adds sliding
layers, whose rotation is never scaled."""

from dataclasses import replace

from model_runner.layers.declarations import AttentionDeclaration, GatedDeclaration, LayerDeclaration, ModelDeclaration
from model_runner.models.common_settings import read_activation, read_rotaries, read_rotary, read_sizes, read_windows
from model_runner.models.config_reader import ConfigReader
from model_runner.models.standard import attention_of, model_of


def declare_olmo2(config: ConfigReader, context_tokens: int) -> ModelDeclaration:
    sizes = read_sizes(config, norm_epsilon=1e-5)
    bias = config.flag("attention_bias", False)
    rotary = read_rotary(config, sizes.head_dim, context_tokens)
    attention = attention_of(sizes, rotary, qkv_bias=bias, output_bias=bias, qk_norm="all")
    feed_forward = GatedDeclaration(sizes.intermediate_size, read_activation(config))
    layer = _layer(attention, feed_forward)
    return model_of(config, sizes, (layer,) * sizes.layers)


def declare_olmo3(config: ConfigReader, context_tokens: int) -> ModelDeclaration:
    sizes = read_sizes(config, norm_epsilon=1e-5)
    bias = config.flag("attention_bias", False)
    full, sliding = read_rotaries(config, sizes.head_dim, context_tokens, 500000.0, 500000.0)
    default = ["full_attention" if index % 4 == 3 else "sliding_attention" for index in range(sizes.layers)]
    windows = read_windows(config, sizes, default, config.integer("sliding_window", 4096))
    attention = attention_of(sizes, full, qkv_bias=bias, output_bias=bias, qk_norm="all")
    feed_forward = GatedDeclaration(sizes.intermediate_size, read_activation(config))
    layers = tuple(
        _layer(replace(attention, rotary=full if window is None else sliding, sliding_window=window), feed_forward)
        for window in windows
    )
    return model_of(config, sizes, layers)


def _layer(attention: AttentionDeclaration, feed_forward: GatedDeclaration) -> LayerDeclaration:
    return LayerDeclaration(
        attention,
        feed_forward,
        attention_norm=None,
        attention_output_norm="post_attention_layernorm",
        feed_forward_norm=None,
        feed_forward_output_norm="post_feedforward_layernorm",
    )
