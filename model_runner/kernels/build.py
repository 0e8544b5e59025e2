"""From a model's declaration and checkpoint to a decoder on the CPU engine."""

from collections.abc import Sequence
from pathlib import Path

import torch

from model_runner.kernels.arena import WeightArena
from model_runner.kernels.decoder import MAX_HEAD_DIM, CpuDecoder, DenseDecoder, DenseLayer
from model_runner.kernels.library import load_library
from model_runner.kernels.packing import (
    GROUP,
    PANEL,
    ActivationBits,
    GroupedWeight,
    PackedWeight,
    pack_dense,
    pack_grouped,
    quantise_int4,
    quantise_int8,
)
from model_runner.layers.declarations import (
    AttentionDeclaration,
    GatedDeclaration,
    LayerDeclaration,
    ModelDeclaration,
)
from model_runner.layers.rotary import Rotary
from model_runner.loading.weights import RowBlock, Weights
from runtime.start_error import StartError

ACTIVATIONS = {"silu": "silu", "gelu_pytorch_tanh": "gelu_tanh", "gelu_tanh": "gelu_tanh"}


class UnsupportedByKernelsError(StartError, ValueError):
    """The CPU engine has no kernels for this model; the message names what it lacks."""


def refusal(declared: ModelDeclaration) -> str | None:
    """Why the CPU engine can't run the model, or None if it can."""
    first = declared.layers[0]
    for layer in declared.layers:
        attention, feed_forward = layer.attention, layer.feed_forward
        if not isinstance(attention, AttentionDeclaration):
            return "latent attention"
        if not isinstance(feed_forward, GatedDeclaration):
            return "a mixture of experts"
        if attention.sinks:
            return "attention sinks"
        if attention.rotary is not None and attention.rotary.interleaved:
            return "interleaved rotary embedding"
        if feed_forward.activation not in ACTIVATIONS:
            return f"activation {feed_forward.activation}"
        if attention.head_dim % 16 or attention.head_dim > MAX_HEAD_DIM:
            return f"a head dimension of {attention.head_dim}"
        if _shape(layer) != _shape(first):
            return "layers of different shapes"
        widths = (declared.hidden_size, attention.heads * attention.head_dim, feed_forward.intermediate_size)
        if any(width % GROUP for width in widths):
            return f"widths {widths} that are not multiples of {GROUP}"
    rotary_dims = {layer.attention.rotary.dim for layer in declared.layers if layer.attention.rotary is not None}
    return "layers that rotate differently much" if len(rotary_dims) > 1 else None


def _shape(layer: LayerDeclaration) -> tuple[object, ...]:
    attention, feed_forward = layer.attention, layer.feed_forward
    assert isinstance(attention, AttentionDeclaration) and isinstance(feed_forward, GatedDeclaration)
    return (
        attention.heads,
        attention.kv_heads,
        attention.head_dim,
        attention.scale,
        attention.qk_norm,
        attention.norm_epsilon,
        attention.logit_soft_cap,
        feed_forward.intermediate_size,
        feed_forward.activation,
        layer.residual_multiplier,
    )


