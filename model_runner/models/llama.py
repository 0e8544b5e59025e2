"""Llama 2/3, SmolLM2 and what shares their shape: Mistral (with its window), SmolLM3 (some layers without rotation),
and Granite (multipliers)."""

from model_runner.layers.declarations import (
    AttentionDeclaration,
    GatedDeclaration,
    LayerDeclaration,
    ModelDeclaration,
)
from model_runner.models.common_settings import Sizes, read_activation, read_rotary, read_sizes, read_windows
from model_runner.models.config_reader import ConfigReader


def declare_llama(config: ConfigReader, context_tokens: int) -> ModelDeclaration:
    """LlamaForCausalLM, and Llama checkpoints under other names (InternLM3, Yi, ...)."""
    sizes = read_sizes(config)
    windows: list[int | None] = [None] * sizes.layers
    return _declare(config, sizes, context_tokens, windows, config.flag("attention_bias", False))


def declare_mistral(config: ConfigReader, context_tokens: int) -> ModelDeclaration:
    """MistralForCausalLM: one window over all layers, or none."""
    sizes = read_sizes(config, kv_heads=8)
    window = config.optional_integer("sliding_window")
    default = ["full_attention" if window is None else "sliding_attention"] * sizes.layers
    return _declare(config, sizes, context_tokens, read_windows(config, sizes, default, window), qkv_bias=False)


def declare_smollm3(config: ConfigReader, context_tokens: int) -> ModelDeclaration:
    """SmolLM3ForCausalLM: `no_rope_layers` holds 1 where a layer rotates."""
    sizes = read_sizes(config, kv_heads=4)
    interval = config.integer("no_rope_layer_interval", 4)
    rotates = config.raw("no_rope_layers") or [int((index + 1) % interval != 0) for index in range(sizes.layers)]
    if not isinstance(rotates, list) or len(rotates) < sizes.layers or not set(rotates) <= {0, 1}:
        raise config.error("no_rope_layers", f"a list of {sizes.layers} zeros and ones")
    window = config.optional_integer("sliding_window") if config.flag("use_sliding_window", False) else None
    config.raw("sliding_window")
    default = ["full_attention" if window is None or turn else "sliding_attention" for turn in rotates[: sizes.layers]]
    windows: list[int | None] = [None] * sizes.layers
    if window is not None:
        windows = read_windows(config, sizes, default, window)
    bias = config.flag("attention_bias", False)
    return _declare(config, sizes, context_tokens, windows, bias, rotates, tied=True)


def declare_granite(config: ConfigReader, context_tokens: int) -> ModelDeclaration:
    """GraniteForCausalLM: Llama with four multipliers."""
    sizes = read_sizes(config)
    windows: list[int | None] = [None] * sizes.layers
    scale = config.number("attention_multiplier", 1.0)
    bias = config.flag("attention_bias", False)
    return _declare(config, sizes, context_tokens, windows, bias, scale=scale)


def _declare(
    config: ConfigReader,
    sizes: Sizes,
    context_tokens: int,
    windows: list[int | None],
    qkv_bias: bool,
    rotates: list[int] | None = None,
    scale: float | None = None,
    tied: bool = False,
) -> ModelDeclaration:
    rotary = read_rotary(config, sizes.head_dim, context_tokens)
    feed_forward = GatedDeclaration(sizes.intermediate_size, read_activation(config), config.flag("mlp_bias", False))
    residual = config.number("residual_multiplier", 1.0)
    layers = tuple(
        LayerDeclaration(
            AttentionDeclaration(
                sizes.heads,
                sizes.kv_heads,
                sizes.head_dim,
                scale=sizes.head_dim**-0.5 if scale is None else scale,
                rotary=rotary if rotates is None or rotates[index] else None,
                qkv_bias=qkv_bias,
                output_bias=qkv_bias,
                sliding_window=window,
            ),
            feed_forward,
            residual_multiplier=residual,
        )
        for index, window in enumerate(windows)
    )
    return ModelDeclaration(
        sizes.vocab_size,
        sizes.hidden_size,
        layers,
        sizes.norm_epsilon,
        tied_head=config.flag("tie_word_embeddings", tied),
        embedding_multiplier=config.number("embedding_multiplier", 1.0),
        logit_multiplier=1.0 / config.number("logits_scaling", 1.0),
    )
