"""What a model is made of, as data: families declare it, `model_runner/models/decoder.py` builds it."""

from dataclasses import dataclass
from typing import Literal

from model_runner.layers.rotary import Rotary


@dataclass(frozen=True)
class AttentionDeclaration:
    """Grouped-query attention. `qk_norm`: none, one gain per head dimension, or one over all heads together."""

    heads: int
    kv_heads: int
    head_dim: int
    scale: float
    rotary: Rotary | None = None
    qkv_bias: bool = False
    output_bias: bool = False
    fused_projection: str | None = None
    """The name of a tensor that holds query, key and value rows one after another."""
    qk_norm: Literal["head", "all"] | None = None
    norm_epsilon: float = 1e-6
    norm_offset: float = 0.0
    sliding_window: int | None = None
    logit_soft_cap: float | None = None
    sinks: bool = False


@dataclass(frozen=True)
class LatentAttentionDeclaration:
    """Multi-head latent attention (DeepSeek-V2, arXiv 2405.04434). `query_rank` None: queries are not compressed."""

    heads: int
    query_rank: int | None
    latent_rank: int
    plain_dim: int
    rotary_dim: int
    value_dim: int
    scale: float
    rotary: Rotary
    bias: bool
    norm_epsilon: float


@dataclass(frozen=True)
class GatedDeclaration:
    """`down(activation(gate(x)) * up(x))`."""

    intermediate_size: int
    activation: str
    bias: bool = False
    fused_projection: str | None = None
    """The name of a tensor that holds gate and up rows one after the other."""
    name: str = "mlp"


@dataclass(frozen=True)
class RoutingDeclaration:
    """How a token chooses experts.

    Scores are `scoring` of the router's logits; `correction_bias` is added for the choice only. With `groups`, only
    the best `groups_kept` groups of experts stand for election, judged by their best score or the sum of their best two.
    """

    experts: int
    chosen: int
    scoring: Literal["softmax", "sigmoid", "softmax_of_chosen"]
    normalise: bool
    scale: float = 1.0
    float32: bool = False
    """Logits are computed in float32 whatever the model's dtype."""
    router_bias: bool = False
    correction_bias: str | None = None
    groups: int = 1
    groups_kept: int = 1
    group_score: Literal["best", "best_two"] = "best"
    name: str = "gate"


@dataclass(frozen=True)
class ClampedGate:
    """GPT-OSS's gate."""

    limit: float
    slope: float


@dataclass(frozen=True)
class ExpertsDeclaration:
    """A mixture of gated experts, with a shared one beside them where `shared_intermediate_size` is set.

    `layout` says how the checkpoint stores experts: `split` (experts.N.gate_proj ...), `numbered` (experts.N.w1 ...), or
    `stacked` (GPT-OSS: all experts in one transposed tensor, gate and up rows alternating, with biases).
    """

    routing: RoutingDeclaration
    intermediate_size: int
    activation: str
    layout: Literal["split", "numbered", "stacked"] = "split"
    shared_intermediate_size: int | None = None
    clamp: ClampedGate | None = None
    """In place of `activation`."""
    name: str = "mlp"


@dataclass(frozen=True)
class LayerDeclaration:
    """Norms that stand before and after the two halves of a layer, by their names in the checkpoint."""

    attention: AttentionDeclaration | LatentAttentionDeclaration
    feed_forward: GatedDeclaration | ExpertsDeclaration
    attention_norm: str | None = "input_layernorm"
    attention_output_norm: str | None = None
    feed_forward_norm: str | None = "post_attention_layernorm"
    feed_forward_output_norm: str | None = None
    residual_multiplier: float = 1.0


@dataclass(frozen=True)
class ModelDeclaration:
    """A whole decoder. Logits are `cap(head(hidden) * logit_multiplier)`."""

    vocab_size: int
    hidden_size: int
    layers: tuple[LayerDeclaration, ...]
    norm_epsilon: float
    norm_offset: float = 0.0
    tied_head: bool = False
    embedding_multiplier: float = 1.0
    logit_multiplier: float = 1.0
    logit_soft_cap: float | None = None
    prefix: str = "model."
    head: str = "lm_head"
    unused_tensors: tuple[str, ...] = ()
    """Regular expressions of tensors that the checkpoint may hold and text generation does not need."""
