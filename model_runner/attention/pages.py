"""What a page of keys and values takes, and how new ones are written into it."""

from collections.abc import Sequence

import torch

from model_runner.attention.interface import LayerKV


def page_bytes(layers: Sequence[LayerKV], page_size: int, dtype: torch.dtype) -> int:
    """Over all layers."""
    values = sum(layer.kv_heads * (layer.key_dim + layer.value_dim) for layer in layers)
    return values * page_size * dtype.itemsize


def store(pool: torch.Tensor, slot_mapping: torch.Tensor, new: torch.Tensor) -> None:
    """`new` [tokens, kv_heads, dim] to its slots of a pool [pages, page_size, kv_heads, dim].

    A row that went NaN fails alone; kept in a page, its NaN would pass through masks (NaN + -inf) to the page's next owner.
    """
    clean = torch.nan_to_num(new.to(pool.dtype), nan=0.0, posinf=0.0, neginf=0.0)
    pool.view(-1, *pool.shape[2:]).index_copy_(0, slot_mapping, clean)
