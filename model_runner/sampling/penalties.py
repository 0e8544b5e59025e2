"""Frequency, presence and repetition penalties, from counts that are kept as tokens come."""

import numpy
import torch
from numpy.typing import NDArray

from model_runner.device_arrays import ids_to_device, to_device
from model_runner.sampling.dense_rows import DenseRows
from protocol.plan import RowStart


class Penalties:
    """Counts of output ids per slot, and which ids its prompt holds, for the slots that are penalised."""

    def __init__(self, max_slots: int, vocab_size: int, device: torch.device) -> None:
        self._device = device
        self._output_counts = DenseRows(max_slots, vocab_size, torch.float32, device)
        self._prompt_seen = DenseRows(max_slots, vocab_size, torch.bool, device)
        self._frequency = numpy.zeros(max_slots, dtype=numpy.float32)
        self._presence = numpy.zeros(max_slots, dtype=numpy.float32)
        self._repetition = numpy.ones(max_slots, dtype=numpy.float32)

    @property
    def nbytes(self) -> int:
        return self._output_counts.nbytes + self._prompt_seen.nbytes

    def start(self, start: RowStart) -> None:
        sampling = start.sampling
        repeats = sampling.repetition_penalty != 1.0
        if not (repeats or sampling.frequency_penalty or sampling.presence_penalty):
            return
        self._frequency[start.slot] = sampling.frequency_penalty
        self._presence[start.slot] = sampling.presence_penalty
        self._repetition[start.slot] = sampling.repetition_penalty
        counts = self._output_counts.take(start.slot)
        outputs = ids_to_device(start.output_ids, self._device)
        counts.index_add_(0, outputs, torch.ones_like(outputs, dtype=torch.float32))
        if repeats:
            self._prompt_seen.take(start.slot)[ids_to_device(start.prompt_ids, self._device)] = True

    def release(self, slot: int) -> None:
        self._output_counts.release(slot)
        self._prompt_seen.release(slot)

    def any_of(self, slots: NDArray[numpy.int64]) -> bool:
        return self._output_counts.any_of(slots)

    def learn(self, slots: NDArray[numpy.int64], ids: torch.Tensor, valid: torch.Tensor) -> None:
        """Counts ids [draws] of slots [draws] where `valid` [draws]; slots without penalties are passed over."""
        if not self.any_of(slots):
            return
        draws = numpy.flatnonzero(self._output_counts.has(slots))
        rows = self._index(self._output_counts.rows(slots[draws]))
        index = self._index(draws)
        counted = (rows, ids[index].clamp(min=0))
        self._output_counts.matrix.index_put_(counted, valid[index].float(), accumulate=True)

    def apply(self, logits: torch.Tensor, slots: NDArray[numpy.int64]) -> None:
        """Penalises logits [draws, vocab] in place."""
        if not self.any_of(slots):
            return
        draws = numpy.flatnonzero(self._output_counts.has(slots))
        index = self._index(draws)
        penalised = logits[index]
        counts = self._output_counts.matrix[self._index(self._output_counts.rows(slots[draws]))]
        repeating = numpy.flatnonzero(self._prompt_seen.has(slots[draws]))
        if len(repeating):
            at = self._index(repeating)
            repeating_slots = slots[draws[repeating]]
            seen = self._prompt_seen.matrix[self._index(self._prompt_seen.rows(repeating_slots))] | (counts[at] > 0)
            penalised[at] = penalise_repetition(penalised[at], seen, self._column(self._repetition, repeating_slots))
        frequency, presence = self._column(self._frequency, slots[draws]), self._column(self._presence, slots[draws])
        logits[index] = penalise_counts(penalised, counts, frequency, presence)

    def _index(self, values: NDArray[numpy.int64]) -> torch.Tensor:
        return to_device(values, self._device)

    def _column(self, parameter: NDArray[numpy.float32], slots: NDArray[numpy.int64]) -> torch.Tensor:
        return to_device(parameter[slots], self._device)[:, None]


def penalise_repetition(logits: torch.Tensor, seen: torch.Tensor, penalty: torch.Tensor) -> torch.Tensor:
    """Seen ids' logits divided by the penalty if positive, else multiplied (CTRL, arXiv:1909.05858): [rows, vocab]."""
    return torch.where(seen, torch.where(logits > 0, logits / penalty, logits * penalty), logits)


def penalise_counts(
    logits: torch.Tensor, counts: torch.Tensor, frequency: torch.Tensor, presence: torch.Tensor
) -> torch.Tensor:
    """OpenAI's definition: logit - count * frequency - (count > 0) * presence, over output ids: [rows, vocab]."""
    penalised = torch.addcmul(logits, counts, frequency, value=-1)
    return penalised.addcmul_(counts.clamp(max=1), presence, value=-1)
