"""The tensors of one step, built once and read by every layer, and the contract of a model that reads them."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy
import torch
from numpy.typing import NDArray

from model_runner.attention.interface import AttentionBackend, LayerKV


@dataclass(frozen=True)
class StepInputs:
    """One step on the device. A row is a sequence; its new tokens lie next to each other in the flat token axis.

    Row r feeds tokens `query_starts[r] : query_starts[r + 1]`, which stand at positions
    `context_lengths[r] : sequence_lengths[r]`. Token t of row r is stored at `slot_mapping[t]` of the pool, which is
    `page_tables[r, position // page_size] * page_size + position % page_size`. Entries of `page_tables` past a row's
    last page are 0, the scratch page.
    """

    ids: torch.Tensor  # [tokens] int64
    positions: torch.Tensor  # [tokens] int64
    row_of_token: torch.Tensor  # [tokens] int64
    slot_mapping: torch.Tensor  # [tokens] int64
    query_starts: torch.Tensor  # [rows + 1] int32
    context_lengths: torch.Tensor  # [rows] int32, tokens in the cache before this step
    sequence_lengths: torch.Tensor  # [rows] int32, context_lengths + new tokens
    page_tables: torch.Tensor  # [rows, max_pages] int32, max_pages of this step
    logits_indices: torch.Tensor  # [draws] int64, the tokens whose hidden states become logits
    new_tokens_host: NDArray[numpy.int32]  # [rows] int32; kernels plan with these without waiting for the device
    sequence_lengths_host: NDArray[numpy.int32]  # [rows] int32
    rows: int
    tokens: int
    max_query_tokens: int
    """Most new tokens of one row; 1 means that every row decodes."""
    max_sequence_tokens: int
    page_size: int


class CausalModel(Protocol):
    """What `model_runner.models.registry.build_model(config, rank=0, world=1, on_progress=None)` returns, with its weights
    loaded onto the device. `on_progress(what, done, total)` is called while they load.
    """

    @property
    def layer_specs(self) -> Sequence[LayerKV]:
        """What each `layer_index` given to `AttentionBackend.attend` keeps per token on this rank, in order."""

    @property
    def vocab_size(self) -> int:
        """Columns of `logits`, on every rank the whole vocabulary."""

    @property
    def dtype(self) -> torch.dtype:
        """Of activations, and so of what is kept in the KV pool."""

    @property
    def device(self) -> torch.device: ...

    @property
    def weight_bytes(self) -> int:
        """On this rank."""

    def forward(self, inputs: StepInputs, attention: AttentionBackend) -> torch.Tensor:
        """Hidden states after the final norm, [tokens, hidden]. `attention.prepare(inputs)` has been called."""

    def logits(self, hidden_rows: torch.Tensor) -> torch.Tensor:
        """float32 [draws, vocab] of hidden states [draws, hidden]; a fresh tensor that the caller may change."""
