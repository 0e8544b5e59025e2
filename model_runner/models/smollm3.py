"""SmolLM3: Llama with layers that don't rotate (NoPE), every fourth by default."""

from dataclasses import replace

from model_runner.layers.declarations import GatedDeclaration, LayerDeclaration, ModelDeclaration
from model_runner.models.common_settings import read_activation, read_rotary, read_sizes, read_windows
from model_runner.models.config_reader import ConfigReader
from model_runner.models.standard import attention_of, model_of


def declare_smollm3(config: ConfigReader, context_tokens: int) -> ModelDeclaration:
    """`no_rope_layers` holds 1 where a layer rotates."""
    sizes = read_sizes(config, kv_heads=4)
    interval = config.integer("no_rope_layer_interval", 4)
    rotates = config.raw("no_rope_layers") or [int((index + 1) % interval != 0) for index in range(sizes.layers)]
    if not isinstance(rotates, list) or len(rotates) < sizes.layers or not set(rotates) <= {0, 1}:
        raise config.error("no_rope_layers", f"a list of {sizes.layers} zeros and ones")
    slides = config.flag("use_sliding_window", False)
    window = config.nullable_integer("sliding_window", None)
    windows: list[int | None] = [None] * sizes.layers
    if slides and window is not None:
        default = ["full_attention" if turn else "sliding_attention" for turn in rotates[: sizes.layers]]
        windows = read_windows(config, sizes, default, window)
    bias = config.flag("attention_bias", False)
    rotary = read_rotary(config, sizes.head_dim, context_tokens)
    attention = attention_of(sizes, rotary, qkv_bias=bias, output_bias=bias)
    feed_forward = GatedDeclaration(sizes.intermediate_size, read_activation(config), config.flag("mlp_bias", False))
    layers = tuple(
        LayerDeclaration(
            replace(attention, rotary=rotary if turn else None, sliding_window=window),
            feed_forward,
        )
        for turn, window in zip(rotates, windows, strict=False)
    )
    return model_of(config, sizes, layers, tied=True)
