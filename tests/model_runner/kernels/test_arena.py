"""Weights keep their bytes in an arena, each in lines of its own."""

import torch

from model_runner.kernels.arena import BLOCK_BYTES, HUGE_PAGE_BYTES, LINE_BYTES, WeightArena
from model_runner.kernels.packing import PackedWeight


def weight_of(size: int, fill: int) -> PackedWeight:
    return PackedWeight("int8", 16, 32, 16, False, torch.full((size,), fill, dtype=torch.uint8), None)


def test_weights_lie_one_behind_the_other() -> None:
    arena = WeightArena()
    kept = [arena.keep(weight_of(size, fill)) for fill, size in enumerate((1, 64, 1000, 320))]
    first = kept[0].data.data_ptr()
    assert first % HUGE_PAGE_BYTES == 0
    assert [weight.data.data_ptr() - first for weight in kept] == [0, 64, 128, 128 + 1024]
    for fill, weight in enumerate(kept):
        assert bool((weight.data == fill).all())


def test_what_does_not_fit_starts_another_block() -> None:
    arena = WeightArena()
    small, large = arena.keep(weight_of(100, 1)), arena.keep(weight_of(BLOCK_BYTES, 2))
    assert large.data.data_ptr() % LINE_BYTES == 0
    assert bool((small.data == 1).all())
    assert bool((large.data == 2).all())
