"""Grouped-query attention: projections, norms and rotation round an attention backend."""

import torch

from model_runner.attention.interface import AttentionSpec, LayerKV
from model_runner.layers.declarations import AttentionDeclaration
from model_runner.layers.linear import column_linear, row_linear
from model_runner.layers.norms import RMSNorm
from model_runner.layers.parallel import head_shares
from model_runner.layers.step import LayerStep
from model_runner.loading.weights import RowBlock, Weights


class Attention:
    """This rank's heads of one layer."""

    def __init__(
        self,
        weights: Weights,
        declared: AttentionDeclaration,
        hidden_size: int,
        layer_index: int,
        table_index: int | None,
    ) -> None:
        self.declared = declared
        self.layer_index = layer_index
        self.table_index = table_index
        heads, kv_heads = head_shares(declared.heads, declared.kv_heads, weights.communicator)
        self.heads = heads.stop - heads.start
        self.kv_heads = kv_heads.stop - kv_heads.start
        dim = declared.head_dim
        blocks = _projection_blocks(declared, heads, kv_heads)
        self.qkv = column_linear(weights, blocks, hidden_size, declared.qkv_bias)
        self.output = row_linear(
            weights,
            "o_proj",
            declared.heads * dim,
            hidden_size,
            declared.output_bias,
            slice(heads.start * dim, heads.stop * dim),
        )
        self.rotate = weights.state.ops.rotate
        self.query_norm = _qk_norm(weights, "q_norm", declared, declared.heads, heads)
        self.key_norm = _qk_norm(weights, "k_norm", declared, declared.kv_heads, kv_heads)
        self.spec = AttentionSpec(
            scale=declared.scale,
            v_head_dim=dim,
            sliding_window=declared.sliding_window,
            logit_soft_cap=declared.logit_soft_cap,
            sinks=weights.tensor("sinks", (declared.heads,), (heads,), torch.float32) if declared.sinks else None,
        )

    @property
    def kept(self) -> LayerKV:
        dim = self.declared.head_dim
        return LayerKV(self.kv_heads, dim, dim, self.declared.sliding_window)

    def __call__(self, hidden: torch.Tensor, step: LayerStep) -> torch.Tensor:
        dim = self.declared.head_dim
        qkv = self.qkv(hidden)
        rotated = self.heads + self.kv_heads
        query_key = qkv[:, : rotated * dim]
        value = torch.unflatten(qkv[:, rotated * dim :], -1, (self.kv_heads, dim))
        if self.query_norm is not None and self.key_norm is not None:
            query, key = torch.split(query_key, [self.heads * dim, self.kv_heads * dim], dim=-1)
            query_key = torch.cat((self._normed(self.query_norm, query), self._normed(self.key_norm, key)), dim=-1)
        both = torch.unflatten(query_key, -1, (rotated, dim))
        if self.table_index is not None:
            both = self.rotate(both, step.tables[self.table_index], False)
        query, key = torch.split(both, [self.heads, self.kv_heads], dim=1)
        attended = step.attention.attend(self.layer_index, query, key, value, self.spec)
        return self.output(attended.flatten(1))

    def _normed(self, norm: RMSNorm, flat: torch.Tensor) -> torch.Tensor:
        if self.declared.qk_norm == "all":
            return norm(flat)
        return norm(torch.unflatten(flat, -1, (-1, self.declared.head_dim))).flatten(1)


def _projection_blocks(declared: AttentionDeclaration, heads: slice, kv_heads: slice) -> list[RowBlock]:
    dim = declared.head_dim
    parts = [("q_proj", declared.heads, heads), ("k_proj", declared.kv_heads, kv_heads)]
    parts.append(("v_proj", declared.kv_heads, kv_heads))
    if declared.fused_projection is None:
        return [RowBlock(name, count * dim, slice(held.start * dim, held.stop * dim)) for name, count, held in parts]
    rows = (declared.heads + 2 * declared.kv_heads) * dim
    blocks = []
    start = 0
    for _, count, held in parts:
        region = slice(start + held.start * dim, start + held.stop * dim)
        blocks.append(RowBlock(declared.fused_projection, rows, region))
        start += count * dim
    return blocks


def _qk_norm(weights: Weights, name: str, declared: AttentionDeclaration, count: int, held: slice) -> RMSNorm | None:
    if declared.qk_norm is None:
        return None
    dim = declared.head_dim
    if declared.qk_norm == "head":
        gain = weights.tensor(f"{name}.weight", (dim,), dtype=torch.float32)
        return RMSNorm(gain + declared.norm_offset, declared.norm_epsilon)
    region = (slice(held.start * dim, held.stop * dim),)
    gain = weights.tensor(f"{name}.weight", (count * dim,), region, torch.float32)
    # Heads that several ranks hold a copy of count once for each of them, in the sum and here.
    copies = max(1, weights.communicator.world // declared.kv_heads) if count == declared.kv_heads else 1
    return RMSNorm(gain + declared.norm_offset, declared.norm_epsilon, weights.communicator, count * dim * copies)
