"""Reference attention in plain torch, on any device: the oracle of every other backend.

Pages are gathered into padded batches and attended with masks. Rows of like size share a batch, so a decode step is
a few calls per layer whatever the number of rows, and one long row does not pad the others.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy
import torch
from torch.nn import functional

from model_runner.attention.interface import AttentionSpec, LayerKV
from model_runner.attention.pages import page_bytes, store
from model_runner.device_arrays import to_device
from model_runner.step import StepInputs

SHORT_ROW_BITS = 9
"""Rows of up to 2**9 tokens count as like in length: below that a call costs more than the padding."""


@dataclass
class RowGroup:
    """Rows that are attended together, padded to the longest of them."""

    rows: int
    queries: int
    tokens: (
        torch.Tensor | None
    )  # [rows, queries] int64 into the flat tokens, padding repeats the last; None: all, in order
    real: torch.Tensor | None  # [real] int64 into the flat [rows * queries], what is not padding; None: everything
    pages: torch.Tensor  # [rows * group pages] int64
    query_positions: torch.Tensor  # [rows, queries, 1] int64
    key_positions: torch.Tensor  # [1, 1, keys] int64
    sequence_lengths: torch.Tensor  # [rows, 1, 1] int64
    masks: dict[tuple[int | None, bool, int, torch.dtype], torch.Tensor] = field(default_factory=dict)

    def mask(self, spec: AttentionSpec, heads_per_kv: int, dtype: torch.dtype) -> torch.Tensor:
        """Zero where a query sees a key, else -inf: [rows, 1, heads_per_kv * queries, keys]. Made once per step."""
        key = (spec.sliding_window, spec.causal, heads_per_kv, dtype)
        known = self.masks.get(key)
        if known is not None:
            return known
        distance = self.query_positions - self.key_positions
        visible = (self.key_positions < self.sequence_lengths).expand_as(distance)
        if spec.causal:
            visible = visible & (distance >= 0)
        if spec.sliding_window is not None:
            visible = visible & (distance < spec.sliding_window)
        additive = torch.zeros(visible.shape, dtype=dtype, device=visible.device).masked_fill_(~visible, -torch.inf)
        keys = additive.shape[2]
        folded = additive[:, None].expand(-1, heads_per_kv, -1, -1)
        self.masks[key] = folded.reshape(self.rows, 1, heads_per_kv * self.queries, keys)
        return self.masks[key]


class TorchAttention:
    """`AttentionBackend` over pools laid out [pages, page_size, kv_heads, dim], one for keys and one for values per layer."""

    def __init__(self, device: torch.device, dtype: torch.dtype) -> None:
        self._device = device
        self._dtype = dtype
        self._layers: list[LayerKV] = []
        self._keys: list[torch.Tensor] = []
        self._values: list[torch.Tensor] = []
        self._groups: list[RowGroup] = []
        self._slot_mapping = torch.empty(0, dtype=torch.int64)

    def bytes_per_page(self, layers: Sequence[LayerKV], page_size: int) -> int:
        return page_bytes(layers, page_size, self._dtype)

    def make_pool(self, layers: Sequence[LayerKV], pages: int, page_size: int) -> None:
        self._layers = list(layers)
        for layer in layers:
            for pools, dim in ((self._keys, layer.key_dim), (self._values, layer.value_dim)):
                pools.append(self._zeros(pages, page_size, layer.kv_heads, dim))

    def _zeros(self, *shape: int) -> torch.Tensor:
        if self._device.type != "cpu" or 0 in shape:
            return torch.zeros(shape, dtype=self._dtype, device=self._device)
        # numpy asks the system for zeroed memory, which costs nothing before its first use; torch writes the zeros.
        nbytes = math.prod(shape) * self._dtype.itemsize
        return torch.from_numpy(numpy.zeros(nbytes, dtype=numpy.uint8)).view(self._dtype).view(shape)

    def prepare(self, inputs: StepInputs) -> None:
        self._slot_mapping = inputs.slot_mapping
        self._groups = [_make_group(inputs, rows) for rows in _like_rows(inputs)]

    def attend(
        self,
        layer_index: int,
        query: torch.Tensor,
        key: torch.Tensor | None,
        value: torch.Tensor | None,
        spec: AttentionSpec,
    ) -> torch.Tensor:
        keys, values = self._keys[layer_index], self._values[layer_index]
        if key is not None:
            store(keys, self._slot_mapping, key)
        if value is not None:
            store(values, self._slot_mapping, value)
        if len(self._groups) == 1 and self._groups[0].tokens is None:
            return self._attend_group(self._groups[0], layer_index, query, spec).flatten(0, 1)
        output = query.new_empty(query.shape[0], query.shape[1], spec.v_head_dim)
        for group in self._groups:
            assert group.tokens is not None
            part = self._attend_group(group, layer_index, query[group.tokens], spec)
            tokens, part = group.tokens.flatten(), part.flatten(0, 1)
            if group.real is not None:
                tokens, part = tokens[group.real], part[group.real]
            output[tokens] = part
        return output

    def _attend_group(
        self, group: RowGroup, layer_index: int, query: torch.Tensor, spec: AttentionSpec
    ) -> torch.Tensor:
        layer = self._layers[layer_index]
        heads, key_dim = query.shape[-2:]
        heads_per_kv = heads // layer.kv_heads
        folded = query.reshape(group.rows, group.queries, layer.kv_heads, heads_per_kv, key_dim)
        # Query heads that share a KV head become more queries of that head: keys are never copied per query head.
        folded = folded.permute(0, 2, 3, 1, 4).reshape(
            group.rows, layer.kv_heads, heads_per_kv * group.queries, key_dim
        )
        keys = _gather(self._keys[layer_index], group)
        values = _gather(self._values[layer_index], group) if layer.value_dim else keys[..., : spec.v_head_dim]
        mask = group.mask(spec, heads_per_kv, query.dtype)
        if spec.logit_soft_cap is None and spec.sinks is None:
            attended = functional.scaled_dot_product_attention(folded, keys, values, mask, scale=spec.scale)
        else:
            attended = _attend_explicitly(folded, keys, values, mask, spec)
        attended = attended.reshape(group.rows, layer.kv_heads, heads_per_kv, group.queries, spec.v_head_dim)
        return attended.permute(0, 3, 1, 2, 4).reshape(group.rows, group.queries, heads, spec.v_head_dim)


def _gather(pool: torch.Tensor, group: RowGroup) -> torch.Tensor:
    """[rows, kv_heads, keys, dim] of the group's pages."""
    pages = pool.view(pool.shape[0], -1).index_select(0, group.pages)
    return pages.view(group.rows, -1, *pool.shape[2:]).transpose(1, 2)


