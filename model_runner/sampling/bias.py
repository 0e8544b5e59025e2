"""Logit bias, dense and batched: one indexed add for all rows that carry one."""

import numpy
import torch
from numpy.typing import NDArray

from model_runner.device_arrays import to_device
from model_runner.sampling.dense_rows import DenseRows


class LogitBias:
    """A float32 matrix [rows, vocab] that exists only while some running request carries a bias."""

    def __init__(self, max_slots: int, vocab_size: int, device: torch.device) -> None:
        self._rows = DenseRows(max_slots, vocab_size, torch.float32, device)
        self._device = device

    @property
    def nbytes(self) -> int:
        return self._rows.nbytes

    def start(self, slot: int, bias: dict[int, float] | None) -> None:
        if not bias:
            return
        ids = to_device(numpy.array(list(bias), dtype=numpy.int64), self._device)
        values = to_device(numpy.array(list(bias.values()), dtype=numpy.float32), self._device)
        self._rows.take(slot)[ids] = values

    def release(self, slot: int) -> None:
        self._rows.release(slot)

    def any_of(self, slots: NDArray[numpy.int64]) -> bool:
        return self._rows.any_of(slots)

    def apply(self, logits: torch.Tensor, slots: NDArray[numpy.int64]) -> None:
        """Adds to logits [draws, vocab] in place."""
        draws = numpy.flatnonzero(self._rows.has(slots))
        if len(draws):
            rows = to_device(self._rows.rows(slots[draws]), self._device)
            logits.index_add_(0, to_device(draws, self._device), self._rows.matrix[rows])
