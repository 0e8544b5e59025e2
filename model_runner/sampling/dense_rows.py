"""A matrix [rows, vocabulary] with rows only for the slots that need one."""

import numpy
import torch
from numpy.typing import NDArray

from model_runner.device_arrays import to_device

NO_ROW = -1


class DenseRows:
    """Rows come and go with slots; the others stay where they are. No slot, no memory.

    The capacity doubles when it is full, and halves when three quarters are unused.
    """

    def __init__(self, max_slots: int, vocab_size: int, dtype: torch.dtype, device: torch.device) -> None:
        self._matrix = torch.zeros(0, vocab_size, dtype=dtype, device=device)
        self._row_of_slot = numpy.full(max_slots, NO_ROW, dtype=numpy.int64)
        self._free: list[int] = []

    @property
    def matrix(self) -> torch.Tensor:
        """[capacity, vocabulary]; rows of no slot hold old values."""
        return self._matrix

    @property
    def nbytes(self) -> int:
        return self._matrix.numel() * self._matrix.element_size()

    def any_of(self, slots: NDArray[numpy.int64]) -> bool:
        """Whether one of the slots has a row."""
        return len(self._free) < self._matrix.shape[0] and bool(self.has(slots).any())

    def has(self, slots: NDArray[numpy.int64]) -> NDArray[numpy.bool_]:
        """Which of the slots have a row: [slots]."""
        return numpy.not_equal(self._row_of_slot[slots], NO_ROW)

    def rows(self, slots: NDArray[numpy.int64]) -> NDArray[numpy.int64]:
        """Matrix rows of slots that have one: [slots]."""
        return self._row_of_slot[slots]

    def take(self, slot: int) -> torch.Tensor:
        """Gives the slot a zeroed row, and returns it as a view: [vocabulary]."""
        assert self._row_of_slot[slot] == NO_ROW, "the slot has a row"
        if not self._free:
            capacity = self._matrix.shape[0]
            self._resize(max(1, 2 * capacity))
            self._free = list(range(self._matrix.shape[0] - 1, capacity - 1, -1))
        row = self._free.pop()
        self._row_of_slot[slot] = row
        return self._matrix[row].zero_()

    def release(self, slot: int) -> None:
        """Takes the slot's row back, if it has one."""
        row = int(self._row_of_slot[slot])
        if row == NO_ROW:
            return
        self._row_of_slot[slot] = NO_ROW
        self._free.append(row)
        capacity = self._matrix.shape[0]
        used = capacity - len(self._free)
        if used * 4 <= capacity:
            self._shrink(used)

    def _resize(self, capacity: int) -> None:
        larger = self._matrix.new_zeros(capacity, self._matrix.shape[1])
        larger[: self._matrix.shape[0]] = self._matrix
        self._matrix = larger

    def _shrink(self, used: int) -> None:
        slots = numpy.flatnonzero(self._row_of_slot != NO_ROW)
        kept = to_device(self._row_of_slot[slots], self._matrix.device)
        smaller = self._matrix.new_zeros(2 * used, self._matrix.shape[1])
        smaller[:used] = self._matrix[kept]
        self._matrix = smaller
        self._row_of_slot[slots] = numpy.arange(used)
        self._free = list(range(2 * used - 1, used - 1, -1))
