"""DeepSeek-V2 and V3: latent attention, and experts chosen within groups beside a shared one."""

import math
from dataclasses import dataclass

from model_runner.layers.declarations import (
    ExpertsDeclaration,
    GatedDeclaration,
    LatentAttentionDeclaration,
    LayerDeclaration,
    ModelDeclaration,
    RoutingDeclaration,
)
from model_runner.models.common_settings import read_activation, read_rotary, read_sizes
from model_runner.models.config_reader import ConfigReader
from model_runner.models.standard import model_of

INNER_EPSILON = 1e-6
"""The norms inside attention have their own epsilon, whatever the configuration says of the others."""


def declare_deepseek_v2(config: ConfigReader, context_tokens: int) -> ModelDeclaration:
    config.choice("scoring_func", ("softmax",), "softmax")
    method = config.choice("topk_method", ("greedy", "group_limited_greedy"), "greedy")
    grouped = method == "group_limited_greedy"
    if config.flag("norm_topk_prob", False):
        raise config.error("norm_topk_prob", "false")
    routing = RoutingDeclaration(
        experts=config.integer("n_routed_experts", 64),
        chosen=config.integer("num_experts_per_tok"),
        scoring="softmax",
        normalise=False,
        scale=config.number("routed_scaling_factor", 1.0),
        float32=True,
        groups=config.integer("n_group") if grouped else 1,
        groups_kept=config.integer("topk_group") if grouped else 1,
    )
    return _declare(
        config, context_tokens, routing, _Defaults(dense_layers=0, shared_experts=2, expert_size=1407), True
    )


def declare_deepseek_v3(config: ConfigReader, context_tokens: int) -> ModelDeclaration:
    config.choice("scoring_func", ("sigmoid",), "sigmoid")
    config.choice("topk_method", ("noaux_tc",), "noaux_tc")
    routing = RoutingDeclaration(
        experts=config.integer("n_routed_experts", 256),
        chosen=config.integer("num_experts_per_tok", 8),
        scoring="sigmoid",
        normalise=config.flag("norm_topk_prob", True),
        scale=config.number("routed_scaling_factor", 2.5),
        float32=True,
        correction_bias="e_score_correction_bias",
        groups=config.integer("n_group", 8),
        groups_kept=config.integer("topk_group", 4),
        group_score="best_two",
    )
    interleaved = config.flag("rope_interleave", True)
    defaults = _Defaults(dense_layers=3, shared_experts=1, expert_size=2048)
    return _declare(config, context_tokens, routing, defaults, interleaved)


@dataclass(frozen=True)
class _Defaults:
    """What a family has where its configuration is silent."""

    dense_layers: int
    shared_experts: int
    expert_size: int


def _declare(
    config: ConfigReader, context_tokens: int, routing: RoutingDeclaration, defaults: _Defaults, interleaved: bool
) -> ModelDeclaration:
    sizes = read_sizes(config)
    attention = _attention(config, context_tokens, sizes.heads, interleaved)
    activation = read_activation(config)
    dense = GatedDeclaration(sizes.intermediate_size, activation, config.flag("mlp_bias", False))
    size = config.integer("moe_intermediate_size", defaults.expert_size)
    experts = ExpertsDeclaration(
        routing,
        size,
        activation,
        shared_intermediate_size=size * config.integer("n_shared_experts", defaults.shared_experts),
    )
    first = config.raw("first_k_dense_replace", defaults.dense_layers)
    if not isinstance(first, int) or first < 0:
        raise config.error("first_k_dense_replace", "a number of layers")
    layers = tuple(LayerDeclaration(attention, dense if index < first else experts) for index in range(sizes.layers))
    # Multi-token prediction modules lie behind the last layer; they serve speculation, not the model's own logits.
    behind = (rf"model\.layers\.{sizes.layers + index}\..*" for index in range(4))
    return model_of(config, sizes, layers, unused_tensors=tuple(behind))


def _attention(config: ConfigReader, context_tokens: int, heads: int, interleaved: bool) -> LatentAttentionDeclaration:
    plain = config.integer("qk_nope_head_dim", 128)
    turning = config.integer("qk_rope_head_dim", 64)
    scaling = config.raw("rope_parameters") or config.raw("rope_scaling") or {}
    scale = (plain + turning) ** -0.5
    weight = scaling.get("mscale_all_dim")
    if weight and scaling.get("rope_type", scaling.get("type", "default")) != "default":
        factor = float(scaling["factor"])
        magnitude = 1.0 if factor <= 1 else 0.1 * float(weight) * math.log(factor) + 1.0
        scale *= magnitude * magnitude
    return LatentAttentionDeclaration(
        heads=heads,
        query_rank=config.nullable_integer("q_lora_rank", 1536),
        latent_rank=config.integer("kv_lora_rank", 512),
        plain_dim=plain,
        rotary_dim=turning,
        value_dim=config.integer("v_head_dim", 128),
        scale=scale,
        rotary=read_rotary(config, turning, context_tokens, interleaved=interleaved),
        bias=config.flag("attention_bias", False),
        norm_epsilon=INNER_EPSILON,
    )
