"""The seam between models and attention kernels."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import torch

if TYPE_CHECKING:
    from model_runner.step import StepInputs


@dataclass(frozen=True)
class LayerKV:
    """What one layer keeps per token. `value_dim` 0: values are the leading part of the keys (MLA's latent cache)."""

    kv_heads: int
    key_dim: int
    value_dim: int
    sliding_window: int | None = None


@dataclass(frozen=True)
class AttentionSpec:
    """How one layer attends.

    A query at position p sees keys at positions j <= p (any j of its row unless `causal`), and with `sliding_window` w
    only p - j < w. Scores are `scale * q.k`, then `c * tanh(scores / c)` with `logit_soft_cap` c. `sinks` are one more
    logit per head in the softmax's denominator, which takes part in no output.
    """

    scale: float
    v_head_dim: int
    sliding_window: int | None = None
    logit_soft_cap: float | None = None
    sinks: torch.Tensor | None = None  # [heads] float32
    causal: bool = True


class AttentionBackend(Protocol):
    """Keeps keys and values in pages, and attends over them. It chooses the layout of its pool.

    Models hold no reference to one: they get it in `forward`.
    """

    def bytes_per_page(self, layers: Sequence[LayerKV], page_size: int) -> int:
        """What one page costs over all layers."""

    def make_pool(self, layers: Sequence[LayerKV], pages: int, page_size: int) -> None:
        """Allocates the pool (zeroed: a masked score times a stray NaN would spoil a row). Called once."""

    def prepare(self, inputs: StepInputs) -> None:
        """Once per step, before any layer: whatever all layers share (masks, indices, kernel plans)."""

    def attend(
        self,
        layer_index: int,
        query: torch.Tensor,  # [tokens, heads, key_dim]
        key: torch.Tensor | None,  # [tokens, kv_heads, key_dim], already rotated
        value: torch.Tensor | None,  # [tokens, kv_heads, value_dim]
        spec: AttentionSpec,
    ) -> torch.Tensor:
        """Stores key and value of the new tokens, then attends: [tokens, heads, v_head_dim] in the query's dtype.

        `key` None stores nothing and reads what is there (layers that share another's cache, named by `layer_index`).
        `value` None with a key: the layer's `value_dim` is 0. Query head h reads KV head h // (heads / kv_heads).
        """
