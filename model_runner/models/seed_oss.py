"""Seed-OSS: Llama with biases on query, key and value, and a flag of its own for the one on the output."""

from model_runner.layers.declarations import GatedDeclaration, ModelDeclaration
from model_runner.models.common_settings import read_activation, read_rotary, read_sizes
from model_runner.models.config_reader import ConfigReader
from model_runner.models.standard import attention_of, layers_of, model_of


def declare_seed_oss(config: ConfigReader, context_tokens: int) -> ModelDeclaration:
    sizes = read_sizes(config, head_dim=128, kv_heads=8)
    rotary = read_rotary(config, sizes.head_dim, context_tokens)
    attention = attention_of(
        sizes,
        rotary,
        qkv_bias=config.flag("attention_bias", True),
        output_bias=config.flag("attention_out_bias", False),
    )
    feed_forward = GatedDeclaration(sizes.intermediate_size, read_activation(config), config.flag("mlp_bias", False))
    return model_of(config, sizes, layers_of(attention, feed_forward, [None] * sizes.layers))
