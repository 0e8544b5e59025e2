"""Rotation by the libraries' kernels, which turn heads in place; torch's own is in `rotary.py`.

Both find a token's cosines and sines in a cache by its position. Given a step's own table and the tokens' numbers in
it, they rotate by any scaling rule, and no cache as long as the context is kept.
"""

from collections.abc import Callable, Mapping
from typing import Any

import torch

from model_runner.layers.rotary import RotaryTable, rotate

Rotate = Callable[[torch.Tensor, RotaryTable, bool], torch.Tensor]
"""(heads [tokens, at least 2, head_dim], table, whether pairs are neighbours) -> rotated heads; the argument is used up."""

FLASHINFER_HEAD_DIMS = (64, 128, 256, 512)
"""What its kernel is compiled for; sgl_kernel's takes any."""


def sgl_kernel_rotation(library: Any) -> Rotate:
    def turn(heads: torch.Tensor, table: RotaryTable, interleaved: bool) -> torch.Tensor:
        # Queries and keys side by side are so many heads more of one argument; the kernel's second one is optional.
        library.rotary_embedding(
            table.numbers, heads.view(heads.shape[0], -1), None, heads.shape[2], table.values, is_neox=not interleaved
        )
        return heads

    return turn


def flashinfer_rotation(library: Any) -> Rotate:
    def turn(heads: torch.Tensor, table: RotaryTable, interleaved: bool) -> torch.Tensor:
        flat, head_dim = heads.view(heads.shape[0], -1), heads.shape[2]
        library.apply_rope_with_cos_sin_cache_inplace(
            table.numbers, flat[:, :-head_dim], flat[:, -head_dim:], head_dim, table.values, is_neox=not interleaved
        )
        return heads

    return lambda heads, table, interleaved: (turn if heads.shape[2] in FLASHINFER_HEAD_DIMS else rotate)(
        heads, table, interleaved
    )


ROTATIONS: Mapping[str, tuple[str, Callable[[Any], Rotate]]] = {
    "sgl_kernel": ("rotary_embedding", sgl_kernel_rotation),
    "flashinfer": ("apply_rope_with_cos_sin_cache_inplace", flashinfer_rotation),
}
"""By library: the function that it must have, and what makes a rotation of it."""
