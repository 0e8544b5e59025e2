"""Multi-head latent attention, absorbed: the cache holds one latent vector per token, which serves as key and value.

The up-projections of keys and values act on queries and outputs instead, so no head's keys or values are ever built.
"""

import torch

from model_runner.attention.interface import AttentionSpec, LayerKV
from model_runner.layers.declarations import LatentAttentionDeclaration
from model_runner.layers.linear import Linear, column_linear, row_linear
from model_runner.layers.norms import RMSNorm, rms_norm
from model_runner.layers.parallel import share
from model_runner.layers.step import LayerStep
from model_runner.loading.weights import RowBlock, Weights


class LatentAttention:
    """This rank's query heads of one layer; the latent is computed and kept by every rank."""

    def __init__(
        self,
        weights: Weights,
        declared: LatentAttentionDeclaration,
        hidden_size: int,
        layer_index: int,
        table_index: int | None,
    ) -> None:
        assert table_index is not None
        self.declared = declared
        self.layer_index = layer_index
        self.table_index = table_index
        held = share(declared.heads, weights.communicator, "num_attention_heads")
        self.heads = held.stop - held.start
        head_dim = declared.plain_dim + declared.rotary_dim
        latent = RowBlock("kv_a_proj_with_mqa", declared.latent_rank + declared.rotary_dim)
        rows = slice(held.start * head_dim, held.stop * head_dim)
        self.query_norm: RMSNorm | None = None
        self.query: Linear | None = None
        if declared.query_rank is None:
            queries = RowBlock("q_proj", declared.heads * head_dim, rows)
        else:
            queries = RowBlock("q_a_proj", declared.query_rank)
            self.query_norm = rms_norm(weights, "q_a_layernorm", declared.query_rank, declared.norm_epsilon)
            up = RowBlock("q_b_proj", declared.heads * head_dim, rows)
            self.query = column_linear(weights, [up], declared.query_rank, bias=False)
        if declared.bias and declared.query_rank is None:
            raise ValueError("attention_bias=true without q_lora_rank is not a published DeepSeek form")
        self.rotate = weights.state.ops.rotate
        self.query_columns = queries.taken
        self.down = column_linear(weights, [queries, latent], hidden_size, declared.bias)
        self.latent_norm = rms_norm(weights, "kv_a_layernorm", declared.latent_rank, declared.norm_epsilon)
        out_dim = declared.plain_dim + declared.value_dim
        block = RowBlock("kv_b_proj.weight", declared.heads * out_dim, slice(held.start * out_dim, held.stop * out_dim))
        both = weights.rows([block], declared.latent_rank).view(self.heads, out_dim, declared.latent_rank)
        self.key_up = both[:, : declared.plain_dim].contiguous()  # [heads, plain_dim, latent]
        self.value_up = both[:, declared.plain_dim :].contiguous()  # [heads, value_dim, latent]
        weights.state.weight_bytes += both.numel() * both.element_size()
        columns = slice(held.start * declared.value_dim, held.stop * declared.value_dim)
        in_features = declared.heads * declared.value_dim
        self.output = row_linear(weights, "o_proj", in_features, hidden_size, declared.bias, columns)
        self.spec = AttentionSpec(scale=declared.scale, v_head_dim=declared.latent_rank)

    @property
    def kept(self) -> LayerKV:
        return LayerKV(1, self.declared.latent_rank + self.declared.rotary_dim, 0)

    def __call__(self, hidden: torch.Tensor, step: LayerStep) -> torch.Tensor:
        declared = self.declared
        down = self.down(hidden)
        queries, latent, shared_key = torch.split(
            down, [self.query_columns, declared.latent_rank, declared.rotary_dim], dim=-1
        )
        if self.query is not None and self.query_norm is not None:
            queries = self.query(self.query_norm(queries))
        heads = torch.unflatten(queries, -1, (self.heads, -1))
        plain, turning = torch.split(heads, [declared.plain_dim, declared.rotary_dim], dim=-1)
        both = torch.cat((turning, shared_key[:, None]), dim=1)
        turned = self.rotate(both, step.tables[self.table_index], declared.rotary.interleaved)
        absorbed = torch.einsum("thn,hnl->thl", plain, self.key_up)
        query = torch.cat((absorbed, turned[:, :-1]), dim=-1)
        key = torch.cat((self.latent_norm(latent)[:, None], turned[:, -1:]), dim=-1)
        attended = step.attention.attend(self.layer_index, query, key, None, self.spec)
        return self.output(torch.einsum("thl,hvl->thv", attended, self.value_up).flatten(1))
