"""The frame that most families fill: layers of attention and a feed-forward between embedding and head."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from model_runner.layers.declarations import (
    AttentionDeclaration,
    ExpertsDeclaration,
    GatedDeclaration,
    LayerDeclaration,
    ModelDeclaration,
)
from model_runner.layers.rotary import Rotary
from model_runner.models.common_settings import Sizes
from model_runner.models.config_reader import ConfigReader


def attention_of(sizes: Sizes, rotary: Rotary | None, **options: Any) -> AttentionDeclaration:
    """Attention of the common sizes, scaled by its head dimension unless told otherwise."""
    settings = {"scale": sizes.head_dim**-0.5, "norm_epsilon": sizes.norm_epsilon} | options
    return AttentionDeclaration(sizes.heads, sizes.kv_heads, sizes.head_dim, rotary=rotary, **settings)


def layers_of(
    attention: AttentionDeclaration,
    feed_forward: GatedDeclaration | ExpertsDeclaration,
    windows: Sequence[int | None],
    **options: Any,
) -> tuple[LayerDeclaration, ...]:
    """One layer per window, otherwise alike."""
    return tuple(
        LayerDeclaration(replace(attention, sliding_window=window), feed_forward, **options) for window in windows
    )


def model_of(
    config: ConfigReader, sizes: Sizes, layers: tuple[LayerDeclaration, ...], tied: bool = False, **options: Any
) -> ModelDeclaration:
    """The whole model; `tied` is the family's default for `tie_word_embeddings`."""
    return ModelDeclaration(
        sizes.vocab_size,
        sizes.hidden_size,
        layers,
        sizes.norm_epsilon,
        tied_head=config.flag("tie_word_embeddings", tied),
        **options,
    )
