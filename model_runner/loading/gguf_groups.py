"""GGUF blocks as groups of 32 small integers with a scale: kept as they are shipped, for kernels that compute on them.

Block layouts as ggml defines them (ggml-common.h); values are checked against the gguf package's dequantisation in tests.
"""

from collections.abc import Callable
from typing import Any

import numpy
import torch
from gguf import GGMLQuantizationType
from numpy.typing import NDArray

from model_runner.kernels.packing import GROUP, GroupedWeight

Bytes = NDArray[numpy.uint8]


def _half(blocks: Bytes) -> NDArray[numpy.float16]:
    """float16 values that lie two bytes apart at the end of the last axis: [..., 2] bytes to [...]."""
    return numpy.ascontiguousarray(blocks).view(numpy.float16)[..., 0]


def _weight(quants: NDArray[Any], scales: NDArray[Any], minimums: NDArray[Any] | None) -> GroupedWeight:
    rows = quants.shape[0]
    return GroupedWeight(
        torch.from_numpy(numpy.ascontiguousarray(quants.reshape(rows, -1))),
        torch.from_numpy(scales.reshape(rows, -1).astype(numpy.float16)),
        None if minimums is None else torch.from_numpy(minimums.reshape(rows, -1).astype(numpy.float16)),
    )


def _q4_0(blocks: Bytes) -> GroupedWeight:
    scales = _half(blocks[..., :2])
    return _weight(blocks[..., 2:], scales, scales.astype(numpy.float32) * -8.0)


def _q4_1(blocks: Bytes) -> GroupedWeight:
    return _weight(blocks[..., 4:], _half(blocks[..., :2]), _half(blocks[..., 2:4]))


def _q8_0(blocks: Bytes) -> GroupedWeight:
    return _weight(numpy.ascontiguousarray(blocks[..., 2:]).view(numpy.int8), _half(blocks[..., :2]), None)


def _q4_k(blocks: Bytes) -> GroupedWeight:
    """Eight groups share two float16 factors; the products are rounded to float16 again (2**-11 relative)."""
    factor, lowest = _half(blocks[..., :2]).astype(numpy.float32), _half(blocks[..., 2:4]).astype(numpy.float32)
    first, second, third = blocks[..., 4:8], blocks[..., 8:12], blocks[..., 12:16]
    scales = numpy.concatenate([first & 63, (third & 15) | ((first >> 6) << 4)], axis=-1)
    minimums = numpy.concatenate([second & 63, (third >> 4) | ((second >> 6) << 4)], axis=-1)
    # 64 values to 32 bytes: one group in the low halves, the next in the high ones.
    packed = blocks[..., 16:].reshape(*blocks.shape[:-1], 4, 1, GROUP)
    groups = numpy.concatenate([packed & 15, packed >> 4], axis=-2)
    half = GROUP // 2
    quants = groups[..., :half] | (groups[..., half:] << 4)
    return _weight(
        quants,
        factor[..., None] * scales.astype(numpy.float32),
        -lowest[..., None] * minimums.astype(numpy.float32),
    )


GROUPED: dict[GGMLQuantizationType, tuple[int, Callable[[Bytes], GroupedWeight]]] = {
    GGMLQuantizationType.Q4_0: (18, _q4_0),
    GGMLQuantizationType.Q4_1: (20, _q4_1),
    GGMLQuantizationType.Q8_0: (34, _q8_0),
    GGMLQuantizationType.Q4_K: (144, _q4_k),
}
"""Bytes of a block, and how to read rows of blocks."""


def grouped_rows(rows: Bytes, kind: GGMLQuantizationType) -> GroupedWeight | None:
    """Rows of one tensor [rows, bytes] as groups, or None where the type does not store groups of 32 this way."""
    known = GROUPED.get(kind)
    if known is None:
        return None
    block_bytes, read = known
    return read(numpy.ascontiguousarray(rows).reshape(rows.shape[0], -1, block_bytes))
