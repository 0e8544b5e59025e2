"""Builds a declared decoder and runs it: embedding, layers on one residual stream, final norm, head."""

import re
from collections.abc import Sequence

import torch

from model_runner.attention.interface import AttentionBackend, LayerKV
from model_runner.layers.attention import Attention
from model_runner.layers.declarations import (
    AttentionDeclaration,
    GatedDeclaration,
    LayerDeclaration,
    ModelDeclaration,
)
from model_runner.layers.embedding import Embedding, load_head
from model_runner.layers.experts import MixtureOfExperts
from model_runner.layers.feed_forward import GatedFeedForward
from model_runner.layers.latent_attention import LatentAttention
from model_runner.layers.norms import RMSNorm, rms_norm
from model_runner.layers.rotary import Rotary
from model_runner.layers.step import LayerStep
from model_runner.loading.errors import LoadError
from model_runner.loading.weights import Weights
from model_runner.step import StepInputs

NEVER_USED = (r".*\.rotary_emb\.inv_freq", r".*\.masked_bias", r".*\.attn\.bias")


class DecoderLayer:
    """One layer. The stream and what is still to be added to it travel apart, so that adding and norming can be fused."""

    def __init__(
        self, weights: Weights, declared: LayerDeclaration, model: ModelDeclaration, index: int, table: int | None
    ) -> None:
        hidden_size = model.hidden_size
        attention = weights.under("self_attn")
        self.attention: Attention | LatentAttention
        if isinstance(declared.attention, AttentionDeclaration):
            self.attention = Attention(attention, declared.attention, hidden_size, index, table)
        else:
            self.attention = LatentAttention(attention, declared.attention, hidden_size, index, table)
        inner = weights.under(declared.feed_forward.name)
        self.feed_forward: GatedFeedForward | MixtureOfExperts
        if isinstance(declared.feed_forward, GatedDeclaration):
            self.feed_forward = GatedFeedForward(inner, declared.feed_forward, hidden_size)
        else:
            self.feed_forward = MixtureOfExperts(inner, declared.feed_forward, hidden_size)

        def norm(name: str | None) -> RMSNorm | None:
            return (name and rms_norm(weights, name, hidden_size, model.norm_epsilon, model.norm_offset)) or None

        self.attention_norm = norm(declared.attention_norm)
        self.attention_output_norm = norm(declared.attention_output_norm)
        self.feed_forward_norm = norm(declared.feed_forward_norm)
        self.feed_forward_output_norm = norm(declared.feed_forward_output_norm)
        self.residual_multiplier = declared.residual_multiplier

    def __call__(
        self, stream: torch.Tensor, pending: torch.Tensor | None, step: LayerStep
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """(stream, what this layer's second half adds to it)."""
        hidden, stream = _merge(self.attention_norm, stream, pending)
        added = self._scaled(self.attention(hidden, step), self.attention_output_norm)
        hidden, stream = _merge(self.feed_forward_norm, stream, added)
        return stream, self._scaled(self.feed_forward(hidden), self.feed_forward_output_norm)

    def _scaled(self, added: torch.Tensor, norm: RMSNorm | None) -> torch.Tensor:
        if norm is not None:
            added = norm(added)
        return added if self.residual_multiplier == 1.0 else added * self.residual_multiplier


def _merge(
    norm: RMSNorm | None, stream: torch.Tensor, pending: torch.Tensor | None
) -> tuple[torch.Tensor, torch.Tensor]:
    """(the next half's input, the stream with `pending` added)."""
    if norm is None:
        stream = stream if pending is None else stream + pending
        return stream, stream
    if pending is None:
        return norm(stream), stream
    return norm.add(pending, stream)


class Decoder:
    """A `CausalModel` from its declaration."""

    def __init__(self, weights: Weights, declared: ModelDeclaration) -> None:
        self.declared = declared
        self.vocab_size = declared.vocab_size
        self.hidden_size = declared.hidden_size
        self.dtype = weights.state.dtype
        self.device = weights.state.device
        self.communicator = weights.communicator
        inner = Weights(weights.state, weights.prefix + declared.prefix)
        self.embedding = Embedding(inner, "embed_tokens", declared.vocab_size, declared.hidden_size)
        tables = _distinct_rotaries(declared)
        self.layers = [
            DecoderLayer(
                inner.under(f"layers.{index}"),
                layer,
                declared,
                index,
                None if layer.attention.rotary is None else tables.index(layer.attention.rotary),
            )
            for index, layer in enumerate(declared.layers)
        ]
        self.rotaries = [rotary.to(self.device) for rotary in tables]
        self.norm = rms_norm(inner, "norm", declared.hidden_size, declared.norm_epsilon, declared.norm_offset)
        tied = self.embedding if declared.tied_head else None
        self.head = load_head(weights, declared.head, declared.vocab_size, declared.hidden_size, tied)
        # Rounded as the embedding's own dtype would hold it, which is what these models were trained with.
        self.embedding_multiplier = torch.tensor(declared.embedding_multiplier, dtype=self.dtype).item()
        self.weight_bytes = weights.state.weight_bytes
        refuse_leftovers(weights, declared)

    @property
    def layer_specs(self) -> Sequence[LayerKV]:
        return [layer.attention.kept for layer in self.layers]

    def forward(self, inputs: StepInputs, attention: AttentionBackend) -> torch.Tensor:
        step = LayerStep(inputs, attention, [rotary.table(inputs.positions) for rotary in self.rotaries])
        stream = self.embedding(inputs.ids)
        if self.embedding_multiplier != 1.0:
            stream = stream * self.embedding_multiplier
        pending: torch.Tensor | None = None
        for layer in self.layers:
            stream, pending = layer(stream, pending, step)
        hidden, _ = _merge(self.norm, stream, pending)
        return hidden

    def logits(self, hidden_rows: torch.Tensor) -> torch.Tensor:
        logits = self.head(hidden_rows)
        if self.declared.logit_multiplier != 1.0:
            logits = logits * self.declared.logit_multiplier
        cap = self.declared.logit_soft_cap
        return logits if cap is None else torch.tanh(logits / cap) * cap


def _distinct_rotaries(declared: ModelDeclaration) -> list[Rotary]:
    found: list[Rotary] = []
    for layer in declared.layers:
        rotary = layer.attention.rotary
        if rotary is not None and rotary not in found:
            found.append(rotary)
    return found


def refuse_leftovers(weights: Weights, declared: ModelDeclaration) -> None:
    """A tensor that nothing has read would have changed the outputs, so it is an error."""
    patterns = [*NEVER_USED, *declared.unused_tensors]
    if declared.tied_head:
        patterns.append(re.escape(f"{declared.head}.weight"))
    unused = re.compile("|".join(f"(?:{pattern})" for pattern in patterns))
    left = [
        name
        for name in sorted(weights.state.source.names())
        if name not in weights.state.read_names and not unused.fullmatch(name)
    ]
    if left:
        shown = ", ".join(left[:3]) + (", ..." if len(left) > 3 else "")
        raise LoadError(f"the checkpoint holds {len(left)} tensors that its configuration has no place for: {shown}")
