"""What most families read alike: sizes, heads, rotary scaling, windows."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from model_runner.layers.activations import ACTIVATIONS
from model_runner.layers.rotary import ROPE_TYPES, Rotary, RotarySettings
from model_runner.models.config_reader import ConfigError, ConfigReader

LAYER_TYPES = ("full_attention", "sliding_attention")


@dataclass(frozen=True)
class Sizes:
    """The dimensions that every decoder has."""

    vocab_size: int
    hidden_size: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    intermediate_size: int
    norm_epsilon: float


def read_sizes(
    config: ConfigReader,
    head_dim: int | None = None,
    kv_heads: int | None = None,
    norm_epsilon: float = 1e-6,
    heads: int | None = None,
    vocab_size: int | None = None,
) -> Sizes:
    """The common dimensions; the arguments are the family's defaults where the configuration is silent. A null is not
    silence: as many KV heads as heads, and heads that share the hidden size out."""
    hidden_size = config.integer("hidden_size")
    heads = config.integer("num_attention_heads", heads)
    kv = config.nullable_integer("num_key_value_heads", kv_heads) or heads
    if heads % kv:
        raise config.error("num_key_value_heads", f"a divisor of num_attention_heads ({heads})")
    dim = config.nullable_integer("head_dim", head_dim)
    if dim is None and hidden_size % heads:
        raise config.error("num_attention_heads", f"a divisor of hidden_size ({hidden_size})")
    return Sizes(
        vocab_size=config.integer("vocab_size", vocab_size),
        hidden_size=hidden_size,
        layers=config.integer("num_hidden_layers"),
        heads=heads,
        kv_heads=kv,
        head_dim=dim or hidden_size // heads,
        intermediate_size=config.integer("intermediate_size"),
        norm_epsilon=config.number("rms_norm_eps", norm_epsilon),
    )


def read_activation(config: ConfigReader, key: str = "hidden_act", default: str = "silu") -> str:
    return config.choice(key, ACTIVATIONS, default)


def read_rotary(
    config: ConfigReader,
    head_dim: int,
    context_tokens: int,
    theta: float = 10000.0,
    defaults: Mapping[str, Any] | None = None,
    interleaved: bool = False,
) -> Rotary:
    """The model's rotary embedding. Both ways of writing it are read: `rope_parameters`, and `rope_theta` with
    `rope_scaling`. `defaults` are the family's scaling parameters where the configuration names none."""
    values = config.raw("rope_parameters") or config.raw("rope_scaling") or defaults or {}
    config.raw("rope_scaling")
    if not isinstance(values, dict) and not isinstance(values, Mapping):
        raise config.error("rope_scaling", "an object")
    base = values.get("rope_theta") or config.number("rope_theta", theta)
    return make_rotary(config, dict(values), head_dim, context_tokens, float(base), interleaved)


def read_rotaries(
    config: ConfigReader, head_dim: int, context_tokens: int, full_theta: float, sliding_theta: float
) -> tuple[Rotary, Rotary]:
    """The rotations of full and of sliding layers, where a family has two. A `rope_scaling` of the older way of writing
    concerns full layers alone, a `rope_theta` their base (and that of sliding layers too if both have one default)."""
    blocks = config.raw("rope_parameters") or {}
    older = config.raw("rope_scaling") or {}
    if not isinstance(blocks, dict) or not isinstance(older, dict):
        raise config.error("rope_parameters", "an object")
    if blocks and not {"full_attention", "sliding_attention"} >= blocks.keys():
        raise config.error("rope_parameters", "an object with full_attention and sliding_attention")
    base = config.number("rope_theta", full_theta)
    made = []
    for kind, values, theta in (
        ("full_attention", older, base),
        ("sliding_attention", {}, base if sliding_theta == full_theta else sliding_theta),
    ):
        block = dict(blocks.get(kind) or values)
        made.append(make_rotary(config, block, head_dim, context_tokens, float(block.get("rope_theta") or theta)))
    return made[0], made[1]


def make_rotary(
    config: ConfigReader,
    values: dict[str, Any],
    head_dim: int,
    context_tokens: int,
    theta: float,
    interleaved: bool = False,
) -> Rotary:
    """The rotary embedding of one block of scaling parameters."""
    kind = values.get("rope_type", values.get("type", "default"))
    if kind == "su":
        kind = "longrope"  # Phi-3's first name for it
    if kind not in ROPE_TYPES:
        supported = ", ".join(sorted(ROPE_TYPES))
        raise ConfigError(f"{config.architecture}: rope type is {kind!r}; supported: {supported}")
    share = values.get("partial_rotary_factor") or config.number("partial_rotary_factor", 1.0)
    outside = config.raw("original_max_position_embeddings")
    if outside is not None:
        values["original_max_position_embeddings"] = outside
    settings = RotarySettings(
        dim=int(head_dim * share),
        theta=theta,
        context_tokens=context_tokens,
        max_position_embeddings=config.integer("max_position_embeddings", context_tokens),
        values=values,
    )
    try:
        made = ROPE_TYPES[kind](settings)
    except (ValueError, ZeroDivisionError, OverflowError) as error:
        raise ConfigError(f"{config.architecture}: rope parameters {values!r}: {error}") from error
    return Rotary(made.inverse_frequencies, made.scale, interleaved)


def read_windows(config: ConfigReader, sizes: Sizes, default: list[str], window: int | None) -> list[int | None]:
    """Each layer's sliding window: `layer_types` of the configuration, or the family's rule."""
    kinds = config.strings("layer_types", sizes.layers) or default
    for kind in kinds:
        if kind not in LAYER_TYPES:
            raise config.error("layer_types", ", ".join(LAYER_TYPES))
    if "sliding_attention" in kinds and window is None:
        raise config.error("sliding_window", "a positive integer where layer_types has sliding_attention")
    return [window if kind == "sliding_attention" else None for kind in kinds]
