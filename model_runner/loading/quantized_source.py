"""A checkpoint whose linears are stored quantised, read as if it were not."""

from collections.abc import Collection
from typing import Protocol

import torch

from model_runner.loading.errors import LoadError
from model_runner.loading.source import Region, WeightSource


class Scheme(Protocol):
    """One way to store a weight in parts. Only weights that have these parts are quantised: checkpoints leave some out."""

    def logical_name(self, stored: str) -> str | None:
        """The weight that a stored tensor belongs to: itself for a plain one, None for what nothing needs."""

    def parts(self, name: str, base: WeightSource) -> list[str]:
        """The stored tensors behind a weight; empty if it is stored plainly."""

    def shape(self, name: str, base: WeightSource) -> tuple[int, ...]: ...

    def read(self, name: str, shape: tuple[int, ...], region: Region, base: WeightSource) -> torch.Tensor:
        """Values of a region, in float32 or the dtype of the stored scales."""


class QuantizedSource:
    """Plain tensors from `base`, quantised ones through `scheme`."""

    def __init__(self, base: WeightSource, scheme: Scheme) -> None:
        self._base = base
        self._scheme = scheme

    @property
    def total_bytes(self) -> int:
        return self._base.total_bytes

    def names(self) -> Collection[str]:
        logical = (self._scheme.logical_name(stored) for stored in self._base.names())
        return {name for name in logical if name is not None}

    def has(self, name: str) -> bool:
        return bool(self._scheme.parts(name, self._base)) or self._base.has(name)

    def shape(self, name: str, expected: tuple[int, ...]) -> tuple[int, ...]:
        if self._scheme.parts(name, self._base):
            return self._scheme.shape(name, self._base)
        return self._base.shape(name, expected)

    def read(self, name: str, shape: tuple[int, ...], region: Region) -> torch.Tensor:
        if self._scheme.parts(name, self._base):
            return self._scheme.read(name, shape, region, self._base)
        return self._base.read(name, shape, region)

    def stored_bytes(self, name: str) -> int:
        return sum(self._base.stored_bytes(part) for part in self._scheme.parts(name, self._base) or [name])

    def close(self) -> None:
        self._base.close()


def weight_of_part(stored: str, parts: Collection[str], unread: Collection[str] = ()) -> str | None:
    """The weight behind `owner.part`, None for an unread part, and the name itself for any other tensor."""
    owner, _, part = stored.rpartition(".")
    if part in parts:
        return f"{owner}.weight"
    return None if part in unread else stored


def read_part(base: WeightSource, name: str, shape: tuple[int, ...], region: Region | None = None) -> torch.Tensor:
    """A stored part, which must have this shape."""
    found = base.shape(name, shape)
    if found != shape:
        raise LoadError(f"tensor {name} has shape {list(found)}; its weight asks for {list(shape)}")
    return base.read(name, shape, region or tuple(slice(None) for _ in shape))


def bounds(region: slice, size: int) -> tuple[int, int]:
    """First and last index plus one of a contiguous slice."""
    start, stop, _ = region.indices(size)
    return start, stop


def unpack_words(words: torch.Tensor, bits: int, dim: int) -> torch.Tensor:
    """Unsigned values packed into int32 words, lowest bits first, unpacked along `dim`: uint8 values as int32."""
    per_word = 32 // bits
    shifts = torch.arange(per_word, dtype=torch.int32) * bits
    shape = [1] * (words.dim() + 1)
    shape[dim + 1] = per_word
    values = (words.unsqueeze(dim + 1) >> shifts.view(shape)) & ((1 << bits) - 1)
    return values.flatten(dim, dim + 1)
