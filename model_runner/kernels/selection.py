"""Sampling's searches through whole rows of logits, on the CPU engine's threads."""

import ctypes
from collections.abc import Sequence

import numpy
import torch
from numpy.typing import NDArray

from model_runner.kernels.decoder import CpuDecoder
from model_runner.kernels.library import ContendersStruct, LargestStruct, LogitRowsStruct
from model_runner.sampling.selection import Largest, Selection, TorchSelection
from model_runner.step import CausalModel

MOST_CONTENDERS = 64


class KernelSelection:
    """`Selection` by the library that an engine belongs to."""

    second_counts: Sequence[int] = (4096,)

    def __init__(self, library: ctypes.CDLL, engine: int) -> None:
        self._library = library
        self._engine = engine

    def largest(self, logits: torch.Tensor, count: int, temperature: torch.Tensor) -> Largest:
        rows = logits.shape[0]
        values, ids = torch.empty(rows, count), torch.empty(rows, count, dtype=torch.int64)
        log_sums = torch.empty(rows)
        wanted = LargestStruct(count, values.data_ptr(), ids.data_ptr(), log_sums.data_ptr())
        self._library.candor_largest(self._engine, ctypes.byref(_logit_rows(logits, temperature)), ctypes.byref(wanted))
        return Largest(values, ids, log_sums)

    def contenders(
        self, logits: torch.Tensor, temperature: torch.Tensor, keys: NDArray[numpy.int32]
    ) -> torch.Tensor | None:
        ids = torch.empty(logits.shape[0], MOST_CONTENDERS, dtype=torch.int64)
        counts = numpy.empty(logits.shape[0], dtype=numpy.int32)
        keys = numpy.ascontiguousarray(keys)
        wanted = ContendersStruct(keys.ctypes.data, MOST_CONTENDERS, ids.data_ptr(), counts.ctypes.data)
        self._library.candor_contenders(
            self._engine, ctypes.byref(_logit_rows(logits, temperature)), ctypes.byref(wanted)
        )
        return ids[:, : int(counts.max())] if counts.min() > 0 else None


def _logit_rows(logits: torch.Tensor, temperature: torch.Tensor) -> LogitRowsStruct:
    """The caller keeps both alive."""
    assert logits.stride(1) == 1 and logits.dtype == torch.float32 and temperature.dtype == torch.float32
    rows, vocabulary = logits.shape
    return LogitRowsStruct(logits.data_ptr(), logits.stride(0), rows, vocabulary, temperature.data_ptr())


def choose_selection(model: CausalModel) -> Selection:
    """Who searches the model's logits."""
    if isinstance(model, CpuDecoder):
        return KernelSelection(*model.engine)
    return TorchSelection()