class WeightPacker:
    """Reads linears in the arithmetic that the deployment asked for.

    `w8a8` keeps 4-bit groups that a GGUF file ships and makes int8 groups of everything else; `int4` makes 4-bit groups;
    `none` keeps the dtype of the load.
    """

    def __init__(self, quantization: str, arena: WeightArena) -> None:
        self._quantization = quantization
        self._arena = arena

    def linear(
        self,
        weights: Weights,
        blocks: Sequence[RowBlock],
        inputs: int,
        *,
        bias: bool = False,
        gated: bool = False,
        activation_bits: ActivationBits = 8,
    ) -> PackedWeight:
        """Row blocks of one or several projections as one packed weight. Block names lack the `.weight` ending.

        16 `activation_bits` are for inputs that decide more than they cost (docs/performance.md has the measurements).
        """
        named = [RowBlock(f"{block.name}.weight", block.rows, block.region) for block in blocks]
        added = None
        if bias:
            parts = [weights.tensor(f"{block.name}.bias", (block.rows,), (block.region,)) for block in blocks]
            added = torch.cat(parts)
        grouped = self._as_shipped(weights, named, inputs)
        if grouped is not None:
            return self._arena.keep(pack_grouped(grouped, added, gated=gated, activation_bits=activation_bits))
        dense = weights.rows(named, inputs)
        if self._quantization == "none":
            return self._arena.keep(pack_dense(dense, added, gated=gated))
        quantise = quantise_int4 if self._quantization == "int4" else quantise_int8
        return self._arena.keep(pack_grouped(quantise(dense), added, gated=gated, activation_bits=activation_bits))

    def table(self, weights: Weights, name: str, rows: int, inputs: int) -> PackedWeight:
        """An embedding or output head. 4-bit groups harm it more than they save, so `int4` makes int8 ones here."""
        if self._quantization == "int4":
            return WeightPacker("w8a8", self._arena).table(weights, name, rows, inputs)
        return self.linear(weights, [RowBlock(name, rows)], inputs, activation_bits=16)

    def _as_shipped(self, weights: Weights, blocks: Sequence[RowBlock], inputs: int) -> GroupedWeight | None:
        if self._quantization == "none":
            return None
        parts = [weights.grouped(block.name, (block.rows, inputs), block.region) for block in blocks]
        whole = [part for part in parts if part is not None]
        if len(whole) < len(parts) or len({part.minimums is None for part in whole}) != 1:
            return None
        minimums = [part.minimums for part in whole if part.minimums is not None]
        return GroupedWeight(
            torch.cat([part.quants for part in whole]),
            torch.cat([part.scales for part in whole]),
            torch.cat(minimums) if minimums else None,
        )


def build_cpu_decoder(
    weights: Weights, declared: ModelDeclaration, quantization: str, context_tokens: int, threads: int, cache_dir: Path
) -> CpuDecoder:
    """The model on the CPU engine. Raises UnsupportedByKernelsError, KernelsUnavailable and LoadError."""
    lacking = refusal(declared)
    if lacking is not None:
        raise UnsupportedByKernelsError(f"the CPU kernels have no {lacking}; --attention-backend torch runs this model")
    library = load_library(cache_dir)
    packer = WeightPacker(quantization, WeightArena())
    inner = Weights(weights.state, weights.prefix + declared.prefix)
    vocab, hidden = declared.vocab_size, declared.hidden_size
    embedding = packer.table(inner, "embed_tokens", vocab, hidden)
    head = embedding if declared.tied_head else packer.table(weights, declared.head, vocab, hidden)
    tables: dict[int, torch.Tensor] = {}
    layers = [
        _layer(inner.under(f"layers.{index}"), layer, declared, packer, context_tokens, tables)
        for index, layer in enumerate(declared.layers)
    ]
    decoder = _decoder(declared, embedding, head, _norm(inner, "norm", hidden, declared.norm_offset), layers)
    return CpuDecoder(decoder, library, threads)


def _decoder(
    declared: ModelDeclaration,
    embedding: PackedWeight,
    head: PackedWeight,
    final_norm: torch.Tensor | None,
    layers: Sequence[DenseLayer],
) -> DenseDecoder:
    first = declared.layers[0]
    attention, feed_forward = first.attention, first.feed_forward
    assert isinstance(attention, AttentionDeclaration) and isinstance(feed_forward, GatedDeclaration)
    assert final_norm is not None
    rotaries = [layer.attention.rotary for layer in declared.layers if layer.attention.rotary is not None]
    return DenseDecoder(
        hidden=declared.hidden_size,
        heads=attention.heads,
        kv_heads=attention.kv_heads,
        head_dim=attention.head_dim,
        intermediate=feed_forward.intermediate_size,
        rotary_dim=rotaries[0].dim if rotaries else 0,
        activation="silu" if ACTIVATIONS[feed_forward.activation] == "silu" else "gelu_tanh",
        head_norm={None: "none", "head": "per_head", "all": "whole_projection"}[attention.qk_norm],  # type: ignore[arg-type]
        epsilon=declared.norm_epsilon,
        attention_scale=attention.scale,
        soft_cap=attention.logit_soft_cap,
        embedding_multiplier=torch.tensor(declared.embedding_multiplier, dtype=torch.bfloat16).item(),
        residual_multiplier=first.residual_multiplier,
        embedding=embedding,
        head=head,
        final_norm=final_norm,
        layers=layers,
        vocab_size=declared.vocab_size,
        logit_multiplier=declared.logit_multiplier,
        logit_soft_cap=declared.logit_soft_cap,
    )