def _attend_explicitly(
    query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, mask: torch.Tensor, spec: AttentionSpec
) -> torch.Tensor:
    """What the fused call can't: soft caps and sinks, in float32."""
    scores = torch.matmul(query.float(), keys.float().transpose(-1, -2)) * spec.scale
    if spec.logit_soft_cap is not None:
        scores = torch.tanh(scores / spec.logit_soft_cap) * spec.logit_soft_cap
    scores = scores + mask
    if spec.sinks is None:
        weights = torch.softmax(scores, dim=-1)
    else:
        kv_heads, folded_queries = scores.shape[1], scores.shape[2]
        queries = folded_queries * kv_heads // spec.sinks.shape[0]
        sinks = spec.sinks.float().view(1, kv_heads, -1, 1).expand(scores.shape[0], -1, -1, queries)
        sinks = sinks.reshape(scores.shape[0], kv_heads, folded_queries, 1)
        weights = torch.softmax(torch.cat((scores, sinks), dim=-1), dim=-1)[..., :-1]
    return torch.matmul(weights, values.float()).to(query.dtype)


def _like_rows(inputs: StepInputs) -> list[list[int]]:
    """Row indices by size class: the powers of two above their queries and their length."""
    if inputs.max_query_tokens == 1 and inputs.max_sequence_tokens <= 1 << SHORT_ROW_BITS:
        return [list(range(inputs.rows))]
    groups: dict[tuple[int, int], list[int]] = {}
    lengths = zip(inputs.new_tokens_host.tolist(), inputs.sequence_lengths_host.tolist(), strict=True)
    for row, (queries, length) in enumerate(lengths):
        size_class = ((queries - 1).bit_length(), max(SHORT_ROW_BITS, (length - 1).bit_length()))
        groups.setdefault(size_class, []).append(row)
    return list(groups.values())


def _make_group(inputs: StepInputs, rows: list[int]) -> RowGroup:
    device = inputs.ids.device
    new_tokens = inputs.new_tokens_host[rows]
    queries = int(new_tokens.max())
    longest = int(inputs.sequence_lengths_host[rows].max())
    pages = -(-longest // inputs.page_size)
    every_row = len(rows) == inputs.rows
    even = bool((new_tokens == queries).all())
    row_index = to_device(numpy.array(rows, dtype=numpy.int64), device)
    starts = inputs.query_starts.long()[row_index, None]
    steps = numpy.minimum(numpy.arange(queries)[None, :], new_tokens[:, None] - 1).astype(numpy.int64)
    tokens = starts + to_device(steps, device)
    # Known on the host: as a mask on the device it would be counted there, and waited for.
    real = None if even else to_device(numpy.flatnonzero(numpy.arange(queries) < new_tokens[:, None]), device)
    page_tables = inputs.page_tables[:, :pages] if every_row else inputs.page_tables[row_index, :pages]
    return RowGroup(
        rows=len(rows),
        queries=queries,
        tokens=None if every_row and even else tokens,
        real=real,
        pages=page_tables.reshape(-1).long(),
        query_positions=inputs.positions[tokens][:, :, None],
        key_positions=torch.arange(pages * inputs.page_size, device=device)[None, None, :],
        sequence_lengths=inputs.sequence_lengths.long()[row_index, None, None],
    )
