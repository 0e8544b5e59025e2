"""Random weights of any asked shape, sane enough to compute with: for benchmarks and tests without a checkpoint."""

import zlib
from collections.abc import Collection

import torch

from model_runner.loading.source import Region

BLOCK = 1_048_573
"""Values drawn per load. A prime, so that rows cut from the repeated block don't line up and repeat."""


class DummySource:
    """Every tensor exists. Its values depend on the seed and its name, not on order or sharding."""

    def __init__(self, seed: int = 0) -> None:
        self._block = torch.randn(BLOCK, generator=torch.Generator().manual_seed(seed))

    @property
    def total_bytes(self) -> int:
        return 0

    def names(self) -> Collection[str]:
        return ()

    def has(self, name: str) -> bool:
        return True

    def shape(self, name: str, expected: tuple[int, ...]) -> tuple[int, ...]:
        return expected

    def read(self, name: str, shape: tuple[int, ...], region: Region) -> torch.Tensor:
        """Matrices of variance 1 / inputs, gains near one, biases near zero."""
        count = 1
        for size in shape:
            count *= size
        start = zlib.crc32(name.encode()) % BLOCK
        repeats = -(-(start + count) // BLOCK)
        values = self._block.repeat(repeats)[start : start + count].view(shape)[region]
        if len(shape) >= 2:
            inputs = shape[-1] if len(shape) == 2 else shape[-2]
            return values * (0.02 if "embed" in name or "lm_head" in name else inputs**-0.5)
        return values * 0.02 + (1.0 if name.endswith("norm.weight") else 0.0)

    def stored_bytes(self, name: str) -> int:
        return 0

    def close(self) -> None: ...