def _layer(
    weights: Weights,
    layer: LayerDeclaration,
    model: ModelDeclaration,
    packer: WeightPacker,
    context_tokens: int,
    tables: dict[int, torch.Tensor],
) -> DenseLayer:
    attention, feed_forward, hidden = layer.attention, layer.feed_forward, model.hidden_size
    assert isinstance(attention, AttentionDeclaration) and isinstance(feed_forward, GatedDeclaration)
    inner, dim, size = weights.under("self_attn"), attention.head_dim, feed_forward.intermediate_size
    query_rows, key_rows = attention.heads * dim, attention.kv_heads * dim
    if attention.fused_projection is not None:
        blocks = [RowBlock(attention.fused_projection, query_rows + 2 * key_rows)]
    else:
        blocks = [RowBlock("q_proj", query_rows), RowBlock("k_proj", key_rows), RowBlock("v_proj", key_rows)]
    mlp = weights.under(feed_forward.name)
    if feed_forward.fused_projection is not None:
        halves = [RowBlock(feed_forward.fused_projection, 2 * size)]
    else:
        halves = [RowBlock("gate_proj", size), RowBlock("up_proj", size)]

    def norm(name: str | None) -> torch.Tensor | None:
        return None if name is None else _norm(weights, name, hidden, model.norm_offset)

    def head_norm(name: str, heads: int) -> torch.Tensor | None:
        if attention.qk_norm is None:
            return None
        return _norm(inner, name, dim if attention.qk_norm == "head" else heads * dim, attention.norm_offset)

    return DenseLayer(
        input_norm=norm(layer.attention_norm),
        qkv=packer.linear(inner, blocks, hidden, bias=attention.qkv_bias, activation_bits=16),
        query_norm=head_norm("q_norm", attention.heads),
        key_norm=head_norm("k_norm", attention.kv_heads),
        rotary=_rotary_table(attention.rotary, context_tokens, tables),
        attention_out=packer.linear(inner, [RowBlock("o_proj", hidden)], query_rows, bias=attention.output_bias),
        post_attention_norm=norm(layer.attention_output_norm),
        mlp_norm=norm(layer.feed_forward_norm),
        gate_up=packer.linear(mlp, halves, hidden, bias=feed_forward.bias, gated=True),
        down=packer.linear(mlp, [RowBlock("down_proj", hidden)], size, bias=feed_forward.bias, activation_bits=16),
        post_mlp_norm=norm(layer.feed_forward_output_norm),
        sliding_window=attention.sliding_window,
    )


def _norm(weights: Weights, name: str, width: int, offset: float) -> torch.Tensor:
    gain = weights.tensor(f"{name}.weight", (width,), dtype=torch.float32)
    return (gain + offset).contiguous()


def _rotary_table(rotary: Rotary | None, context_tokens: int, tables: dict[int, torch.Tensor]) -> torch.Tensor | None:
    """[context_tokens, rotary_dim]: cosines, then sines; layers that share a Rotary share its table."""
    if rotary is None:
        return None
    if id(rotary) not in tables:
        tables[id(rotary)] = rotary.table(torch.arange(context_tokens)).values
    return tables[id(rotary)]


assert PANEL <= GROUP, "widths are checked against the group alone"
