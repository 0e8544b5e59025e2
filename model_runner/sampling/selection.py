"""What a draw needs of whole rows of logits, by whoever is fastest at it."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy
import torch
from numpy.typing import NDArray


@dataclass(frozen=True)
class Largest:
    """Of each row the most likely ids, descending."""

    values: torch.Tensor  # [rows, count] float32
    ids: torch.Tensor  # [rows, count] int64
    log_sums: torch.Tensor | None = None
    """[rows] logarithms of the sums of exp((logit - largest) / temperature) over whole rows, None if not known yet."""


class Selection(Protocol):
    """Reads logits float32 [rows, vocab], whose rows may lie further apart than they are long. Ids of equal logits come in
    any order; callers' results do not depend on it."""

    @property
    def second_counts(self) -> Sequence[int]:
        """With how many to ask for the largest again where the first few did not suffice, before all are sorted."""

    def largest(self, logits: torch.Tensor, count: int, temperature: torch.Tensor) -> Largest:
        """`temperature` is that of each row: [rows] float32, above 0."""

    def contenders(
        self, logits: torch.Tensor, temperature: torch.Tensor, keys: NDArray[numpy.int32]
    ) -> torch.Tensor | None:
        """Ids int64 [rows, any number], ascending until they repeat the first, among which is each row's largest
        logit + temperature * noise(keys [rows, 2], id). None: all ids of the vocabulary must be looked at."""


class TorchSelection:
    """Plain torch, on any device."""

    second_counts: Sequence[int] = ()

    def largest(self, logits: torch.Tensor, count: int, temperature: torch.Tensor) -> Largest:
        values, ids = logits.topk(count, dim=-1)
        return Largest(values, ids)

    def contenders(
        self, logits: torch.Tensor, temperature: torch.Tensor, keys: NDArray[numpy.int32]
    ) -> torch.Tensor | None:
        return None
