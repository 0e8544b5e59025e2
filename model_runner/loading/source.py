"""The seam between checkpoints and layers: named tensors, read region by region."""

from collections.abc import Collection
from typing import Protocol, runtime_checkable

import torch

from model_runner.kernels.packing import GroupedWeight

Region = tuple[slice, ...]
"""Which part of a tensor: one slice per dimension, `slice(None)` for all of it."""


class WeightSource(Protocol):
    """An open checkpoint. Names are those of the architecture's published safetensors checkpoints."""

    @property
    def total_bytes(self) -> int:
        """Of all tensors as they will be read, for the progress bar; 0 if unknown."""

    def names(self) -> Collection[str]:
        """Every tensor that there is; empty if any name can be made up (random weights)."""

    def has(self, name: str) -> bool: ...

    def shape(self, name: str, expected: tuple[int, ...]) -> tuple[int, ...]:
        """The tensor's shape. `expected` serves sources that make tensors up. LoadError if there is no such tensor."""

    def read(self, name: str, shape: tuple[int, ...], region: Region) -> torch.Tensor:
        """A region of the tensor, in a floating dtype of the source's choice, on the CPU; `shape` is the whole one's."""

    def stored_bytes(self, name: str) -> int:
        """What the tensor takes in the checkpoint, for the progress bar."""

    def close(self) -> None: ...


@runtime_checkable
class GroupSource(Protocol):
    """A source whose tensors may be stored as groups of 32 small integers."""

    def read_grouped(self, name: str, shape: tuple[int, int], rows: slice) -> GroupedWeight | None:
        """Rows of a tensor as stored, None where its type is another."""
