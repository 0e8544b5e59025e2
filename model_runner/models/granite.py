"""Granite 3: Llama with four multipliers."""

from model_runner.layers.declarations import GatedDeclaration, ModelDeclaration
from model_runner.models.common_settings import read_activation, read_rotary, read_sizes
from model_runner.models.config_reader import ConfigReader
from model_runner.models.standard import attention_of, layers_of, model_of


def declare_granite(config: ConfigReader, context_tokens: int) -> ModelDeclaration:
    sizes = read_sizes(config)
    bias = config.flag("attention_bias", False)
    attention = attention_of(
        sizes,
        read_rotary(config, sizes.head_dim, context_tokens),
        qkv_bias=bias,
        output_bias=bias,
        scale=config.number("attention_multiplier", 1.0),
    )
    feed_forward = GatedDeclaration(sizes.intermediate_size, read_activation(config), config.flag("mlp_bias", False))
    residual = config.number("residual_multiplier", 1.0)
    layers = layers_of(attention, feed_forward, [None] * sizes.layers, residual_multiplier=residual)
    divisor = config.number("logits_scaling", 1.0)
    if divisor == 0:
        raise config.error("logits_scaling", "a number other than 0")
    return model_of(
        config,
        sizes,
        layers,
        embedding_multiplier=config.number("embedding_multiplier", 1.0),
        logit_multiplier=1.0 / divisor,
    )
